#include <charconv>

#include "client/cpp/cli/check.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/cli/execution_info.h"
#include "client/cpp/cli/flags.h"
#include "client/cpp/cli/quant_check.h"
#include "client/cpp/cli/table.h"
#include "client/cpp/cli/tensor_file.h"
#include "fmt/format.h"

namespace nibble::cli {
namespace {

// code * scale of an x that was sent quantized, with scales [M, G] or one for all.
absl::StatusOr<Matrix> Scaled(const v1::Tensor& x, const v1::Tensor& scales) {
  absl::StatusOr<Matrix> codes = MatrixOf(x);
  if (!codes.ok()) return codes.status();
  const absl::StatusOr<std::vector<float>> values = client::FloatsFromTensor(scales);
  if (!values.ok()) return values.status();
  const auto count = static_cast<int64_t>(values->size());
  if (count == 0 || (count != 1 && codes->rows > 0 && count % codes->rows != 0)) {
    return absl::InvalidArgumentError(
        fmt::format("scales: expected 1 or a multiple of {}, received {}", codes->rows, count));
  }
  const int64_t groups = count == 1 ? 1 : count / std::max<int64_t>(codes->rows, 1);
  const int64_t group_cols = groups == 1 ? std::max<int64_t>(codes->cols, 1) : 128;
  for (int64_t row = 0; row < codes->rows; ++row) {
    for (int64_t col = 0; col < codes->cols; ++col) {
      const int64_t index = count == 1 ? 0 : row * groups + std::min(col / group_cols, groups - 1);
      codes->values[static_cast<size_t>(row * codes->cols + col)] *=
          (*values)[static_cast<size_t>(index)];
    }
  }
  return codes;
}

class MatmulCommand final : public Command {
 public:
  explicit MatmulCommand(CLI::App& parent)
      : Command(parent, "matmul",
                "Multiply rows of a file by a resident weight: y = x W^T + bias") {
    CLI::App& flags = *app();
    flags.add_option("WEIGHT", weight_, "Name of the weight")->required();
    flags.add_option("--in", in_, "safetensors file of x")->required();
    flags.add_option("--tensor", tensor_, "Name of x in --in")->capture_default_str();
    flags
        .add_option("--scales-tensor", scales_tensor_,
                    "Name in --in of the F32 scales of an F8_E4M3 x")
        ->capture_default_str();
    flags
        .add_option("--rows", rows_, "First so many rows of x; past its last, from the first again")
        ->check(CLI::NonNegativeNumber);
    AddNamedFlag(flags, "--output-dtype", output_dtype_, DTypeFlags(), "Type of y. Default: of x",
                 {v1::DTYPE_F32, v1::DTYPE_F16, v1::DTYPE_BF16});
    AddNamedFlag(flags, "--activation-quant", quant_, QuantModeFlags(),
                 "Quantize x for an FP8 weight. Default none");
    flags.add_flag("--stream", stream_, "Send the request over a stream");
    flags.add_option("--out", out_, "safetensors file for y, under the name \"y\"");
    expect_ = flags.add_option("--expect", expect_file_,
                               "Compare y with a tensor of this safetensors file, in a tolerance "
                               "derived from K and the norms of the rows; exit 1 when out of it");
    flags.add_option("--expect-tensor", expect_tensor_, "Name of it")->capture_default_str();
    weight_file_option_ = flags.add_option(
        "--weight-file", weight_file_,
        "Take the decoded weight, which the tolerance needs, from this file. Default: from the "
        "server");
    flags.add_option("--weight-tensor", weight_tensor_, "Name of it in --weight-file")
        ->capture_default_str();
  }

  std::string UsageError() const override {
    const bool without = weight_file_option_->count() > 0 && expect_->count() == 0;
    return without ? "--weight-file: needs --expect" : "";
  }

  absl::StatusOr<int> Run(const Session& session) override {
    v1::MatmulRequest request;
    if (absl::Status status = FillRequest(request); !status.ok()) return status;
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    const Stopwatch watch;
    const auto reply = stream_ ? OverStream(**client, request, session.Call())
                               : (*client)->Matmul(request, session.Call());
    const int64_t wall_us = watch.ElapsedMicros();
    if (!reply.ok()) return reply.status();
    if (!out_.empty()) {
      if (absl::Status status = WriteTensors(out_, {{"y", reply->y()}}); !status.ok())
        return status;
    }
    Json document = {{"weight", weight_},
                     {"shape", ShapeJson(reply->y())},
                     {"dtype", client::DTypeName(reply->y().dtype())},
                     {"info", InfoJson(reply->info(), wall_us)}};
    auto pairs = InfoPairs(reply->info(), wall_us);
    pairs.insert(pairs.begin(), {"y", ShapeText(reply->y())});
    if (!out_.empty()) {
      document["out"] = out_;
      pairs.emplace_back("written to", out_);
    }
    if (expect_->count() == 0) {
      session.Print(document, FormatPairs(pairs));
      return 0;
    }
    const auto check = Check(session, **client, request, *reply);
    if (!check.ok()) return check.status();
    document["check"] = check->ToJson();
    pairs.emplace_back("check", check->Text());
    session.Print(document, FormatPairs(pairs));
    return check->ok() ? 0 : session.Mismatch("y: " + check->Text());
  }

 private:
  static absl::StatusOr<v1::MatmulResponse> OverStream(client::Client& client,
                                                       const v1::MatmulRequest& request,
                                                       client::CallOptions call) {
    // A stream has no deadline of its own.
    if (!call.deadline) call.deadline = client::ClientOptions{}.deadline;
    const auto stream = client.OpenMatmulStream(call);
    // Where these fail, Receive has the reason.
    stream->Send(request).IgnoreError();
    stream->Close().IgnoreError();
    auto reply = stream->Receive();
    if (!reply.ok()) return reply.status();
    if (!reply->has_value()) return absl::InternalError("the stream ended without a reply");
    const auto end = stream->Receive();
    if (!end.ok()) return end.status();
    if ((*reply)->has_error()) {
      const v1::RequestError& error = (*reply)->error();
      return absl::Status(static_cast<absl::StatusCode>(error.code()), error.message());
    }
    return std::move(*(*reply)->mutable_result());
  }

  absl::Status FillRequest(v1::MatmulRequest& request) const {
    request.set_weight(weight_);
    request.set_output_dtype(output_dtype_);
    request.set_activation_quant(quant_);
    absl::StatusOr<v1::Tensor> x = ReadTensor(in_, tensor_);
    if (!x.ok()) return x.status();
    const int64_t stored_rows = ExtentOf(*x).rows;
    if (rows_ >= 0) {
      x = RepeatRows(*x, rows_);
      if (!x.ok()) return x.status();
    }
    if (x->dtype() == v1::DTYPE_F8_E4M3) {
      absl::StatusOr<v1::Tensor> scales = ReadTensor(in_, scales_tensor_);
      if (!scales.ok()) return scales.status();
      if (rows_ >= 0 && scales->shape_size() == 1 && scales->shape(0) == stored_rows &&
          stored_rows > 1) {
        scales->add_shape(1);  // one scale a row: a column, not a row
      }
      if (rows_ >= 0 && scales->shape_size() == 2) scales = RepeatRows(*scales, rows_);
      if (!scales.ok()) return scales.status();
      *request.mutable_x_scales() = *std::move(scales);
    }
    *request.mutable_x() = *std::move(x);
    return absl::OkStatus();
  }

  // x as the product sees it: its codes times their scales where it is quantized.
  absl::StatusOr<Matrix> UsedActivations(const Session& session, client::Client& client,
                                         const Matrix& x) const {
    float scale = 1.0f;
    if (quant_ == v1::QUANT_MODE_STATIC) {
      v1::DescribeRequest describe;
      describe.set_name(weight_);
      const auto described = client.Describe(describe, session.Call());
      if (!described.ok()) return described.status();
      scale = described->input_scale();
    }
    return QuantizedActivations(x, quant_, scale);
  }

  absl::StatusOr<MatmulCheck> Check(const Session& session, client::Client& client,
                                    const v1::MatmulRequest& request,
                                    const v1::MatmulResponse& reply) const {
    const bool sent_quantized = request.x().dtype() == v1::DTYPE_F8_E4M3;
    const absl::StatusOr<Matrix> x =
        sent_quantized ? Scaled(request.x(), request.x_scales()) : MatrixOf(request.x());
    if (!x.ok()) return x.status();
    const absl::StatusOr<Matrix> used = UsedActivations(session, client, *x);
    if (!used.ok()) return used.status();
    const absl::StatusOr<Matrix> expected = ReadMatrix(expect_file_, expect_tensor_);
    if (!expected.ok()) return expected.status();
    absl::StatusOr<MatmulCheck> check = MatmulCheck::Create(*x, *used, reply.y(), *expected);
    if (!check.ok()) return check;
    const absl::Status status =
        weight_file_.empty() ? AddFromServer(session, client, *check) : AddFromFile(*check);
    if (!status.ok()) return status;
    return check;
  }

  absl::Status AddFromServer(const Session& session, client::Client& client,
                             MatmulCheck& check) const {
    v1::DequantizeRequest request;
    request.set_weight(weight_);
    request.set_dtype(v1::DTYPE_F32);
    return client.Dequantize(
        request,
        [&](const v1::DequantizeResponse& chunk) -> absl::Status {
          const auto values = client::FloatsFromTensor(chunk.rows());
          if (!values.ok()) return values.status();
          const Extent extent = ExtentOf(chunk.rows());
          return AddRows(check, chunk.row_begin(), extent, *values);
        },
        session.Call());
  }

  absl::Status AddFromFile(MatmulCheck& check) const {
    const auto matrix = ReadMatrix(weight_file_, weight_tensor_);
    if (!matrix.ok()) return matrix.status();
    const std::vector<float> values(matrix->values.begin(), matrix->values.end());
    return AddRows(check, 0, {matrix->rows, matrix->cols}, values);
  }

  static absl::Status AddRows(MatmulCheck& check, int64_t begin, const Extent& extent,
                              std::span<const float> values) {
    for (int64_t row = 0; row < extent.rows; ++row) {
      const auto w =
          values.subspan(static_cast<size_t>(row * extent.cols), static_cast<size_t>(extent.cols));
      if (absl::Status status = check.AddWeightRow(begin + row, w); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  std::string weight_;
  std::string in_;
  std::string tensor_ = "x";
  std::string scales_tensor_ = "x_scales";
  int64_t rows_ = -1;
  v1::DType output_dtype_ = v1::DTYPE_UNSPECIFIED;
  v1::QuantMode quant_ = v1::QUANT_MODE_NONE;
  bool stream_ = false;
  std::string out_;
  CLI::Option* expect_ = nullptr;
  std::string expect_file_;
  std::string expect_tensor_ = "y";
  CLI::Option* weight_file_option_ = nullptr;
  std::string weight_file_;
  std::string weight_tensor_ = "weight";
};

// "A:B", "A:", ":B" into [begin, end), end -1 for the last row; an error text otherwise.
std::string ParseRange(const std::string& text, int64_t& begin, int64_t& end) {
  const std::string wrong = "expected A:B, the rows A to B - 1, received " + text;
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return wrong;
  const auto number = [&](std::string_view part, int64_t missing, int64_t& value) {
    value = missing;
    if (part.empty()) return true;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && rest == part.data() + part.size() && value >= 0;
  };
  const std::string_view view = text;
  if (!number(view.substr(0, colon), 0, begin) || !number(view.substr(colon + 1), -1, end)) {
    return wrong;
  }
  return end == -1 || end > begin ? "" : wrong;
}

class DequantCommand final : public Command {
 public:
  explicit DequantCommand(CLI::App& parent)
      : Command(parent, "dequant", "Fetch rows of a decoded weight") {
    CLI::App& flags = *app();
    flags.add_option("WEIGHT", weight_, "Name of the weight")->required();
    flags.add_option("--rows", range_, "Rows A:B, B not included. Default: all")
        ->check([this](const std::string& text) { return ParseRange(text, begin_, end_); })
        ->type_name("A:B");
    AddNamedFlag(flags, "--dtype", dtype_, DTypeFlags(),
                 "Type of the rows. Default: what the checkpoint decodes to",
                 {v1::DTYPE_F32, v1::DTYPE_F16, v1::DTYPE_BF16});
    flags.add_option("--out", out_, "safetensors file for the rows, under the name \"weight\"");
    expect_ = flags.add_option("--expect", expect_file_,
                               "Compare bit for bit with a tensor of this safetensors file; exit 1 "
                               "at a difference");
    flags.add_option("--expect-tensor", expect_tensor_, "Name of it")->capture_default_str();
    flags.add_flag("--allow-signed-zero", allow_signed_zero_, "-0 and +0 are equal");
  }

  absl::StatusOr<int> Run(const Session& session) override {
    std::optional<BitCheck> check;
    if (expect_->count() > 0) {
      absl::StatusOr<v1::Tensor> stored = ReadTensor(expect_file_, expect_tensor_);
      if (!stored.ok()) return stored.status();
      check.emplace(*std::move(stored), allow_signed_zero_);
    }
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    v1::DequantizeRequest request;
    request.set_weight(weight_);
    request.set_row_begin(begin_);
    request.set_row_count(end_ == -1 ? 0 : end_ - begin_);
    request.set_dtype(dtype_);
    const Stopwatch watch;
    const absl::StatusOr<v1::Tensor> rows = (*client)->DequantizeAll(request, session.Call());
    const int64_t wall_us = watch.ElapsedMicros();
    if (!rows.ok()) return rows.status();
    if (!out_.empty()) {
      if (absl::Status status = WriteTensors(out_, {{"weight", *rows}}); !status.ok())
        return status;
    }
    if (check) {
      if (absl::Status status = check->AddRows(begin_, *rows); !status.ok()) return status;
    }
    Print(session, *rows, wall_us, check);
    return !check || check->ok() ? 0 : session.Mismatch("weight: " + check->Text());
  }

 private:
  void Print(const Session& session, const v1::Tensor& rows, int64_t wall_us,
             const std::optional<BitCheck>& check) const {
    const auto bytes = static_cast<int64_t>(rows.data().size());
    Json document = {{"weight", weight_},        {"row_begin", begin_},
                     {"shape", ShapeJson(rows)}, {"dtype", client::DTypeName(rows.dtype())},
                     {"bytes", bytes},           {"wall_us", wall_us}};
    std::vector<std::pair<std::string, std::string>> pairs = {
        {"rows", fmt::format("{} from row {}", ShapeText(rows), begin_)},
        {"bytes", FormatBytes(bytes)},
        {"wall", FormatMicros(static_cast<double>(wall_us))}};
    if (!out_.empty()) {
      document["out"] = out_;
      pairs.emplace_back("written to", out_);
    }
    if (check) {
      document["check"] = check->ToJson();
      pairs.emplace_back("check", check->Text());
    }
    session.Print(document, FormatPairs(pairs));
  }

  std::string weight_;
  std::string range_;
  int64_t begin_ = 0;
  int64_t end_ = -1;
  v1::DType dtype_ = v1::DTYPE_UNSPECIFIED;
  std::string out_;
  CLI::Option* expect_ = nullptr;
  std::string expect_file_;
  std::string expect_tensor_ = "weight";
  bool allow_signed_zero_ = false;
};

}  // namespace

void AddLinearCommands(CLI::App& parent, Commands& commands) {
  commands.push_back(std::make_unique<MatmulCommand>(parent));
  commands.push_back(std::make_unique<DequantCommand>(parent));
}

}  // namespace nibble::cli
