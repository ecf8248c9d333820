// Device memory that two processes map: the evaluator creates it and reads, the engine imports it
// and writes. Made with CUDA's virtual memory calls, passed as a file descriptor; the driver
// charges it to its creator only, and it stays valid while either process lives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cbench::cuda {

class SharedBuffer {
 public:
  enum class Access { kReadOnly, kReadWrite };

  /// Creates at least `bytes` on the device, mapped with `access`.
  static SharedBuffer create(int device, size_t bytes, Access access);
  /// Maps what export_descriptor() gave in another process. `bytes` as the creator's size(). The
  /// descriptor stays the caller's.
  static SharedBuffer import_descriptor(int device, int descriptor, size_t bytes, Access access);

  SharedBuffer() = default;
  SharedBuffer(SharedBuffer&& other) noexcept;
  SharedBuffer& operator=(SharedBuffer&& other) noexcept;
  ~SharedBuffer();

  /// A new file descriptor for the other process; the caller closes it.
  int export_descriptor() const;
  void* data() const { return reinterpret_cast<void*>(address_); }
  size_t size() const { return bytes_; }  ///< rounded up to the device's granularity

 private:
  void map(int device, Access access);
  void release() noexcept;
  uint64_t handle_ = 0, address_ = 0;
  size_t bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace cbench::cuda
