// Host to device copies at the speed of the page cache: several threads, each with its own stream
// and two pinned buffers, so that reading pages, staging and the bus overlap. No full host copy.
#pragma once

#include <cstddef>
#include <memory>

namespace cbench::cuda {

class Staging {
 public:
  static constexpr size_t kChunk = size_t{4} << 20;  ///< bytes of one pinned buffer
  static constexpr size_t kWorth = 2 * kChunk;       ///< smaller copies are better made plainly

  /// Takes the pinned memory, which is kept: part of the process before memory is first measured.
  explicit Staging(int device);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Done when it returns; throws what a CUDA call reported. `host` may be mapped file pages.
  void copy(void* to, const void* host, size_t bytes);

 private:
  struct Lane;
  int device_;
  size_t lanes_;
  std::unique_ptr<Lane[]> lane_;
};

}  // namespace cbench::cuda
