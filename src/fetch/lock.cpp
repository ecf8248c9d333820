#include "fetch/lock.h"

#include <filesystem>

#include <sys/stat.h>

#include "util/clock.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr int kVersion = 1;
constexpr JsonLimits kLimits{.max_bytes = uint64_t{1} << 30, .max_depth = 16};

LockedFile parse_file(const Json& value, const std::string& path) {
  LockedFile file;
  file.path = json_string(value, "path", path);
  check_file_name(file.path);
  file.size = json_int(value, "size", path);
  file.sha256 = json_string(value, "sha256", path);
  if (value.contains("git_sha1")) file.git_sha1 = json_string(value, "git_sha1", path);
  file.mtime_ns = json_int(value, "mtime_ns", path);
  file.source = json_string(value, "source", path);
  const bool hex = file.sha256.size() == 64 &&
                   file.sha256.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!hex || file.size < 0) {
    throw UsageError("bad_lock", path + ": no usable hash or size for " + printable(file.path));
  }
  return file;
}

LockedItem parse_item(const Json& value, const std::string& path) {
  LockedItem item;
  item.key = dump_json(json_member(value, "request", path));
  item.kind = json_string(value, "kind", path);
  item.name = json_string(value, "name", path);
  item.revision = json_string(value, "revision", path);
  item.complete = json_bool(value, "complete", path);
  for (const Json& file : json_member(value, "files", path)) {
    item.files.push_back(parse_file(file, path));
  }
  for (const Json& problem : json_member(value, "problems", path)) {
    item.problems.push_back(problem.get<std::string>());
  }
  return item;
}

Json file_json(const LockedFile& file) {
  Json out = {{"path", file.path}, {"size", file.size}, {"sha256", file.sha256}};
  if (!file.git_sha1.empty()) out["git_sha1"] = file.git_sha1;
  out["mtime_ns"] = file.mtime_ns;
  out["source"] = file.source;
  return out;
}

struct RequestOf {
  const std::string& path;
  Json operator()(const HubRepoItem& item) const {
    return {{"kind", "hub_repo"},
            {"type", item.repo.type == RepoType::kModel ? "model" : "dataset"},
            {"repo", item.repo.id},
            {"revision", item.revision},
            {"include", item.include},
            {"exclude", item.exclude},
            {"path", path}};
  }
  Json operator()(const UrlItem& item) const {
    return {{"kind", "url"}, {"url", item.url}, {"sha256", item.sha256}, {"path", path}};
  }
  Json operator()(const RowsItem& item) const {
    return {{"kind", "rows"},        {"dataset", item.dataset},
            {"config", item.config}, {"split", item.split},
            {"offset", item.offset}, {"count", item.count},
            {"seed", item.seed},     {"path", path}};
  }
  Json operator()(const DolmaItem& item) const {
    Json families = Json::array();
    for (const DolmaFamily& family : item.families) {
      families.push_back(
          {{"name", family.name}, {"include", family.include}, {"count", family.count}});
    }
    return {{"kind", "dolma"},
            {"repo", item.repo.id},
            {"revision", item.revision},
            {"families", std::move(families)},
            {"seed", item.seed},
            {"min_bytes", item.min_bytes},
            {"max_bytes", item.max_bytes},
            {"per_shard", item.per_shard},
            {"window", item.window},
            {"max_shard_bytes", item.max_shard_bytes},
            {"path", path}};
  }
  Json operator()(const PapersItem& item) const {
    Json papers = Json::array();
    for (const Paper& paper : item.papers) {
      papers.push_back({{"url", paper.url},
                        {"title", paper.title},
                        {"sha256", paper.sha256},
                        {"name", paper.name}});
    }
    return {{"kind", "papers"}, {"papers", std::move(papers)}, {"path", path}};
  }
};

struct NameOf {
  std::string operator()(const HubRepoItem& item) const { return item.repo.id; }
  std::string operator()(const UrlItem& item) const { return item.url; }
  std::string operator()(const RowsItem& item) const {
    return item.dataset + "/" + item.config + "/" + item.split;
  }
  std::string operator()(const DolmaItem& item) const { return item.repo.id; }
  std::string operator()(const PapersItem& item) const {
    return std::to_string(item.papers.size()) + " papers";
  }
};

}  // namespace

LockedItem* Lock::find(const std::string& key) {
  for (LockedItem& item : items) {
    if (item.key == key) return &item;
  }
  return nullptr;
}

Lock read_lock(const std::string& path) {
  Lock lock;
  if (!fs::exists(path)) return lock;
  const Json value = read_json(path, kLimits);
  try {
    if (json_int(value, "cbench_lock", path) != kVersion) {
      throw UsageError("bad_lock", path + ": written by another version");
    }
    for (const Json& item : json_member(value, "items", path)) {
      lock.items.push_back(parse_item(item, path));
    }
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("bad_lock", path + ": " + error.what());
  } catch (const UsageError& error) {
    throw UsageError("bad_lock", std::string(error.what()) +
                                     "; not a lock of cbench fetch: move it away and fetch again "
                                     "(files that are right are kept)");
  }
  return lock;
}

void write_lock(const std::string& path, const Lock& lock) {
  Json items = Json::array();
  for (const LockedItem& item : lock.items) {
    Json files = Json::array();
    for (const LockedFile& file : item.files) files.push_back(file_json(file));
    items.push_back({{"kind", item.kind},
                     {"name", item.name},
                     {"revision", item.revision},
                     {"complete", item.complete},
                     {"request", parse_json(item.key, "lock")},
                     {"problems", item.problems},
                     {"files", std::move(files)}});
  }
  const Json value = {
      {"cbench_lock", kVersion}, {"written", utc_now()}, {"items", std::move(items)}};
  make_directories(fs::absolute(path).parent_path());
  write_file_atomic(path, dump_json(value, 1) + "\n");
}

std::string check_locked(const std::string& root, const LockedFile& file, VerifyMode mode,
                         const std::atomic<bool>* interrupt) {
  const std::string path = root + "/" + file.path;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return file.path + ": missing";
  if (!S_ISREG(info.st_mode)) return file.path + ": not a regular file";
  if (info.st_size != file.size) {
    return file.path + ": " + std::to_string(info.st_size) + " bytes, expected " +
           std::to_string(file.size);
  }
  const int64_t mtime = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  if (mode == VerifyMode::kFast && mtime == file.mtime_ns) return "";
  const auto stop = [interrupt] { return interrupt != nullptr && *interrupt; };
  if (hash_file(path, false, stop).sha256 != file.sha256) {
    return file.path + ": its content changed (sha256 differs)";
  }
  return "";
}

LockedItem lock_request(const PlanItem& item) {
  LockedItem locked;
  const Json request = std::visit(RequestOf{item.path}, item.what);
  locked.key = dump_json(request);
  locked.kind = request.at("kind").get<std::string>();
  locked.name = std::visit(NameOf{}, item.what);
  return locked;
}

VerifyReport verify_lock(const std::string& lock, const std::string& root, VerifyMode mode,
                         const std::atomic<bool>* interrupt) {
  VerifyReport report;
  if (!fs::exists(lock)) {
    report.problems.push_back(lock + ": missing; run cbench fetch");
    return report;
  }
  for (const LockedItem& item : read_lock(lock).items) {
    if (!item.complete) report.problems.push_back(item.name + ": incomplete; run cbench fetch");
    for (const LockedFile& file : item.files) {
      const std::string problem = check_locked(root, file, mode, interrupt);
      if (!problem.empty()) report.problems.push_back(problem);
      ++report.files;
      report.bytes += file.size;
    }
  }
  return report;
}

}  // namespace cbench
