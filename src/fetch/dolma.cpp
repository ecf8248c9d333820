// Documents from Dolma-like collections (allenai/dolma, docs/data-format.md): JSON lines with id,
// text, source; shards of hundreds of MB of which only the beginning is streamed.
#include <algorithm>
#include <set>

#include "fetch/batch_file.h"
#include "fetch/line_decoder.h"
#include "fetch/sources.h"
#include "util/json.h"
#include "util/log.h"
#include "util/random.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr size_t kMaxLine = 32u << 20;
constexpr size_t kMaxWritten = 7 * kMaxLine;  // a line of ours: every byte may be escaped
constexpr int64_t kMaxBadLines = 100;         // of one shard

struct Document {
  std::string id, text, source;
  int64_t line = 0;  // of the shard, from 1
};

/// The random numbers belong to the shard, not to the order of shards.
uint64_t stream_of(const std::string& shard) {
  uint64_t stream = 0;
  for (const char digit : sha256_hex(shard).substr(0, 16)) {
    stream = stream * 16 + static_cast<uint64_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  return stream;
}

/// Draws `wanted` of the first `window` suitable documents of a shard (Vitter's algorithm R).
class ShardSampler {
 public:
  ShardSampler(const DolmaItem& item, std::string shard, int64_t wanted,
               std::set<std::string>& seen)
      : item_(item),
        shard_(std::move(shard)),
        wanted_(wanted),
        window_(wanted * std::max<int64_t>(item.window, 1)),
        random_(item.seed, stream_of(shard_)),
        seen_(seen) {}

  bool take(std::string_view line, bool too_long);
  std::vector<Document> documents();
  int64_t bad_lines() const { return bad_; }
  int64_t suitable() const { return suitable_; }

 private:
  bool bad_line(const std::string& why);
  void offer(Document document);

  const DolmaItem& item_;
  std::string shard_;
  int64_t wanted_, window_;
  Random random_;
  std::set<std::string>& seen_;
  std::vector<Document> reservoir_;
  int64_t line_ = 0, bad_ = 0, suitable_ = 0;
};

bool ShardSampler::bad_line(const std::string& why) {
  spdlog::info("{} line {}: {}; passed over", shard_, line_, why);
  if (++bad_ > kMaxBadLines) {
    throw InvalidError("bad_shard", shard_ + ": more than " + std::to_string(kMaxBadLines) +
                                        " unreadable lines; the last: " + why);
  }
  return true;
}

bool ShardSampler::take(std::string_view line, bool too_long) {
  ++line_;
  if (too_long) return bad_line("longer than " + std::to_string(kMaxLine) + " bytes");
  if (line.find_first_not_of(" \t\r") == line.npos) return true;
  const std::string where = shard_ + " line " + std::to_string(line_);
  Json row;
  try {
    row = parse_json(line, where);
  } catch (const UsageError& error) {
    return bad_line(error.what());
  }
  Document document;
  document.line = line_;
  const auto member = [&](const char* key, bool required) {
    const auto found = row.is_object() ? row.find(key) : row.end();
    if (found != row.end() && found->is_string()) return found->get<std::string>();
    if (required) {
      throw InvalidError("bad_document", where + ": no \"" + key +
                                             "\"; not a Dolma shard, or its "
                                             "format changed");
    }
    return std::string();
  };
  // Shards made from web records without an id of their own name the record.
  document.id = member("id", !row.is_object() || !row.contains("warc_record_id"));
  if (document.id.empty()) document.id = member("warc_record_id", true);
  document.text = member("text", true);
  document.source = member("source", false);
  const auto size = static_cast<int64_t>(document.text.size());
  if (size < item_.min_bytes || size > item_.max_bytes || !seen_.insert(document.id).second)
    return true;
  offer(std::move(document));
  return suitable_ < window_;
}

void ShardSampler::offer(Document document) {
  ++suitable_;
  if (static_cast<int64_t>(reservoir_.size()) < wanted_) {
    reservoir_.push_back(std::move(document));
    return;
  }
  const uint64_t slot = random_.below(static_cast<uint64_t>(suitable_));
  if (slot < reservoir_.size()) reservoir_[slot] = std::move(document);
}

std::vector<Document> ShardSampler::documents() {
  std::sort(reservoir_.begin(), reservoir_.end(),
            [](const Document& a, const Document& b) { return a.line < b.line; });
  return std::move(reservoir_);
}

class DolmaFetcher {
 public:
  DolmaFetcher(const SourceTools& tools, const DolmaItem& item, const std::string& commit)
      : tools_(tools),
        item_(item),
        commit_(commit),
        files_(tools.hub.list_files(item.repo, commit)) {}

  /// Adds what `file` lacks, one batch a shard.
  void run(BatchFile& file);

 private:
  std::vector<HubFile> shards_of(const DolmaFamily& family) const;
  std::vector<Document> sample(const HubFile& shard, int64_t wanted);
  void stream(const HubFile& shard, ShardSampler& sampler);
  std::string lines_of(const DolmaFamily& family, const HubFile& shard, int64_t wanted);
  void resume(const BatchFile& file);

  const SourceTools& tools_;
  const DolmaItem& item_;
  std::string commit_;
  std::vector<HubFile> files_;
  std::set<std::string> seen_;  // ids of what was written
  size_t family_ = 0, shard_ = 0;
  int64_t have_ = 0;  // of this family
};

std::vector<HubFile> DolmaFetcher::shards_of(const DolmaFamily& family) const {
  std::vector<HubFile> shards;
  for (const HubFile& file : files_) {
    const bool wanted =
        file.path.find(".jsonl") != std::string::npos &&
        (family.include.empty() ||
         std::any_of(family.include.begin(), family.include.end(),
                     [&](const std::string& g) { return glob_match(g, file.path); }));
    if (wanted) shards.push_back(file);
  }
  if (shards.empty()) {
    throw UsageError("no_shards", item_.repo.id + ": no jsonl shard for family " + family.name);
  }
  Random random(item_.seed);
  for (size_t i = shards.size(); i > 1; --i) std::swap(shards[i - 1], shards[random.below(i)]);
  return shards;
}

void DolmaFetcher::stream(const HubFile& shard, ShardSampler& sampler) {
  LineDecoder decoder(
      LineDecoder::format_of(shard.path), shard.path, kMaxLine,
      [&](std::string_view line, bool too_long) { return sampler.take(line, too_long); });
  HttpRequest request;
  request.url = tools_.hub.file_url(item_.repo, commit_, shard.path);
  request.token = tools_.options.hub.token;
  request.redirects = Redirects::kAll;
  request.sink = [&](const HttpResponse&, std::string_view bytes) {
    return decoder.feed(bytes) && decoder.decoded_bytes() < item_.max_shard_bytes;
  };
  const HttpResponse response = tools_.client.exchange(request);
  if (!response.ok()) {
    if (retryable_status(response.status)) {
      const double wait = server_wait(response).value_or(0);
      if (wait > 0) tools_.context.hold(parse_origin(response.url).text(), wait);
      throw TransferError("network", shard.path + ": HTTP " + std::to_string(response.status),
                          true);
    }
    throw_hub_error(response, shard.path, tools_.options.hub, item_.repo);
  }
  if (!response.stopped) decoder.end();
}

/// A broken connection starts the shard again: what is read of it is small, and the same bytes give
/// the same sample.
std::vector<Document> DolmaFetcher::sample(const HubFile& shard, int64_t wanted) {
  Backoff backoff(tools_.context);
  while (true) {
    std::set<std::string> seen = seen_;
    ShardSampler sampler(item_, shard.path, wanted, seen);
    try {
      stream(shard, sampler);
    } catch (const TransferError& error) {
      if (!error.retryable() || !backoff.wait()) throw;
      continue;
    }
    return sampler.documents();
  }
}

std::string DolmaFetcher::lines_of(const DolmaFamily& family, const HubFile& shard,
                                   int64_t wanted) {
  std::string lines;
  for (const Document& document : sample(shard, wanted)) {
    const Json line = {{"id", document.id},
                       {"text", document.text},
                       {"source", document.source},
                       {"family", family.name},
                       {"shard", shard.path},
                       {"line", document.line},
                       {"sha256", sha256_hex(document.text)}};
    lines += dump_json(line) + "\n";
    seen_.insert(document.id);
    ++have_;
  }
  return lines;
}

/// Where an interrupted fetch stood, from its last note and the documents themselves.
void DolmaFetcher::resume(const BatchFile& file) {
  if (file.note().empty()) return;
  const Json note = parse_json(file.note(), "progress");
  family_ = static_cast<size_t>(json_int(note, "family", "progress"));
  shard_ = static_cast<size_t>(json_int(note, "shards", "progress"));
  have_ = json_int(note, "documents", "progress");
  LineDecoder lines(LineDecoder::Format::kPlain, "progress", kMaxWritten,
                    [&](std::string_view line, bool) {
                      seen_.insert(json_string(parse_json(line, "progress"), "id", "progress"));
                      return true;
                    });
  file.read([&](std::string_view block) { lines.feed(block); });
}

void DolmaFetcher::run(BatchFile& file) {
  resume(file);
  for (; family_ < item_.families.size(); ++family_, shard_ = 0, have_ = 0) {
    const DolmaFamily& family = item_.families[family_];
    const std::vector<HubFile> shards = shards_of(family);
    while (have_ < family.count && shard_ < shards.size()) {
      const HubFile& shard = shards[shard_];
      const int64_t left = family.count - have_;
      const auto shards_left = static_cast<int64_t>(shards.size() - shard_);
      const int64_t share = std::max(item_.per_shard, (left + shards_left - 1) / shards_left);
      const std::string lines =
          lines_of(family, shard, item_.per_shard == 0 ? left : std::min(left, share));
      ++shard_;
      file.append(lines,
                  dump_json({{"family", family_}, {"shards", shard_}, {"documents", have_}}));
    }
    if (have_ < family.count) {
      throw InvalidError("too_few", item_.repo.id + ": family " + family.name + " has only " +
                                        std::to_string(have_) + " suitable documents of " +
                                        std::to_string(family.count));
    }
  }
}

}  // namespace

void fetch_dolma(const SourceTools& tools, const DolmaItem& item, const std::string& path,
                 LockedItem& locked) {
  const bool pinned = !locked.revision.empty() && !tools.options.update;
  if (!pinned) locked.revision = tools.hub.resolve_revision(item.repo, item.revision);
  DolmaFetcher fetcher(tools, item, locked.revision);
  BatchFile file(tools.work, "dolma", locked.key, path, locked.revision);
  fetcher.run(file);
  const std::string full = tools.root + "/" + path;
  make_directories(full.substr(0, full.rfind('/')));
  file.publish(full, tools.options.download.mode);
  locked.files = {describe_item_file(tools.root, path,
                                     tools.options.hub.endpoint + "/datasets/" + item.repo.id)};
}

}  // namespace cbench
