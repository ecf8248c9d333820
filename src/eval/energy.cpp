#include "eval/energy.h"

#include "util/clock.h"

namespace cbench {

void EnergyMeter::start() {
  if (gpu_ == nullptr) return;
  joules_ = gpu_->energy();
  seconds_ = boot_seconds();
}

void EnergyMeter::stop(int64_t tokens) {
  if (gpu_ == nullptr) return;
  use_.seconds += boot_seconds() - seconds_;
  use_.joules += gpu_->energy() - joules_;
  use_.tokens += tokens;
}

}  // namespace cbench
