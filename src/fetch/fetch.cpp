// fetch_all: what lock.json already proves is left alone; repositories and files go through one
// scheduler; rows, documents and papers follow; lock.json records it all.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <sys/stat.h>

#include "fetch/sources.h"
#include "util/clock.h"
#include "util/json.h"
#include "util/log.h"
#include "util/progress.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr double kMiB = 1 << 20;

std::string join(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : folder + "/" + name;
}

/// Bytes that unfinished parts already hold on disk.
int64_t bytes_in_parts(const std::string& work) {
  int64_t sum = 0;
  std::error_code ignored;
  for (auto it = fs::recursive_directory_iterator(work, ignored);
       !ignored && it != fs::recursive_directory_iterator(); it.increment(ignored)) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) == 0) sum += int64_t{info.st_blocks} * 512;
  }
  return sum;
}

class Fetcher {
 public:
  Fetcher(const FetchPlan& plan, const FetchOptions& options)
      : plan_(plan),
        options_(options),
        root_(fs::absolute(plan.root).lexically_normal().string()),
        lock_path_(plan.lock.empty() ? root_ + "/lock.json" : plan.lock),
        work_(root_ + "/.cbench-fetch"),
        context_(options.http, options.interrupt),
        client_(context_),
        hub_(client_, options.hub) {
    while (root_.size() > 1 && root_.back() == '/') root_.pop_back();
  }
  FetchReport run();

 private:
  struct Planned {
    const PlanItem* item;
    LockedItem locked;
    ItemReport report;
    bool unchanged = false;
    bool touched = false;  // a file's time changed, its content did not
  };
  struct Owner {  // which item a download belongs to
    size_t item;
    LockedFile file;
  };

  bool refresh_time(LockedFile& file) const;
  void check_plan() const;
  void plan_item(const PlanItem& item);
  void list_repository(Planned& planned, size_t index, const HubRepoItem& what);
  void list_locked(Planned& planned, size_t index);
  void add_url(Planned& planned, size_t index, const UrlItem& what);
  void add_download(size_t index, Download download);
  void check_targets();
  void check_space() const;
  void download();
  void on_done(size_t index, const Downloaded& result);
  void fetch_source(Planned& planned);
  void save_lock(bool force);
  void settle(Planned& planned, bool complete);
  FetchReport report(double started);

  const FetchPlan& plan_;
  const FetchOptions& options_;
  std::string root_, lock_path_, work_;
  HttpContext context_;
  HttpClient client_;
  Hub hub_;
  Lock lock_;
  std::vector<Planned> items_;
  std::vector<Download> downloads_;
  std::vector<Owner> owners_;
  double lock_written_ = 0, lock_interval_ = 2;
};

void Fetcher::check_plan() const {
  if (plan_.root.empty()) throw UsageError("bad_plan", "no destination folder");
  std::set<std::string> paths;
  for (const PlanItem& item : plan_.items) {
    const bool folder = std::holds_alternative<HubRepoItem>(item.what);
    if (!item.path.empty()) check_file_name(item.path);
    if (item.path.empty() && !folder) throw UsageError("bad_plan", "an item without a file name");
    if (!folder && !paths.insert(item.path).second) {
      throw UsageError("duplicate_path", "two items would write " + item.path);
    }
  }
}

/// True if the file was touched since it was locked (and its hash found right).
bool Fetcher::refresh_time(LockedFile& file) const {
  const int64_t before = file.mtime_ns;
  struct stat info {};
  if (::stat((root_ + "/" + file.path).c_str(), &info) == 0) {
    file.mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  }
  return file.mtime_ns != before;
}

/// Decides whether lock.json already proves the item; else prepares what is to be fetched.
void Fetcher::plan_item(const PlanItem& item) {
  Planned planned{&item, lock_request(item), {}};
  planned.report.kind = planned.locked.kind;
  planned.report.name = planned.locked.name;
  const size_t index = items_.size();
  if (const LockedItem* old = lock_.find(planned.locked.key)) {
    const bool repository = std::holds_alternative<HubRepoItem>(item.what);
    bool touched = false;
    planned.locked.revision = old->revision;
    planned.locked.complete = old->complete;
    planned.locked.problems = old->problems;
    for (const LockedFile& file : old->files) {
      const std::string problem = check_locked(root_, file, options_.verify, options_.interrupt);
      if (problem.empty()) {
        planned.locked.files.push_back(file);
        touched |= refresh_time(planned.locked.files.back());
      } else {
        spdlog::warn("{}", problem);
      }
    }
    planned.touched = touched;
    const bool all = planned.locked.files.size() == old->files.size();
    planned.unchanged = old->complete && all && !(options_.update && !old->revision.empty());
    if (!planned.unchanged && repository && options_.hub.offline && old->complete) {
      planned.locked.complete = false;
      list_locked(planned, index);
      items_.push_back(std::move(planned));
      return;
    }
  }
  if (!planned.unchanged) {
    planned.locked.complete = false;
    if (options_.hub.offline) {
      throw EnvironmentError("offline",
                             planned.report.name +
                                 ": not complete here, and this is offline mode (--offline, "
                                 "HF_HUB_OFFLINE); fetch once with the network");
    }
    if (const auto* what = std::get_if<HubRepoItem>(&item.what))
      list_repository(planned, index, *what);
    if (const auto* what = std::get_if<UrlItem>(&item.what)) add_url(planned, index, *what);
  }
  items_.push_back(std::move(planned));
}

void Fetcher::add_download(size_t index, Download download) {
  check_file_name(download.name);
  download.path = root_ + "/" + download.name;
  if (fs::path(download.path) == fs::absolute(lock_path_).lexically_normal()) {
    throw UsageError("duplicate_path", download.name +
                                           " would overwrite lock.json; choose another "
                                           "place for the lock (--lock)");
  }
  LockedFile file;
  file.path = download.name;
  file.size = download.size;
  file.git_sha1 = download.git_sha1;
  file.source = download.url;
  downloads_.push_back(std::move(download));
  owners_.push_back({index, std::move(file)});
}

void Fetcher::list_repository(Planned& planned, size_t index, const HubRepoItem& what) {
  check_repo_id(what.repo.id);
  LockedItem& locked = planned.locked;
  if (locked.revision.empty() || options_.update) {
    const std::string commit = hub_.resolve_revision(what.repo, what.revision);
    if (commit != locked.revision) locked.files.clear();
    locked.revision = commit;
  }
  std::map<std::string, const LockedFile*> have;
  for (const LockedFile& file : locked.files) have[file.path] = &file;
  const auto matches = [](const std::vector<std::string>& globs, const std::string& path) {
    return std::any_of(globs.begin(), globs.end(),
                       [&](const std::string& glob) { return glob_match(glob, path); });
  };
  size_t wanted = 0;
  for (const HubFile& file : hub_.list_files(what.repo, locked.revision)) {
    if (!what.include.empty() && !matches(what.include, file.path)) continue;
    if (matches(what.exclude, file.path)) continue;
    ++wanted;
    Download download;
    download.name = join(planned.item->path, file.path);
    if (have.contains(download.name)) continue;
    download.url = hub_.file_url(what.repo, locked.revision, file.path);
    download.token = options_.hub.token;
    download.size = file.size;
    download.sha256 = file.sha256;
    download.git_sha1 = file.git_sha1;
    download.copies = cached_candidates(options_.hub.cache, what.repo, locked.revision, file);
    download.fail = [this, name = what.repo.id + "/" + file.path,
                     repo = what.repo](const HttpResponse& response) {
      throw_hub_error(response, name, options_.hub, repo);
    };
    add_download(index, std::move(download));
  }
  if (wanted == 0) {
    throw UsageError("no_files", what.repo.id + ": no file matches " +
                                     (what.include.empty() ? "(the repository is empty)"
                                                           : printable(what.include.front())));
  }
}

/// Offline: the list of files is that of lock.json; what is missing may be in the user's cache.
void Fetcher::list_locked(Planned& planned, size_t index) {
  const auto& what = std::get<HubRepoItem>(planned.item->what);
  std::set<std::string> have;
  for (const LockedFile& file : planned.locked.files) have.insert(file.path);
  for (const LockedFile& file : lock_.find(planned.locked.key)->files) {
    if (have.contains(file.path)) continue;
    const std::string inner =
        planned.item->path.empty() ? file.path : file.path.substr(planned.item->path.size() + 1);
    Download download;
    download.name = file.path;
    download.url = file.source;
    download.size = file.size;
    download.sha256 = file.sha256;
    const HubFile cached{inner, file.size, file.git_sha1.empty() ? file.sha256 : "", file.git_sha1};
    download.copies =
        cached_candidates(options_.hub.cache, what.repo, planned.locked.revision, cached);
    add_download(index, std::move(download));
    owners_.back().file.git_sha1 = file.git_sha1;
  }
}

void Fetcher::add_url(Planned& planned, size_t index, const UrlItem& what) {
  Download download;
  download.name = planned.item->path;
  download.url = what.url;
  download.sha256 = what.sha256;
  if (const LockedItem* old = lock_.find(planned.locked.key); old != nullptr && !options_.update) {
    // The first fetch pinned it.
    if (download.sha256.empty() && !old->files.empty()) download.sha256 = old->files.front().sha256;
  }
  parse_origin(what.url);
  planned.locked.files.clear();
  add_download(index, std::move(download));
}

/// No file twice, and no folder on the way that leads out of the root through a link.
void Fetcher::check_targets() {
  std::set<std::string> names, folders;
  for (const Download& download : downloads_) {
    if (!names.insert(download.name).second) {
      throw UsageError("duplicate_path", "two items would write " + download.name);
    }
    folders.insert(fs::path(download.path).parent_path().string());
  }
  const std::string root = fs::weakly_canonical(root_).string();
  for (const std::string& folder : folders) {
    const std::string real = fs::weakly_canonical(folder).string();
    if (real != root && !real.starts_with(root + "/")) {
      throw UsageError("unsafe_name", folder + " is a link out of " + root_ + "; refused");
    }
  }
}

void Fetcher::check_space() const {
  int64_t needed = 0;
  for (const Download& download : downloads_) {
    struct stat info {};
    const bool there = ::lstat(download.path.c_str(), &info) == 0 && info.st_size == download.size;
    if (!there) needed += std::max<int64_t>(download.size, 0);
  }
  needed -= std::min(needed, bytes_in_parts(work_));
  if (needed > 0) check_free_space(root_, needed);
}

void Fetcher::download() {
  check_targets();
  check_space();
  int64_t total = 0;
  for (const Download& download : downloads_) total += std::max<int64_t>(download.size, 0);
  Progress progress("fetch", static_cast<double>(total) / kMiB, "MiB", options_.quiet);
  DownloadOptions options = options_.download;
  options.offline = options_.hub.offline;
  const auto show = [&](int64_t bytes, size_t files) {
    progress.update(static_cast<double>(bytes) / kMiB,
                    std::to_string(files) + " of " + std::to_string(downloads_.size()) + " files");
  };
  download_all(downloads_, work_, context_, options, show,
               [this](size_t index, const Downloaded& result) { on_done(index, result); });
  progress.finish(std::to_string(downloads_.size()) + " files");
}

void Fetcher::on_done(size_t index, const Downloaded& result) {
  LockedFile file = owners_[index].file;
  Planned& planned = items_[owners_[index].item];
  file.size = result.size;
  file.sha256 = result.digests.sha256;
  file.mtime_ns = result.mtime_ns;
  planned.locked.files.push_back(std::move(file));
  planned.report.received += result.received;
  planned.report.copied += result.source == DownloadSource::kCopied ? 1 : 0;
  planned.report.resumed += result.source == DownloadSource::kResumed ? 1 : 0;
  planned.report.existing += result.source == DownloadSource::kExisting ? 1 : 0;
  save_lock(false);
}

/// The lock's file is rewritten now and then, so that an interrupted fetch need not hash again what
/// it had finished; seldom when it is large.
void Fetcher::save_lock(bool force) {
  const double now = boot_seconds();
  if (!force && now - lock_written_ < lock_interval_) return;
  Lock lock = lock_;
  for (const Planned& planned : items_) {
    if (planned.unchanged && !planned.touched) continue;
    // A complete list is not given up for a part of it: it pins what is missing now.
    const LockedItem* known = lock_.find(planned.locked.key);
    const bool pinned = known != nullptr && known->complete &&
                        known->revision == planned.locked.revision && !options_.update;
    if (pinned && !planned.locked.complete) continue;
    std::set<std::string> paths;
    for (const LockedFile& file : planned.locked.files) paths.insert(file.path);
    // A file has one owner, the last that wrote it; another revision of a repository in the same
    // place replaces the one before.
    std::erase_if(lock.items, [&](LockedItem& other) {
      if (other.key == planned.locked.key) return false;
      const size_t before = other.files.size();
      std::erase_if(other.files, [&](const LockedFile& file) { return paths.contains(file.path); });
      if (other.files.size() == before) return false;
      other.complete = false;
      return other.name == planned.locked.name;
    });
    if (LockedItem* old = lock.find(planned.locked.key)) {
      *old = planned.locked;
    } else {
      lock.items.push_back(planned.locked);
    }
  }
  std::erase_if(lock.items,
                [](const LockedItem& item) { return item.files.empty() && !item.complete; });
  write_lock(lock_path_, lock);
  lock_written_ = boot_seconds();
  lock_interval_ = std::max(2.0, 20 * (lock_written_ - now));
}

void Fetcher::settle(Planned& planned, bool complete) {
  LockedItem& locked = planned.locked;
  locked.complete = complete;
  std::sort(locked.files.begin(), locked.files.end(),
            [](const LockedFile& a, const LockedFile& b) { return a.path < b.path; });
}

void Fetcher::fetch_source(Planned& planned) {
  const SourceTools tools{options_, context_, client_, hub_, root_, work_};
  const std::string& path = planned.item->path;
  LockedItem& locked = planned.locked;
  if (const auto* rows = std::get_if<RowsItem>(&planned.item->what)) {
    fetch_rows(tools, *rows, path, locked);
  } else if (const auto* dolma = std::get_if<DolmaItem>(&planned.item->what)) {
    fetch_dolma(tools, *dolma, path, locked);
  } else if (const auto* papers = std::get_if<PapersItem>(&planned.item->what)) {
    fetch_papers(tools, *papers, path, locked);
  }
  settle(planned, locked.problems.empty());
  save_lock(true);
}

FetchReport Fetcher::report(double started) {
  FetchReport out;
  out.lock = lock_path_;
  for (Planned& planned : items_) {
    ItemReport& item = planned.report;
    item.state = planned.unchanged         ? "unchanged"
                 : planned.locked.complete ? "fetched"
                                           : "incomplete";
    item.revision = planned.locked.revision;
    item.files = static_cast<int64_t>(planned.locked.files.size());
    for (const LockedFile& file : planned.locked.files) item.bytes += file.size;
    item.problems = planned.locked.problems;
    out.items.push_back(std::move(item));
  }
  out.seconds = boot_seconds() - started;
  return out;
}

FetchReport Fetcher::run() {
  const double started = boot_seconds();
  check_plan();
  lock_ = read_lock(lock_path_);
  for (const PlanItem& item : plan_.items) plan_item(item);
  const auto all_unchanged = std::all_of(items_.begin(), items_.end(),
                                         [](const Planned& planned) { return planned.unchanged; });
  if (all_unchanged) {
    const bool touched = std::any_of(items_.begin(), items_.end(),
                                     [](const Planned& planned) { return planned.touched; });
    if (touched) save_lock(true);
    return report(started);
  }
  make_directories(root_);
  try {
    download();
    for (Planned& planned : items_) {
      const auto& what = planned.item->what;
      if (planned.unchanged) continue;
      const bool files =
          std::holds_alternative<HubRepoItem>(what) || std::holds_alternative<UrlItem>(what);
      if (files) settle(planned, true);
    }
    save_lock(true);
    for (Planned& planned : items_) {
      const auto& what = planned.item->what;
      const bool files =
          std::holds_alternative<HubRepoItem>(what) || std::holds_alternative<UrlItem>(what);
      if (!planned.unchanged && !files) fetch_source(planned);
    }
  } catch (...) {
    try {
      save_lock(true);
    } catch (
        const Error& error) {  // a full disk, most likely: finished files are hashed again then
      spdlog::warn("{}", error.what());
    }
    throw;
  }
  std::error_code ignored;
  fs::remove(work_ + "/papers", ignored);
  fs::remove(work_, ignored);
  return report(started);
}

}  // namespace

LockedFile describe_item_file(const std::string& root, const std::string& path,
                              const std::string& source) {
  const std::string full = root + "/" + path;
  struct stat info {};
  if (::stat(full.c_str(), &info) != 0) throw_errno("stat", full);
  LockedFile file;
  file.path = path;
  file.size = info.st_size;
  file.sha256 = sha256_file(full);
  file.mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  file.source = source;
  return file;
}

bool FetchReport::complete() const {
  return std::all_of(items.begin(), items.end(),
                     [](const ItemReport& item) { return item.state != "incomplete"; });
}

bool FetchReport::unchanged() const {
  return std::all_of(items.begin(), items.end(),
                     [](const ItemReport& item) { return item.state == "unchanged"; });
}

std::string FetchReport::json() const {
  Json list = Json::array();
  for (const ItemReport& item : items) {
    list.push_back({{"name", item.name},
                    {"kind", item.kind},
                    {"state", item.state},
                    {"revision", item.revision},
                    {"files", item.files},
                    {"bytes", item.bytes},
                    {"received_bytes", item.received},
                    {"copied_files", item.copied},
                    {"resumed_files", item.resumed},
                    {"existing_files", item.existing},
                    {"problems", item.problems}});
  }
  return dump_json({{"complete", complete()},
                    {"unchanged", unchanged()},
                    {"lock", lock},
                    {"seconds", seconds},
                    {"items", std::move(list)}});
}

FetchReport fetch_all(const FetchPlan& plan, const FetchOptions& options) {
  return Fetcher(plan, options).run();
}

}  // namespace cbench
