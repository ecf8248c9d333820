#include "eval/selection.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <sys/stat.h>

#include "eval/grading/items.h"
#include "eval/ngrams.h"
#include "eval/selection_documents.h"
#include "eval/visible_text.h"
#include "text/jsonl.h"
#include "util/error.h"
#include "util/file.h"
#include "util/hash.h"
#include "util/json.h"
#include "util/random.h"
#include "util/text.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSides[] = {"search", "verification"};

/// A record of any benchmark: what is compared, and the line that is written.
struct Candidate {
  std::string id, text, line;
};

std::vector<Candidate> read_pool(const std::string& benchmark, const std::string& path) {
  std::vector<Candidate> pool;
  if (benchmark == "gsm8k") {
    for (const Gsm8kItem& item : read_gsm8k(path)) {
      const Json line = {{"id", item.id}, {"question", item.question}, {"answer", item.answer}};
      pool.push_back({item.id, item.question, dump_json(line)});
    }
  } else if (benchmark == "humaneval") {
    for (const HumanEvalItem& item : read_humaneval(path)) {
      const Json line = {{"task_id", item.id},
                         {"prompt", item.prompt},
                         {"entry_point", item.entry_point},
                         {"canonical_solution", item.canonical_solution},
                         {"test", item.test}};
      pool.push_back({item.id, item.prompt, dump_json(line)});
    }
  } else if (benchmark == "triviaqa") {
    for (const TriviaQaItem& item : read_triviaqa(path, /*repeats=*/true)) {
      const Json line = {{"id", item.id},
                         {"question", item.question},
                         {"answer", item.answer},
                         {"aliases", item.aliases}};
      pool.push_back({item.id, item.question, dump_json(line)});
    }
  } else {
    throw UsageError("items", "no rule to choose items of " + benchmark);
  }
  return pool;
}

struct RawFiles {
  std::string items, shots;  ///< the same when there is no train file
};

RawFiles raw_files(const Contract& contract, const std::string& benchmark) {
  RawFiles files;
  for (const FetchItem& item : contract.fetch) {
    const fs::path name = item.name;
    if (name.parent_path() != fs::path("raw") / benchmark) continue;
    const bool train = name.filename().string().starts_with("train");
    (train ? files.shots : files.items) = contract.data_path(item.name);
  }
  if (files.shots.empty()) files.shots = files.items;
  return files;
}

std::string raw_documents(const Contract& contract) {
  for (const FetchItem& item : contract.fetch) {
    if (item.kind == "dolma" || item.name.starts_with("raw/documents")) {
      return contract.data_path(item.name);
    }
  }
  return "";
}

std::string item_file(const Contract& contract, const std::string& benchmark) {
  return contract.data_path(contract.data.items) + "/" + benchmark + ".jsonl";
}
std::string shot_file(const Contract& contract, const std::string& benchmark) {
  return contract.data_path(contract.data.shots) + "/" + benchmark + ".jsonl";
}
std::string document_file(const Contract& contract, const char* side) {
  return contract.data_path(contract.data.documents) + "/" + side + ".jsonl";
}

std::vector<std::string> selected_files(const Contract& contract) {
  std::vector<std::string> files;
  for (const BenchmarkProtocol& benchmark : contract.accuracy.benchmarks) {
    files.push_back(item_file(contract, benchmark.name));
    if (benchmark.name != "humaneval") files.push_back(shot_file(contract, benchmark.name));
  }
  for (const char* side : kSides) files.push_back(document_file(contract, side));
  return files;
}

void require_fetched(const Contract& contract, const std::string& what, const std::string& path) {
  if (!path.empty() && fs::exists(path)) return;
  throw EnvironmentError("not_fetched",
                         contract.name + ": " + what + " are missing" +
                             (path.empty() ? " and the contract fetches none" : " (" + path + ")") +
                             "; run cbench fetch " + contract.name + " first");
}

/// Own random stream for each use, from its name.
Random stream_of(const Contract& contract, const std::string& use) {
  uint64_t stream = 0;
  for (const char c : sha256_hex(use).substr(0, 15)) {
    stream = stream * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return Random(contract.likelihood.seed, stream);
}

class Selector {
 public:
  explicit Selector(const Contract& contract) : contract_(contract) {}
  void run();

 private:
  struct Pools {
    std::vector<Candidate> items, shots;
    bool one_file = false;
  };
  void read();
  void choose(const BenchmarkProtocol& benchmark);
  std::vector<Candidate> draw(const BenchmarkProtocol& benchmark, const char* what,
                              const std::vector<Candidate>& pool, int64_t count,
                              const NgramFinder* others, const std::set<std::string>& taken);
  void split();
  void write();
  void write_proof();

  const Contract& contract_;
  std::map<std::string, Pools> pools_;
  std::vector<RawDocument> documents_;
  NgramFinder visible_;
  std::map<std::string, std::string> files_;  ///< content by path
  Json proof_ = Json::object();
};

/// Reads every raw file before anything is chosen, and then the visible data once.
void Selector::read() {
  for (const BenchmarkProtocol& benchmark : contract_.accuracy.benchmarks) {
    const RawFiles raw = raw_files(contract_, benchmark.name);
    require_fetched(contract_, benchmark.name + " questions", raw.items);
    require_fetched(contract_, benchmark.name + " shots", raw.shots);
    Pools& pools = pools_[benchmark.name];
    pools.items = read_pool(benchmark.name, raw.items);
    pools.one_file = raw.shots == raw.items;
    if (!pools.one_file) pools.shots = read_pool(benchmark.name, raw.shots);
    for (const Candidate& candidate : pools.items) visible_.add(candidate.text);
    for (const Candidate& candidate : pools.shots) visible_.add(candidate.text);
  }
  const std::string documents = raw_documents(contract_);
  require_fetched(contract_, "documents", documents);
  documents_ = read_raw_documents(documents, contract_.likelihood);
  for (const RawDocument& document : documents_) {
    visible_.add(document.text, static_cast<size_t>(contract_.likelihood.context_tokens));
  }
  const VisibleFiles files =
      each_visible_text(contract_, [&](std::string_view text) { visible_.scan(text); });
  proof_["visible"] = {{"files", files.read}, {"pdfs_by_text", files.pdfs_by_text}};
}

std::vector<Candidate> Selector::draw(const BenchmarkProtocol& benchmark, const char* what,
                                      const std::vector<Candidate>& pool, int64_t count,
                                      const NgramFinder* others,
                                      const std::set<std::string>& taken) {
  std::vector<size_t> order(pool.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Random random = stream_of(contract_, std::string(what) + "/" + benchmark.name);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  std::vector<Candidate> chosen;
  int64_t passed_over = 0;
  for (const size_t i : order) {
    if (static_cast<int64_t>(chosen.size()) == count) break;
    const Candidate& candidate = pool[i];
    const bool usable = !word_hashes(candidate.text, 1).empty() && !taken.contains(candidate.id) &&
                        !visible_.found(candidate.text) &&
                        (others == nullptr || !others->found(candidate.text));
    if (usable) chosen.push_back(candidate);
    if (!usable && !taken.contains(candidate.id)) ++passed_over;
  }
  if (static_cast<int64_t>(chosen.size()) < count) {
    throw UsageError(what, benchmark.name + ": " + std::to_string(chosen.size()) + " of " +
                               std::to_string(pool.size()) + " records can be used as " + what +
                               " (none that stands in the visible data); the protocol wants " +
                               std::to_string(count));
  }
  proof_[benchmark.name][what] = {{"pool", pool.size()}, {"passed_over", passed_over}};
  return chosen;
}

void Selector::choose(const BenchmarkProtocol& benchmark) {
  const Pools& pools = pools_.at(benchmark.name);
  const auto lines = [](const std::vector<Candidate>& chosen) {
    std::string text;
    for (const Candidate& candidate : chosen) text += candidate.line + "\n";
    return text;
  };
  const auto items = draw(benchmark, "items", pools.items, benchmark.items, nullptr, {});
  files_[item_file(contract_, benchmark.name)] = lines(items);
  if (benchmark.name == "humaneval") return;  // its prompt has no shots
  const std::vector<Candidate>& pool = pools.one_file ? pools.items : pools.shots;
  NgramFinder others;
  std::set<std::string> taken;
  for (const Candidate& candidate : pool) others.add(candidate.text);
  for (const Candidate& item : items) {
    others.scan(item.text);
    if (pools.one_file) taken.insert(item.id);
  }
  // Readers refuse an empty file, so that a protocol without shots keeps one, unused.
  const auto shots =
      draw(benchmark, "shots", pool, std::max<int64_t>(1, benchmark.shots), &others, taken);
  files_[shot_file(contract_, benchmark.name)] = lines(shots);
}

void Selector::split() {
  const DocumentSplit split = split_documents(documents_, visible_, contract_.likelihood);
  proof_["documents"] = {{"pool", documents_.size()},
                         {"passed_over_visible", split.passed_over_visible},
                         {"passed_over_overlap", split.passed_over_overlap}};
  for (const char* side : kSides) {
    std::string lines;
    for (const RawDocument* document : side == kSides[0] ? split.search : split.verification) {
      const Json line = {
          {"id", document->id}, {"source", document->source}, {"text", document->text}};
      lines += dump_json(line) + "\n";
    }
    files_[document_file(contract_, side)] = std::move(lines);
  }
}

void Selector::write() {
  for (const auto& [path, content] : files_) {
    const std::string folder = fs::path(path).parent_path();
    make_directories(folder);
    ::chmod(folder.c_str(), 0700);
    write_file_atomic(path, content, 0600);
  }
}

/// From the files as they lie there, not from what was meant to be written.
void Selector::write_proof() {
  const auto window = static_cast<int64_t>(window_words(contract_.likelihood));
  const Overlap overlap = document_overlap(document_file(contract_, kSides[0]),
                                           document_file(contract_, kSides[1]), window);
  if (overlap.ids != 0 || overlap.ngrams != 0) {
    throw InvalidError("documents", "the two sides share text although they were chosen not to");
  }
  Json json = {{"schema", "cbench.disjoint.v1"},
               {"seed", contract_.likelihood.seed},
               {"ngram_words", kNgramWords},
               {"window_words", window},
               {"shared_ids", overlap.ids},
               {"shared_ngrams", overlap.ngrams},
               {"search_ngrams", overlap.search_ngrams},
               {"verification_ngrams", overlap.verification_ngrams},
               {"chosen", proof_},
               {"sha256", selection_hashes(contract_)}};
  const std::string folder = contract_.data_path(contract_.data.reference);
  make_directories(folder);
  write_file_atomic(folder + "/disjoint.json", dump_json(json, 2) + "\n", 0600);
}

void Selector::run() {
  read();
  for (const BenchmarkProtocol& benchmark : contract_.accuracy.benchmarks) choose(benchmark);
  split();
  write();
  write_proof();
  restrict_hidden(contract_);
}

}  // namespace

bool needs_selection(const Contract& contract) {
  const std::vector<std::string> files = selected_files(contract);
  return !std::ranges::all_of(files, [](const std::string& file) { return fs::exists(file); });
}

void select_data(const Contract& contract) { Selector(contract).run(); }

Overlap document_overlap(const std::string& search, const std::string& verification,
                         int64_t window_words) {
  std::set<std::string> ids[2];
  std::unordered_set<uint64_t> grams[2];
  const std::string* paths[] = {&search, &verification};
  for (int side = 0; side < 2; ++side) {
    JsonlReader reader(*paths[side]);
    for (std::string_view line; reader.next(line);) {
      const Json record = parse_json(line, reader.where());
      ids[side].insert(json_string(record, "id", reader.where()));
      const auto words = word_hashes(json_string(record, "text", reader.where()),
                                     static_cast<size_t>(window_words));
      for (const uint64_t gram : ngram_hashes(words)) grams[side].insert(gram);
    }
  }
  Overlap overlap;
  for (const std::string& id : ids[1]) overlap.ids += ids[0].contains(id) ? 1 : 0;
  for (const uint64_t gram : grams[1]) overlap.ngrams += grams[0].contains(gram) ? 1 : 0;
  overlap.search_ngrams = static_cast<int64_t>(grams[0].size());
  overlap.verification_ngrams = static_cast<int64_t>(grams[1].size());
  return overlap;
}

std::map<std::string, std::string> selection_hashes(const Contract& contract) {
  const fs::path root = contract.data_path("");
  std::map<std::string, std::string> hashes;
  for (const std::string& file : selected_files(contract)) {
    if (fs::exists(file)) hashes[fs::path(file).lexically_relative(root)] = sha256_file(file);
  }
  return hashes;
}

void restrict_hidden(const Contract& contract) {
  const DataSpec& data = contract.data;
  for (const std::string& part :
       {data.items, data.shots, data.documents, data.reference + "/hidden", std::string("raw")}) {
    const fs::path folder = contract.data_path(part);
    if (!fs::is_directory(fs::symlink_status(folder))) continue;
    fs::permissions(folder, fs::perms::group_all | fs::perms::others_all, fs::perm_options::remove);
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_symlink()) continue;
      fs::permissions(entry.path(), fs::perms::group_all | fs::perms::others_all,
                      fs::perm_options::remove);
    }
  }
}

}  // namespace cbench
