// What the driver says about a GPU from outside the engine: memory by process, power, energy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <sys/types.h>

#include "box/box.h"

namespace cbench {

/// Device memory at one moment, in bytes.
struct DeviceUse {
  /// Charged to the engine's processes, their contexts included; -1 when the driver names none of
  /// them, as it does in a pid namespace that is not the first.
  int64_t engine = 0;
  int64_t others = 0;  ///< charged to all other processes, the evaluator included
  int64_t used = 0;    ///< in use by anybody: more than the sum, by managed memory among others
  int64_t unowned() const { return used - others - (engine < 0 ? 0 : engine); }
};

class GpuMeter {
 public:
  virtual ~GpuMeter() = default;
  virtual DeviceUse use(std::span<const pid_t> engine) const = 0;
  virtual BoxGpu box_gpu() const = 0;  ///< which GPU this is, for a box
  virtual int64_t total() const = 0;   ///< bytes of the device
  virtual double energy() const = 0;   ///< joules since the driver was loaded; moves every 100 ms
  virtual double power() const = 0;    ///< watts, now
};

/// Reads NVML about the GPU that is `device` to CUDA in this process (CUDA_VISIBLE_DEVICES counts).
/// Throws EnvironmentError ("no_gpu", "no_cuda").
std::unique_ptr<GpuMeter> make_gpu_meter(int device);

}  // namespace cbench
