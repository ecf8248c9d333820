// What to fetch and where to: the plan of one task or command line, its options, its report.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "fetch/download.h"
#include "fetch/hub.h"

namespace cbench {

/// Files of a Hub repository under `path`, at one commit.
struct HubRepoItem {
  HubRepo repo;
  std::string revision = "main";
  std::vector<std::string> include;  ///< globs; empty = all files
  std::vector<std::string> exclude;
};

/// One file by its address.
struct UrlItem {
  std::string url;
  std::string sha256;  ///< "" = not pinned: the first fetch pins it in lock.json
};

/// Rows of a data set, as JSON lines, through the data set server: `path` is the file.
struct RowsItem {
  std::string dataset, config, split;
  int64_t offset = 0;
  int64_t count = 0;  ///< 0 = to the end
  uint64_t seed = 0;  ///< not 0: pages of 100 rows chosen at random instead of one stretch
};

/// One source family of a Dolma-like collection (jsonl, jsonl.zst or jsonl.gz shards).
struct DolmaFamily {
  std::string name;
  std::vector<std::string> include;  ///< globs of its shards
  int64_t count = 0;                 ///< documents wanted
};

/// Documents sampled by family from a seeded choice of shards; only the beginning of a shard is
/// read. `path` is the jsonl file written: id, text, source, family, shard, line, sha256.
struct DolmaItem {
  HubRepo repo{RepoType::kDataset, ""};
  std::string revision = "main";
  std::vector<DolmaFamily> families;
  uint64_t seed = 0;
  int64_t min_bytes = 1;        ///< shorter texts are passed over
  int64_t max_bytes = 1 << 20;  ///< longer ones, too
  int64_t per_shard = 0;  ///< at most so many of one shard while others are left; 0 = all of one
  int64_t window = 20;    ///< a shard's first window x count suitable documents are drawn from
  int64_t max_shard_bytes = 1 << 30;  ///< decompressed bytes read of one shard, at most
};

struct Paper {
  std::string url;
  std::string title;
  std::string sha256;  ///< "" = not pinned
  std::string name;    ///< of its files; "" = made from the title
};

/// PDFs turned into text, and an index; `path` is a folder.
struct PapersItem {
  std::vector<Paper> papers;
};

struct PlanItem {
  std::string path;  ///< relative to the root; "" = the root itself (repositories)
  std::variant<HubRepoItem, UrlItem, RowsItem, DolmaItem, PapersItem> what;
};

struct FetchPlan {
  std::string root;
  std::vector<PlanItem> items;
  std::string lock;  ///< "" = <root>/lock.json
};

enum class VerifyMode {
  kFast,  ///< size and time of every file against lock.json
  kFull,  ///< and its hash
};

struct FetchOptions {
  HubOptions hub;
  HttpOptions http;
  DownloadOptions download;
  VerifyMode verify = VerifyMode::kFast;
  bool update = false;           ///< resolve branches anew although lock.json pins a commit
  bool quiet = false;            ///< no progress
  double paper_interval = 3;     ///< seconds between two requests to one publisher
  double pdf_seconds = 60;       ///< for pdftotext
  int64_t pdf_memory = 1 << 30;  ///< address space of pdftotext
  std::string pdftotext = "pdftotext";
  const std::atomic<bool>* interrupt = nullptr;
};

struct ItemReport {
  std::string name;      ///< "org/name", a URL, ...
  std::string kind;      ///< hub_repo, url, rows, dolma, papers
  std::string state;     ///< "unchanged", "fetched", "incomplete"
  std::string revision;  ///< resolved commit, where there is one
  int64_t files = 0, bytes = 0;
  int64_t received = 0;                           ///< bytes over the network
  int64_t copied = 0, resumed = 0, existing = 0;  ///< files
  std::vector<std::string> problems;
};

struct FetchReport {
  std::vector<ItemReport> items;
  std::string lock;
  double seconds = 0;
  bool complete() const;
  bool unchanged() const;
  std::string json() const;  ///< one JSON object, schema in docs/fetch.md
};

/// Makes the plan true, or throws; papers that a publisher does not give are `problems` of their
/// item, not errors. A second call finds everything in lock.json and does nothing.
FetchReport fetch_all(const FetchPlan& plan, const FetchOptions& options);

struct VerifyReport {
  int64_t files = 0, bytes = 0;
  std::vector<std::string> problems;  ///< one line a file
};

/// Checks the files of a lock.json below `root`.
VerifyReport verify_lock(const std::string& lock, const std::string& root, VerifyMode mode,
                         const std::atomic<bool>* interrupt = nullptr);

}  // namespace cbench
