#include "run/freeze.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "package/atomic_file.h"
#include "util/error.h"
#include "util/file.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBlock = size_t{1} << 20;

std::string sealing(const RunDir& run) { return run.submission() + ".sealing"; }
std::string live(const RunDir& run) { return run.submission() + ".live"; }

void move(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_errno("rename", from);
}

/// Removes a tree whose directories may be read-only.
void remove_sealed(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) return;
  ::chmod(path.c_str(), 0755);
  for (const auto& entry : fs::recursive_directory_iterator(
           path, fs::directory_options::skip_permission_denied, error)) {
    if (entry.symlink_status(error).type() == fs::file_type::directory) {
      ::chmod(entry.path().c_str(), 0755);
    }
  }
  remove_tree(path);
}

void copy_bytes(const Fd& from, const Fd& to, const std::string& subject) {
  if (::ioctl(to.get(), FICLONE, from.get()) == 0) return;
  std::vector<char> block(kBlock);
  while (const size_t n = read_some(from, block.data(), block.size(), subject)) {
    write_all(to, {block.data(), n}, subject);
  }
}

void copy_file(const PackageTree& tree, const TreeFile& file, const std::string& to) {
  make_directories(fs::path(to).parent_path().string());
  const Fd source = tree.open(file);
  const Fd copy(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!copy.valid()) throw_errno("create", to);
  copy_bytes(source, copy, to);
  tree.check_unchanged(source, file);
  if (::fchmod(copy.get(), 0444) != 0) throw_errno("chmod", to);
  if (::fsync(copy.get()) != 0) throw_errno("fsync", to);
}

/// The copy, complete and checked against the hashes of what it was made from.
void copy_tree(const PackageTree& tree, const std::string& to) {
  make_directories(to);
  for (const TreeFile& file : tree.files()) copy_file(tree, file, to + "/" + file.path);
  PackageTree copy = PackageTree::walk(to);
  copy.hash_files();
  if (copy.hash_manifest() != tree.hash_manifest()) {
    throw EnvironmentError("io", to + " does not hold what was copied; check the disk");
  }
}

void make_read_only(const std::string& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_directory()) ::chmod(entry.path().c_str(), 0555);
  }
  ::chmod(path.c_str(), 0555);
}

/// Finishes what a crash interrupted between the two renames or after them; true when sealed.
bool already_sealed(const RunDir& run) {
  std::error_code error;
  if (!fs::exists(run.submission(), error) && fs::exists(sealing(run), error)) {
    move(sealing(run), run.submission());
    return true;
  }
  return fs::exists(live(run), error) && fs::exists(run.submission(), error);
}

Frozen describe(const RunDir& run, const TreeLimits& limits) {
  PackageTree sealed = PackageTree::walk(run.submission(), limits);
  sealed.hash_files();
  const std::string manifest = sealed.hash_manifest();
  if (read_file(run.manifest()) != manifest) {
    throw InvalidError("freeze_changed", run.submission() + " is not what " + run.manifest() +
                                             " says; it was changed after the freeze");
  }
  return {sealed.hash(), sealed.bytes(), sealed.files().size(), {}, {}};
}

}  // namespace

TreeLimits submission_limits(int64_t limit) {
  TreeLimits limits;
  limits.max_bytes = 4 * static_cast<uint64_t>(std::max<int64_t>(limit, 0)) + (uint64_t{64} << 20);
  return limits;
}

Frozen freeze_submission(const RunDir& run, const TreeLimits& limits) {
  if (!already_sealed(run)) {
    remove_sealed(sealing(run));
    try {
      PackageTree tree = PackageTree::walk(run.submission(), limits);
      tree.hash_files();
      copy_tree(tree, sealing(run));
      write_file_atomic(run.manifest(), tree.hash_manifest());
    } catch (const UsageError& error) {
      remove_sealed(sealing(run));
      return {{}, 0, 0, error.code(), error.what()};
    } catch (const Error&) {
      remove_sealed(sealing(run));
      throw;
    }
    move(run.submission(), live(run));
    move(sealing(run), run.submission());
    sync_directory(run.path);
  }
  make_read_only(run.submission());
  const Frozen frozen = describe(run, limits);
  remove_sealed(live(run));
  return frozen;
}

}  // namespace cbench
