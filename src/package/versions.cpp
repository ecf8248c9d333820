#include "package/versions.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <set>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "package/atomic_file.h"
#include "package/version_manifest.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/file.h"
#include "util/hash.h"
#include "util/log.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxNoteBytes = 300;
constexpr size_t kBlock = size_t{1} << 20;

/// Held while a version is saved; the kernel releases it when the process dies.
Fd lock_directory(const std::string& dir) {
  const std::string path = dir + "/lock";
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) throw_errno("open", path);
  while (::flock(fd.get(), LOCK_EX) != 0) {
    if (errno != EINTR) throw_errno("lock", path);
  }
  return fd;
}

void check_note(const std::string& note) {
  const bool control = std::any_of(note.begin(), note.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (note.size() > kMaxNoteBytes || control || !is_utf8(note)) {
    throw UsageError("bad_note",
                     "a version's note is at most 300 bytes of UTF-8 without control characters");
  }
}

/// Copies up to `size` bytes; returns the hash of what was copied and how much that was.
std::pair<std::string, uint64_t> copy_and_hash(const Fd& from, const Fd* to, uint64_t size,
                                               const std::string& subject) {
  Hasher hasher;
  std::vector<char> block(kBlock);
  uint64_t done = 0;
  while (done < size) {
    const size_t n =
        read_some(from, block.data(), std::min<uint64_t>(block.size(), size - done), subject);
    if (n == 0) break;
    hasher.update({block.data(), n});
    if (to != nullptr) write_all(*to, {block.data(), n}, subject);
    done += n;
  }
  return {hasher.hex(), done};
}

uint64_t total_bytes(const std::vector<VersionFile>& files) {
  uint64_t sum = 0;
  for (const VersionFile& file : files) sum += file.size;
  return sum;
}

[[noreturn]] void corrupt(const std::string& what) {
  throw InvalidError("version_corrupt", what + "; restore it from a copy");
}

}  // namespace

VersionStore::VersionStore(std::string dir, std::optional<uint64_t> quota)
    : dir_(std::move(dir)), quota_(quota) {
  make_directories(dir_ + "/objects");
}

std::string VersionStore::object_path(const std::string& sha256) const {
  return dir_ + "/objects/" + sha256.substr(0, 2) + "/" + sha256;
}

std::string VersionStore::manifest_path(int number) const {
  return dir_ + "/v" + std::to_string(number) + ".json";
}

/// Numbers of all v<N>.json, ascending.
std::vector<int> VersionStore::numbers() const {
  std::vector<int> out;
  for (const auto& entry : fs::directory_iterator(dir_)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("v") || !name.ends_with(".json")) continue;
    int number = 0;
    const char* end = name.data() + name.size() - 5;
    const auto [last, error] = std::from_chars(name.data() + 1, end, number);
    if (error == std::errc() && last == end && number > 0) out.push_back(number);
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Removes what interrupted saves left: temporary files, contents that no version names. Returns
/// the bytes that stay. Called under the lock only. With an unreadable manifest nothing is removed,
/// since it may name any of the contents.
uint64_t VersionStore::sweep() const {
  const std::vector<Version> versions = list();
  const bool complete = versions.size() == numbers().size();
  std::set<std::string> named;
  for (const Version& version : versions) {
    for (const VersionFile& file : version.files) named.insert(file.sha256);
  }
  uint64_t stored = 0;
  std::vector<fs::path> garbage;
  for (const auto& entry : fs::recursive_directory_iterator(dir_ + "/objects")) {
    if (!entry.is_regular_file()) continue;
    if (complete && named.count(entry.path().filename().string()) == 0) {
      garbage.push_back(entry.path());
    } else {
      stored += entry.file_size();
    }
  }
  std::error_code ignored;
  for (const fs::path& path : garbage) fs::remove(path, ignored);
  return stored;
}

void VersionStore::check_quota(uint64_t stored, uint64_t more) const {
  if (quota_ && stored + more > *quota_) {
    throw UsageError("quota", "the versions would take " +
                                  format_size(static_cast<int64_t>(stored + more)) + " of " +
                                  format_size(static_cast<int64_t>(*quota_)) +
                                  "; save fewer or smaller versions");
  }
}

/// Makes sure that the file's content is an object; returns its hash. A clone shares blocks where
/// the file system can, and is immutable from then on, so it is hashed after it was taken.
/// Elsewhere a first pass finds contents that are already stored, and the copy is hashed while it
/// is written.
std::string VersionStore::store_file(const PackageTree& tree, const TreeFile& file,
                                     uint64_t& stored) const {
  const auto is_stored = [&](const std::string& sha256) {
    std::error_code error;
    return fs::file_size(object_path(sha256), error) == file.size && !error;
  };
  const Fd source = tree.open(file);
  AtomicFile copy(dir_ + "/objects/incoming");
  const bool cloned = ::ioctl(copy.fd().get(), FICLONE, source.get()) == 0;
  std::pair<std::string, uint64_t> copied;
  if (cloned) {
    copied = copy_and_hash(copy.fd(), nullptr, file.size, file.path);
  } else {
    copied = copy_and_hash(source, nullptr, file.size, file.path);
    if (copied.second == file.size && !is_stored(copied.first)) {
      check_quota(stored, file.size);
      if (::lseek(source.get(), 0, SEEK_SET) != 0) throw_errno("seek", file.path);
      copied = copy_and_hash(source, &copy.fd(), file.size, file.path);
    }
  }
  tree.check_unchanged(source, file);
  if (copied.second != file.size) {
    throw UsageError("changed",
                     "\"" + printable(file.path) + "\" became shorter while it was copied");
  }
  const std::string& sha256 = copied.first;
  if (is_stored(sha256)) return sha256;
  check_quota(stored, file.size);
  make_directories(fs::path(object_path(sha256)).parent_path().string());
  copy.commit_as(object_path(sha256), 0444);
  stored += file.size;
  return sha256;
}

Version VersionStore::save(const PackageTree& tree, const std::string& note) {
  check_note(note);
  const Fd lock = lock_directory(dir_);
  uint64_t stored = sweep();
  try {
    Version version;
    const std::vector<int> known = numbers();
    version.number = known.empty() ? 1 : known.back() + 1;
    version.note = note;
    version.utc = utc_now();
    std::vector<TreeFile> hashed = tree.files();
    for (TreeFile& file : hashed) {
      file.sha256 = store_file(tree, file, stored);
      version.files.push_back({file.path, file.size, file.sha256, file.mode});
    }
    tree.check_unchanged();
    version.bytes = total_bytes(version.files);
    version.package_hash = sha256_hex(hash_manifest_of(hashed));
    sync_directory(dir_ + "/objects");
    write_file_atomic(manifest_path(version.number), version_to_json(version));
    return version;
  } catch (...) {
    try {
      sweep();
    } catch (...) {  // the first failure is the one to report
    }
    throw;
  }
}

std::vector<Version> VersionStore::list() const {
  std::vector<Version> out;
  for (const int number : numbers()) {
    try {
      out.push_back(load(number));
    } catch (const Error& error) {
      spdlog::warn("version {} is left out: {}", number, error.what());
    }
  }
  return out;
}

Version VersionStore::load(int number) const {
  const std::string path = manifest_path(number);
  if (number < 1 || !fs::exists(path)) {
    throw UsageError("no_version", dir_ + " has no version " + std::to_string(number));
  }
  Version version = version_from_json(read_file(path), path);
  if (version.number != number) corrupt(path + " describes another version");
  return version;
}

void VersionStore::verify(int number) const {
  const Version version = load(number);
  for (const VersionFile& file : version.files) {
    const std::string object = object_path(file.sha256);
    std::error_code error;
    if (fs::file_size(object, error) != file.size || error) {
      corrupt(object + " of version " + std::to_string(number) + " is missing or of a wrong size");
    }
    if (sha256_file(object) != file.sha256) {
      corrupt(object + " of version " + std::to_string(number) + " does not match its hash");
    }
  }
}

namespace {

void write_checked(const std::string& object, const VersionFile& file, const std::string& path) {
  Fd source(::open(object.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!source.valid()) corrupt(object + " (" + printable(file.path) + ") cannot be opened");
  make_directories(fs::path(path).parent_path().string());
  Fd target(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!target.valid()) throw_errno("create", path);
  const auto [sha256, size] = copy_and_hash(source, &target, file.size + 1, object);
  if (size != file.size || sha256 != file.sha256) {
    corrupt(object + " (" + printable(file.path) + ") does not match its hash");
  }
  if (::fchmod(target.get(), file.mode) != 0) throw_errno("chmod", path);
}

}  // namespace

void VersionStore::materialise(int number, const std::string& dir) const {
  const Version version = load(number);
  if (fs::exists(dir) && !(fs::is_directory(dir) && fs::is_empty(dir))) {
    throw UsageError("not_empty", dir + " exists and is not an empty directory");
  }
  make_directories(dir);
  try {
    for (const VersionFile& file : version.files) {
      write_checked(object_path(file.sha256), file, dir + "/" + file.path);
    }
  } catch (...) {
    remove_tree(dir);
    throw;
  }
}

}  // namespace cbench
