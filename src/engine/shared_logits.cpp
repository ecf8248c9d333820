#include "engine/shared_logits.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/error.h"

namespace cbench {
namespace {

class HostLogits : public SharedLogits {
 public:
  HostLogits(int fd, size_t bytes, int protection) : bytes_(bytes) {
    void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) throw_errno("mmap", "logits buffer");
    data_ = static_cast<float*>(data);
  }
  ~HostLogits() override { ::munmap(data_, bytes_); }
  float* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }
  const char* kind() const override { return "host"; }

 private:
  float* data_;
  size_t bytes_;
};

}  // namespace

std::unique_ptr<SharedLogits> SharedLogits::create_host(size_t bytes, Fd& fd) {
  fd = Fd(::memfd_create("cbench-logits", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) throw_errno("memfd_create", "logits buffer");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    throw_errno("ftruncate", "logits buffer");
  // The engine can neither shrink it under our map nor lift the seal.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_errno("seal", "logits buffer");
  }
  return std::make_unique<HostLogits>(fd.get(), bytes, PROT_READ);
}

std::unique_ptr<SharedLogits> SharedLogits::open_host(const Fd& fd, size_t bytes) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("fstat", "logits buffer");
  if (static_cast<size_t>(info.st_size) < bytes) {
    throw EnvironmentError("logits_buffer", "the logits buffer is smaller than announced");
  }
  return std::make_unique<HostLogits>(fd.get(), bytes, PROT_READ | PROT_WRITE);
}

}  // namespace cbench
