#include "engine/gpu_memory.h"

#include <algorithm>

#include "util/error.h"

#if defined(CBENCH_HAVE_CUDA)
#include "nvml.h"

namespace cbench {
namespace {

class NvmlMeter : public GpuMeter {
 public:
  explicit NvmlMeter(int device) : nvml_(device) {}

  DeviceUse use(std::span<const pid_t> engine) const override {
    DeviceUse use;
    bool named = false;
    for (const cuda::Nvml::Process& process : nvml_.processes()) {
      const bool ours = std::find(engine.begin(), engine.end(), process.pid) != engine.end();
      named |= ours;
      (ours ? use.engine : use.others) += process.bytes;
    }
    if (!named) use.engine = -1;
    use.used = nvml_.used();
    return use;
  }
  BoxGpu box_gpu() const override { return {nvml_.uuid(), nvml_.minor_number()}; }
  int64_t total() const override { return nvml_.total(); }
  double energy() const override { return nvml_.energy(); }
  double power() const override { return nvml_.power(); }

 private:
  cuda::Nvml nvml_;
};

}  // namespace

std::unique_ptr<GpuMeter> make_gpu_meter(int device) {
  try {
    return std::make_unique<NvmlMeter>(device);
  } catch (const EnvironmentError& error) {
    throw EnvironmentError("no_gpu", error.what());
  }
}

}  // namespace cbench

#else

namespace cbench {

std::unique_ptr<GpuMeter> make_gpu_meter(int) {
  throw EnvironmentError("no_cuda", "this cbench was built without CUDA; use --device cpu");
}

}  // namespace cbench

#endif
