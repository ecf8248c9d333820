// A file that appears whole or not at all: written under a temporary name beside its destination.
#pragma once

#include <string>
#include <string_view>

#include <sys/types.h>

#include "util/file.h"

namespace cbench {

/// Write through fd(), then commit(); without commit the destructor removes the temporary file.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const Fd& fd() const { return fd_; }
  void write(std::string_view bytes) { write_all(fd_, bytes, path_); }
  /// fsync, rename to the destination, fsync of the directory. Throws EnvironmentError.
  void commit(mode_t mode = 0644);
  /// The same under another name of the same file system, for names that depend on the content.
  void commit_as(const std::string& path, mode_t mode);

 private:
  std::string path_;
  std::string temporary_;
  Fd fd_;
};

/// fsync of a directory, so that a rename in it survives a power cut.
void sync_directory(const std::string& path);

}  // namespace cbench
