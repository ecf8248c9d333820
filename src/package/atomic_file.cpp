#include "package/atomic_file.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/error.h"

namespace cbench {

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".XXXXXX") {
  fd_ = Fd(::mkostemp(temporary_.data(), O_CLOEXEC));
  if (!fd_.valid()) throw_errno("create", path_);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::commit(mode_t mode) { commit_as(path_, mode); }

void AtomicFile::commit_as(const std::string& path, mode_t mode) {
  if (::fchmod(fd_.get(), mode) != 0) throw_errno("chmod", path);
  if (::fsync(fd_.get()) != 0) throw_errno("fsync", path);
  if (::rename(temporary_.c_str(), path.c_str()) != 0) throw_errno("rename", path);
  temporary_.clear();
  sync_directory(std::filesystem::path(path).parent_path().string());
}

void sync_directory(const std::string& path) {
  const std::string name = path.empty() ? "." : path;
  Fd directory(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || ::fsync(directory.get()) != 0) throw_errno("fsync", name);
}

}  // namespace cbench
