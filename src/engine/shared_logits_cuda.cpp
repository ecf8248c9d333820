// The logits buffer in device memory.
#include "engine/shared_logits.h"
#include "util/error.h"

#if defined(CBENCH_HAVE_CUDA)
#include "shared_buffer.h"

namespace cbench {
namespace {

using cuda::SharedBuffer;

class CudaLogits : public SharedLogits {
 public:
  CudaLogits(SharedBuffer buffer, size_t bytes) : buffer_(std::move(buffer)), bytes_(bytes) {}
  float* data() const override { return static_cast<float*>(buffer_.data()); }
  size_t bytes() const override { return bytes_; }
  const char* kind() const override { return "cuda"; }
  const SharedBuffer& buffer() const { return buffer_; }

 private:
  SharedBuffer buffer_;
  size_t bytes_;
};

/// Both sides round up to the largest granularity in use, so that neither has to tell the other.
constexpr size_t kGranularity = size_t{2} << 20;
size_t rounded(size_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

}  // namespace

std::unique_ptr<SharedLogits> SharedLogits::create_cuda(int device, size_t bytes, Fd& fd) {
  SharedBuffer buffer =
      SharedBuffer::create(device, rounded(bytes), SharedBuffer::Access::kReadOnly);
  if (buffer.size() != rounded(bytes)) {
    throw EnvironmentError("logits_buffer", "this GPU shares memory in pieces of another size");
  }
  fd = Fd(buffer.export_descriptor());
  return std::make_unique<CudaLogits>(std::move(buffer), bytes);
}

std::unique_ptr<SharedLogits> SharedLogits::open_cuda(int device, const Fd& fd, size_t bytes) {
  if (!fd.valid()) throw EnvironmentError("logits_buffer", "no descriptor came with the message");
  return std::make_unique<CudaLogits>(
      SharedBuffer::import_descriptor(device, fd.get(), rounded(bytes),
                                      SharedBuffer::Access::kReadWrite),
      bytes);
}

}  // namespace cbench

#else

namespace cbench {

std::unique_ptr<SharedLogits> SharedLogits::create_cuda(int, size_t, Fd&) {
  throw EnvironmentError("no_cuda", "this cbench was built without CUDA; use --device cpu");
}
std::unique_ptr<SharedLogits> SharedLogits::open_cuda(int, const Fd&, size_t) {
  throw EnvironmentError("no_cuda", "this cbench was built without CUDA; use --device cpu");
}

}  // namespace cbench

#endif
