#include "eval/audit.h"

#include <algorithm>
#include <cmath>

#include "eval/likelihood.h"
#include "util/error.h"
#include "util/random.h"

namespace cbench {
namespace {

/// `count` different block numbers.
std::vector<int64_t> choose_blocks(size_t blocks, int64_t count, Random& random) {
  std::vector<int64_t> all(blocks);
  for (size_t i = 0; i < blocks; ++i) all[i] = static_cast<int64_t>(i);
  const auto wanted = std::min<size_t>(blocks, static_cast<size_t>(std::max<int64_t>(count, 0)));
  for (size_t i = 0; i < wanted; ++i) {
    std::swap(all[i], all[i + random.below(blocks - i)]);
  }
  all.resize(wanted);
  return all;
}

/// Scores of the first `tokens` continuation tokens of the blocks, each revealed after the logits
/// that predict it.
std::vector<std::vector<RowScore>> score_stepwise(Engine& engine, const Blocks& blocks,
                                                  std::span<const int64_t> which, int64_t tokens) {
  std::vector<std::vector<RowScore>> out(which.size());
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<EngineSequence> sequences;
    std::vector<int32_t> targets;
    for (size_t i = 0; i < which.size(); ++i) {
      const std::vector<int32_t>& ids = blocks.ids[static_cast<size_t>(which[i])];
      const int64_t start = t == 0 ? 0 : blocks.context + t - 1;
      const int64_t count = t == 0 ? blocks.context : 1;
      sequences.push_back(
          {static_cast<int32_t>(i), static_cast<int32_t>(start),
           std::span(ids).subspan(static_cast<size_t>(start), static_cast<size_t>(count)),
           static_cast<int32_t>(count - 1)});
      targets.push_back(ids[static_cast<size_t>(blocks.context + t)]);
    }
    std::vector<RowScore> scores(targets.size());
    engine.forward(sequences, [&](const float* rows, int64_t first, int64_t n) {
      engine.reader().score(
          rows, n, engine.vocab(),
          std::span(targets).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
          std::span(scores).subspan(static_cast<size_t>(first), static_cast<size_t>(n)));
    });
    for (size_t i = 0; i < which.size(); ++i) out[i].push_back(scores[i]);
  }
  return out;
}

/// The blocks with every token from `keep` continuation tokens on replaced by random ones.
Blocks with_swapped_suffix(const Blocks& blocks, std::span<const int64_t> which, int64_t keep,
                           int64_t vocab, Random& random) {
  Blocks swapped = blocks;
  for (const int64_t b : which) {
    auto& ids = swapped.ids[static_cast<size_t>(b)];
    for (size_t i = static_cast<size_t>(blocks.context + keep); i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab)));
    }
  }
  return swapped;
}

/// At most as many blocks as the engine runs side by side with whole contexts.
int64_t side_by_side(const Engine& engine, const Blocks& blocks, int64_t wanted) {
  const Capacity& capacity = engine.capacity();
  return std::min({wanted, capacity.slots, capacity.sequences, capacity.tokens / blocks.context});
}

}  // namespace

AuditResult audit_causality(Engine& engine, const Blocks& blocks, const AuditProtocol& protocol,
                            uint64_t seed) {
  AuditResult result;
  result.seed = seed;
  Random random(seed);
  const int64_t tokens = std::min(protocol.stepwise_tokens, blocks.continuation);
  const auto stepwise = choose_blocks(
      blocks.ids.size(), side_by_side(engine, blocks, protocol.stepwise_blocks), random);
  const auto forced = score_blocks(engine, blocks, stepwise);
  const auto stepped = score_stepwise(engine, blocks, stepwise, tokens);
  double excess = 0;
  for (size_t i = 0; i < stepwise.size(); ++i) {
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      if (!stepped[i][t].finite) {
        throw Error(Exit::kGateFailed, "non_finite_logits",
                    "the engine returned NaN or infinite logits while decoding");
      }
      const double difference = forced[i][t].log_probability - stepped[i][t].log_probability;
      excess += difference;
      result.stepwise_max = std::max(result.stepwise_max, std::abs(difference));
      ++result.stepwise_tokens;
    }
  }
  if (result.stepwise_tokens > 0) excess /= static_cast<double>(result.stepwise_tokens);
  result.stepwise_excess = excess;

  const auto swapped = choose_blocks(blocks.ids.size(), protocol.suffix_blocks, random);
  const int64_t keep = blocks.continuation / 2;
  const Blocks other = with_swapped_suffix(blocks, swapped, keep, engine.vocab(), random);
  const auto before = score_blocks(engine, blocks, swapped);
  const auto after = score_blocks(engine, other, swapped);
  for (size_t i = 0; i < swapped.size(); ++i) {
    for (size_t t = 0; t < static_cast<size_t>(keep); ++t) {
      const double change = std::abs(before[i][t].log_probability - after[i][t].log_probability);
      result.suffix_max = std::max(result.suffix_max, change);
      ++result.suffix_tokens;
    }
  }
  const bool stepwise_ok = std::abs(result.stepwise_excess) <= protocol.tolerance;
  const bool suffix_ok = result.suffix_max <= protocol.tolerance;
  result.passed = stepwise_ok && suffix_ok;
  if (!suffix_ok) {
    result.reason = "logits change when later tokens change: the engine looks ahead";
  } else if (!stepwise_ok) {
    result.reason = "one token at a time the text has another likelihood than teacher-forced";
  }
  return result;
}

}  // namespace cbench
