// Joules per token from the GPU's energy counter over the timed windows.
#pragma once

#include <cstdint>

#include "engine/gpu_memory.h"

namespace cbench {

/// What a GPU used while tokens were made, summed over one or more windows.
struct EnergyUse {
  /// The counter moves every 100 ms: over less time than this a figure is no more than a hint.
  static constexpr double kLongEnough = 5;

  double joules = 0;
  double seconds = 0;
  int64_t tokens = 0;
  double per_token() const { return tokens > 0 ? joules / static_cast<double>(tokens) : 0; }
  bool long_enough() const { return seconds >= kLongEnough; }
};

/// Idle power is part of every figure; the verdict states it beside them.
class EnergyMeter {
 public:
  /// Without a meter (on the CPU) nothing is measured.
  explicit EnergyMeter(const GpuMeter* gpu) : gpu_(gpu) {}

  void start();
  /// Ends the window in which `tokens` were made.
  void stop(int64_t tokens);
  const EnergyUse& use() const { return use_; }

 private:
  const GpuMeter* gpu_;
  double joules_ = 0;   ///< the counter when the window began
  double seconds_ = 0;  ///< the clock then
  EnergyUse use_;
};

}  // namespace cbench
