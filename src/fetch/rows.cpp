// Rows through the data set server's /rows (huggingface/dataset-viewer, docs/rows.md): pages of at
// most 100 rows, no Parquet reader needed.
#include <algorithm>
#include <set>

#include "fetch/batch_file.h"
#include "fetch/sources.h"
#include "util/json.h"
#include "util/random.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr int64_t kPage = 100;
constexpr int64_t kMaxBytes = int64_t{4} << 30;  // of all rows

struct Page {
  int64_t total = 0;
  std::string lines;
  int64_t rows = 0;
  std::string revision;
};

class RowsReader {
 public:
  RowsReader(const SourceTools& tools, const RowsItem& item)
      : tools_(tools), item_(item), what_(item.dataset + "/" + item.config + "/" + item.split) {}

  Page read(int64_t offset, int64_t length);
  const std::string& what() const { return what_; }
  const std::string& base() const { return tools_.options.hub.rows_endpoint; }

 private:
  Page parse(const HttpResponse& response, int64_t offset, int64_t length) const;

  const SourceTools& tools_;
  const RowsItem& item_;
  std::string what_;
};

Page RowsReader::read(int64_t offset, int64_t length) {
  const HubOptions& hub = tools_.options.hub;
  HttpRequest request;
  request.url = base() + "/rows?dataset=" + url_encode(item_.dataset) +
                "&config=" + url_encode(item_.config) + "&split=" + url_encode(item_.split) +
                "&offset=" + std::to_string(offset) + "&length=" + std::to_string(length);
  if (base() == HubOptions{}.rows_endpoint ||
      parse_origin(base()).host == parse_origin(hub.endpoint).host) {
    request.token = hub.token;
  }
  request.redirects = Redirects::kSameOrigin;
  const HttpResponse response = tools_.client.send(request);
  if (!response.ok()) {
    if (response.headers.get("X-Error-Code") == "ResponseNotReady") {
      throw EnvironmentError("rows_not_ready", what_ +
                                                   ": the data set server is still preparing it; "
                                                   "try again in some minutes");
    }
    throw_hub_error(response, what_, hub, {RepoType::kDataset, item_.dataset});
  }
  return parse(response, offset, length);
}

Page RowsReader::parse(const HttpResponse& response, int64_t offset, int64_t length) const {
  if (response.body.empty() || response.body[0] != '{') {
    throw EnvironmentError("not_json", what_ + ": " + base() + " did not answer with JSON");
  }
  const Json answer = parse_json(response.body, what_);
  Page page;
  page.revision = response.headers.get("X-Revision");
  page.total = json_int(answer, "num_rows_total", what_);
  if (answer.contains("partial") && json_bool(answer, "partial", what_)) {
    throw EnvironmentError("rows_partial", what_ +
                                               ": the server has only a part of this data set; "
                                               "fetch its files instead");
  }
  for (const Json& entry : json_member(answer, "rows", what_)) {
    if (json_int(entry, "row_idx", what_) != offset + page.rows) {
      throw InvalidError("rows_order", what_ + ": rows out of order at " + std::to_string(offset));
    }
    if (entry.contains("truncated_cells") && !entry["truncated_cells"].empty()) {
      throw InvalidError("rows_truncated", what_ + ": the server cut cells of row " +
                                               std::to_string(offset + page.rows));
    }
    page.lines += dump_json(json_member(entry, "row", what_)) + "\n";
    ++page.rows;
  }
  const int64_t expected = std::clamp<int64_t>(page.total - offset, 0, length);
  if (page.rows != expected) {
    throw InvalidError("rows_short", what_ + ": " + std::to_string(page.rows) + " rows at " +
                                         std::to_string(offset) + ", expected " +
                                         std::to_string(expected));
  }
  return page;
}

/// {offset, length} of the pages, in order.
std::vector<std::pair<int64_t, int64_t>> choose_pages(const RowsItem& item, int64_t total) {
  std::vector<std::pair<int64_t, int64_t>> pages;
  const int64_t count = item.count > 0 ? item.count : total - item.offset;
  if (item.seed == 0) {
    for (int64_t at = 0; at < count; at += kPage) {
      pages.emplace_back(item.offset + at, std::min(kPage, count - at));
    }
    return pages;
  }
  const int64_t whole_pages = (total - item.offset) / kPage;
  const int64_t wanted = (count + kPage - 1) / kPage;
  std::set<int64_t> chosen;
  if (whole_pages >= wanted) {
    Random random(item.seed);
    while (static_cast<int64_t>(chosen.size()) < wanted) {
      chosen.insert(static_cast<int64_t>(random.below(static_cast<uint64_t>(whole_pages))));
    }
  } else {  // nearly everything is wanted
    for (int64_t page = 0; page < wanted; ++page) chosen.insert(page);
  }
  int64_t left = count;
  for (const int64_t page : chosen) {
    pages.emplace_back(item.offset + page * kPage, std::min(kPage, left));
    left -= kPage;
  }
  return pages;
}

/// How many pages an interrupted fetch has brought.
size_t pages_there(const BatchFile& file, size_t pages) {
  size_t there = 0;
  for (const char digit : file.note()) there = there * 10 + static_cast<size_t>(digit - '0');
  return std::min(there, pages);
}

}  // namespace

void fetch_rows(const SourceTools& tools, const RowsItem& item, const std::string& path,
                LockedItem& locked) {
  check_repo_id(item.dataset);
  RowsReader reader(tools, item);
  const Page first = reader.read(item.offset, 1);
  const int64_t available = first.total - item.offset;
  if (available < std::max<int64_t>(item.count, 1)) {
    throw UsageError("rows_short", reader.what() + ": has " + std::to_string(first.total) +
                                       " rows, fewer than asked for");
  }
  const auto pages = choose_pages(item, first.total);
  BatchFile file(tools.work, "rows", locked.key, path,
                 first.revision + "/" + std::to_string(first.total));
  for (size_t next = pages_there(file, pages.size()); next < pages.size(); ++next) {
    const auto& [offset, length] = pages[next];
    const Page page = reader.read(offset, length);
    if (page.total != first.total || page.revision != first.revision) {
      throw InvalidError("rows_changed", reader.what() +
                                             ": the data set changed during the fetch; "
                                             "run the command again");
    }
    file.append(page.lines, std::to_string(next + 1));
    if (file.size() > kMaxBytes)
      throw UsageError("too_large", reader.what() + ": more than 4 GiB of rows");
  }
  const std::string full = tools.root + "/" + path;
  make_directories(full.substr(0, full.rfind('/')));
  file.publish(full, tools.options.download.mode);
  locked.revision = first.revision;
  locked.files = {
      describe_item_file(tools.root, path, reader.base() + "/rows?dataset=" + item.dataset)};
}

}  // namespace cbench
