// Rotary frequencies of a model.
#include "runtime/rope.h"

#include <cmath>
#include <numbers>

namespace cbench {
namespace {

double llama3_frequency(const ModelConfig& config, double frequency) {
  const auto original = static_cast<double>(config.rope_original);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / config.rope_low) return frequency / config.rope_factor;
  if (wavelength < original / config.rope_high) return frequency;
  const double smooth =
      (original / wavelength - config.rope_low) / (config.rope_high - config.rope_low);
  return (1 - smooth) * frequency / config.rope_factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config) {
  const auto rotary =
      static_cast<int64_t>(static_cast<double>(config.head_dim) * config.partial_rotary);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < rotary / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(rotary);
    const double frequency = std::pow(config.rope_theta, -exponent);
    frequencies.push_back(static_cast<float>(
        config.rope_original > 0 ? llama3_frequency(config, frequency) : frequency));
  }
  return frequencies;
}

}  // namespace cbench
