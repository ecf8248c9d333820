// The current batch as the CPU ops read it, and the scratch that each thread owns.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/ops.h"

namespace cbench::cpu {

struct CurrentBatch {
  std::vector<int32_t> ids;  ///< [T]
  std::vector<Span> spans;
  std::vector<int32_t> position;  ///< [T] of each row in its sequence
  std::vector<int32_t> span_of;   ///< [T] index of each row's span
  int64_t rows() const { return static_cast<int64_t>(ids.size()); }

  void reserve(const Capacity& capacity);
  void set(const Batch& batch);
  /// Every span is one row further.
  void advance();
};

/// One slice of floats per thread.
struct ThreadScratch {
  float* data = nullptr;
  int64_t floats = 0;  ///< per thread
  float* of(int thread) const { return data + thread * floats; }
};

/// Hands out consecutive pieces of one thread's scratch, each a multiple of 16 floats.
class Pieces {
 public:
  explicit Pieces(float* data) : next_(data) {}
  float* take(int64_t count) {
    float* piece = next_;
    next_ += rounded(count);
    return piece;
  }
  static int64_t rounded(int64_t count) { return (count + 15) / 16 * 16; }

 private:
  float* next_;
};

}  // namespace cbench::cpu
