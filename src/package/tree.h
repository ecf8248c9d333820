// An untrusted directory tree, walked without executing, following or blocking on anything in it.
// Everything that is not a plain directory or a regular file with a sane name is refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>

#include "util/file.h"

namespace cbench {

struct TreeLimits {
  int max_depth = 16;                      ///< directories below the root
  size_t max_entries = 10'000;             ///< files and directories
  uint64_t max_path_bytes = 1u << 20;      ///< all paths together
  uint64_t max_bytes = uint64_t{1} << 42;  ///< sum of the sizes: 4 TiB
};

/// A regular file of the tree, as it was when the walk saw it.
struct TreeFile {
  std::string path;  ///< relative to the root, "/" between components
  uint64_t size = 0;
  uint64_t allocated = 0;  ///< bytes of blocks on disk: less than size for holes
  uint64_t links = 1;      ///< hard links; every path counts in full all the same
  mode_t mode = 0;         ///< permission bits
  std::string sha256;      ///< after hash_files()

  dev_t device = 0;  ///< identity, compared again when the file is opened
  ino_t inode = 0;
  timespec modified{};
  timespec changed{};
};

class PackageTree {
 public:
  /// Throws UsageError: symlink, fifo, socket, device, bad_name, too_many_entries, too_deep,
  /// path_bytes, too_large, unreadable, not_directory, changed; EnvironmentError not_found.
  static PackageTree walk(const std::string& root, const TreeLimits& limits = {});

  const std::string& root() const { return root_; }
  const std::vector<TreeFile>& files() const { return files_; }  ///< sorted by path, bytewise
  const TreeFile* find(std::string_view path) const;
  uint64_t bytes() const { return bytes_; }          ///< sum of the sizes over all paths
  uint64_t allocated() const { return allocated_; }  ///< beside it: what the disk holds
  uint64_t path_bytes() const { return path_bytes_; }

  /// Opens a file of this tree for reading, by descriptor, beneath the root; throws UsageError
  /// "changed" when it is no longer what the walk saw.
  Fd open(const TreeFile& file) const;
  /// The content, bounded (code too_large).
  std::string read(const TreeFile& file, uint64_t max_bytes) const;
  /// Throws UsageError "changed" when an opened file is no longer what the walk saw.
  void check_unchanged(const Fd& fd, const TreeFile& file) const;
  /// Throws UsageError "changed" when a new walk does not find the same files.
  void check_unchanged() const;

  /// SHA-256 of one file; of all files (filled in); both detect changes while they read.
  std::string hash_file(const TreeFile& file) const;
  void hash_files();
  /// One line per file, "path TAB size TAB sha256 LF", sorted by path. Needs hash_files().
  std::string hash_manifest() const;
  /// The package hash: SHA-256 of hash_manifest(). Needs hash_files().
  std::string hash() const;

 private:
  friend class TreeWalker;

  std::string root_;
  TreeLimits limits_;
  Fd root_fd_;
  std::vector<TreeFile> files_;
  uint64_t bytes_ = 0;
  uint64_t allocated_ = 0;
  uint64_t path_bytes_ = 0;
};

/// The canonical manifest text of any list of (path, size, sha256), sorted by path.
std::string hash_manifest_of(const std::vector<TreeFile>& files);

}  // namespace cbench
