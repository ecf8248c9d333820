// One error path for CUDA and cuBLAS calls: the call, its place, the error's name, and what to do.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

namespace cbench::cuda {

[[noreturn]] void throw_cuda(cudaError_t error, const char* call, const char* file, int line);
[[noreturn]] void throw_cublas(cublasStatus_t status, const char* call, const char* file, int line);

inline void check(cudaError_t error, const char* call, const char* file, int line) {
  if (error != cudaSuccess) throw_cuda(error, call, file, line);
}
inline void check(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status != CUBLAS_STATUS_SUCCESS) throw_cublas(status, call, file, line);
}

}  // namespace cbench::cuda

/// Throws EnvironmentError ("cuda", "cublas", "out_of_memory", "no_gpu") unless the call succeeds.
#define CBENCH_CUDA(call) ::cbench::cuda::check((call), #call, __FILE__, __LINE__)
