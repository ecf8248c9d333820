#include "fetch/part_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr double kSaveInterval = 1;           // seconds
constexpr double kForeignStaleSeconds = 600;  // another machine's part without a sign of life
constexpr size_t kBlock = 1u << 20;
constexpr int64_t kStateRoom = 64 << 10;

/// Start time of a process in clock ticks (field 22 of /proc/<pid>/stat), "" if it is gone.
std::string start_time(const std::string& pid) {
  std::string stat;
  try {
    stat = read_file("/proc/" + pid + "/stat", 4096);
  } catch (const Error&) {
    return "";
  }
  size_t at = stat.rfind(')');
  if (at == stat.npos) return "";
  for (int field = 2; field < 22 && at != stat.npos; ++field) at = stat.find(' ', at + 1);
  if (at == stat.npos) return "";
  return stat.substr(at + 1, stat.find(' ', at + 1) - at - 1);
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string out;
  for (const char* c = name.data(); *c != '\0'; ++c) out += *c == '.' ? '_' : *c;
  return out;
}

/// "<host>.<boot>.<pid>.<start>.<count>".
std::string own_name() {
  static std::atomic<int> count{0};
  const std::string pid = std::to_string(::getpid());
  return host_name() + "." + boot_id().substr(0, 8) + "." + pid + "." + start_time(pid) + "." +
         std::to_string(++count);
}

bool owner_is_gone(const std::string& owner, const std::string& folder) {
  std::vector<std::string> fields(1);
  for (const char c : owner) {
    if (c == '.')
      fields.emplace_back();
    else
      fields.back() += c;
  }
  if (fields.size() != 5) return false;
  if (fields[0] == host_name()) {
    if (fields[1] != boot_id().substr(0, 8)) return true;
    return start_time(fields[2]) != fields[3];
  }
  struct stat info {};  // a shared file system: another machine's process shows life by saving
  if (::stat((folder + "/state.json").c_str(), &info) != 0 && ::stat(folder.c_str(), &info) != 0) {
    return false;
  }
  return std::difftime(::time(nullptr), info.st_mtime) > kForeignStaleSeconds;
}

std::string part_key(const PartIdentity& identity) {
  const size_t colon = identity.content.find(':');
  const std::string kind = identity.content.substr(0, colon);
  const std::string value =
      kind == "url" ? sha256_hex(identity.content) : identity.content.substr(colon + 1);
  return value + "-" + sha256_hex(identity.name).substr(0, 12);
}

void sync_folder_of(const std::string& path) {
  const Fd folder(::open(fs::path(path).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) ::fsync(folder.get());
}

}  // namespace

void RangeSet::add(ByteRange range) {
  if (range.begin >= range.end) return;
  auto next = ranges_.upper_bound(range.begin);
  if (next != ranges_.begin()) {
    const auto before = std::prev(next);
    if (before->second >= range.begin) {
      range.begin = before->first;
      range.end = std::max(range.end, before->second);
      ranges_.erase(before);
    }
  }
  while (next != ranges_.end() && next->first <= range.end) {
    range.end = std::max(range.end, next->second);
    next = ranges_.erase(next);
  }
  ranges_[range.begin] = range.end;
}

void RangeSet::cut(int64_t size) {
  while (!ranges_.empty() && ranges_.rbegin()->second > size) {
    const auto last = std::prev(ranges_.end());
    if (last->first >= size) {
      ranges_.erase(last);
    } else {
      last->second = size;
    }
  }
}

int64_t RangeSet::total() const {
  int64_t sum = 0;
  for (const auto& [begin, end] : ranges_) sum += end - begin;
  return sum;
}

int64_t RangeSet::prefix() const {
  return !ranges_.empty() && ranges_.begin()->first == 0 ? ranges_.begin()->second : 0;
}

std::vector<ByteRange> RangeSet::missing(int64_t size, int64_t piece) const {
  std::vector<ByteRange> out;
  const auto gap = [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += piece) out.push_back({begin, std::min(begin + piece, end)});
  };
  int64_t at = 0;
  for (const auto& [begin, end] : ranges_) {
    gap(at, std::min(begin, size));
    at = std::max(at, end);
  }
  gap(at, size);
  return out;
}

std::vector<ByteRange> RangeSet::ranges() const {
  std::vector<ByteRange> out;
  for (const auto& [begin, end] : ranges_) out.push_back({begin, end});
  return out;
}

PartFile::PartFile(const std::string& work, const PartIdentity& identity) : identity_(identity) {
  make_directories(work);
  const std::string key = part_key(identity);
  rest_ = work + "/" + key;
  folder_ = rest_ + "." + own_name();
  adopt(work, key);
  if (::mkdir(folder_.c_str(), 0755) != 0 && errno != EEXIST) throw_errno("mkdir", folder_);
  data_ = folder_ + "/data";
  fd_ = Fd(::open(data_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd_.valid()) throw_errno("open", data_);
  if (!load_state()) restart();
}

/// Renames the resting part, or that of a dead owner, to our name. Losing a race is fine.
void PartFile::adopt(const std::string& work, const std::string& key) {
  if (::rename(rest_.c_str(), folder_.c_str()) == 0) return;
  DIR* directory = ::opendir(work.c_str());
  if (directory == nullptr) return;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name.starts_with(key + ".")) names.emplace_back(name);
  }
  ::closedir(directory);
  for (const std::string& name : names) {
    const std::string theirs = work + "/" + name;
    if (theirs == folder_ || !owner_is_gone(name.substr(key.size() + 1), theirs)) continue;
    if (::rename(theirs.c_str(), folder_.c_str()) == 0) return;
  }
}

bool PartFile::load_state() {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return false;
  try {
    const std::string path = folder_ + "/state.json";
    if (!fs::exists(path)) return false;
    const Json state = read_json(path, {.max_bytes = 16u << 20, .max_depth = 8});
    if (json_string(state, "content", path) != identity_.content) return false;
    if (json_int(state, "size", path) != identity_.size) return false;
    identity_.validator = json_string(state, "validator", path);
    if (identity_.content.starts_with("url:") && identity_.validator.empty()) return false;
    for (const Json& range : json_member(state, "ranges", path)) {
      const ByteRange have{range.at(0).get<int64_t>(), range.at(1).get<int64_t>()};
      if (have.begin < 0 || have.end < have.begin || have.end > info.st_size) return false;
      if (identity_.size >= 0 && have.end > identity_.size) return false;
      have_.add(have);
    }
  } catch (const std::exception& error) {
    spdlog::info("{}: starts again: {}", identity_.name, error.what());
    return false;
  }
  return true;
}

PartFile::~PartFile() {
  std::error_code ignored;
  if (published_ || total() == 0) {
    fs::remove_all(folder_, ignored);
    return;
  }
  if (!save(true)) {  // a full disk: give up the last bytes for the state
    have_.cut(have_.end() - kStateRoom);
    if (::ftruncate(fd_.get(), have_.end()) == 0) save(true);
  }
  if (::rename(folder_.c_str(), rest_.c_str()) != 0) fs::remove_all(folder_, ignored);
}

void PartFile::write(int64_t offset, std::string_view bytes) {
  const auto written = [this, begin = offset](int64_t end) {
    const std::lock_guard lock(mutex_);
    have_.add({begin, end});
  };
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == ENOSPC || errno == EDQUOT)) {
      written(offset);
      throw EnvironmentError("disk_full", "the disk is full while writing " + identity_.name +
                                              "; what arrived is kept: free some space and run the "
                                              "same command again");
    }
    if (n < 0) throw_errno("write", data_);
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  written(offset);
}

int64_t PartFile::prefix() const {
  const std::lock_guard lock(mutex_);
  return have_.prefix();
}

int64_t PartFile::total() const {
  const std::lock_guard lock(mutex_);
  return have_.total();
}

std::vector<ByteRange> PartFile::missing(int64_t size, int64_t piece) const {
  const std::lock_guard lock(mutex_);
  return have_.missing(size, piece);
}

void PartFile::set_validator(const std::string& validator) {
  const std::lock_guard lock(mutex_);
  identity_.validator = validator;
}

bool PartFile::save(bool force) {
  Json state;
  {
    const std::lock_guard lock(mutex_);
    const double now = boot_seconds();
    if (!force && now - saved_at_ < kSaveInterval) return true;
    if (saved_at_ == 0 && !force) {  // small files end before their first save is due
      saved_at_ = now;
      return true;
    }
    saved_at_ = now;
    Json ranges = Json::array();
    for (const ByteRange& range : have_.ranges()) ranges.push_back({range.begin, range.end});
    state = {{"content", identity_.content},
             {"validator", identity_.validator},
             {"size", identity_.size},
             {"name", identity_.name},
             {"ranges", std::move(ranges)}};
  }
  try {
    write_file_atomic(folder_ + "/state.json", dump_json(state) + "\n");
  } catch (const Error& error) {
    spdlog::debug("{}", error.what());
    return false;
  }
  return true;
}

void PartFile::cut(int64_t size) {
  const std::lock_guard lock(mutex_);
  have_.cut(size);
  if (::ftruncate(fd_.get(), size) != 0) throw_errno("truncate", data_);
}

void PartFile::restart() {
  const std::lock_guard lock(mutex_);
  have_.clear();
  identity_.validator.clear();
  ::unlink((folder_ + "/state.json").c_str());
  if (::ftruncate(fd_.get(), 0) != 0) throw_errno("truncate", data_);
}

void PartFile::publish(const std::string& path, mode_t mode) {
  if (::fchmod(fd_.get(), mode) != 0) throw_errno("chmod", data_);
  if (::fsync(fd_.get()) != 0) throw_errno("fsync", data_);
  if (::rename(data_.c_str(), path.c_str()) != 0) throw_errno("rename", path);
  sync_folder_of(path);
  published_ = true;
}

HashFollower::HashFollower(int fd, std::string subject, int64_t git_size)
    : fd_(fd), subject_(std::move(subject)), sha256_(std::make_unique<Hasher>()) {
  if (git_size >= 0) {
    git_ = std::make_unique<Hasher>(Hasher::Kind::kSha1);
    const std::string head = "blob " + std::to_string(git_size);
    git_->update({head.c_str(), head.size() + 1});
  }
  thread_ = std::thread([this] { follow(); });
}

HashFollower::~HashFollower() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HashFollower::advance(int64_t prefix) {
  {
    const std::lock_guard lock(mutex_);
    if (prefix <= available_) return;
    available_ = prefix;
  }
  changed_.notify_all();
}

void HashFollower::follow() {
  std::vector<char> block(kBlock);
  int64_t hashed = 0;  // ours; hashed_ is what others may see
  while (true) {
    int64_t until = 0;
    {
      std::unique_lock lock(mutex_);
      // Wake for a whole block, or for the end.
      changed_.wait(lock, [&] {
        return stop_ || available_ - hashed_ >= static_cast<int64_t>(kBlock) ||
               (target_ >= 0 && hashed_ < available_) || target_ == hashed_;
      });
      if (stop_ || target_ == hashed_) return;
      until = available_;
    }
    while (hashed < until) {
      const size_t want = std::min(block.size(), static_cast<size_t>(until - hashed));
      const ssize_t n = ::pread(fd_, block.data(), want, hashed);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        fail(n < 0 ? errno_message("read", subject_) : subject_ + " was cut while it was fetched");
        return;
      }
      sha256_->update({block.data(), static_cast<size_t>(n)});
      if (git_) git_->update({block.data(), static_cast<size_t>(n)});
      hashed += n;
      const std::lock_guard lock(mutex_);
      hashed_ = hashed;
      if (stop_) return;
      if (hashed == target_) changed_.notify_all();
    }
  }
}

void HashFollower::fail(const std::string& message) {
  const std::lock_guard lock(mutex_);
  failure_ = std::make_exception_ptr(EnvironmentError("io", message));
  stop_ = true;
  changed_.notify_all();
}

Digests HashFollower::finish(int64_t size) {
  std::unique_lock lock(mutex_);
  available_ = std::max(available_, size);
  target_ = size;
  changed_.notify_all();
  changed_.wait(lock, [&] { return stop_ || hashed_ >= target_; });
  if (failure_) std::rethrow_exception(failure_);
  return {sha256_->hex(), git_ ? git_->hex() : ""};
}

Digests hash_file(const std::string& path, bool git, const std::function<bool()>& stop) {
  const Fd fd = open_regular(path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("stat", path);
  Hasher sha256;
  Hasher sha1(Hasher::Kind::kSha1);
  const std::string head = "blob " + std::to_string(info.st_size);
  sha1.update({head.c_str(), head.size() + 1});
  std::vector<char> block(kBlock);
  while (const size_t n = read_some(fd, block.data(), block.size(), path)) {
    if (stop && stop()) throw EnvironmentError("interrupted", "interrupted while hashing " + path);
    sha256.update({block.data(), n});
    if (git) sha1.update({block.data(), n});
  }
  return {sha256.hex(), git ? sha1.hex() : ""};
}

}  // namespace cbench
