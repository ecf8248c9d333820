// Rotary frequencies of a model.
#include "runtime/rope.h"

#include <cmath>
#include <numbers>

namespace cbench {
namespace {

double llama3_frequency(const RopeConfig& rope, double frequency) {
  const auto original = static_cast<double>(rope.original);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / rope.low) return frequency / rope.factor;
  if (wavelength < original / rope.high) return frequency;
  const double smooth = (original / wavelength - rope.low) / (rope.high - rope.low);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope) {
  std::vector<float> frequencies(static_cast<size_t>(rope.rotary / 2));
  for (int64_t i = 0; i < rope.turning; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(rope.rotary);
    const double frequency = std::pow(rope.theta, -exponent);
    frequencies[static_cast<size_t>(i)] = static_cast<float>(
        rope.original > 0 ? llama3_frequency(rope, frequency) : frequency / rope.factor);
  }
  return frequencies;
}

}  // namespace cbench
