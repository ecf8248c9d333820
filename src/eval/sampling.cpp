#include "eval/sampling.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "text/jsonl.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/json.h"
#include "util/random.h"

namespace cbench {
namespace {

constexpr double kSaveEvery = 300;  // seconds between savings of a group that is sampled

struct Context {
  std::string document;
  std::vector<int32_t> ids;
};

/// Contexts by stratum, in file order.
std::map<std::string, std::vector<Context>> read_contexts(const std::string& path, int64_t tokens,
                                                          const Tokenizer& tokenizer) {
  std::map<std::string, std::vector<Context>> strata;
  std::set<std::string> seen;
  JsonlReader reader(path);
  std::string_view line;
  while (reader.next(line)) {
    const Json record = parse_json(line, reader.where());
    const std::string id = json_string(record, "id", reader.where());
    if (!seen.insert(id).second) {
      throw UsageError("documents", reader.where() + ": document " + id + " appears twice");
    }
    std::vector<int32_t> ids = tokenizer.encode(json_string(record, "text", reader.where()));
    if (static_cast<int64_t>(ids.size()) < tokens) continue;
    ids.resize(static_cast<size_t>(tokens));
    strata[json_string(record, "source", reader.where())].push_back({id, std::move(ids)});
  }
  return strata;
}

void shuffle(std::vector<Context>& contexts, Random& random) {
  for (size_t i = contexts.size(); i > 1; --i)
    std::swap(contexts[i - 1], contexts[random.below(i)]);
}

/// Draws the next token of each block in one forward; the first block has slot `slot`.
void sample_next(Engine& engine, std::span<std::vector<int32_t>> blocks, std::span<Random> streams,
                 size_t slot, bool begins, double temperature) {
  std::vector<EngineSequence> sequences;
  std::vector<double> uniform;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t start = begins ? 0 : blocks[i].size() - 1;
    const auto fresh = std::span(blocks[i]).subspan(start);
    sequences.push_back({static_cast<int32_t>(slot + i), static_cast<int32_t>(start), fresh,
                         static_cast<int32_t>(fresh.size() - 1)});
    uniform.push_back(streams[i].uniform());
  }
  std::vector<int32_t> next(blocks.size());
  engine.forward(sequences, [&](const float* rows, int64_t offset, int64_t n) {
    const auto drawn =
        engine.reader().sample(rows, n, engine.vocab(), temperature,
                               std::span(uniform).subspan(static_cast<size_t>(offset)));
    std::copy(drawn.begin(), drawn.end(), next.begin() + offset);
  });
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (next[i] < 0) {
      throw InvalidError("non_finite_logits",
                         "the reference model returned NaN or infinite logits");
    }
    blocks[i].push_back(next[i]);
  }
}

/// Whether `done` begins with the contexts of `blocks` from `first` on.
bool same_contexts(const Blocks& done, const Blocks& blocks, size_t first) {
  const auto context = static_cast<std::ptrdiff_t>(blocks.context);
  bool same = done.context == blocks.context && done.ids.size() <= blocks.ids.size() - first;
  for (size_t i = 0; same && i < done.ids.size(); ++i) {
    same = std::equal(done.ids[i].begin(), done.ids[i].begin() + context,
                      blocks.ids[first + i].begin());
  }
  return same;
}

/// One group of blocks, side by side to full length. What takes long is saved on the way.
class Group {
 public:
  Group(Engine& engine, Blocks& blocks, size_t first, size_t count, double temperature,
        uint64_t seed, const std::string& saved)
      : engine_(engine),
        blocks_(blocks),
        first_(first),
        ids_(std::span(blocks.ids).subspan(first, count)),
        temperature_(temperature),
        saved_(saved) {
    for (size_t i = 0; i < count; ++i) streams_.emplace_back(seed, first + i);
    resume();
  }

  void run(const OnProgress& progress) {
    if (sampled() < blocks_.continuation) begin();
    double last_save = boot_seconds();
    while (sampled() < blocks_.continuation) {
      sample_next(engine_, ids_, streams_, 0, false, temperature_);
      if (progress)
        progress(static_cast<double>(first_) + share() * static_cast<double>(ids_.size()));
      if (saved_.empty() || boot_seconds() - last_save < kSaveEvery) continue;
      save();
      last_save = boot_seconds();
    }
    if (!saved_.empty()) std::filesystem::remove(saved_);
  }

 private:
  int64_t sampled() const { return static_cast<int64_t>(ids_[0].size()) - blocks_.context; }
  double share() const {
    return static_cast<double>(sampled()) / static_cast<double>(blocks_.continuation);
  }

  /// What is there goes in as many blocks at a time as fit one forward; after that, all blocks take
  /// each step together.
  void begin() {
    const auto length = static_cast<int64_t>(ids_[0].size());
    const auto at_once =
        static_cast<size_t>(std::max<int64_t>(1, engine_.capacity().tokens / length));
    for (size_t i = 0; i < ids_.size(); i += at_once) {
      const size_t n = std::min(at_once, ids_.size() - i);
      sample_next(engine_, ids_.subspan(i, n), std::span(streams_).subspan(i, n), i, true,
                  temperature_);
    }
  }

  void save() const {
    Blocks part;
    part.context = blocks_.context;
    part.continuation = sampled();
    part.ids.assign(ids_.begin(), ids_.end());
    write_blocks(saved_, part);
  }

  /// Goes on with a group that was saved: the same blocks, of which each has drawn so often.
  void resume() {
    if (saved_.empty() || !std::filesystem::exists(saved_)) return;
    const Blocks done = read_blocks(saved_, engine_.vocab());
    if (done.ids.size() != ids_.size() || done.continuation > blocks_.continuation ||
        !same_contexts(done, blocks_, first_)) {
      return;
    }
    std::copy(done.ids.begin(), done.ids.end(), ids_.begin());
    for (Random& stream : streams_) {
      for (int64_t t = 0; t < done.continuation; ++t) stream.uniform();
    }
  }

  Engine& engine_;
  Blocks& blocks_;
  size_t first_;
  std::span<std::vector<int32_t>> ids_;
  double temperature_;
  std::string saved_;  ///< file; "" = none
  std::vector<Random> streams_;
};

/// Takes over finished blocks of an interrupted call; returns how many.
size_t resume(const std::string& checkpoint, Blocks& blocks, int64_t vocab) {
  if (checkpoint.empty() || !std::filesystem::exists(checkpoint)) return 0;
  const Blocks done = read_blocks(checkpoint, vocab);
  const bool same = done.continuation == blocks.continuation && same_contexts(done, blocks, 0);
  if (!same) return 0;  // other contexts: it belongs to another protocol
  std::copy(done.ids.begin(), done.ids.end(), blocks.ids.begin());
  return done.ids.size();
}

}  // namespace

Blocks choose_contexts(const std::string& documents, const LikelihoodProtocol& protocol,
                       const Tokenizer& tokenizer, uint64_t seed) {
  auto strata = read_contexts(documents, protocol.context_tokens, tokenizer);
  Random random(seed);
  for (auto& [source, contexts] : strata) shuffle(contexts, random);
  Blocks blocks;
  blocks.context = protocol.context_tokens;
  blocks.continuation = protocol.continuation_tokens;
  const auto wanted = static_cast<size_t>(protocol.blocks);
  for (size_t round = 0; blocks.ids.size() < wanted; ++round) {
    bool any = false;
    for (auto& [source, contexts] : strata) {
      if (round >= contexts.size() || blocks.ids.size() == wanted) continue;
      any = true;
      blocks.ids.push_back(contexts[round].ids);
      blocks.documents.push_back(contexts[round].document);
    }
    if (!any) {
      throw UsageError("documents", documents + " holds " + std::to_string(blocks.ids.size()) +
                                        " documents of at least " +
                                        std::to_string(protocol.context_tokens) + " tokens; " +
                                        std::to_string(wanted) + " are needed");
    }
  }
  return blocks;
}

void sample_continuations(Engine& engine, Blocks& blocks, double temperature, uint64_t seed,
                          const std::string& checkpoint, const OnProgress& progress) {
  const Capacity& capacity = engine.capacity();
  const auto group = static_cast<size_t>(
      std::max<int64_t>(1, std::min({capacity.slots, capacity.sequences, capacity.tokens})));
  size_t done = resume(checkpoint, blocks, engine.vocab());
  while (done < blocks.ids.size()) {
    const size_t count = std::min(group, blocks.ids.size() - done);
    Group(engine, blocks, done, count, temperature, seed,
          checkpoint.empty() ? "" : checkpoint + ".group")
        .run(progress);
    done += count;
    if (!checkpoint.empty()) {
      Blocks finished = blocks;
      finished.ids.resize(done);
      write_blocks(checkpoint, finished);
    }
    if (progress) progress(static_cast<double>(done));
  }
}

}  // namespace cbench
