#include "kernels/cuda/blas.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <span>
#include <string>

#include <cublasLt.h>

#include "fmt/format.h"

namespace nibble::cuda {
namespace {

constexpr const char* kLibrary = "libcublasLt.so.13";

// The functions of the library that are used here.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_get = nullptr;
};

StatusOr<Library> OpenLibrary() {
  // Never closed: it keeps state in the process.
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(fmt::format("cuBLASLt: {}", dlerror()));
  }
  Library library;
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  find(library.create, "cublasLtCreate");
  find(library.destroy, "cublasLtDestroy");
  find(library.matmul, "cublasLtMatmul");
  find(library.desc_create, "cublasLtMatmulDescCreate");
  find(library.desc_destroy, "cublasLtMatmulDescDestroy");
  find(library.desc_set, "cublasLtMatmulDescSetAttribute");
  find(library.layout_create, "cublasLtMatrixLayoutCreate");
  find(library.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(library.preference_create, "cublasLtMatmulPreferenceCreate");
  find(library.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(library.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(library.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(library.algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute");
  if (!missing.empty()) {
    return absl::FailedPreconditionError(fmt::format("cuBLASLt: {} has no {}", kLibrary, missing));
  }
  return library;
}

Status Check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("cuBLASLt: {}: status {}", what, static_cast<int>(status)));
}

cudaDataType_t TypeOf(DType dtype) {
  if (dtype == DType::kF32) return CUDA_R_32F;
  if (dtype == DType::kF8E4M3) return CUDA_R_8F_E4M3;
  return dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

// y^T = w^T x^T with these scales; their pointers are not set.
class Description {
 public:
  explicit Description(const Library& library) : library_(library) {}
  ~Description() {
    if (handle_ != nullptr) library_.desc_destroy(handle_);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  Status Create(BlasScales scales) {
    NIBBLE_RETURN_IF_ERROR(Check(library_.desc_create(&handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                 "cublasLtMatmulDescCreate"));
    NIBBLE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, kTransposed));
    if (scales == BlasScales::kNone || scales == BlasScales::kTensor) return absl::OkStatus();
    const bool rows = scales == BlasScales::kRows;
    const int32_t outer = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const int32_t of_w = rows ? outer : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const int32_t of_x = rows ? outer : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    NIBBLE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, of_w));
    NIBBLE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, of_x));
    // The heuristics ask whether there are scales.
    const void* some = &kTransposed;
    NIBBLE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, some));
    return Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, some);
  }

  template <class T>
  Status Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return Check(library_.desc_set(handle_, attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute");
  }
  cublasLtMatmulDesc_t handle() const { return handle_; }

 private:
  alignas(16) static constexpr cublasOperation_t kTransposed = CUBLAS_OP_T;

  const Library& library_;
  cublasLtMatmulDesc_t handle_ = nullptr;
};

// Descriptors of one problem and the algorithm chosen for it.
class Plan {
 public:
  Plan(const Library& library, const BlasOptions& options, const BlasProblem& problem)
      : library_(library),
        options_(options),
        problem_(problem),
        workspace_bytes_(problem.workspace_bytes > 0 ? problem.workspace_bytes
                                                     : options.workspace_bytes) {}
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : {x_, w_, y_}) {
      if (layout != nullptr) library_.layout_destroy(layout);
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Row-major matrices are transposed column-major ones: y^T [n, m] = w [k, n]^T x^T [k, m].
  Status Create(cublasLtHandle_t handle) {
    const cudaDataType_t input = TypeOf(problem_.input);
    NIBBLE_RETURN_IF_ERROR(desc_.Create(problem_.scales));
    NIBBLE_RETURN_IF_ERROR(Layout(&w_, input, problem_.k, problem_.n, problem_.w_stride));
    NIBBLE_RETURN_IF_ERROR(Layout(&x_, input, problem_.k, problem_.m, problem_.x_stride));
    NIBBLE_RETURN_IF_ERROR(
        Layout(&y_, TypeOf(problem_.output), problem_.n, problem_.m, problem_.y_stride));
    return Choose(handle);
  }

  Status Run(cublasLtHandle_t handle, const void* x, const void* w, void* y, void* workspace,
             cudaStream_t stream) const {
    return Run(handle, desc_, x, w, y, workspace, stream);
  }

  bool found() const { return found_; }

  // Scales are part of a description, and a plan serves many threads: each call makes its own.
  Status RunScaled(cublasLtHandle_t handle, const void* x, const float* x_scales, const void* w,
                   const float* w_scales, void* y, void* workspace, cudaStream_t stream) const {
    Description desc(library_);
    NIBBLE_RETURN_IF_ERROR(desc.Create(problem_.scales));
    NIBBLE_RETURN_IF_ERROR(desc.Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales));
    NIBBLE_RETURN_IF_ERROR(desc.Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales));
    return Run(handle, desc, x, w, y, workspace, stream);
  }

 private:
  Status Run(cublasLtHandle_t handle, const Description& desc, const void* x, const void* w,
             void* y, void* workspace, cudaStream_t stream) const {
    if (!found_) {
      return absl::InternalError(fmt::format("cuBLASLt: no algorithm for a matmul of {}x{}x{}",
                                             problem_.m, problem_.n, problem_.k));
    }
    const float alpha = 1.0f;
    const float beta = problem_.accumulate ? 1.0f : 0.0f;
    return Check(library_.matmul(handle, desc.handle(), &alpha, w, w_, x, x_, &beta, y, y_, y, y_,
                                 &algorithm_, workspace, workspace_bytes_, stream),
                 "cublasLtMatmul");
  }

  Status Layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, int64_t rows, int64_t cols,
                int64_t stride) {
    return Check(library_.layout_create(layout, type, static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(cols), stride),
                 "cublasLtMatrixLayoutCreate");
  }

  Status Choose(cublasLtHandle_t handle) {
    NIBBLE_RETURN_IF_ERROR(Choose(handle, options_.allow_split_k));
    if (found_ || options_.allow_split_k || problem_.scales == BlasScales::kNone) {
      return absl::OkStatus();
    }
    return Choose(handle, true);
  }

  Status Choose(cublasLtHandle_t handle, bool split_k) {
    cublasLtMatmulPreference_t preference = nullptr;
    NIBBLE_RETURN_IF_ERROR(
        Check(library_.preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
    const uint32_t reductions =
        split_k ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_NONE;
    // More than the first are asked for where another may be taken.
    constexpr int kMost = 8;
    constexpr int64_t kFewRows = 127;
    cublasLtMatmulHeuristicResult_t results[kMost] = {};
    const int wanted = problem_.scales == BlasScales::kTensor && problem_.m <= kFewRows ? kMost : 1;
    int found = 0;
    Status status =
        Check(library_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                      &workspace_bytes_, sizeof(workspace_bytes_)),
              "cublasLtMatmulPreferenceSetAttribute");
    if (status.ok()) {
      status = Check(library_.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &reductions, sizeof(reductions)),
                     "cublasLtMatmulPreferenceSetAttribute");
    }
    if (status.ok()) {
      const cublasStatus_t asked = library_.heuristic(handle, desc_.handle(), w_, x_, y_, y_,
                                                      preference, wanted, results, &found);
      if (asked != CUBLAS_STATUS_NOT_SUPPORTED) {
        status = Check(asked, "cublasLtMatmulAlgoGetHeuristic");
      }
    }
    library_.preference_destroy(preference);
    NIBBLE_RETURN_IF_ERROR(status);
    found_ = found > 0;
    algorithm_ = results[Preferred({results, static_cast<size_t>(found)})].algo;
    return absl::OkStatus();
  }

  cublasLtMatmulTile_t TileOf(const cublasLtMatmulHeuristicResult_t& result) const {
    uint32_t tile = CUBLASLT_MATMUL_TILE_UNDEFINED;
    size_t written = 0;
    library_.algorithm_get(&result.algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile),
                           &written);
    return static_cast<cublasLtMatmulTile_t>(tile);
  }

  // The first algorithm; but codes of few rows, which cuBLASLt multiplies in tiles of 256 outputs x
  // 64 rows, are faster in tiles of 128 x 64 where it names them too: they leave no multiprocessor
  // idle (H200, 28672x4096, 64 rows: 39.7 us against 41.9, with the kernel that scales).
  size_t Preferred(std::span<const cublasLtMatmulHeuristicResult_t> results) const {
    if (results.size() < 2 || TileOf(results[0]) != CUBLASLT_MATMUL_TILE_256x64) return 0;
    for (size_t i = 1; i < results.size(); ++i) {
      if (TileOf(results[i]) == CUBLASLT_MATMUL_TILE_128x64) return i;
    }
    return 0;
  }

  const Library& library_;
  const BlasOptions options_;
  const BlasProblem problem_;
  const uint64_t workspace_bytes_;
  Description desc_{library_};
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
  bool found_ = false;
  cublasLtMatmulAlgo_t algorithm_{};
};

class CublasLt final : public Blas {
 public:
  CublasLt(const Library& library, const BlasOptions& options, cublasLtHandle_t handle)
      : library_(library), options_(options), handle_(handle) {}
  ~CublasLt() override {
    plans_.clear();
    library_.destroy(handle_);
  }

  Status Run(const BlasProblem& problem, const void* x, const void* w, void* y, void* workspace,
             cudaStream_t stream) override {
    NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Plan> plan, PlanOf(problem));
    return plan->Run(handle_, x, w, y, workspace, stream);
  }

  StatusOr<bool> Has(const BlasProblem& problem) override {
    NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Plan> plan, PlanOf(problem));
    return plan->found();
  }

  Status RunScaled(const BlasProblem& problem, const void* x, const float* x_scales, const void* w,
                   const float* w_scales, void* y, void* workspace, cudaStream_t stream) override {
    NIBBLE_ASSIGN_OR_RETURN(const std::shared_ptr<const Plan> plan, PlanOf(problem));
    return plan->RunScaled(handle_, x, x_scales, w, w_scales, y, workspace, stream);
  }

 private:
  // Batches have any number of rows: what is kept is bounded.
  static constexpr size_t kMaxPlans = 4096;

  StatusOr<std::shared_ptr<const Plan>> PlanOf(const BlasProblem& problem) {
    const std::lock_guard lock(mutex_);
    if (const auto found = plans_.find(problem); found != plans_.end()) return found->second;
    auto plan = std::make_shared<Plan>(library_, options_, problem);
    NIBBLE_RETURN_IF_ERROR(plan->Create(handle_));
    if (plans_.size() >= kMaxPlans) plans_.clear();
    plans_.emplace(problem, plan);
    return plan;
  }

  const Library library_;
  const BlasOptions options_;
  cublasLtHandle_t handle_;
  std::mutex mutex_;
  std::map<BlasProblem, std::shared_ptr<const Plan>> plans_;
};

}  // namespace

StatusOr<std::unique_ptr<Blas>> OpenBlas(const BlasOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(const Library library, OpenLibrary());
  cublasLtHandle_t handle = nullptr;
  NIBBLE_RETURN_IF_ERROR(Check(library.create(&handle), "cublasLtCreate"));
  return std::make_unique<CublasLt>(library, options, handle);
}

}  // namespace nibble::cuda
