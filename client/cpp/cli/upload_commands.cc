#include "client/cpp/cli/command.h"
#include "client/cpp/cli/flags.h"
#include "client/cpp/cli/quantize_flags.h"
#include "client/cpp/cli/table.h"
#include "client/cpp/cli/tensor_file.h"
#include "fmt/format.h"

namespace nibble::cli {
namespace {

template <typename Strings>
Json StringsJson(const Strings& strings) {
  Json json = Json::array();
  for (const std::string& text : strings) json.push_back(text);
  return json;
}

// Which layers of a checkpoint are loaded, and which of them become one.
class LayerFlags {
 public:
  void AddTo(CLI::App& app) {
    fuse_option_ = AddNamedFlag(
        app, "--fuse", fuse_,
        {{"required", v1::FUSE_REQUIRED}, {"where-possible", v1::FUSE_WHERE_POSSIBLE}},
        "Make one layer of q_proj, k_proj and v_proj, and of gate_proj and up_proj; parts that "
        "cannot be fused exactly are an error, or stay apart");
    layers_option_ = app.add_option(
        "--layers", layers_, "Regular expression; only layers whose name it matches. Repeatable");
  }
  bool given() const { return fuse_option_->count() > 0 || layers_option_->count() > 0; }
  v1::Fuse fuse() const { return fuse_; }
  const std::vector<std::string>& layers() const { return layers_; }

 private:
  CLI::Option* fuse_option_ = nullptr;
  CLI::Option* layers_option_ = nullptr;
  v1::Fuse fuse_ = v1::FUSE_UNSPECIFIED;
  std::vector<std::string> layers_;
};

class LoadCommand final : public Command {
 public:
  explicit LoadCommand(CLI::App& parent)
      : Command(parent, "load", "Load a checkpoint directory that the server can read") {
    app()->add_option("NAME", name_, "Name of the model; layers become NAME/LAYER")->required();
    app()
        ->add_option("PATH", path_, "Directory, relative to the server's --weights-root")
        ->required();
    app()->add_option("--device", device_, "Device for every weight. Default: by free memory");
    quantize_.AddTo(*app());
    layers_.AddTo(*app());
  }

  std::string UsageError() const override { return quantize_.UsageError(); }

  absl::StatusOr<int> Run(const Session& session) override {
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    v1::LoadRequest request;
    request.set_name(name_);
    request.set_path(path_);
    request.set_device(device_);
    if (const auto quantize = quantize_.Message()) *request.mutable_quantize() = *quantize;
    request.set_fuse(layers_.fuse());
    request.mutable_layers()->Assign(layers_.layers().begin(), layers_.layers().end());
    absl::StatusOr<v1::LoadProgress> last;
    {
      Progress progress(session.io(), "load " + name_);
      last = (*client)->Load(
          request,
          [&](const v1::LoadProgress& step) {
            progress.Update(step.bytes_done(), step.bytes_total(),
                            fmt::format("layer {}/{}{}{}", step.layers_done(), step.layers_total(),
                                        step.layer().empty() ? "" : " ", step.layer()));
          },
          session.Call());
    }
    if (!last.ok()) return last.status();
    for (const std::string& notice : last->notices()) session.Note("notice: " + notice);
    session.Print({{"name", name_},
                   {"layers", last->layers_done()},
                   {"bytes", last->bytes_done()},
                   {"notices", StringsJson(last->notices())}},
                  fmt::format("loaded {}: {}, {}\n", name_, Plural(last->layers_done(), "layer"),
                              FormatBytes(last->bytes_done())));
    return 0;
  }

 private:
  std::string name_;
  std::string path_;
  std::string device_;
  QuantizeFlags quantize_;
  LayerFlags layers_;
};

class UploadCommand final : public Command {
 public:
  explicit UploadCommand(CLI::App& parent)
      : Command(parent, "upload", "Send a checkpoint file, or a matrix to be quantized") {
    CLI::App& flags = *app();
    flags.add_option("NAME", name_, "Name of the model (--checkpoint) or weight (--matrix)")
        ->required();
    flags.add_option("--device", device_, "Device. Default: by free memory");
    checkpoint_option_ =
        flags.add_option("--checkpoint", checkpoint_, "safetensors file of a checkpoint");
    config_option_ = flags.add_option(
        "--config", config_, "Its config.json; not needed for bitsandbytes and dense layers");
    matrix_option_ =
        flags.add_option("--matrix", matrix_, "safetensors file that holds the matrix");
    flags.add_option("--tensor", tensor_, "Name of the matrix in --matrix")->capture_default_str();
    quantize_.AddTo(flags);
    layers_.AddTo(flags);
  }

  std::string UsageError() const override {
    const bool checkpoint = checkpoint_option_->count() > 0;
    const bool matrix = matrix_option_->count() > 0;
    if (checkpoint == matrix) return "expected one of --checkpoint and --matrix";
    if (matrix && !quantize_.format().given()) return "--matrix: needs --format";
    if (matrix && config_option_->count() > 0) return "--config: needs --checkpoint";
    if (matrix && !quantize_.include().empty()) return "--include: needs --checkpoint";
    if (matrix && !quantize_.exclude().empty()) return "--exclude: needs --checkpoint";
    if (matrix && layers_.given()) return "--fuse, --layers: need --checkpoint";
    return quantize_.UsageError();
  }

  absl::StatusOr<int> Run(const Session& session) override {
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    absl::StatusOr<v1::UploadResponse> reply;
    {
      Progress progress(session.io(), "upload " + name_);
      const client::UploadProgress on_progress = [&](int64_t done, int64_t total) {
        progress.Update(done, total, "");
      };
      reply = checkpoint_option_->count() > 0
                  ? SendCheckpoint(**client, on_progress, session.Call())
                  : SendMatrix(**client, on_progress, session.Call());
    }
    if (!reply.ok()) return reply.status();
    for (const std::string& notice : reply->notices()) session.Note("notice: " + notice);
    std::string text;
    for (const std::string& weight : reply->weights()) text += "ready " + weight + "\n";
    session.Print({{"name", name_},
                   {"weights", StringsJson(reply->weights())},
                   {"notices", StringsJson(reply->notices())}},
                  text);
    return 0;
  }

 private:
  absl::StatusOr<v1::UploadResponse> SendCheckpoint(client::Client& client,
                                                    const client::UploadProgress& on_progress,
                                                    const client::CallOptions& call) const {
    client::CheckpointUploadOptions upload;
    upload.name = name_;
    upload.device = device_;
    upload.fuse = layers_.fuse();
    upload.layers = layers_.layers();
    if (config_option_->count() > 0) {
      absl::StatusOr<std::string> config = ReadTextFile(config_);
      if (!config.ok()) return config.status();
      upload.config_json = *std::move(config);
    }
    upload.quantize = quantize_.Message();
    return client.UploadCheckpointFile(upload, checkpoint_, on_progress, call);
  }

  absl::StatusOr<v1::UploadResponse> SendMatrix(client::Client& client,
                                                const client::UploadProgress& on_progress,
                                                const client::CallOptions& call) const {
    const absl::StatusOr<v1::Tensor> tensor = ReadTensor(matrix_, tensor_);
    if (!tensor.ok()) return tensor.status();
    client::MatrixUploadOptions upload;
    upload.name = name_;
    upload.device = device_;
    upload.dtype = tensor->dtype();
    upload.shape.assign(tensor->shape().begin(), tensor->shape().end());
    upload.target = quantize_.format().Spec();
    const std::string& data = tensor->data();
    return client.UploadMatrix(upload, std::as_bytes(std::span(data.data(), data.size())),
                               on_progress, call);
  }

  std::string name_;
  std::string device_;
  CLI::Option* checkpoint_option_ = nullptr;
  std::string checkpoint_;
  CLI::Option* config_option_ = nullptr;
  std::string config_;
  CLI::Option* matrix_option_ = nullptr;
  std::string matrix_;
  std::string tensor_ = "weight";
  QuantizeFlags quantize_;
  LayerFlags layers_;
};

}  // namespace

void AddUploadCommands(CLI::App& parent, Commands& commands) {
  commands.push_back(std::make_unique<LoadCommand>(parent));
  commands.push_back(std::make_unique<UploadCommand>(parent));
}

}  // namespace nibble::cli
