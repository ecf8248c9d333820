// lock.json: what was fetched, from where, at which commit, with which hashes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fetch/plan.h"

namespace cbench {

struct LockedFile {
  std::string path;  ///< relative to the root
  int64_t size = 0;
  std::string sha256;
  std::string git_sha1;  ///< of a file whose Hub hash is the git blob id
  int64_t mtime_ns = 0;
  std::string source;  ///< URL
};

struct LockedItem {
  std::string key;  ///< canonical JSON of the request: another request is another item
  std::string kind, name;
  std::string revision;  ///< resolved commit, "" where there is none
  bool complete = false;
  std::vector<LockedFile> files;
  std::vector<std::string> problems;
};

struct Lock {
  std::vector<LockedItem> items;
  LockedItem* find(const std::string& key);
};

/// A missing file is an empty lock. Throws UsageError "bad_lock" when edited into nonsense.
Lock read_lock(const std::string& path);
void write_lock(const std::string& path, const Lock& lock);

/// "" if the file below `root` is as locked, else what is wrong. Fast: size and time; a changed
/// time alone leads to a hash check.
std::string check_locked(const std::string& root, const LockedFile& file, VerifyMode mode,
                         const std::atomic<bool>* interrupt);

/// The canonical request of an item, "kind" and "name" for people.
LockedItem lock_request(const PlanItem& item);

}  // namespace cbench
