// Streamed weights: copies and compute on two streams, ordered by events both ways.
#include "slots.h"

#include "check.h"
#include "cuda_ops.h"
#include "util/error.h"
#include "util/units.h"

namespace cbench::cuda {
namespace {

constexpr size_t kFenceBytes = 256;

}  // namespace

CopySlots::CopySlots(Arena& arena, cudaStream_t work, const bool& capturing, size_t count,
                     size_t bytes)
    : arena_(arena), work_(work), capturing_(capturing), slots_(count) {
  CBENCH_CUDA(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
  fence_ = arena.allocate(kFenceBytes, Category::kWeights, "fence of streamed weights");
  for (Slot& slot : slots_) {
    slot.data = arena.allocate(bytes, Category::kWeights, "slot of streamed weights");
    CBENCH_CUDA(cudaEventCreateWithFlags(&slot.filled, cudaEventDisableTiming));
    CBENCH_CUDA(cudaEventCreateWithFlags(&slot.left, cudaEventDisableTiming));
  }
}

CopySlots::~CopySlots() {
  cudaStreamSynchronize(copies_);
  cudaStreamSynchronize(work_);
  for (void* host : pinned_) cudaHostUnregister(host);
  for (const Slot& slot : slots_) {
    cudaEventDestroy(slot.filled);
    cudaEventDestroy(slot.left);
    arena_.release(slot.data);
  }
  arena_.release(fence_);
  cudaStreamDestroy(copies_);
}

void CopySlots::pin(void* host, size_t bytes) {
  const cudaError_t error = cudaHostRegister(host, bytes, cudaHostRegisterDefault);
  if (error != cudaSuccess) {
    cudaGetLastError();  // not sticky
    throw EnvironmentError(
        "host_memory", "cannot page-lock " + format_size(static_cast<int64_t>(bytes)) +
                           " of host memory for weights that stream (" + cudaGetErrorString(error) +
                           "); free host memory, or raise the box's limit");
  }
  pinned_.push_back(host);
}

void CopySlots::fill(size_t slot, const void* host, size_t bytes) {
  CBENCH_CUDA(cudaStreamWaitEvent(copies_, slots_[slot].left));  // passes before the first leave()
  CBENCH_CUDA(cudaMemcpyAsync(slots_[slot].data, host, bytes, cudaMemcpyHostToDevice, copies_));
  CBENCH_CUDA(cudaEventRecord(slots_[slot].filled, copies_));
}

void CopySlots::arrive(size_t slot) {
  if (capturing_) throw NotRecordable();
  CBENCH_CUDA(cudaStreamWaitEvent(work_, slots_[slot].filled));
  // Kernels read weights before their predecessor has ended (device.cuh). With something that is no
  // kernel in between, the next one starts after the wait for certain.
  CBENCH_CUDA(cudaMemsetAsync(fence_, 0, kFenceBytes, work_));
}

void CopySlots::leave(size_t slot) { CBENCH_CUDA(cudaEventRecord(slots_[slot].left, work_)); }

std::unique_ptr<Slots> CudaOps::make_slots(size_t count, size_t bytes) {
  return std::make_unique<CopySlots>(arena_, stream_, capturing_, count, bytes);
}

}  // namespace cbench::cuda
