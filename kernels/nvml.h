// What the driver says about a GPU and its processes, through NVML loaded at run time: works from
// outside the measured process, needs no CUDA context, and starts without a driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace cbench::cuda {

class Nvml {
 public:
  /// The GPU that is `device` to CUDA in this process: NVML counts all GPUs of the machine, CUDA
  /// those it was left (CUDA_VISIBLE_DEVICES). Throws EnvironmentError ("nvml", "no_gpu").
  explicit Nvml(int device);

  struct Process {
    pid_t pid;
    int64_t bytes;  ///< device memory charged to it, 2 MiB granularity, its context included
  };
  /// Compute processes on the device. Inside a pid namespace a process sees only itself.
  std::vector<Process> processes() const;
  /// Bytes charged to `pid`; nullopt when it has no context on the device. Pinned host memory and
  /// managed memory are not in this figure; managed memory shows in used().
  std::optional<int64_t> process_bytes(pid_t pid) const;
  int64_t used() const;  ///< bytes in use on the device by everybody
  int64_t total() const;
  /// Energy since the driver was loaded, joules; the counter moves every 100 ms.
  double energy() const;
  double power() const;        ///< watts, now
  int sm_clock() const;        ///< MHz
  int memory_clock() const;    ///< MHz
  std::string driver() const;  ///< version
  std::string name() const;
  std::string uuid() const;  ///< "GPU-..."
  int minor_number() const;  ///< of /dev/nvidia<minor>

 private:
  struct Library;
  static const Library& library();
  void* device_ = nullptr;
};

}  // namespace cbench::cuda
