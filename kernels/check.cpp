// Turns CUDA and cuBLAS statuses into messages.
#include "check.h"

#include <cstring>
#include <string>

#include "util/error.h"

namespace cbench::cuda {
namespace {

std::string where(const char* call, const char* file, int line) {
  const char* slash = std::strrchr(file, '/');
  return std::string(slash ? slash + 1 : file) + ":" + std::to_string(line) + ": " + call;
}

}  // namespace

void throw_cuda(cudaError_t error, const char* call, const char* file, int line) {
  const std::string text = where(call, file, line) + ": " + cudaGetErrorName(error) + " (" +
                           cudaGetErrorString(error) + ")";
  switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      throw EnvironmentError("no_gpu", text + "; install an NVIDIA driver for CUDA " +
                                           std::to_string(CUDART_VERSION / 1000) +
                                           " or later, or run on the CPU");
    case cudaErrorMemoryAllocation:
      throw EnvironmentError("out_of_memory",
                             text + "; free the GPU of other processes or use a smaller batch");
    case cudaErrorNoKernelImageForDevice:
      throw EnvironmentError("gpu_arch", text + "; this build has kernels for sm_90a only");
    default:
      throw EnvironmentError("cuda", text + "; the GPU context is lost: start the process again");
  }
}

void throw_cublas(cublasStatus_t status, const char* call, const char* file, int line) {
  // A product that cannot start is often the first to hear of an earlier kernel's fault.
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    throw_cuda(error, call, file, line);
  }
  throw EnvironmentError("cublas", where(call, file, line) + ": " + cublasGetStatusString(status));
}

}  // namespace cbench::cuda
