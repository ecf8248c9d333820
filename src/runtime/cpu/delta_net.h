// Gated delta net of the CPU backend: causal convolution, gates, delta rule, gated norm.
//
// A task is one key head (with the value heads that it serves) of one sequence, so its q, k, v and
// states stay in the core's cache. Long spans use the chunked form (Yang et al. 2024, "Gated Delta
// Networks"), short ones the recurrence itself.
#pragma once

#include "runtime/cpu/batch.h"
#include "runtime/ops.h"

namespace cbench::cpu {

/// Floats of scratch that one thread needs.
int64_t delta_net_scratch(const DeltaNetSpec& spec);

/// Shapes as in Ops::delta_net.
void delta_net(const DeltaNetSpec& spec, const DeltaNetState& state, const CurrentBatch& batch,
               const ThreadScratch& scratch, const float* in, float* y);

}  // namespace cbench::cpu
