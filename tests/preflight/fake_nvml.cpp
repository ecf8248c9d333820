// A driver library for the tests: one GPU whose faults the variable FAKE_NVML_FAULT names.
#include <cstdlib>
#include <cstring>
#include <string>

#include <unistd.h>

namespace {
bool fault(const char* name) {
  const char* value = std::getenv("FAKE_NVML_FAULT");
  return value != nullptr && std::string(value) == name;
}
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
}  // namespace

extern "C" {
int nvmlInit_v2() {
  if (fault("crash")) std::abort();
  if (fault("hang")) ::sleep(1000);
  return fault("init") ? 9 : 0;
}
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  return std::strncpy(text, "550.90.07", size), 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return *version = fault("driver") ? 12020 : 12040, 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = fault("none") ? 0 : 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  static int one;
  return *device = &one, 0;
}
int nvmlDeviceGetUUID(void*, char* text, unsigned size) {
  return std::strncpy(text, "GPU-00000000-1111", size), 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned size) {
  return std::strncpy(text, fault("model") ? "NVIDIA A100" : "NVIDIA H200 NVL", size), 0;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  const unsigned long long mib = 1u << 20;
  *memory = {(fault("memory") ? 80000 : 143771) * mib, 0, (fault("busy") ? 5000 : 500) * mib};
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, Utilization* busy) { return *busy = {0, 0}, 0; }
int nvmlDeviceGetEccMode(void*, unsigned* now, unsigned* next) {
  return *now = *next = fault("ecc") ? 0 : 1, 0;
}
int nvmlDeviceGetTotalEccErrors(void*, int, int, unsigned long long* count) {
  return *count = fault("ecc_errors") ? 3 : 0, 0;
}
int nvmlDeviceGetMigMode(void*, unsigned* now, unsigned* next) {
  return *now = *next = fault("mig") ? 1 : 0, 0;
}
int nvmlDeviceGetPersistenceMode(void*, unsigned* mode) {
  return *mode = fault("persistence") ? 0 : 1, 0;
}
int nvmlDeviceGetClockInfo(void*, int, unsigned* clock) { return *clock = 345, 0; }
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* clock) { return *clock = 1785, 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  return *reasons = fault("heat") ? 0x40 : 0x1, 0;
}
}
