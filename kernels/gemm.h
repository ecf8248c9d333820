// Matrix products of many rows through cuBLASLt, reproducible whatever the batch.
//
// One algorithm is chosen per weight shape and kind of call, independent of the number of rows and
// with sums in a fixed order, so that a row's result does not depend on what else is in the batch.
// Shapes that the library's tensor core kernels do not take (odd sizes of test models) run a plain
// kernel.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace cbench::cuda {

struct GemmArguments {
  const void* x = nullptr;  ///< [rows, k] BF16
  const void* w = nullptr;  ///< [n, k] BF16
  void* y = nullptr;        ///< [rows, n] BF16 or fp32, rows y_stride elements apart
  int64_t rows = 0, n = 0, k = 0;
  int64_t y_stride = 0;
  bool fp32 = false;        ///< type of y
  bool accumulate = false;  ///< y += instead of y =
  bool step = false;        ///< few rows: tuned for rows <= 256 instead of thousands
};

class Gemm {
 public:
  static constexpr size_t kWorkspace = size_t{32} << 20;

  explicit Gemm(cudaStream_t stream);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void set_workspace(void* data) { workspace_ = data; }
  void run(const GemmArguments& arguments);
  /// Which of the library's proposals to take (0 = first); used by the bench to compare them.
  void set_choice(int choice) { choice_ = choice; }

 private:
  struct Layouts;
  const cublasLtMatmulAlgo_t& algorithm(const GemmArguments& a);
  static bool library_takes(const GemmArguments& a);

  using Key = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, int>;
  cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  int choice_ = 0;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

/// The plain kernel, for any shape.
void gemm_any(const GemmArguments& arguments, cudaStream_t stream);

}  // namespace cbench::cuda
