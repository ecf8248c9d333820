// The few calls and structures it takes, as nvml.h of the CUDA toolkit declares them.
#include "preflight/nvml_query.h"

#include <algorithm>
#include <cstring>

#include <dlfcn.h>

#include "util/error.h"

namespace cbench {
namespace {

constexpr int kSm = 1, kGpuTemperature = 0, kUncorrected = 1, kSinceLoad = 0;
constexpr unsigned kMaxGpus = 64;

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};

class Library {
 public:
  explicit Library(const std::string& name)
      : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      throw EnvironmentError("nvml", name + " cannot be loaded: is the NVIDIA driver installed?");
    }
  }
  /// Calls `symbol`; false when it is missing or reports an error.
  template <typename... Arguments>
  bool call(const char* symbol, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle_, symbol));
    return function != nullptr && function(arguments...) == 0;
  }
  template <typename... Arguments>
  void must(const char* symbol, Arguments... arguments) const {
    if (!call(symbol, arguments...))
      throw EnvironmentError("nvml", std::string(symbol) + " failed");
  }

 private:
  void* handle_;
};

std::string text_of(const char (&buffer)[96]) {
  return std::string(buffer, ::strnlen(buffer, sizeof buffer));
}

// By reference: the call that fills the value is another argument, and arguments have no order.
std::optional<bool> flag(bool known, const unsigned& value) {
  return known ? std::optional(value != 0) : std::nullopt;
}
std::optional<int> number(bool known, const unsigned& value) {
  return known ? std::optional(static_cast<int>(value)) : std::nullopt;
}

GpuFacts facts_of(const Library& nvml, void* device) {
  GpuFacts gpu;
  char text[96] = {};
  if (nvml.call("nvmlDeviceGetUUID", device, &text[0], 96u)) gpu.uuid = text_of(text);
  if (nvml.call("nvmlDeviceGetName", device, &text[0], 96u)) gpu.name = text_of(text);
  Memory memory{};
  nvml.must("nvmlDeviceGetMemoryInfo", device, &memory);
  gpu.memory = static_cast<int64_t>(memory.total);
  gpu.used = static_cast<int64_t>(memory.used);
  Utilization busy{};
  gpu.utilization = number(nvml.call("nvmlDeviceGetUtilizationRates", device, &busy), busy.gpu);
  unsigned now = 0, next = 0;
  gpu.ecc = flag(nvml.call("nvmlDeviceGetEccMode", device, &now, &next), now);
  unsigned long long errors = 0;
  if (nvml.call("nvmlDeviceGetTotalEccErrors", device, kUncorrected, kSinceLoad, &errors)) {
    gpu.ecc_errors = static_cast<int64_t>(errors);
  }
  unsigned mig = 0;
  gpu.mig = flag(nvml.call("nvmlDeviceGetMigMode", device, &mig, &next), mig);
  unsigned mode = 0;
  gpu.persistence = flag(nvml.call("nvmlDeviceGetPersistenceMode", device, &mode), mode);
  unsigned clock = 0, max_clock = 0, heat = 0;
  gpu.sm_clock = number(nvml.call("nvmlDeviceGetClockInfo", device, kSm, &clock), clock);
  gpu.max_sm_clock =
      number(nvml.call("nvmlDeviceGetMaxClockInfo", device, kSm, &max_clock), max_clock);
  gpu.temperature =
      number(nvml.call("nvmlDeviceGetTemperature", device, kGpuTemperature, &heat), heat);
  unsigned long long reasons = 0;
  if (nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &reasons)) {
    gpu.throttle = reasons;
  }
  return gpu;
}

}  // namespace

DriverFacts query_driver(const std::string& library) {
  const Library nvml(library);
  nvml.must("nvmlInit_v2");
  DriverFacts facts;
  char text[96] = {};
  if (nvml.call("nvmlSystemGetDriverVersion", &text[0], 96u)) facts.driver = text_of(text);
  nvml.call("nvmlSystemGetCudaDriverVersion_v2", &facts.cuda);
  unsigned count = 0;
  nvml.must("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < std::min(count, kMaxGpus); ++i) {
    void* device = nullptr;
    nvml.must("nvmlDeviceGetHandleByIndex_v2", i, &device);
    facts.gpus.push_back(facts_of(nvml, device));
  }
  nvml.call("nvmlShutdown");
  return facts;
}

}  // namespace cbench
