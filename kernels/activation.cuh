// Between the two halves of an MLP, as the CPU's gate_up and experts have it. GELU is the tanh
// form, written as x * sigmoid(2u): 1 + tanh(u) = 2 * sigmoid(2u).
#pragma once

#include "device.cuh"
#include "runtime/ops.h"

namespace cbench::cuda {

template <Activation kActivation>
constexpr bool kGatedActivation = is_gated(kActivation);

/// `gate` is not read when the activation is not gated.
template <Activation kActivation>
__device__ __forceinline__ float activate(float gate, float up) {
  if constexpr (kActivation == Activation::kSilu) {
    return silu(gate) * up;
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    const float twice = 1.5957691216057308f * fmaf(0.044715f * gate * gate, gate, gate);
    return gate * sigmoid(twice) * up;
  } else {
    const float positive = fmaxf(up, 0.f);
    return positive * positive;
  }
}

}  // namespace cbench::cuda
