#include "eval/sampling.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "text/jsonl.h"
#include "util/error.h"
#include "util/json.h"
#include "util/random.h"

namespace cbench {
namespace {

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

/// Runs one group of blocks side by side to full length. Contexts go in as many at a time as fit
/// one forward; after that, all blocks take each step together.
void sample_group(Engine& engine, Blocks& blocks, size_t first, size_t count, double temperature,
                  uint64_t seed, const OnProgress& progress) {
  std::vector<Random> streams;
  for (size_t i = 0; i < count; ++i) streams.emplace_back(seed, first + i);
  const auto group = std::span(blocks.ids).subspan(first, count);
  const auto at_once =
      static_cast<size_t>(std::max<int64_t>(1, engine.capacity().tokens / blocks.context));
  for (size_t i = 0; i < count && blocks.continuation > 0; i += at_once) {
    const size_t n = std::min(at_once, count - i);
    sample_next(engine, group.subspan(i, n), std::span(streams).subspan(i, n), i, true,
                temperature);
  }
  for (int64_t t = 1; t < blocks.continuation; ++t) {
    sample_next(engine, group, streams, 0, false, temperature);
    if (progress) {
      progress(static_cast<double>(first) + static_cast<double>(count) *
                                                static_cast<double>(t + 1) /
                                                static_cast<double>(blocks.continuation));
    }
  }
}

/// Takes over finished blocks of an interrupted call; returns how many.
size_t resume(const std::string& checkpoint, Blocks& blocks, int64_t vocab) {
  if (checkpoint.empty() || !std::filesystem::exists(checkpoint)) return 0;
  const Blocks done = read_blocks(checkpoint, vocab);
  const auto context = static_cast<std::ptrdiff_t>(blocks.context);
  bool same = done.context == blocks.context && done.continuation == blocks.continuation &&
              done.ids.size() <= blocks.ids.size();
  for (size_t i = 0; same && i < done.ids.size(); ++i) {
    same = std::equal(blocks.ids[i].begin(), blocks.ids[i].end(), done.ids[i].begin(),
                      done.ids[i].begin() + context);
  }
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
    sample_group(engine, blocks, done, count, temperature, seed, progress);
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
