// The versions of a run: immutable snapshots of the submission, content-addressed and deduplicated.
//   <dir>/objects/<aa>/<sha256>   file contents
//   <dir>/v<N>.json               one version: number, note, time, files, bytes, package hash
//   <dir>/lock                    flock: one writer at a time
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "package/tree.h"

namespace cbench {

struct VersionFile {
  std::string path;
  uint64_t size = 0;
  std::string sha256;
  mode_t mode = 0644;
};

struct Version {
  int number = 0;
  std::string note;
  std::string utc;
  std::vector<VersionFile> files;  ///< sorted by path
  uint64_t bytes = 0;              ///< sum of the sizes over all paths
  std::string package_hash;        ///< equals PackageTree::hash() of the saved tree
};

/// A trusted directory outside the box. Safe against a crash at any point: a version exists once
/// its manifest has been renamed into place, and everything it names is on disk before that.
class VersionStore {
 public:
  /// Creates the directory when needed. `quota` bounds the bytes of all stored contents.
  explicit VersionStore(std::string dir, std::optional<uint64_t> quota = std::nullopt);

  /// Saves the tree as the next version. Throws UsageError "changed" when the tree changes
  /// meanwhile, "bad_note", "quota"; EnvironmentError "disk_full", "io". Earlier versions are never
  /// touched, and a failed save leaves nothing behind.
  Version save(const PackageTree& tree, const std::string& note);

  /// All versions by number. A manifest that cannot be read is logged and left out.
  std::vector<Version> list() const;
  /// Throws UsageError "no_version", InvalidError "version_corrupt".
  Version load(int number) const;
  /// Writes the version's files into a new (or empty) directory and checks every hash while it
  /// copies. Throws InvalidError "version_corrupt" and leaves no partial tree.
  void materialise(int number, const std::string& dir) const;
  /// Reads and hashes every content of the version. Throws InvalidError "version_corrupt".
  void verify(int number) const;

  const std::string& dir() const { return dir_; }

 private:
  std::string object_path(const std::string& sha256) const;
  std::string manifest_path(int number) const;
  std::vector<int> numbers() const;
  uint64_t sweep() const;
  std::string store_file(const PackageTree& tree, const TreeFile& file, uint64_t& stored) const;
  void check_quota(uint64_t stored, uint64_t more) const;

  std::string dir_;
  std::optional<uint64_t> quota_;
};

}  // namespace cbench
