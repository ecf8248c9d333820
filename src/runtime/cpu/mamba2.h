// Mamba 2 of the CPU backend: convolution, state space recurrence, gated norm.
//
// Three parallel loops: the convolution over blocks of columns, the recurrence over the heads of
// every sequence, the norm over rows.
#pragma once

#include "runtime/cpu/batch.h"
#include "runtime/ops.h"

namespace cbench::cpu {

/// Floats of scratch that one thread needs.
int64_t mamba2_scratch(const Mamba2Spec& spec);

/// Shapes as in Ops::mamba2; `convolved` is scratch [T, conv_rows].
void mamba2(const Mamba2Spec& spec, const Mamba2State& state, const CurrentBatch& batch,
            const ThreadScratch& scratch, float* convolved, const float* in, float* y);

}  // namespace cbench::cpu
