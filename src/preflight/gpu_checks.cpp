// The GPU: model, memory, idle, ECC, clocks, persistence, MIG, driver.
#include <cstdlib>

#include "preflight/checks.h"
#include "preflight/nvml_query.h"
#include "util/error.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr int64_t kIdleBytes = int64_t{1} << 30;
constexpr int kIdlePercent = 5, kHot = 85;
constexpr int kMinDriverCuda = 12040;
// Slowed down by heat, by the power brake, or by hardware protection.
constexpr uint64_t kBadThrottle = 0x8 | 0x20 | 0x40 | 0x80;

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// What CUDA takes as its first device: a UUID or a number of CUDA_VISIBLE_DEVICES, else the first.
const GpuFacts* chosen(const DriverFacts& facts, std::string& trouble) {
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string value = variable == nullptr ? "" : variable;
  const std::string first = value.substr(0, value.find(','));
  if (variable == nullptr) return facts.gpus.empty() ? nullptr : &facts.gpus[0];
  double index = -1;
  if (parse_decimal(first, index) && index >= 0 && index < static_cast<double>(facts.gpus.size())) {
    return &facts.gpus[static_cast<size_t>(index)];
  }
  for (const GpuFacts& gpu : facts.gpus) {
    if (first.size() >= 8 && gpu.uuid.starts_with(first)) return &gpu;
  }
  trouble = "CUDA_VISIBLE_DEVICES=" + printable(value, 80) + " names no GPU of this machine";
  return nullptr;
}

void check_kind(const Contract& contract, const GpuFacts& gpu, CheckLines& lines) {
  const std::string& wanted = contract.hardware.gpu;
  if (wanted.empty() || gpu.name == wanted) {
    lines.ok("gpu.model", gpu.name + " " + gpu.uuid);
  } else {
    lines.warn("gpu.model", gpu.name + " " + gpu.uuid + "; the contract names " + wanted,
               "figures will not compare with runs on " + wanted);
  }
  const std::string seen = format_size(gpu.memory) + ", " + format_size(gpu.used) + " in use";
  // A driver reserves up to two percent.
  if (gpu.memory < contract.hardware.gpu_memory / 100 * 98) {
    lines.fail("gpu.memory", seen,
               "use a GPU with " + format_size(contract.hardware.gpu_memory) + " of memory");
  } else {
    lines.ok("gpu.memory", seen);
  }
  if (gpu.mig.value_or(false)) {
    lines.fail("gpu.mig", "MIG is on: only a part of the GPU can be used",
               "have it turned off: nvidia-smi -i " + gpu.uuid + " -mig 0");
  } else {
    lines.ok("gpu.mig", gpu.mig ? "off" : "not supported here");
  }
}

void check_state(const GpuFacts& gpu, CheckLines& lines) {
  const int busy = gpu.utilization.value_or(0);
  const std::string load = format_size(gpu.used) + " and " + std::to_string(busy) + " % in use";
  if (gpu.used > kIdleBytes || busy > kIdlePercent) {
    lines.fail("gpu.idle", load,
               "end what uses it (nvidia-smi lists the processes), or take another");
  } else {
    lines.ok("gpu.idle", load);
  }
  if (gpu.ecc_errors.value_or(0) > 0) {
    lines.fail("gpu.ecc", std::to_string(*gpu.ecc_errors) + " uncorrected memory errors",
               "reset or replace this GPU; its results cannot be trusted");
  } else if (gpu.ecc == false) {
    lines.warn("gpu.ecc", "off", "turn it on: nvidia-smi -e 1, then reboot");
  } else {
    lines.ok("gpu.ecc", gpu.ecc ? "on, no uncorrected errors" : "not reported");
  }
  if (gpu.persistence == false) {
    lines.warn("gpu.persistence", "off: the driver unloads between processes",
               "turn it on: nvidia-smi -pm 1");
  } else {
    lines.ok("gpu.persistence", gpu.persistence ? "on" : "not reported");
  }
  std::string clocks = gpu.sm_clock ? std::to_string(*gpu.sm_clock) : "?";
  clocks += " of " + (gpu.max_sm_clock ? std::to_string(*gpu.max_sm_clock) : "?") + " MHz";
  if (gpu.temperature) clocks += ", " + std::to_string(*gpu.temperature) + " C";
  if ((gpu.throttle.value_or(0) & kBadThrottle) != 0 || gpu.temperature.value_or(0) > kHot) {
    lines.warn("gpu.clocks", clocks + ", slowed down by heat or power protection",
               "see to cooling and power; speeds would be too low");
  } else {
    lines.ok("gpu.clocks", clocks);
  }
}

}  // namespace

void check_gpu(const Contract& contract, const PreflightOptions& options, CheckLines& lines) {
  if (!needs_cuda(contract, options)) {
    return lines.ok("gpu", "not needed: the task runs on the CPU");
  }
  DriverFacts facts;
  try {
    facts = query_driver(options.nvml);
  } catch (const EnvironmentError& error) {
    return lines.fail("gpu", error.what(), "install the NVIDIA driver, or run where a GPU is");
  }
  const std::string driver = "driver " + facts.driver + ", CUDA up to " + cuda_text(facts.cuda);
  if (facts.cuda < kMinDriverCuda) {
    lines.fail("gpu.driver", driver, "install a driver for CUDA 12.4 or later (550 or later)");
  } else {
    lines.ok("gpu.driver", driver);
  }
  std::string trouble = "the driver shows no GPU";
  const GpuFacts* gpu = chosen(facts, trouble);
  if (gpu == nullptr) return lines.fail("gpu", trouble, "nvidia-smi -L lists what there is");
  check_kind(contract, *gpu, lines);
  check_state(*gpu, lines);
}

}  // namespace cbench
