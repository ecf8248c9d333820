// Likelihood of sampled text under an engine: teacher-forced, packed, per-block sums.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/client.h"
#include "engine/logits_reader.h"
#include "eval/blocks.h"
#include "eval/statistics.h"

namespace cbench {

/// Called with the tokens scored so far.
using OnProgress = std::function<void(double done)>;

/// Scores of the continuation of each given block: result[i][t] is about the token at position
/// context + t of blocks.ids[which[i]]. Blocks are packed up to the engine's capacity. The last
/// token of a block is never sent. Throws Error ("non_finite_logits").
std::vector<std::vector<RowScore>> score_blocks(Engine& engine, const Blocks& blocks,
                                                std::span<const int64_t> which,
                                                const OnProgress& progress = {});

/// How many blocks go through the engine together.
size_t blocks_per_forward(const Engine& engine, const Blocks& blocks);

/// Scores of all blocks, in order.
std::vector<std::vector<RowScore>> score_all_blocks(Engine& engine, const Blocks& blocks,
                                                    const OnProgress& progress = {});

/// NLL sums of all blocks, in order.
std::vector<BlockNll> measure_likelihood(Engine& engine, const Blocks& blocks,
                                         const OnProgress& progress = {});

/// Sum and count of one block's scores, in position order.
BlockNll sum_nll(std::span<const RowScore> scores);

}  // namespace cbench
