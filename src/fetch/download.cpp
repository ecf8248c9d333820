#include "fetch/download.h"

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <thread>

#include <sys/statvfs.h>

#include "fetch/file_job.h"
#include "util/units.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr auto kTick = std::chrono::milliseconds(20);

/// Gives the workers ranges of the open files first, then the next file: few files are open at
/// once.
class Scheduler {
 public:
  Scheduler(const std::vector<Download>& files, std::string work, HttpContext& context,
            const DownloadOptions& options, const DownloadDone& done)
      : files_(files),
        work_(std::move(work)),
        context_(context),
        options_(options),
        done_(done),
        results_(files.size()) {}

  std::vector<Downloaded> run(const DownloadProgress& progress);

 private:
  using JobPtr = std::shared_ptr<FileJob>;
  struct OpenJob {
    size_t index;
    JobPtr job;
  };
  struct Task {
    OpenJob open;
    std::optional<ByteRange> range;  // else: open files_[open.index]
  };

  void work();
  std::optional<Task> next();
  void begin_file(size_t index);
  void conclude(const OpenJob& open);
  void report(const OpenJob& open);
  void fail(std::exception_ptr failure);

  const std::vector<Download>& files_;
  std::string work_;
  HttpContext& context_;
  const DownloadOptions& options_;
  const DownloadDone& done_;
  std::vector<Downloaded> results_;
  std::atomic<int64_t> bytes_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<OpenJob> open_;
  size_t next_file_ = 0;
  size_t opening_ = 0;
  size_t files_done_ = 0;
  int workers_ = 0;
  std::exception_ptr failure_;
  std::mutex done_mutex_;
};

std::optional<Scheduler::Task> Scheduler::next() {
  std::unique_lock lock(mutex_);
  while (!failure_) {
    bool waiting = opening_ > 0;
    for (const OpenJob& open : open_) {
      if (auto range = open.job->take()) return Task{open, range};
      waiting = waiting || open.job->may_have_more();
    }
    if (next_file_ < files_.size()) {
      ++opening_;
      return Task{{next_file_++, nullptr}, std::nullopt};
    }
    if (!waiting) return std::nullopt;
    changed_.wait_for(lock, kTick);
  }
  return std::nullopt;
}

void Scheduler::begin_file(size_t index) {
  const OpenJob open{index,
                     std::make_shared<FileJob>(files_[index], work_, context_, options_, bytes_)};
  bool local = false;
  try {
    context_.check();
    local = open.job->satisfied_locally();
    if (!local && options_.offline) {
      throw EnvironmentError("offline", files_[index].name +
                                            ": not here and not in the cache, and this is offline "
                                            "mode; fetch once with the network");
    }
    if (!local) open.job->open_part();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    --opening_;
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    --opening_;
    if (!local && !open.job->complete()) {
      open_.push_back(open);
      changed_.notify_all();
      return;
    }
  }
  if (local) return report(open);
  if (open.job->finish()) return report(open);
  const std::lock_guard lock(mutex_);
  open_.push_back(open);
}

void Scheduler::conclude(const OpenJob& open) {
  if (!open.job->finish()) {
    changed_.notify_all();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(open_, [&](const OpenJob& other) { return other.index == open.index; });
  }
  report(open);
}

void Scheduler::report(const OpenJob& open) {
  const std::lock_guard lock(done_mutex_);
  results_[open.index] = open.job->result();
  {
    const std::lock_guard counts(mutex_);
    ++files_done_;
  }
  if (done_) done_(open.index, results_[open.index]);
}

void Scheduler::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
  context_.stop();
  changed_.notify_all();
}

void Scheduler::work() {
  try {
    HttpClient client(context_);
    while (const auto task = next()) {
      if (!task->range) {
        begin_file(task->open.index);
        continue;
      }
      task->open.job->fetch(client, *task->range);
      if (task->open.job->release()) conclude(task->open);
    }
  } catch (...) {
    fail(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  --workers_;
  changed_.notify_all();
}

std::vector<Downloaded> Scheduler::run(const DownloadProgress& progress) {
  const auto wanted = std::min<size_t>(std::max(options_.connections, 1), files_.size() * 64);
  std::vector<std::thread> threads;
  workers_ = static_cast<int>(wanted);
  for (size_t i = 0; i < wanted; ++i) threads.emplace_back([this] { work(); });
  {
    std::unique_lock lock(mutex_);
    while (workers_ > 0) {
      changed_.wait_for(lock, kTick * 5);
      const size_t files = files_done_;
      lock.unlock();
      if (progress) progress(bytes_, files);
      lock.lock();
    }
  }
  for (std::thread& thread : threads) thread.join();
  open_.clear();  // parts go back to rest with their state
  if (failure_) std::rethrow_exception(failure_);
  return std::move(results_);
}

}  // namespace

std::vector<Downloaded> download_all(const std::vector<Download>& files, const std::string& work,
                                     HttpContext& context, const DownloadOptions& options,
                                     const DownloadProgress& progress, const DownloadDone& done) {
  if (files.empty()) return {};
  Scheduler scheduler(files, work, context, options, done);
  std::vector<Downloaded> results = scheduler.run(progress);
  std::error_code ignored;
  fs::remove(work, ignored);  // if it is empty
  return results;
}

void check_free_space(const std::string& path, int64_t bytes) {
  fs::path at = fs::absolute(path);
  std::error_code ignored;
  while (!fs::exists(at, ignored) && at.has_relative_path()) at = at.parent_path();
  struct statvfs info {};
  if (::statvfs(at.c_str(), &info) != 0) return;  // it cannot tell: writing will
  const auto available = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  if (available < bytes) {
    throw EnvironmentError("no_space", path + ": " + format_size(bytes) + " are needed and " +
                                           format_size(available) +
                                           " are free; free some space or choose another folder");
  }
}

}  // namespace cbench
