#include "eval/audit.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "eval/likelihood.h"
#include "util/error.h"
#include "util/random.h"

namespace cbench {
namespace {

/// The tolerance bounds one log-probability, rounding included. Rounding averages out and an
/// advantage does not, so the mean gets a twentieth: it bounds what looking ahead could gain.
constexpr double kMeanShare = 0.05;

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

/// Every token from `keep` continuation tokens on taken from another block: text like any other, so
/// that a swap cannot be told from the real thing. A single block gets random tokens.
Blocks with_swapped_suffix(const Blocks& blocks, std::span<const int64_t> which, int64_t keep,
                           int64_t vocab, Random& random) {
  Blocks swapped = blocks;
  const size_t n = blocks.ids.size();
  for (const int64_t b : which) {
    const auto own = static_cast<size_t>(b);
    const size_t other = n > 1 ? (own + 1 + random.below(n - 1)) % n : own;
    for (auto i = static_cast<size_t>(blocks.context + keep); i < blocks.ids[own].size(); ++i) {
      swapped.ids[own][i] = n > 1
                                ? blocks.ids[other][i]
                                : static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab)));
    }
  }
  return swapped;
}

/// The blocks that went through the engine together with each of these: fed again as they were,
/// their rows are computed by the same operations.
std::vector<int64_t> whole_packs(std::span<const int64_t> which, size_t pack, size_t blocks) {
  std::set<size_t> packs;
  for (const int64_t b : which) packs.insert(static_cast<size_t>(b) / pack);
  std::vector<int64_t> out;
  for (const size_t p : packs) {
    for (size_t b = p * pack; b < std::min((p + 1) * pack, blocks); ++b) {
      out.push_back(static_cast<int64_t>(b));
    }
  }
  return out;
}

/// At most as many blocks as the engine runs side by side with whole contexts.
int64_t side_by_side(const Engine& engine, const Blocks& blocks, int64_t wanted) {
  const Capacity& capacity = engine.capacity();
  return std::min({wanted, capacity.slots, capacity.sequences, capacity.tokens / blocks.context});
}

void audit_stepwise(Engine& engine, const Blocks& blocks,
                    std::span<const std::vector<RowScore>> scored, const AuditProtocol& protocol,
                    Random& random, AuditResult& result) {
  const int64_t tokens = std::min(protocol.stepwise_tokens, blocks.continuation);
  const auto which = choose_blocks(blocks.ids.size(),
                                   side_by_side(engine, blocks, protocol.stepwise_blocks), random);
  const auto stepped = score_stepwise(engine, blocks, which, tokens);
  double excess = 0;
  for (size_t i = 0; i < which.size(); ++i) {
    const std::vector<RowScore>& forced = scored[static_cast<size_t>(which[i])];
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      if (!stepped[i][t].finite) {
        throw Error(Exit::kGateFailed, "non_finite_logits",
                    "the engine returned NaN or infinite logits while decoding");
      }
      const double difference = forced[t].log_probability - stepped[i][t].log_probability;
      excess += difference;
      result.stepwise_max = std::max(result.stepwise_max, std::abs(difference));
      ++result.stepwise_tokens;
    }
  }
  if (result.stepwise_tokens > 0) {
    result.stepwise_excess = excess / static_cast<double>(result.stepwise_tokens);
  }
}

void audit_suffix(Engine& engine, const Blocks& blocks,
                  std::span<const std::vector<RowScore>> scored, const AuditProtocol& protocol,
                  Random& random, AuditResult& result) {
  const auto chosen = choose_blocks(blocks.ids.size(), protocol.suffix_blocks, random);
  const auto which = whole_packs(chosen, blocks_per_forward(engine, blocks), blocks.ids.size());
  const int64_t keep = std::max<int64_t>(1, blocks.continuation / 2);
  const Blocks other = with_swapped_suffix(blocks, which, keep, engine.vocab(), random);
  const auto after = score_blocks(engine, other, which);
  for (size_t i = 0; i < which.size(); ++i) {
    const std::vector<RowScore>& before = scored[static_cast<size_t>(which[i])];
    for (size_t t = 0; t < static_cast<size_t>(keep); ++t) {
      const double change = std::abs(before[t].log_probability - after[i][t].log_probability);
      result.suffix_max = std::max(result.suffix_max, change);
      ++result.suffix_tokens;
    }
  }
}

}  // namespace

AuditResult audit_causality(Engine& engine, const Blocks& blocks,
                            std::span<const std::vector<RowScore>> scored,
                            const AuditProtocol& protocol, uint64_t seed) {
  if (scored.size() != blocks.ids.size()) throw std::logic_error("audit: scores of other blocks");
  AuditResult result;
  result.seed = seed;
  Random random(seed);
  audit_stepwise(engine, blocks, scored, protocol, random, result);
  audit_suffix(engine, blocks, scored, protocol, random, result);
  const bool stepwise_ok = std::abs(result.stepwise_excess) <= kMeanShare * protocol.tolerance;
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
