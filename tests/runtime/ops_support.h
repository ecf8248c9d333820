// What the tests of the CPU's ops share: random operands, and batches without a model.
#pragma once

#include <bit>
#include <utility>

#include "runtime/support.h"
#include "util/random.h"

namespace cbench::testing {

using Doubles = std::vector<double>;

inline std::vector<float> random_floats(size_t count, uint64_t seed, double scale = 1) {
  Random random(seed);
  std::vector<float> out(count);
  for (float& value : out) value = static_cast<float>(scale * (2 * random.uniform() - 1));
  return out;
}
inline std::vector<uint16_t> random_bf16(size_t count, uint64_t seed) {
  std::vector<uint16_t> out;
  for (const float value : random_floats(count, seed)) out.push_back(to_bf16(value));
  return out;
}
inline float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
/// The tanh approximation of GELU, as written.
inline double gelu_tanh(double x) {
  constexpr double kRoot = 0.79788456080286535588;  // sqrt(2 / pi)
  return 0.5 * x * (1 + std::tanh(kRoot * (x + 0.044715 * x * x * x)));
}

inline double error_of(std::span<const float> got, const Doubles& expected) {
  return relative_error(got, std::vector<float>(expected.begin(), expected.end()));
}

struct Layer {
  std::vector<Span> spans;
  std::vector<int32_t> ids;
  int64_t rows() const { return static_cast<int64_t>(ids.size()); }
  Batch batch() const { return {ids, spans}; }
};
/// Spans in slots 0, 1, ... of the given starts and counts.
inline Layer layer_of(const std::vector<std::pair<int32_t, int32_t>>& starts_and_counts) {
  Layer layer;
  for (const auto& [start, count] : starts_and_counts) {
    layer.spans.push_back({static_cast<int32_t>(layer.spans.size()), start,
                           static_cast<int32_t>(layer.ids.size()), count});
    layer.ids.resize(layer.ids.size() + static_cast<size_t>(count));
  }
  return layer;
}

}  // namespace cbench::testing
