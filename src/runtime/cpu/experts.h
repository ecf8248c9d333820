// Routed experts of the CPU backend: who serves a row, and the experts' MLPs.
//
// A (row, expert) choice is a pair. The pairs of a block of rows are sorted by expert, so that each
// active expert multiplies all of its rows at once; a row then sums its experts best first. All
// products are the GEMV's, whose sums do not depend on the number of inputs: neither a row's
// routing nor its result depends on the other rows of the batch (a plugin may differ).
#pragma once

#include <cstdint>
#include <span>

#include "runtime/cpu/linear.h"
#include "runtime/ops.h"

namespace cbench::cpu {

/// The pairs of one expert: [begin, begin + count) of the sorted ones.
struct ExpertRun {
  int32_t expert, begin, count;
};

/// Workspace of the functions below; all of it transient.
struct ExpertsScratch {
  float* scores = nullptr;    ///< [tokens, experts] of the router
  int32_t* kept = nullptr;    ///< [tokens, kept_groups]
  float* worth = nullptr;     ///< [tokens, kept_groups]
  int32_t* expert = nullptr;  ///< [pairs] of each sorted pair
  int32_t* row = nullptr;     ///< [pairs] of each sorted pair, in its block of rows
  int32_t* itself = nullptr;  ///< [pairs] 0, 1, 2 ...
  int32_t* place = nullptr;   ///< [pairs] where the choice (row, rank) was sorted to
  int32_t* end = nullptr;     ///< [experts]
  ExpertRun* runs = nullptr;  ///< [experts] of the experts that have pairs
  float* ends = nullptr;      ///< [pairs, width] a pair's input, later its output
  float* wide = nullptr;      ///< [pairs, rows of gate_up]
  float* hidden = nullptr;    ///< [pairs, I]
};

ExpertsScratch make_experts_scratch(Arena& arena, int64_t tokens,
                                    std::span<const RouterSpec> routers,
                                    std::span<const ExpertsSpec> experts);

/// Shapes as in Ops::route.
void route(const RouterSpec& spec, const ExpertsScratch& scratch, const float* x, int64_t rows,
           int64_t width, const Routing& routing);

/// Shapes as in Ops::experts.
void experts(const ExpertsSpec& spec, const ExpertsScratch& scratch, const LinearScratch& linear,
             const Routing& routing, const float* x, int64_t rows, float* y);

}  // namespace cbench::cpu
