#include "fetch/file_job.h"

#include <algorithm>
#include <filesystem>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fetch/range_stream.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kProgressBytes = 1 << 20;  // new bytes that make the retries count anew
// More connections help where each is slow. Above this rate this machine is the limit, and they
// would only contend for it.
constexpr double kFastRate = 512.0 * (1 << 20);  // bytes per second
constexpr double kLookSeconds = 0.25;

PartIdentity identity_of(const Download& file) {
  PartIdentity identity;
  identity.content = !file.sha256.empty()     ? "sha256:" + file.sha256
                     : !file.git_sha1.empty() ? "git:" + file.git_sha1
                                              : "url:" + file.url;
  identity.size = file.size;
  identity.name = file.name;
  return identity;
}

int64_t mtime_ns(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

bool is_lfs_pointer(const std::string& path, int64_t size) {
  return size < 1024 && read_file(path, 1024).starts_with(kLfsPointerStart);
}

}  // namespace

FileJob::FileJob(const Download& file, const std::string& work, HttpContext& context,
                 const DownloadOptions& options, std::atomic<int64_t>& bytes_in_place)
    : file_(file),
      work_(work),
      context_(context),
      options_(options),
      bytes_in_place_(bytes_in_place),
      size_(file.size) {}

bool FileJob::proved(const Digests& digests) const {
  if (!file_.sha256.empty()) return digests.sha256 == file_.sha256;
  return file_.git_sha1.empty() || digests.git_sha1 == file_.git_sha1;
}

void FileJob::record(DownloadSource source, int64_t size, Digests digests) {
  struct stat info {};
  if (::stat(file_.path.c_str(), &info) != 0) throw_errno("stat", file_.path);
  result_.done = true;
  result_.size = size;
  result_.digests = std::move(digests);
  result_.mtime_ns = mtime_ns(info);
  result_.source = source;
}

bool FileJob::satisfied_locally() {
  const bool git = !file_.git_sha1.empty();
  if (file_.sha256.empty() && !git) return false;
  const auto stop = [this] { return context_.cancelled(); };
  struct stat info {};
  if (file_.keep_existing && ::lstat(file_.path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
      (file_.size < 0 || info.st_size == file_.size)) {
    Digests digests = hash_file(file_.path, git, stop);
    if (proved(digests)) {
      bytes_in_place_ += info.st_size;
      record(DownloadSource::kExisting, info.st_size, std::move(digests));
      return true;
    }
  }
  if (!options_.use_copies) return false;
  return std::any_of(file_.copies.begin(), file_.copies.end(),
                     [this](const std::string& copy) { return copy_from(copy); });
}

/// Clones or copies a local file, then proves the copy; the source is only ever read.
bool FileJob::copy_from(const std::string& source) {
  std::error_code ignored;
  if (!fs::is_regular_file(source, ignored)) return false;
  if (file_.size >= 0 && fs::file_size(source, ignored) != static_cast<uintmax_t>(file_.size)) {
    spdlog::warn("{}: wrong size, not used", source);
    return false;
  }
  const Fd from = open_regular(source);
  PartFile part(work_, {"copy:" + sha256_hex(source), "", -1, file_.name});
  if (::ioctl(part.fd(), FICLONE, from.get()) != 0) {
    std::vector<char> block(1 << 20);
    int64_t offset = 0;
    while (const size_t n = read_some(from, block.data(), block.size(), source)) {
      context_.check();
      part.write(offset, {block.data(), n});
      offset += static_cast<int64_t>(n);
    }
  }
  Digests digests =
      hash_file(part.data_path(), !file_.git_sha1.empty(), [this] { return context_.cancelled(); });
  if (!proved(digests)) {
    spdlog::warn("{}: its content does not match its hash, not used", source);
    part.restart();
    return false;
  }
  make_directories(fs::path(file_.path).parent_path());
  part.publish(file_.path, options_.mode);
  const auto size = static_cast<int64_t>(fs::file_size(file_.path));
  bytes_in_place_ += size;
  record(DownloadSource::kCopied, size, std::move(digests));
  return true;
}

void FileJob::open_part() {
  make_directories(fs::path(file_.path).parent_path());
  part_ = std::make_unique<PartFile>(work_, identity_of(file_));
  const int64_t there = part_->total();
  bytes_in_place_ += there;
  if (there > 0) result_.source = DownloadSource::kResumed;
  const std::lock_guard lock(mutex_);
  fill_todo();
}

/// Under the lock: the ranges still to fetch, and a follower that starts at the beginning.
void FileJob::fill_todo() {
  hash_.reset();
  if (size_ < 0 || size_ >= options_.follow_size) {
    hash_ = std::make_unique<HashFollower>(part_->fd(), file_.name,
                                           file_.git_sha1.empty() ? -1 : size_);
    hash_->advance(part_->prefix());
  }
  todo_.clear();
  if (size_ < 0) {
    todo_.push_back({part_->prefix(), INT64_MAX});
    return;
  }
  const int64_t piece = ranges_ ? options_.part_size : std::max<int64_t>(size_, 1);
  for (const ByteRange& range : part_->missing(size_, piece)) todo_.push_back(range);
}

std::optional<ByteRange> FileJob::take() {
  const std::lock_guard lock(mutex_);
  if (again_ || todo_.empty() || (active_ > 0 && !room_for_another())) return std::nullopt;
  if (started_at_ == 0) {
    started_at_ = boot_seconds();
    started_with_ = part_->total();
  }
  const ByteRange range = todo_.front();
  todo_.pop_front();
  ++active_;
  return range;
}

/// Under the lock, while at least one connection is at work.
bool FileJob::room_for_another() const {
  if (!parallel_) return false;
  const double seconds = boot_seconds() - started_at_;
  if (seconds < kLookSeconds) return false;
  return static_cast<double>(part_->total() - started_with_) < kFastRate * seconds;
}

bool FileJob::may_have_more() const {
  const std::lock_guard lock(mutex_);
  return again_ || !todo_.empty();
}

bool FileJob::complete() const {
  const std::lock_guard lock(mutex_);
  return !again_ && todo_.empty() && active_ == 0;
}

void FileJob::fetch(HttpClient& client, ByteRange range) {
  Backoff backoff(context_);
  int64_t furthest = range.begin;
  int redirected_afresh = 0;
  while (range.begin < range.end) {
    {
      const std::lock_guard lock(mutex_);
      if (again_) return;
    }
    HttpResponse answer;
    std::exception_ptr failure;
    try {
      transfer(client, range, answer);
      if (answer.ok()) continue;
      if (!retryable_status(answer.status) && ++redirected_afresh <= 3) continue;
    } catch (StartAgain& why) {
      const std::lock_guard lock(mutex_);
      if (!again_) again_ = std::move(why);
      return;
    } catch (const TransferError& error) {
      if (!error.retryable()) throw;
      failure = std::current_exception();
      spdlog::info("{}: {}; trying again", file_.name, error.what());
    }
    if (range.begin - furthest >= kProgressBytes) {
      backoff.progress();
      furthest = range.begin;
    }
    if (backoff.wait(failure ? nullptr : &answer)) continue;
    if (failure) std::rethrow_exception(failure);
    if (file_.fail) file_.fail(answer);
    throw EnvironmentError(
        "http", file_.name + ": HTTP " + std::to_string(answer.status) + " on every try");
  }
}

HttpRequest FileJob::request_for(const ByteRange& range) {
  HttpRequest request;
  const std::lock_guard lock(mutex_);
  request.url = direct_url_.empty() ? file_.url : direct_url_;
  if (direct_url_.empty()) request.token = file_.token;
  request.redirects = Redirects::kAll;
  const bool whole = range.begin == 0 && (range.end == size_ || range.end == INT64_MAX);
  if (!whole) {
    const std::string last = range.end == INT64_MAX ? "" : std::to_string(range.end - 1);
    request.headers.emplace_back("Range", "bytes=" + std::to_string(range.begin) + "-" + last);
    if (!part_->validator().empty()) request.headers.emplace_back("If-Range", part_->validator());
  }
  return request;
}

/// One exchange; range.begin moves on with what arrived. An error answer is returned in `answer`
/// when it is worth another try, else thrown.
void FileJob::transfer(HttpClient& client, ByteRange& range, HttpResponse& answer) {
  HttpRequest request = request_for(range);
  const bool ranged = !request.headers.empty();
  const bool direct = request.url != file_.url;
  RangeStream stream(*this, range, ranged);
  request.sink = [&](const HttpResponse& head, std::string_view bytes) {
    stream.take(head, bytes);
    return true;
  };
  try {
    answer = client.exchange(request);
  } catch (const TransferError&) {
    stream.flush();
    throw;
  }
  if (!answer.ok()) return judge_error(answer, ranged, direct);
  stream.end(answer);
  if (answer.left_origin) {
    const std::lock_guard lock(mutex_);
    direct_url_ = answer.url;
  }
}

void FileJob::judge_error(const HttpResponse& response, bool ranged, bool direct) {
  const int status = response.status;
  if (ranged && status == 416) {
    throw StartAgain{StartAgain::Cause::kRangeRefused,
                     file_.name + ": the server refuses the rest of the file (416 " +
                         printable(response.headers.get("Content-Range")) + ")",
                     "wrong_size"};
  }
  if (retryable_status(status)) return;
  if (direct && status >= 400 &&
      status < 500) {  // a signed address that ran out: ask for a new one
    const std::lock_guard lock(mutex_);
    direct_url_.clear();
    return;
  }
  if (file_.fail) file_.fail(response);
  throw EnvironmentError("http", file_.name + ": HTTP " + std::to_string(status) + " from " +
                                     parse_origin(response.url).host);
}

bool FileJob::release() {
  const std::lock_guard lock(mutex_);
  --active_;
  if (active_ > 0) return false;
  if (again_) {
    StartAgain why = std::move(*again_);
    again_.reset();
    start_again(std::move(why));
    return false;
  }
  return todo_.empty();
}

/// Under the lock, nobody active.
void FileJob::start_again(StartAgain why) {
  if (std::find(causes_.begin(), causes_.end(), why.cause) != causes_.end()) {
    part_->restart();
    throw EnvironmentError(why.code, why.message);
  }
  causes_.push_back(why.cause);
  spdlog::info("{}; starting again", why.message);
  restart_part();
  fill_todo();
}

void FileJob::restart_part() {
  hash_.reset();
  bytes_in_place_ -= part_->total();
  part_->restart();
  direct_url_.clear();
  parallel_ = false;
  started_at_ = 0;
  if (file_.size < 0) size_ = -1;
  result_.source = DownloadSource::kNetwork;
}

bool FileJob::finish() {
  const int64_t size = part_->total();
  const bool git = !file_.git_sha1.empty();
  Digests digests =
      hash_ ? hash_->finish(size)
            : hash_file(part_->data_path(), git, [this] { return context_.cancelled(); });
  const bool pinned = git || !file_.sha256.empty();
  const bool right = proved(digests);
  if ((!right || !pinned) && is_lfs_pointer(part_->data_path(), size)) {
    part_->restart();
    throw EnvironmentError("lfs_pointer", file_.name +
                                              ": the server sent a Git LFS pointer, not the "
                                              "file; use the repository's resolve/ address");
  }
  if (!right) {
    const std::lock_guard lock(mutex_);
    start_again({StartAgain::Cause::kWrongHash,
                 file_.name + ": the content does not match its hash (expected " +
                     (git ? file_.git_sha1 : file_.sha256) + ", got " +
                     (git ? digests.git_sha1 : digests.sha256) +
                     "), twice; the server or a proxy "
                     "in between changes the file",
                 "wrong_hash"});
    return false;
  }
  part_->publish(file_.path, options_.mode);
  record(result_.source, size, std::move(digests));
  hash_.reset();
  part_.reset();
  return true;
}

}  // namespace cbench
