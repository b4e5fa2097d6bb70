#include "nibble/client.h"

#include <utility>

#include "client/cpp/src/impl.h"

namespace nibble::client {

namespace health = grpc::health::v1;

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  if (options.max_message_bytes < 4096) {
    return absl::InvalidArgumentError("max_message_bytes: expected at least 4096, received " +
                                      std::to_string(options.max_message_bytes));
  }
  if (options.upload_chunk_bytes < 1) {
    return absl::InvalidArgumentError("upload_chunk_bytes: expected at least 1, received " +
                                      std::to_string(options.upload_chunk_bytes));
  }
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  const ClientOptions& set = impl->options;
  impl->control_token =
      set.control_bearer_token.empty() ? set.bearer_token : set.control_bearer_token;

  auto data = OpenChannel(set, set.address, set.round_robin);
  if (!data.ok()) return data.status();
  impl->data_channel = *data;
  impl->linear = v1::Linear::NewStub(*data);
  impl->data_health = health::Health::NewStub(*data);
  if (!set.control_address.empty()) {
    auto control = OpenChannel(set, set.control_address, false);
    if (!control.ok()) return control.status();
    impl->control_channel = *control;
    impl->weights = v1::Weights::NewStub(*control);
    impl->control_health = health::Health::NewStub(*control);
  }
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

absl::StatusOr<v1::MatmulResponse> Client::Matmul(const v1::MatmulRequest& request,
                                                  const CallOptions& options) {
  v1::MatmulResponse response;
  absl::Status status = impl_->CallRepeatable(Plane::kData, options, [&](auto& context) {
    return impl_->linear->Matmul(&context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::NormQuantResponse> Client::NormQuant(const v1::NormQuantRequest& request,
                                                        const CallOptions& options) {
  v1::NormQuantResponse response;
  absl::Status status = impl_->CallRepeatable(Plane::kData, options, [&](auto& context) {
    return impl_->linear->NormQuant(&context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::SiluMulQuantResponse> Client::SiluMulQuant(
    const v1::SiluMulQuantRequest& request, const CallOptions& options) {
  v1::SiluMulQuantResponse response;
  absl::Status status = impl_->CallRepeatable(Plane::kData, options, [&](auto& context) {
    return impl_->linear->SiluMulQuant(&context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::Status Client::Dequantize(const v1::DequantizeRequest& request,
                                const std::function<absl::Status(v1::DequantizeResponse)>& on_chunk,
                                const CallOptions& options) {
  bool started = false;
  absl::Status stopped;
  absl::Status status = impl_->CallRepeatable(
      Plane::kData, options,
      [&](grpc::ClientContext& context) {
        auto reader = impl_->linear->Dequantize(&context, request);
        v1::DequantizeResponse chunk;
        while (reader->Read(&chunk)) {
          started = true;
          if (stopped = on_chunk(std::move(chunk)); !stopped.ok()) {
            context.TryCancel();
            break;
          }
        }
        return reader->Finish();
      },
      [&] { return !started; });
  return stopped.ok() ? status : stopped;
}

absl::StatusOr<v1::Tensor> Client::DequantizeAll(const v1::DequantizeRequest& request,
                                                 const CallOptions& options) {
  v1::Tensor all;
  int64_t rows = 0;
  const auto append = [&](v1::DequantizeResponse chunk) -> absl::Status {
    const v1::Tensor& part = chunk.rows();
    const bool first = rows == 0 && all.shape_size() == 0;
    if (part.shape_size() != 2 || chunk.row_begin() != request.row_begin() + rows ||
        (!first && (part.shape(1) != all.shape(1) || part.dtype() != all.dtype()))) {
      return absl::InternalError("rows: the server's chunk at row " +
                                 std::to_string(chunk.row_begin()) +
                                 " does not continue the one before");
    }
    rows += part.shape(0);
    if (first) {
      all = std::move(*chunk.mutable_rows());
    } else {
      all.mutable_data()->append(part.data());
    }
    return absl::OkStatus();
  };
  if (absl::Status status = Dequantize(request, append, options); !status.ok()) return status;
  if (all.shape_size() == 2) all.set_shape(0, rows);
  return all;
}

absl::StatusOr<v1::LoadProgress> Client::Load(
    const v1::LoadRequest& request, const std::function<void(const v1::LoadProgress&)>& on_progress,
    const CallOptions& options) {
  v1::LoadProgress last;
  absl::Status status =
      impl_->CallOnce(Plane::kControl, options, [&](grpc::ClientContext& context) {
        auto reader = impl_->weights->Load(&context, request);
        v1::LoadProgress progress;
        while (reader->Read(&progress)) {
          if (on_progress) on_progress(progress);
          last.Swap(&progress);
        }
        return reader->Finish();
      });
  if (!status.ok()) return status;
  if (!last.done())
    return absl::InternalError("the server ended the load without its last message");
  return last;
}

absl::StatusOr<v1::UnloadResponse> Client::Unload(const v1::UnloadRequest& request,
                                                  const CallOptions& options) {
  v1::UnloadResponse response;
  absl::Status status = impl_->CallOnce(Plane::kControl, options, [&](auto& context) {
    return impl_->weights->Unload(&context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::ListResponse> Client::List(const v1::ListRequest& request,
                                              const CallOptions& options) {
  v1::ListResponse response;
  absl::Status status = impl_->CallRepeatable(Plane::kControl, options, [&](auto& context) {
    return impl_->weights->List(&context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::DescribeResponse> Client::Describe(const v1::DescribeRequest& request,
                                                      const CallOptions& options) {
  v1::DescribeResponse response;
  absl::Status status = impl_->CallRepeatable(Plane::kControl, options, [&](auto& context) {
    return impl_->weights->Describe(&context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::ExplainResponse> Client::Explain(const v1::ExplainRequest& request,
                                                    const CallOptions& options) {
  v1::ExplainResponse response;
  absl::Status status = impl_->CallRepeatable(Plane::kControl, options, [&](auto& context) {
    return impl_->weights->Explain(&context, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

}  // namespace nibble::client
