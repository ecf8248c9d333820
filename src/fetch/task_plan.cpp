#include "fetch/task_plan.h"

#include <filesystem>
#include <map>

#include "util/error.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMinDocumentBytes = 4096;  // so that a document holds a context of 512 tokens
constexpr int64_t kDocumentsOfAShard = 16;   // a shard has one topic: a source's come from several

HubRepo repo_of(const FetchItem& item) {
  return {item.type == "dataset" || item.kind == "dolma" ? RepoType::kDataset : RepoType::kModel,
          item.repository};
}

std::string revision_of(const FetchItem& item) {
  return item.revision.empty() ? "main" : item.revision;
}

/// One family a source of the likelihood contexts, with equal shares; a source is a word of its
/// shards' folder names.
DolmaItem dolma_of(const FetchItem& item, const std::vector<std::string>& sources) {
  DolmaItem dolma;
  dolma.repo = repo_of(item);
  dolma.revision = revision_of(item);
  dolma.seed = item.seed;
  dolma.min_bytes = kMinDocumentBytes;
  dolma.per_shard = kDocumentsOfAShard;
  if (sources.empty() || !item.include.empty()) {
    dolma.families = {{fs::path(item.name).stem().string(), item.include, item.count}};
    return dolma;
  }
  const auto n = static_cast<int64_t>(sources.size());
  for (const std::string& source : sources) {
    dolma.families.push_back({source, {"*" + source + "*"}, (item.count + n - 1) / n});
  }
  return dolma;
}

PlanItem plan_item_of(const FetchItem& item, const Contract& contract) {
  if (item.kind == "hub") {
    HubRepoItem hub;
    hub.repo = repo_of(item);
    hub.revision = revision_of(item);
    hub.include = item.include;
    return {item.name, hub};
  }
  if (item.kind == "url") return {item.name, UrlItem{item.url, item.sha256}};
  if (item.kind == "rows") {
    return {item.name,
            RowsItem{item.repository, item.config, item.split, 0, item.count, item.seed}};
  }
  if (item.kind == "dolma") {
    return {item.name, dolma_of(item, contract.likelihood.sources)};
  }
  throw UsageError("bad_plan", "unknown kind of data to fetch: " + item.kind);
}

}  // namespace

FetchPlan plan_for(const Contract& contract) {
  FetchPlan plan;
  plan.root = contract.data_path("");
  std::map<std::string, PapersItem> papers;  // by folder
  for (const FetchItem& item : contract.fetch) {
    if (item.kind != "paper") {
      plan.items.push_back(plan_item_of(item, contract));
      continue;
    }
    const std::string folder = fs::path(item.name).parent_path().string();
    papers[folder.empty() ? "papers" : folder].papers.push_back(
        {item.url, item.title, item.sha256, fs::path(item.name).stem().string()});
  }
  for (auto& [folder, item] : papers) plan.items.push_back({folder, std::move(item)});
  return plan;
}

}  // namespace cbench
