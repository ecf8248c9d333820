// Device memory by cudaMalloc, zeroed.
#include "memory.h"

#include "check.h"

namespace cbench::cuda {

void* DeviceMemory::allocate(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: the arena reports it
    return nullptr;
  }
  CBENCH_CUDA(error);
  CBENCH_CUDA(cudaMemset(data, 0, bytes));
  CBENCH_CUDA(cudaDeviceSynchronize());
  return data;
}

void DeviceMemory::release(void* data, size_t) { cudaFree(data); }

}  // namespace cbench::cuda
