// cuBLASLt products with pinned algorithms.
#include "gemm.h"

#include <vector>

#include "check.h"
#include "util/error.h"

namespace cbench::cuda {
namespace {

// The row counts that an algorithm is chosen for; it is then used for every row count.
constexpr int64_t kPrefillRows = 8192, kStepRows = 128;
constexpr int kProposals = 16;

/// Whether the sums have a fixed order that no other row has a part in.
bool reproducible(const cublasLtMatmulAlgo_t& algorithm, bool step) {
  uint32_t reduction = 0;
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                       &reduction, sizeof reduction, &written);
  return reduction == CUBLASLT_REDUCTION_SCHEME_NONE ||
         (step && reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

}  // namespace

/// Descriptors of one product: column-major y^T [n, rows] = w [n, k] x^T.
struct Gemm::Layouts {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;

  Layouts(const GemmArguments& a, int64_t rows) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType_t type = a.fp32 ? CUDA_R_32F : CUDA_R_16BF;
    CBENCH_CUDA(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CBENCH_CUDA(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                               sizeof transposed));
    CBENCH_CUDA(cublasLtMatrixLayoutCreate(&w, CUDA_R_16BF, a.k, a.n, a.k));
    CBENCH_CUDA(cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, a.k, rows, a.k));
    CBENCH_CUDA(cublasLtMatrixLayoutCreate(&y, type, a.n, rows, a.y_stride));
  }
  ~Layouts() {
    cublasLtMatrixLayoutDestroy(y);
    cublasLtMatrixLayoutDestroy(x);
    cublasLtMatrixLayoutDestroy(w);
    cublasLtMatmulDescDestroy(operation);
  }
};

Gemm::Gemm(cudaStream_t stream) : stream_(stream) { CBENCH_CUDA(cublasLtCreate(&handle_)); }

Gemm::~Gemm() {
  if (handle_) cublasLtDestroy(handle_);
}

bool Gemm::library_takes(const GemmArguments& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return a.k % 8 == 0 && a.n % 8 == 0 && a.y_stride % 8 == 0 && aligned(a.x) && aligned(a.w) &&
         aligned(a.y);
}

const cublasLtMatmulAlgo_t& Gemm::algorithm(const GemmArguments& a) {
  const Key key{a.n, a.k, a.y_stride, a.fp32, a.accumulate, a.step, choice_};
  const auto known = algorithms_.find(key);
  if (known != algorithms_.end()) return known->second;

  const Layouts layouts(a, a.step ? kStepRows : kPrefillRows);
  cublasLtMatmulPreference_t preference = nullptr;
  const size_t workspace = kWorkspace;
  CBENCH_CUDA(cublasLtMatmulPreferenceCreate(&preference));
  CBENCH_CUDA(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
  // Few rows need split-K to fill the GPU: partial sums in the workspace, added in a fixed order.
  const uint32_t scheme =
      a.step ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
  CBENCH_CUDA(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme));
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(kProposals);
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, layouts.operation, layouts.w, layouts.x, layouts.y,
                                     layouts.y, preference, kProposals, proposals.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  CBENCH_CUDA(status);
  int skip = choice_;
  for (int i = 0; i < found; i++) {
    if (proposals[i].state != CUBLAS_STATUS_SUCCESS || !reproducible(proposals[i].algo, a.step))
      continue;
    if (skip-- > 0) continue;
    return algorithms_.emplace(key, proposals[i].algo).first->second;
  }
  throw EnvironmentError("cublas", "cuBLASLt offers no reproducible algorithm for a product of " +
                                       std::to_string(a.n) + " x " + std::to_string(a.k) +
                                       "; install cuBLAS 13.0 or later");
}

void Gemm::run(const GemmArguments& a) {
  if (a.rows == 0 || a.n == 0) return;
  if (!library_takes(a)) return gemm_any(a, stream_);
  const cublasLtMatmulAlgo_t& chosen = algorithm(a);
  const Layouts layouts(a, a.rows);
  const float alpha = 1, beta = a.accumulate ? 1 : 0;
  CBENCH_CUDA(cublasLtMatmul(handle_, layouts.operation, &alpha, a.w, layouts.w, a.x, layouts.x,
                             &beta, a.y, layouts.y, a.y, layouts.y, &chosen, workspace_, kWorkspace,
                             stream_));
}

}  // namespace cbench::cuda
