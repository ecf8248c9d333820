// Shared by the experts' products: what becomes of a pair's sums.
#pragma once

#include "activation.cuh"
#include "experts.h"

namespace cbench::cuda {

/// From the sum of the first (gate) row, and of the second (up) when gated.
template <ExpertOutput kOutput>
__device__ __forceinline__ float finish(float first, float second) {
  if constexpr (kOutput == ExpertOutput::kSilu) {
    return activate<Activation::kSilu>(first, second);
  } else if constexpr (kOutput == ExpertOutput::kGelu) {
    return activate<Activation::kGeluTanh>(first, second);
  } else if constexpr (kOutput == ExpertOutput::kRelu2) {
    return activate<Activation::kRelu2>(0, first);
  } else {
    return first;
  }
}

}  // namespace cbench::cuda
