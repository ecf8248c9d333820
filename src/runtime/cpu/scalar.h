// Gates of a single value, as the recurrent ops take them once per head and token.
#pragma once

#include <cmath>

namespace cbench::cpu {

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
/// log(1 + e^x), which is x itself to fp32 above 20.
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

}  // namespace cbench::cpu
