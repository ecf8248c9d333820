#include "util/file.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/error.h"

namespace cbench {
namespace fs = std::filesystem;

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Fd open_regular(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) {
    if (errno == ENOENT) throw EnvironmentError("not_found", errno_message("open", path));
    throw_errno("open", path);
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("fstat", path);
  if (!S_ISREG(info.st_mode)) {
    throw EnvironmentError("not_regular", path + " is not a regular file");
  }
  return fd;
}

size_t read_some(const Fd& fd, void* to, size_t size, std::string_view subject) {
  while (true) {
    const ssize_t n = ::read(fd.get(), to, size);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EINTR) throw_errno("read", subject);
  }
}

void write_all(const Fd& fd, std::string_view bytes, std::string_view subject) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd.get(), bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      throw_errno("write", subject);
    }
  }
}

std::string read_file(const std::string& path, uint64_t max_bytes) {
  Fd fd = open_regular(path);
  std::string out;
  size_t used = 0;
  while (true) {
    out.resize(used + (size_t{1} << 16) + used / 2);
    const size_t n = read_some(fd, out.data() + used, out.size() - used, path);
    used += n;
    if (used > max_bytes) {
      throw UsageError("too_large", path + " is larger than the allowed " +
                                        std::to_string(max_bytes) + " bytes");
    }
    if (n == 0) break;
  }
  out.resize(used);
  return out;
}

void write_file_atomic(const std::string& path, std::string_view bytes, mode_t mode) {
  std::string temporary = path + ".XXXXXX";
  Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) throw_errno("create", path);
  try {
    write_all(fd, bytes, path);
    if (::fchmod(fd.get(), mode) != 0) throw_errno("chmod", path);
    if (::fsync(fd.get()) != 0) throw_errno("fsync", path);
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw_errno("rename", path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::string parent = fs::path(path).parent_path().string();
  Fd directory(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.valid()) ::fsync(directory.get());
}

void make_directories(const std::string& path) {
  std::error_code code;
  fs::create_directories(path, code);
  if (code) throw EnvironmentError("io", "mkdir(" + path + "): " + code.message());
}

void remove_tree(const std::string& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code) throw EnvironmentError("io", "remove(" + path + "): " + code.message());
}

TempDir::TempDir(std::string_view prefix) {
  const char* base = std::getenv("TMPDIR");
  path_ = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/" +
          std::string(prefix) + ".XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) throw_errno("mkdtemp", path_);
}

TempDir::~TempDir() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

MappedFile::MappedFile(const std::string& path) : MappedFile(open_regular(path), path) {}

MappedFile::MappedFile(const Fd& fd, std::string_view subject) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("fstat", subject);
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) throw_errno("mmap", subject);
  data_ = data;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace cbench
