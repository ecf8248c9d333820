#include "eval/likelihood.h"

#include <numeric>

#include "util/error.h"

namespace cbench {
size_t blocks_per_forward(const Engine& engine, const Blocks& blocks) {
  const Capacity& capacity = engine.capacity();
  const int64_t by_tokens = capacity.tokens / (blocks.length() - 1);
  return static_cast<size_t>(
      std::max<int64_t>(1, std::min({by_tokens, capacity.slots, capacity.sequences})));
}

std::vector<std::vector<RowScore>> score_blocks(Engine& engine, const Blocks& blocks,
                                                std::span<const int64_t> which,
                                                const OnProgress& progress) {
  std::vector<std::vector<RowScore>> out(which.size());
  const size_t pack = blocks_per_forward(engine, blocks);
  const auto n_tokens = static_cast<size_t>(blocks.continuation);
  for (size_t begin = 0; begin < which.size(); begin += pack) {
    const size_t count = std::min(pack, which.size() - begin);
    std::vector<EngineSequence> sequences;
    std::vector<int32_t> targets;
    for (size_t i = 0; i < count; ++i) {
      const std::vector<int32_t>& ids = blocks.ids[static_cast<size_t>(which[begin + i])];
      sequences.push_back({static_cast<int32_t>(i), 0, std::span(ids).first(ids.size() - 1),
                           static_cast<int32_t>(blocks.context - 1)});
      targets.insert(targets.end(), ids.begin() + blocks.context, ids.end());
    }
    std::vector<RowScore> scores(targets.size());
    engine.forward(sequences, [&](const float* rows, int64_t first, int64_t n) {
      const auto offset = static_cast<size_t>(first);
      const auto size = static_cast<size_t>(n);
      engine.reader().score(rows, n, engine.vocab(), std::span(targets).subspan(offset, size),
                            std::span(scores).subspan(offset, size));
    });
    for (size_t i = 0; i < count; ++i) {
      const auto from = scores.begin() + static_cast<std::ptrdiff_t>(i * n_tokens);
      out[begin + i].assign(from, from + static_cast<std::ptrdiff_t>(n_tokens));
    }
    if (progress) progress(static_cast<double>((begin + count) * n_tokens));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    for (const RowScore& score : out[i]) {
      if (!score.finite) {
        throw Error(
            Exit::kGateFailed, "non_finite_logits",
            "the engine returned NaN or infinite logits on block " + std::to_string(which[i]));
      }
    }
  }
  return out;
}

BlockNll sum_nll(std::span<const RowScore> scores) {
  BlockNll block;
  for (const RowScore& score : scores) block.sum -= score.log_probability;
  block.tokens = static_cast<int64_t>(scores.size());
  return block;
}

std::vector<std::vector<RowScore>> score_all_blocks(Engine& engine, const Blocks& blocks,
                                                    const OnProgress& progress) {
  std::vector<int64_t> all(blocks.ids.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  return score_blocks(engine, blocks, all, progress);
}

std::vector<BlockNll> measure_likelihood(Engine& engine, const Blocks& blocks,
                                         const OnProgress& progress) {
  std::vector<BlockNll> out;
  for (const auto& scores : score_all_blocks(engine, blocks, progress)) {
    out.push_back(sum_nll(scores));
  }
  return out;
}

}  // namespace cbench
