// The buffer through which raw logits cross from the engine to the evaluator. The evaluator creates
// it and maps it read-only; the engine maps it for writing. On the host it is a sealed memfd; on
// CUDA an exported allocation (docs/engine-protocol.md).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "util/file.h"

namespace cbench {

class SharedLogits {
 public:
  virtual ~SharedLogits() = default;
  /// fp32 rows; host memory for kind "host", device memory for kind "cuda".
  virtual float* data() const = 0;
  virtual size_t bytes() const = 0;
  virtual const char* kind() const = 0;

  /// The evaluator's side: creates `bytes` and maps them read-only. `fd` is to be sent.
  static std::unique_ptr<SharedLogits> create_host(size_t bytes, Fd& fd);
  /// The engine's side: maps what was received, writable. Throws EnvironmentError.
  static std::unique_ptr<SharedLogits> open_host(const Fd& fd, size_t bytes);

  /// The same in the memory of GPU `device`: read-only here, and charged by the driver to the
  /// evaluator alone. Throws EnvironmentError.
  static std::unique_ptr<SharedLogits> create_cuda(int device, size_t bytes, Fd& fd);
  static std::unique_ptr<SharedLogits> open_cuda(int device, const Fd& fd, size_t bytes);
};

}  // namespace cbench
