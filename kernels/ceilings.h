// What this GPU can do at most, measured in the same run as everything that is compared with it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <cuda_runtime_api.h>

namespace cbench::cuda {

/// Fills n BF16 with reproducible numbers, uniform in [-amplitude, amplitude).
void fill_random(void* bf16, int64_t n, uint32_t seed, float amplitude, cudaStream_t stream);
/// Fills n fp32 with numbers uniform in [low, high).
void fill_random_float(float* data, int64_t n, uint32_t seed, float low, float high,
                       cudaStream_t stream);

/// Milliseconds of each of `repeats` runs of `work` on the stream, after `warm` untimed ones.
std::vector<double> time_runs(const std::function<void()>& work, int repeats, int warm,
                              cudaStream_t stream);
double median(std::vector<double> values);

struct Bandwidth {
  double copy = 0;  ///< bytes/s, read + write, by a kernel
  double read = 0;  ///< bytes/s, read only
};
/// Uses `bytes` of device memory at `data`, several times the L2; its contents are overwritten.
Bandwidth measure_bandwidth(void* data, size_t bytes, cudaStream_t stream);

}  // namespace cbench::cuda
