#include "fetch/paper_search.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string_view>
#include <unordered_map>

#include "text/jsonl.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxPapers = 2000, kMaxQueryWords = 32, kMaxQueryBytes = 4096, kMaxWord = 64;
constexpr uint64_t kMaxText = 32u << 20, kMaxAll = 512u << 20;
constexpr size_t kSnippetBytes = 240, kTitleWeight = 3;
constexpr double kK1 = 1.2, kB = 0.75;

bool is_word_byte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// Calls `use(word, where)` for each word in lower case; long runs are cut.
template <typename Use>
void each_word(std::string_view text, Use use) {
  std::string word;
  for (size_t i = 0; i < text.size();) {
    if (!is_word_byte(text[i])) {
      ++i;
      continue;
    }
    const size_t start = i;
    word.clear();
    for (; i < text.size() && is_word_byte(text[i]); ++i) {
      const char c = text[i];
      if (word.size() < kMaxWord) word += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    }
    use(std::string_view(word), start);
  }
}

using Terms = std::map<std::string, size_t, std::less<>>;  ///< word -> its number

Terms terms_of(const std::string& query) {
  Terms terms;
  each_word(std::string_view(query).substr(0, kMaxQueryBytes), [&](std::string_view word, size_t) {
    if (terms.size() < kMaxQueryWords) terms.emplace(word, terms.size());
  });
  if (terms.empty()) {
    throw UsageError("query", "the query holds no word; give letters or digits to look for");
  }
  return terms;
}

struct Occurrence {
  size_t where, term;
};

/// Where the most different words stand close together.
size_t best_place(const std::vector<Occurrence>& found, size_t terms) {
  std::vector<size_t> inside(terms);
  size_t first = 0, distinct = 0, best = 0, place = found.front().where;
  for (const Occurrence& one : found) {
    if (inside[one.term]++ == 0) ++distinct;
    while (one.where - found[first].where > kSnippetBytes / 2) {
      if (--inside[found[first].term] == 0) --distinct;
      ++first;
    }
    if (distinct > best) {
      best = distinct;
      place = found[first].where;
    }
  }
  return place;
}

std::string snippet_at(const std::string& text, size_t place) {
  size_t start = place > kSnippetBytes / 4 ? place - kSnippetBytes / 4 : 0;
  while (start < place && start > 0 && is_word_byte(text[start - 1])) ++start;
  std::string out;
  for (size_t i = start; i < std::min(text.size(), start + kSnippetBytes); ++i) {
    const bool blank = text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r';
    if (blank && (out.empty() || out.back() == ' ')) continue;
    out += blank ? ' ' : text[i];
  }
  return printable(repair_utf8(out.substr(0, complete_utf8_prefix(out))), 2 * kSnippetBytes);
}

/// A name inside the folder, without detours.
bool stays_inside(const std::string& file) {
  const fs::path path = fs::path(file).lexically_normal();
  return !file.empty() && file.size() < 1024 && file.find('\0') == std::string::npos &&
         path.is_relative() && *path.begin() != ".." && *path.begin() != ".";
}

}  // namespace

PaperIndex::PaperIndex(const std::string& folder) : folder_(folder) {
  const std::string list = folder + "/papers.jsonl";
  if (fs::exists(list)) {
    JsonlReader reader(list, 1u << 20);
    for (std::string_view line; reader.next(line);) {
      const Json record = parse_json(line, reader.where());
      add({json_string(record, "title", reader.where()),
           json_string(record, "file", reader.where()), 0});
    }
  } else if (fs::is_directory(folder)) {
    std::vector<std::string> files;
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
      if (entry.path().extension() == ".txt" && entry.path().filename() != "INDEX.txt") {
        files.push_back(entry.path().lexically_relative(folder));
      }
      if (files.size() > kMaxPapers) break;
    }
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) add({fs::path(file).stem(), file, 0});
  }
  if (papers_.empty()) {
    throw EnvironmentError("no_papers", "no papers in " + folder +
                                            "; cbench fetch TASK brings them, or give --dir DIR");
  }
}

void PaperIndex::add(PaperEntry entry) {
  const std::string shown = printable(entry.file);
  if (!stays_inside(entry.file)) {
    skipped_.push_back(shown + ": a name that leads out of the folder");
    return;
  }
  if (papers_.size() >= kMaxPapers || bytes_ >= kMaxAll) {
    skipped_.push_back(shown + ": beyond the bounds of the index");
    return;
  }
  try {
    const fs::path real = fs::canonical(folder_ + "/" + entry.file);
    if (!stays_inside(real.lexically_relative(fs::canonical(folder_)))) {
      skipped_.push_back(shown + ": a link out of the folder");
      return;
    }
    std::string text = read_file(real, kMaxText);
    bytes_ += text.size();
    each_word(text, [&](std::string_view, size_t) { ++entry.words; });
    entry.title = printable(repair_utf8(entry.title), 300);
    papers_.push_back(std::move(entry));
    texts_.push_back(std::move(text));
  } catch (const std::exception& error) {
    skipped_.push_back(shown + ": " + printable(error.what()));
  }
}

std::vector<PaperHit> PaperIndex::search(const std::string& query, size_t limit) const {
  const Terms terms = terms_of(query);
  std::vector<std::vector<size_t>> counts(papers_.size(), std::vector<size_t>(terms.size()));
  std::vector<std::vector<Occurrence>> places(papers_.size());
  std::vector<size_t> holding(terms.size());
  double total_words = 0;
  for (size_t p = 0; p < papers_.size(); ++p) {
    total_words += static_cast<double>(papers_[p].words);
    each_word(texts_[p], [&](std::string_view word, size_t where) {
      const auto found = terms.find(word);
      if (found == terms.end()) return;
      ++counts[p][found->second];
      places[p].push_back({where, found->second});
    });
    each_word(papers_[p].title, [&](std::string_view word, size_t) {
      const auto found = terms.find(word);
      if (found != terms.end()) counts[p][found->second] += kTitleWeight;
    });
    for (size_t t = 0; t < terms.size(); ++t) holding[t] += counts[p][t] > 0 ? 1 : 0;
  }
  const auto n = static_cast<double>(papers_.size());
  const double average = std::max(1.0, total_words / n);
  std::vector<PaperHit> hits;
  for (size_t p = 0; p < papers_.size(); ++p) {
    PaperHit hit{papers_[p], 0, 1, ""};
    for (size_t t = 0; t < terms.size(); ++t) {
      const auto f = static_cast<double>(counts[p][t]), df = static_cast<double>(holding[t]);
      const double idf = std::log(1 + (n - df + 0.5) / (df + 0.5));
      const double length = static_cast<double>(papers_[p].words) / average;
      hit.score += idf * f * (kK1 + 1) / (f + kK1 * (1 - kB + kB * length));
    }
    if (hit.score <= 0) continue;
    const size_t place = places[p].empty() ? 0 : best_place(places[p], terms.size());
    hit.snippet = snippet_at(texts_[p], place);
    hit.line = 1 + std::count(texts_[p].begin(),
                              texts_[p].begin() + static_cast<std::ptrdiff_t>(place), '\n');
    hits.push_back(std::move(hit));
  }
  std::stable_sort(hits.begin(), hits.end(),
                   [](const PaperHit& a, const PaperHit& b) { return a.score > b.score; });
  if (hits.size() > limit) hits.resize(limit);
  return hits;
}

}  // namespace cbench
