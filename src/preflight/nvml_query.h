// What the NVIDIA driver says about its GPUs, through NVML loaded at run time; in every build.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cbench {

/// A value is absent when this driver or device does not report it.
struct GpuFacts {
  std::string uuid, name;
  int64_t memory = 0, used = 0;    ///< bytes
  std::optional<int> utilization;  ///< percent of the last sample period
  std::optional<bool> ecc, persistence, mig;
  std::optional<int64_t> ecc_errors;          ///< uncorrected ones since the driver was loaded
  std::optional<int> sm_clock, max_sm_clock;  ///< MHz
  std::optional<uint64_t> throttle;           ///< nvmlClocksThrottleReasons
  std::optional<int> temperature;             ///< degrees Celsius
};

struct DriverFacts {
  std::string driver;  ///< "550.90.07"
  int cuda = 0;        ///< 12040 for 12.4: the newest CUDA it can run
  std::vector<GpuFacts> gpus;
};

/// Throws EnvironmentError ("nvml") when the library is not there or does not answer.
DriverFacts query_driver(const std::string& library);

}  // namespace cbench
