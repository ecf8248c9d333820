// Device memory by cudaMalloc, zeroed.
#include "memory.h"

#include "check.h"

namespace cbench::cuda {
namespace {

constexpr size_t kPacked = size_t{1} << 20;  // smaller blocks share the driver's 2 MiB pieces

}  // namespace

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

size_t DeviceMemory::footprint(size_t bytes) const {
  const size_t step = bytes >= kPacked ? size_t{2} << 20 : 512;
  return (bytes + step - 1) / step * step;
}

int64_t DeviceMemory::available() const {
  size_t free = 0, total = 0;
  CBENCH_CUDA(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

void DeviceMemory::release(void* data, size_t) { cudaFree(data); }

}  // namespace cbench::cuda
