#include "eval/selection_documents.h"

#include <algorithm>
#include <map>
#include <set>

#include "text/jsonl.h"
#include "util/error.h"
#include "util/json.h"
#include "util/random.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr uint64_t kMaxLine = 32u << 20;
constexpr size_t kMinKept = 64u << 10, kBytesPerToken = 64;

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string::npos;
}

RawDocument document_of(const Json& record, const std::string& where, size_t keep) {
  RawDocument document;
  document.id = json_string(record, "id", where);
  document.source = json_string(record, record.contains("family") ? "family" : "source", where);
  document.text = json_string(record, "text", where);
  if (document.id.empty()) throw UsageError("documents", where + ": the document has no id");
  if (is_blank(document.text)) {
    throw UsageError("documents", where + ": document " + printable(document.id) + " has no text");
  }
  if (document.text.size() > keep) {
    document.text.resize(complete_utf8_prefix(std::string_view(document.text).substr(0, keep)));
    document.text.shrink_to_fit();
  }
  return document;
}

/// One side while it is filled.
struct Side {
  std::vector<const RawDocument*> documents;
  std::unordered_set<uint64_t> grams;
  size_t of_source = 0;

  bool shares(const std::vector<uint64_t>& of) const {
    return std::ranges::any_of(of, [&](uint64_t gram) { return grams.contains(gram); });
  }
  void take(const RawDocument& document, const std::vector<uint64_t>& of) {
    documents.push_back(&document);
    grams.insert(of.begin(), of.end());
    ++of_source;
  }
};

class Splitter {
 public:
  Splitter(const NgramFinder& visible, const LikelihoodProtocol& protocol)
      : visible_(visible), protocol_(protocol) {}

  void source(const std::string& name, const std::vector<const RawDocument*>& documents);
  DocumentSplit result() {
    return {std::move(search_.documents), std::move(verification_.documents), visible_count_,
            overlap_};
  }

 private:
  void place(const RawDocument& document, size_t half);

  const NgramFinder& visible_;
  const LikelihoodProtocol& protocol_;
  Side search_, verification_;
  int64_t visible_count_ = 0, overlap_ = 0;
};

void Splitter::place(const RawDocument& document, size_t half) {
  const auto context = static_cast<size_t>(protocol_.context_tokens);
  const auto grams = ngram_hashes(word_hashes(document.text, window_words(protocol_)));
  if (grams.empty() || visible_.found(document.text, context)) {
    ++visible_count_;
    return;
  }
  // The emptier side first. A document that resembles one of the other side may still join that
  // side.
  const bool search_first = search_.of_source <= verification_.of_source;
  Side* sides[] = {search_first ? &search_ : &verification_,
                   search_first ? &verification_ : &search_};
  for (int i = 0; i < 2; ++i) {
    if (sides[i]->of_source >= half || sides[1 - i]->shares(grams)) continue;
    return sides[i]->take(document, grams);
  }
  ++overlap_;
}

void Splitter::source(const std::string& name, const std::vector<const RawDocument*>& documents) {
  search_.of_source = verification_.of_source = 0;
  const size_t half = (documents.size() + 1) / 2;
  for (const RawDocument* document : documents) place(*document, half);
  const auto sources = static_cast<int64_t>(protocol_.sources.size());
  const auto needed = static_cast<size_t>((protocol_.blocks + sources - 1) / sources);
  const size_t got = std::min(search_.of_source, verification_.of_source);
  if (got >= needed) return;
  throw UsageError("documents",
                   "source " + name + ": of " + std::to_string(documents.size()) + " documents " +
                       std::to_string(got) +
                       " remain for one side after those that overlap are left out, " +
                       std::to_string(needed) +
                       " are needed; raise `count` of the contract's documents and fetch");
}

}  // namespace

size_t window_words(const LikelihoodProtocol& protocol) {
  return static_cast<size_t>(protocol.context_tokens + protocol.continuation_tokens);
}

std::vector<RawDocument> read_raw_documents(const std::string& path,
                                            const LikelihoodProtocol& protocol) {
  const std::set<std::string> sources(protocol.sources.begin(), protocol.sources.end());
  const size_t keep =
      std::max(kMinKept, kBytesPerToken * static_cast<size_t>(protocol.context_tokens));
  std::vector<RawDocument> documents;
  std::set<std::string> ids;
  JsonlReader reader(path, kMaxLine);
  for (std::string_view line; reader.next(line);) {
    RawDocument document = document_of(parse_json(line, reader.where()), reader.where(), keep);
    if (!ids.insert(document.id).second) {
      throw UsageError("duplicate_id",
                       reader.where() + ": document " + printable(document.id) + " came before");
    }
    if (sources.contains(document.source)) documents.push_back(std::move(document));
  }
  return documents;
}

DocumentSplit split_documents(const std::vector<RawDocument>& documents, const NgramFinder& visible,
                              const LikelihoodProtocol& protocol) {
  std::map<std::string, std::vector<const RawDocument*>> by_source;
  for (const std::string& name : protocol.sources) by_source[name];
  for (const RawDocument& document : documents) by_source[document.source].push_back(&document);
  Splitter splitter(visible, protocol);
  uint64_t stream = 0;
  for (auto& [name, list] : by_source) {
    Random random(protocol.seed, ++stream);
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.below(i)]);
    splitter.source(name, std::move(list));
  }
  return splitter.result();
}

}  // namespace cbench
