// The sources that are not plain files: rows of data sets, sampled documents, papers. Each writes
// its files below the root and describes them for lock.json.
#pragma once

#include <string>

#include "fetch/lock.h"
#include "fetch/plan.h"

namespace cbench {

/// What a source works with.
struct SourceTools {
  const FetchOptions& options;
  HttpContext& context;
  HttpClient& client;
  Hub& hub;
  std::string root;
  std::string work;  ///< for unfinished files
};

/// Pages of at most 100 rows; checks that the server has the whole data set and that rows come in
/// order. Codes: rows_partial, rows_short, rows_changed, not_json, and those of throw_hub_error.
void fetch_rows(const SourceTools& tools, const RowsItem& item, const std::string& path,
                LockedItem& locked);

/// Streams the beginnings of seeded shards and samples documents. Codes: no_shards, too_few,
/// bad_document (a row without id or text), bad_shard (too many unreadable lines), truncated,
/// damaged.
void fetch_dolma(const SourceTools& tools, const DolmaItem& item, const std::string& path,
                 LockedItem& locked);

/// PDFs, their text, `papers.jsonl` and `INDEX.txt`. A paper that cannot be had is a problem of the
/// item.
void fetch_papers(const SourceTools& tools, const PapersItem& item, const std::string& path,
                  LockedItem& locked);

/// The lock entry of a file just written below the root.
LockedFile describe_item_file(const std::string& root, const std::string& path,
                              const std::string& source);

}  // namespace cbench
