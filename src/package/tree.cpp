#include "package/tree.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "package/path_rules.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

/// Never waits for a FIFO's writer, never becomes a terminal's owner, never follows a link.
constexpr int kSafeFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;

[[noreturn]] void refuse(std::string_view code, std::string_view path, const std::string& what) {
  throw UsageError(code, "\"" + printable(path) + "\" " + what);
}

[[noreturn]] void refuse_changed(std::string_view path) {
  refuse("changed", path, "changed while it was read; stop writing to the directory and try again");
}

/// One component after the other, each without following links; for kernels without openat2.
Fd open_by_components(int root, std::string_view path, int flags) {
  Fd current(::fcntl(root, F_DUPFD_CLOEXEC, 0));
  while (current.valid()) {
    const size_t slash = path.find('/');
    const std::string name(path.substr(0, slash));
    const int how = slash == std::string_view::npos ? flags : kSafeFlags | O_DIRECTORY;
    current = Fd(::openat(current.get(), name.c_str(), how));
    if (slash == std::string_view::npos) break;
    path.remove_prefix(slash + 1);
  }
  return current;
}

/// Opens a path that can only resolve beneath `root`, through plain directories.
Fd open_beneath(int root, const std::string& path, int flags) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  for (int attempt = 0; attempt < 16; ++attempt) {
    const long fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0) return Fd(static_cast<int>(fd));
    if (errno == ENOSYS || errno == EPERM) return open_by_components(root, path, flags);
    if (errno != EAGAIN && errno != EINTR) break;  // EAGAIN: a rename raced with the walk
  }
  return Fd();
}

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

bool same_file(const TreeFile& a, const TreeFile& b) {
  return a.path == b.path && a.device == b.device && a.inode == b.inode && a.size == b.size &&
         same_time(a.modified, b.modified) && same_time(a.changed, b.changed);
}

TreeFile describe(const std::string& path, const struct stat& info) {
  TreeFile file;
  file.path = path;
  file.size = static_cast<uint64_t>(info.st_size);
  file.allocated = static_cast<uint64_t>(info.st_blocks) * 512;
  file.links = info.st_nlink;
  file.mode = info.st_mode & 0777;
  file.device = info.st_dev;
  file.inode = info.st_ino;
  file.modified = info.st_mtim;
  file.changed = info.st_ctim;
  return file;
}

/// Refuses everything that is neither a directory nor a regular file.
void check_kind(const std::string& path, mode_t mode) {
  if (S_ISREG(mode) || S_ISDIR(mode)) return;
  if (S_ISLNK(mode)) {
    refuse("symlink", path, "is a symbolic link; a package must hold the file itself");
  }
  if (S_ISFIFO(mode)) refuse("fifo", path, "is a FIFO; only regular files are allowed");
  if (S_ISSOCK(mode)) refuse("socket", path, "is a socket; only regular files are allowed");
  refuse("device", path, "is a device; only regular files are allowed");
}

Fd open_root(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();  // "link/" would follow the link
  Fd fd(::open(path.c_str(), kSafeFlags | O_DIRECTORY));
  if (fd.valid()) return fd;
  const int error = errno;
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw EnvironmentError("not_found", errno_message("open", path));
    }
    throw_errno("stat", path);
  }
  check_kind(path, info.st_mode);
  if (!S_ISDIR(info.st_mode)) refuse("not_directory", path, "is not a directory");
  errno = error;
  if (error == EACCES) refuse("unreadable", path, "cannot be read: permission denied");
  throw_errno("open", path);
}

}  // namespace

/// The walk itself: depth first, counting before keeping, so that its cost is bounded by the
/// limits.
class TreeWalker {
 public:
  explicit TreeWalker(PackageTree& tree) : tree_(tree), limits_(tree.limits_) {}

  void directory(int fd, const std::string& path, int depth);

 private:
  std::vector<std::string> names_in(int fd, const std::string& path);
  void subdirectory(int parent, const std::string& name, const std::string& path,
                    const struct stat& info, int depth);
  void count_file(TreeFile file);

  PackageTree& tree_;
  const TreeLimits& limits_;
  size_t entries_ = 0;
};

std::vector<std::string> TreeWalker::names_in(int fd, const std::string& path) {
  // A descriptor of its own: fdopendir takes it over.
  std::unique_ptr<DIR, int (*)(DIR*)> dir(nullptr, &::closedir);
  Fd own(::openat(fd, ".", kSafeFlags | O_DIRECTORY));
  if (own.valid()) dir.reset(::fdopendir(own.get()));
  if (!dir) {
    refuse("unreadable", path.empty() ? tree_.root_ : path,
           "cannot be listed: " + std::string(::strerror(errno)));
  }
  own.release();
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (++entries_ > limits_.max_entries) {
      refuse("too_many_entries", path.empty() ? tree_.root_ : path,
             "brings the tree above " + std::to_string(limits_.max_entries) +
                 " files and directories");
    }
    names.emplace_back(name);
  }
  if (errno != 0) throw_errno("readdir", path.empty() ? tree_.root_ : path);
  std::sort(names.begin(), names.end());
  return names;
}

void TreeWalker::count_file(TreeFile file) {
  tree_.bytes_ += file.size;  // no overflow: sizes are below 2^63 and the sum is bounded each time
  tree_.allocated_ += file.allocated;
  if (tree_.bytes_ > limits_.max_bytes) {
    refuse("too_large", file.path,
           "brings the tree above " + format_size(static_cast<int64_t>(limits_.max_bytes)));
  }
  tree_.files_.push_back(std::move(file));
}

void TreeWalker::subdirectory(int parent, const std::string& name, const std::string& path,
                              const struct stat& info, int depth) {
  if (depth > limits_.max_depth) {
    refuse("too_deep", path,
           "is nested deeper than " + std::to_string(limits_.max_depth) + " directories");
  }
  Fd child(::openat(parent, name.c_str(), kSafeFlags | O_DIRECTORY));
  if (!child.valid() && errno == EACCES) refuse("unreadable", path, "cannot be read");
  struct stat opened {};
  if (!child.valid() || ::fstat(child.get(), &opened) != 0) refuse_changed(path);
  if (opened.st_ino != info.st_ino || opened.st_dev != info.st_dev) refuse_changed(path);
  directory(child.get(), path, depth);
}

void TreeWalker::directory(int fd, const std::string& path, int depth) {
  for (const std::string& name : names_in(fd, path)) {
    const std::string full = path.empty() ? name : path + "/" + name;
    const std::string reason = bad_name_reason(name);
    if (!reason.empty()) refuse("bad_name", full, reason);
    tree_.path_bytes_ += full.size();
    if (tree_.path_bytes_ > limits_.max_path_bytes) {
      refuse("path_bytes", full,
             "brings the paths of the tree above " + std::to_string(limits_.max_path_bytes) +
                 " bytes");
    }
    struct stat info {};
    if (::fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) refuse_changed(full);
    check_kind(full, info.st_mode);
    if (S_ISDIR(info.st_mode)) {
      subdirectory(fd, name, full, info, depth + 1);
    } else {
      count_file(describe(full, info));
    }
  }
}

PackageTree PackageTree::walk(const std::string& root, const TreeLimits& limits) {
  PackageTree tree;
  tree.root_ = root;
  tree.limits_ = limits;
  tree.root_fd_ = open_root(root);
  TreeWalker(tree).directory(tree.root_fd_.get(), "", 0);
  std::sort(tree.files_.begin(), tree.files_.end(),
            [](const TreeFile& a, const TreeFile& b) { return a.path < b.path; });
  return tree;
}

const TreeFile* PackageTree::find(std::string_view path) const {
  const auto found =
      std::lower_bound(files_.begin(), files_.end(), path,
                       [](const TreeFile& file, std::string_view key) { return file.path < key; });
  return found != files_.end() && found->path == path ? &*found : nullptr;
}

Fd PackageTree::open(const TreeFile& file) const {
  Fd fd = open_beneath(root_fd_.get(), file.path, kSafeFlags);
  if (!fd.valid()) {
    if (errno == EACCES) refuse("unreadable", file.path, "cannot be read: permission denied");
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) throw_errno("open", file.path);
    refuse_changed(file.path);
  }
  check_unchanged(fd, file);
  return fd;
}

void PackageTree::check_unchanged(const Fd& fd, const TreeFile& file) const {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("fstat", file.path);
  if (!S_ISREG(info.st_mode) || !same_file(describe(file.path, info), file)) {
    refuse_changed(file.path);
  }
}

void PackageTree::check_unchanged() const {
  const PackageTree now = walk(root_, limits_);
  const auto [mine, theirs] =
      std::mismatch(files_.begin(), files_.end(), now.files_.begin(), now.files_.end(), same_file);
  if (mine != files_.end()) refuse_changed(mine->path);
  if (theirs != now.files_.end()) refuse_changed(theirs->path);
}

std::string PackageTree::read(const TreeFile& file, uint64_t max_bytes) const {
  if (file.size > max_bytes) {
    refuse("too_large", file.path,
           "has " + format_size(static_cast<int64_t>(file.size)) + "; at most " +
               format_size(static_cast<int64_t>(max_bytes)) + " are allowed");
  }
  const Fd fd = open(file);
  std::string out(file.size, '\0');
  size_t used = 0;
  while (used < out.size()) {
    const size_t n = read_some(fd, out.data() + used, out.size() - used, file.path);
    if (n == 0) refuse_changed(file.path);
    used += n;
  }
  check_unchanged(fd, file);
  return out;
}

std::string PackageTree::hash_file(const TreeFile& file) const {
  const Fd fd = open(file);
  Hasher hasher;
  std::vector<char> block(size_t{1} << 20);
  uint64_t left = file.size;
  while (left > 0) {
    const size_t n = read_some(fd, block.data(), std::min<uint64_t>(block.size(), left), file.path);
    if (n == 0) refuse_changed(file.path);
    hasher.update({block.data(), n});
    left -= n;
  }
  check_unchanged(fd, file);
  return hasher.hex();
}

void PackageTree::hash_files() {
  for (TreeFile& file : files_) {
    if (file.sha256.empty()) file.sha256 = hash_file(file);
  }
}

std::string PackageTree::hash_manifest() const { return hash_manifest_of(files_); }

std::string PackageTree::hash() const { return sha256_hex(hash_manifest()); }

std::string hash_manifest_of(const std::vector<TreeFile>& files) {
  std::string out;
  for (const TreeFile& file : files) {
    out += file.path + '\t' + std::to_string(file.size) + '\t' + file.sha256 + '\n';
  }
  return out;
}

}  // namespace cbench
