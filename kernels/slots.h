// Slots of device memory that a stream of their own fills from page-locked host memory while the
// ops' stream computes.
#pragma once

#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/ops.h"

namespace cbench::cuda {

class CopySlots final : public Slots {
 public:
  /// `work` is the ops' stream; `capturing` is true while work on it is recorded: then arrive()
  /// throws NotRecordable, since a graph cannot wait for copies that were begun outside of it.
  CopySlots(Arena& arena, cudaStream_t work, const bool& capturing, size_t count, size_t bytes);
  ~CopySlots() override;
  CopySlots(const CopySlots&) = delete;
  CopySlots& operator=(const CopySlots&) = delete;

  void* data(size_t slot) override { return slots_[slot].data; }
  void pin(void* host, size_t bytes) override;
  void fill(size_t slot, const void* host, size_t bytes) override;
  void arrive(size_t slot) override;
  void leave(size_t slot) override;

 private:
  struct Slot {
    void* data = nullptr;
    cudaEvent_t filled = nullptr;  ///< on the copies' stream
    cudaEvent_t left = nullptr;    ///< on the ops' stream
  };
  Arena& arena_;
  cudaStream_t work_, copies_ = nullptr;
  const bool& capturing_;
  std::vector<Slot> slots_;
  std::vector<void*> pinned_;
  void* fence_ = nullptr;
};

}  // namespace cbench::cuda
