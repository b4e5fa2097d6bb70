#include <algorithm>
#include <bit>
#include <cmath>

#include "client/cpp/cli/command.h"
#include "client/cpp/cli/execution_info.h"
#include "client/cpp/cli/flags.h"
#include "client/cpp/cli/quant_check.h"
#include "client/cpp/cli/table.h"
#include "client/cpp/cli/tensor_file.h"
#include "fmt/format.h"

namespace nibble::cli {
namespace {

// What both commands take, and how they end.
class QuantCommand : public Command {
 protected:
  QuantCommand(CLI::App& parent, const std::string& name, const std::string& description,
               const std::string& x_description)
      : Command(parent, name, description) {
    CLI::App& flags = *app();
    flags.add_option("--in", in_, "safetensors file of x")->required();
    flags.add_option("--tensor", tensor_, "Name of x in --in, " + x_description)
        ->capture_default_str();
    flags
        .add_option("--rows", rows_, "First so many rows of x; past its last, from the first again")
        ->check(CLI::NonNegativeNumber);
    AddNamedFlag(flags, "--quant", mode_, QuantModeFlags(), "How y is quantized. Default none");
    AddNamedFlag(flags, "--dtype", dtype_, DTypeFlags(), "Type of the codes. Default f8_e4m3",
                 {v1::DTYPE_F8_E4M3, v1::DTYPE_I8});
    scale_option_ = flags.add_option("--static-scale", static_scale_, "Scale for --quant static")
                        ->check(CLI::PositiveNumber);
    flags.add_option("--out", out_,
                     "safetensors file for \"y\", \"scales\" and \"residual\", those there are");
    flags.add_flag("--check", check_,
                   "Recompute the result on this host and compare; exit 1 when it differs");
  }

  std::string UsageError() const override {
    const bool is_static = mode_ == v1::QUANT_MODE_STATIC;
    if (is_static && scale_option_->count() == 0) return "--quant static: needs --static-scale";
    if (!is_static && scale_option_->count() > 0) return "--static-scale: needs --quant static";
    return "";
  }

  v1::OutputQuant Quant() const {
    v1::OutputQuant quant;
    quant.set_mode(mode_);
    quant.set_dtype(dtype_);
    quant.set_static_scale(static_scale_);
    return quant;
  }

  absl::StatusOr<v1::Tensor> ReadRows(const std::string& name) const {
    absl::StatusOr<v1::Tensor> tensor = ReadTensor(in_, name);
    if (!tensor.ok() || rows_ < 0) return tensor;
    return RepeatRows(*tensor, rows_);
  }

  // Writes, prints, and answers with the exit code. `report` is null without --check, `error` is
  // what else the check found.
  template <typename Response>
  absl::StatusOr<int> Finish(const Session& session, const Response& reply,
                             const v1::Tensor* residual, int64_t wall_us, const QuantReport* report,
                             const std::string& error) const {
    std::vector<NamedTensor> tensors = {{"y", reply.y()}};
    Json document = {{"shape", ShapeJson(reply.y())},
                     {"dtype", client::DTypeName(reply.y().dtype())},
                     {"info", InfoJson(reply.info(), wall_us)}};
    auto pairs = InfoPairs(reply.info(), wall_us);
    pairs.insert(pairs.begin(), {"y", ShapeText(reply.y())});
    if (reply.has_scales()) {
      tensors.push_back({"scales", reply.scales()});
      document["scales_shape"] = ShapeJson(reply.scales());
      pairs.insert(pairs.begin() + 1, {"scales", ShapeText(reply.scales())});
    }
    if (residual != nullptr) tensors.push_back({"residual", *residual});
    if (!out_.empty()) {
      if (absl::Status status = WriteTensors(out_, tensors); !status.ok()) return status;
      document["out"] = out_;
      pairs.emplace_back("written to", out_);
    }
    std::string wrong = error;
    if (report != nullptr) {
      document["check"] = report->ToJson();
      if (!error.empty()) {
        document["check"]["ok"] = false;
        document["check"]["error"] = error;
      }
      pairs.emplace_back("check", report->Text());
      if (wrong.empty() && !report->ok()) wrong = "y: " + report->Text();
    }
    session.Print(document, FormatPairs(pairs));
    return wrong.empty() ? 0 : session.Mismatch(wrong);
  }

  std::string in_;
  std::string tensor_ = "x";
  int64_t rows_ = -1;
  v1::QuantMode mode_ = v1::QUANT_MODE_NONE;
  v1::DType dtype_ = v1::DTYPE_UNSPECIFIED;
  CLI::Option* scale_option_ = nullptr;
  float static_scale_ = 0.0f;
  std::string out_;
  bool check_ = false;
};

class NormQuantCommand final : public QuantCommand {
 public:
  explicit NormQuantCommand(CLI::App& parent)
      : QuantCommand(parent, "norm-quant", "Residual add, RMSNorm and quantization in one pass",
                     "[M, d]") {
    CLI::App& flags = *app();
    residual_option_ =
        flags.add_option("--residual-tensor", residual_, "Name in --in of what is added to x");
    gamma_weight_option_ =
        flags.add_option("--gamma-weight", gamma_weight_, "Gamma: name of a resident vector");
    gamma_tensor_option_ = flags.add_option(
        "--gamma-tensor", gamma_tensor_,
        "Gamma: name of a vector in --gamma-file; with --gamma-weight it serves --check alone");
    flags.add_option("--gamma-file", gamma_file_, "safetensors file of gamma. Default: --in");
    flags.add_option("--epsilon", epsilon_, "Added to the mean of squares")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
  }

  std::string UsageError() const override {
    if (gamma_weight_option_->count() == 0 && gamma_tensor_option_->count() == 0) {
      return "expected --gamma-weight or --gamma-tensor";
    }
    return QuantCommand::UsageError();
  }

  absl::StatusOr<int> Run(const Session& session) override {
    v1::NormQuantRequest request;
    *request.mutable_quant() = Quant();
    request.set_epsilon(epsilon_);
    absl::StatusOr<v1::Tensor> x = ReadRows(tensor_);
    if (!x.ok()) return x.status();
    *request.mutable_x() = *std::move(x);
    if (residual_option_->count() > 0) {
      absl::StatusOr<v1::Tensor> residual = ReadRows(residual_);
      if (!residual.ok()) return residual.status();
      *request.mutable_residual() = *std::move(residual);
    }
    absl::StatusOr<v1::Tensor> gamma = v1::Tensor();
    if (gamma_tensor_option_->count() > 0) {
      gamma = ReadTensor(gamma_file_.empty() ? in_ : gamma_file_, gamma_tensor_);
      if (!gamma.ok()) return gamma.status();
    }
    if (gamma_weight_option_->count() > 0) {
      request.set_gamma_weight(gamma_weight_);
    } else {
      *request.mutable_gamma_inline() = *gamma;
    }
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    const Stopwatch watch;
    const auto reply = (*client)->NormQuant(request, session.Call());
    const int64_t wall_us = watch.ElapsedMicros();
    if (!reply.ok()) return reply.status();
    const v1::Tensor* residual = reply->has_residual() ? &reply->residual() : nullptr;
    if (!check_) return Finish(session, *reply, residual, wall_us, nullptr, "");

    if (gamma_tensor_option_->count() == 0) {
      v1::DequantizeRequest decode;
      decode.set_weight(gamma_weight_);
      gamma = (*client)->DequantizeAll(decode, session.Call());
      if (!gamma.ok()) return gamma.status();
    }
    const auto values = client::FloatsFromTensor(*gamma);
    if (!values.ok()) return values.status();
    const auto reference = ReferenceNorm(
        request.x(), request.has_residual() ? &request.residual() : nullptr, *values, epsilon_);
    if (!reference.ok()) return reference.status();
    const auto report = CheckQuantized(reference->v, request.quant(), reply->y(), reply->scales());
    if (!report.ok()) return report.status();
    return Finish(session, *reply, residual, wall_us, &*report,
                  ResidualError(request, *reference, residual));
  }

 private:
  // The residual that comes back is x + residual, one rounding: equal bit for bit.
  static std::string ResidualError(const v1::NormQuantRequest& request,
                                   const NormReference& reference, const v1::Tensor* received) {
    if (request.has_residual() != (received != nullptr)) {
      return request.has_residual() ? "residual: expected one, received none"
                                    : "residual: expected none, received one";
    }
    if (received == nullptr) return "";
    const auto values = client::FloatsFromTensor(*received);
    const std::vector<float>& expected = reference.h.values;
    const auto same = [](float a, float b) {
      return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
             (std::isnan(a) && std::isnan(b));
    };
    if (values.ok() && received->dtype() == reference.h.dtype &&
        std::equal(values->begin(), values->end(), expected.begin(), expected.end(), same)) {
      return "";
    }
    return "residual: differs from x + residual rounded once";
  }

  CLI::Option* residual_option_ = nullptr;
  std::string residual_;
  CLI::Option* gamma_weight_option_ = nullptr;
  std::string gamma_weight_;
  CLI::Option* gamma_tensor_option_ = nullptr;
  std::string gamma_tensor_;
  std::string gamma_file_;
  float epsilon_ = 1e-6f;
};

class SiluMulQuantCommand final : public QuantCommand {
 public:
  explicit SiluMulQuantCommand(CLI::App& parent)
      : QuantCommand(parent, "silu-mul-quant", "silu(gate) * up and quantization in one pass",
                     "[M, 2d], gate before up") {}

  std::string UsageError() const override { return QuantCommand::UsageError(); }

  absl::StatusOr<int> Run(const Session& session) override {
    v1::SiluMulQuantRequest request;
    *request.mutable_quant() = Quant();
    absl::StatusOr<v1::Tensor> x = ReadRows(tensor_);
    if (!x.ok()) return x.status();
    *request.mutable_x() = *std::move(x);
    auto client = session.Connect();
    if (!client.ok()) return client.status();
    const Stopwatch watch;
    const auto reply = (*client)->SiluMulQuant(request, session.Call());
    const int64_t wall_us = watch.ElapsedMicros();
    if (!reply.ok()) return reply.status();
    if (!check_) return Finish(session, *reply, nullptr, wall_us, nullptr, "");
    const auto reference = ReferenceSiluMul(request.x());
    if (!reference.ok()) return reference.status();
    const auto report = CheckQuantized(*reference, request.quant(), reply->y(), reply->scales());
    if (!report.ok()) return report.status();
    return Finish(session, *reply, nullptr, wall_us, &*report, "");
  }
};

}  // namespace

void AddQuantCommands(CLI::App& parent, Commands& commands) {
  commands.push_back(std::make_unique<NormQuantCommand>(parent));
  commands.push_back(std::make_unique<SiluMulQuantCommand>(parent));
}

}  // namespace nibble::cli
