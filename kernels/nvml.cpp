// NVML by dlopen: the few calls and structures it takes, as in nvml.h of the CUDA Toolkit.
#include "nvml.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "util/error.h"

namespace cbench::cuda {
namespace {

struct MemoryInfo {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
constexpr int kInsufficientSize = 7, kSmClock = 1, kMemoryClock = 2;

}  // namespace

struct Nvml::Library {
  int (*init)() = nullptr;
  int (*handle)(const char*, void**) = nullptr;
  int (*memory)(void*, MemoryInfo*) = nullptr;
  int (*processes)(void*, unsigned*, ProcessInfo*) = nullptr;
  int (*energy)(void*, unsigned long long*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;
  int (*name)(void*, char*, unsigned) = nullptr;
  int (*uuid)(void*, char*, unsigned) = nullptr;
  int (*minor_number)(void*, unsigned*) = nullptr;
  const char* (*error)(int) = nullptr;

  Library() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      throw EnvironmentError("nvml", std::string("libnvidia-ml.so.1 cannot be loaded: ") +
                                         dlerror() + "; install the NVIDIA driver");
    }
    const auto find = [&](auto& function, const char* symbol) {
      void* address = dlsym(library, symbol);
      if (!address) {
        throw EnvironmentError("nvml", std::string("the NVIDIA driver's NVML lacks ") + symbol +
                                           "; install driver 525 or later");
      }
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    find(init, "nvmlInit_v2");
    find(handle, "nvmlDeviceGetHandleByPciBusId_v2");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    find(energy, "nvmlDeviceGetTotalEnergyConsumption");
    find(power, "nvmlDeviceGetPowerUsage");
    find(clock, "nvmlDeviceGetClockInfo");
    find(driver, "nvmlSystemGetDriverVersion");
    find(name, "nvmlDeviceGetName");
    find(uuid, "nvmlDeviceGetUUID");
    find(minor_number, "nvmlDeviceGetMinorNumber");
    find(error, "nvmlErrorString");
    check(init(), "nvmlInit");
  }
  void check(int status, const char* call) const {
    if (status != 0) throw EnvironmentError("nvml", std::string(call) + ": " + error(status));
  }
};

const Nvml::Library& Nvml::library() {
  static const Library loaded;
  return loaded;
}

Nvml::Nvml(int device) {
  char bus[32] = {};
  if (const cudaError_t error = cudaDeviceGetPCIBusId(bus, sizeof bus, device);
      error != cudaSuccess) {
    throw EnvironmentError("no_gpu", "CUDA has no device " + std::to_string(device) + " (" +
                                         cudaGetErrorString(error) +
                                         "); look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  library().check(library().handle(bus, &device_), "nvmlDeviceGetHandleByPciBusId");
}

std::vector<Nvml::Process> Nvml::processes() const {
  std::vector<ProcessInfo> list(64);
  for (;;) {
    auto count = static_cast<unsigned>(list.size());
    const int status = library().processes(device_, &count, list.data());
    if (status == kInsufficientSize && list.size() < 65536) {
      list.resize(list.size() * 2);
      continue;
    }
    library().check(status, "nvmlDeviceGetComputeRunningProcesses");
    list.resize(count);
    break;
  }
  std::vector<Process> result;
  for (const ProcessInfo& p : list)
    result.push_back({static_cast<pid_t>(p.pid), static_cast<int64_t>(p.used)});
  return result;
}

std::optional<int64_t> Nvml::process_bytes(pid_t pid) const {
  for (const Process& p : processes())
    if (p.pid == pid) return p.bytes;
  return std::nullopt;
}

int64_t Nvml::used() const {
  MemoryInfo info{};
  library().check(library().memory(device_, &info), "nvmlDeviceGetMemoryInfo");
  return static_cast<int64_t>(info.used);
}
int64_t Nvml::total() const {
  MemoryInfo info{};
  library().check(library().memory(device_, &info), "nvmlDeviceGetMemoryInfo");
  return static_cast<int64_t>(info.total);
}
double Nvml::energy() const {
  unsigned long long millijoules = 0;
  library().check(library().energy(device_, &millijoules), "nvmlDeviceGetTotalEnergyConsumption");
  return static_cast<double>(millijoules) / 1e3;
}
double Nvml::power() const {
  unsigned milliwatts = 0;
  library().check(library().power(device_, &milliwatts), "nvmlDeviceGetPowerUsage");
  return milliwatts / 1e3;
}
int Nvml::sm_clock() const {
  unsigned mhz = 0;
  library().check(library().clock(device_, kSmClock, &mhz), "nvmlDeviceGetClockInfo");
  return static_cast<int>(mhz);
}
int Nvml::memory_clock() const {
  unsigned mhz = 0;
  library().check(library().clock(device_, kMemoryClock, &mhz), "nvmlDeviceGetClockInfo");
  return static_cast<int>(mhz);
}
std::string Nvml::driver() const {
  char text[96] = {};
  library().check(library().driver(text, sizeof text - 1), "nvmlSystemGetDriverVersion");
  return text;
}
std::string Nvml::name() const {
  char text[96] = {};
  library().check(library().name(device_, text, sizeof text - 1), "nvmlDeviceGetName");
  return text;
}
std::string Nvml::uuid() const {
  char text[96] = {};
  library().check(library().uuid(device_, text, sizeof text - 1), "nvmlDeviceGetUUID");
  return text;
}
int Nvml::minor_number() const {
  unsigned number = 0;
  library().check(library().minor_number(device_, &number), "nvmlDeviceGetMinorNumber");
  return static_cast<int>(number);
}

}  // namespace cbench::cuda
