// Files: owned descriptors, whole-file reads with a bound, atomic durable writes, memory maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <sys/types.h>

namespace cbench {

/// An owned file descriptor; closed on destruction.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

/// Opens a regular file for reading. Never blocks on a FIFO; refuses links' targets that are not
/// regular files. Throws EnvironmentError ("not_found", "not_regular", "io").
Fd open_regular(const std::string& path);

/// read(2) with EINTR handled; 0 at the end of the file. `subject` names it in errors.
size_t read_some(const Fd& fd, void* to, size_t size, std::string_view subject);

/// Writes all bytes or throws. `subject` names the destination in errors.
void write_all(const Fd& fd, std::string_view bytes, std::string_view subject);

/// The whole file; refuses files above `max_bytes` (UsageError "too_large").
std::string read_file(const std::string& path, uint64_t max_bytes = 256u << 20);

/// Replaces `path` atomically and durably: temporary name, fsync, rename, fsync of the directory.
void write_file_atomic(const std::string& path, std::string_view bytes, mode_t mode = 0644);

/// mkdir -p. Throws EnvironmentError.
void make_directories(const std::string& path);

/// Removes a tree without following links; a missing path is fine.
void remove_tree(const std::string& path);

/// A directory of its own under $TMPDIR (or /tmp), removed with its content on destruction.
class TempDir {
 public:
  explicit TempDir(std::string_view prefix = "cbench");
  ~TempDir();
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDir& operator=(TempDir&&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A read-only private map of a whole regular file.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(const Fd& fd, std::string_view subject);  ///< maps an already opened file
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cbench
