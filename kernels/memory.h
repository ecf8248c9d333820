// Device memory for the arena, and a bump allocator over the planned workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "runtime/arena.h"

namespace cbench::cuda {

class DeviceMemory : public MemorySource {
 public:
  void* allocate(size_t bytes) override;
  void release(void* data, size_t bytes) override;
  /// The driver hands out 2 MiB at a time and packs what is below 1 MiB.
  size_t footprint(size_t bytes) const override;
  int64_t available() const override;
};

/// Scratch of one op call. Ops run in stream order, so every op starts at the beginning again.
class Workspace {
 public:
  void set(void* base, size_t bytes) { base_ = static_cast<unsigned char*>(base), bytes_ = bytes; }
  void reset() { used_ = 0; }
  size_t used() const { return used_; }
  void rewind(size_t used) { used_ = used; }
  size_t left() const { return bytes_ - used_; }
  void* take(size_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    if (bytes > left()) throw std::logic_error("the CUDA workspace was planned too small");
    void* mine = base_ + used_;
    used_ += bytes;
    return mine;
  }

 private:
  unsigned char* base_ = nullptr;
  size_t bytes_ = 0, used_ = 0;
};

}  // namespace cbench::cuda
