// Copy and read kernels, random data, timing by events.
#include <algorithm>

#include "ceilings.h"
#include "device.cuh"

namespace cbench::cuda {
namespace {

__device__ __forceinline__ uint32_t mix(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ x >> 16;
}
__device__ __forceinline__ float uniform(uint32_t seed, uint64_t i) {
  const uint32_t h = mix(static_cast<uint32_t>(i) ^ mix(seed + static_cast<uint32_t>(i >> 32)));
  return static_cast<float>(h >> 8) * 0x1p-24f;
}
__global__ void fill_kernel(bf16* p, int64_t n, uint32_t seed, float amplitude) {
  pdl_begin();
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n; i += step)
    p[i] = to_bf16((2 * uniform(seed, static_cast<uint64_t>(i)) - 1) * amplitude);
}
__global__ void fill_float_kernel(float* p, int64_t n, uint32_t seed, float low, float high) {
  pdl_begin();
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n; i += step)
    p[i] = low + uniform(seed, static_cast<uint64_t>(i)) * (high - low);
}

constexpr int kThreads = 256, kCopies = 4, kReads = 8;
__global__ void copy_kernel(const uint4* from, uint4* to, size_t n) {
  pdl_begin();
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads * kCopies + threadIdx.x;
  uint4 v[kCopies];
#pragma unroll
  for (int j = 0; j < kCopies; j++)
    if (i + j * kThreads < n) v[j] = __ldcs(from + i + j * kThreads);
#pragma unroll
  for (int j = 0; j < kCopies; j++)
    if (i + j * kThreads < n) __stcs(to + i + j * kThreads, v[j]);
}
__global__ void read_kernel(const uint4* from, uint4* never, size_t n) {
  pdl_begin();
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads * kReads + threadIdx.x;
  uint4 v[kReads];
  uint32_t all = 0;
#pragma unroll
  for (int j = 0; j < kReads; j++)
    v[j] = i + j * kThreads < n ? __ldcs(from + i + j * kThreads) : make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int j = 0; j < kReads; j++) all ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  if (all == 0x12345677u) never->x = all;
}

}  // namespace

void fill_random(void* data, int64_t n, uint32_t seed, float amplitude, cudaStream_t stream) {
  launch(fill_kernel, 1320, 256, 0, stream, static_cast<bf16*>(data), n, seed, amplitude);
}
void fill_random_float(float* data, int64_t n, uint32_t seed, float low, float high,
                       cudaStream_t stream) {
  launch(fill_float_kernel, 132, 256, 0, stream, data, n, seed, low, high);
}

std::vector<double> time_runs(const std::function<void()>& work, int repeats, int warm,
                              cudaStream_t stream) {
  cudaEvent_t begin, end;
  CBENCH_CUDA(cudaEventCreate(&begin));
  CBENCH_CUDA(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < warm + repeats; i++) {
    CBENCH_CUDA(cudaEventRecord(begin, stream));
    work();
    CBENCH_CUDA(cudaEventRecord(end, stream));
    CBENCH_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    CBENCH_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= warm) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return times;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Bandwidth measure_bandwidth(void* data, size_t bytes, cudaStream_t stream) {
  fill_random(data, static_cast<int64_t>(bytes / 2), 7, 1, stream);
  const size_t half = bytes / 2 / sizeof(uint4);
  auto* a = static_cast<uint4*>(data);
  const auto grid = [](size_t n, int per) {
    return static_cast<unsigned>(ceil_div(static_cast<int64_t>(n), int64_t{kThreads} * per));
  };
  const double moved = 2.0 * static_cast<double>(half) * sizeof(uint4);
  Bandwidth result;
  result.copy =
      moved / 1e-3 /
      median(time_runs(
          [&] { launch(copy_kernel, grid(half, kCopies), kThreads, 0, stream, a, a + half, half); },
          20, 3, stream));
  result.read =
      moved / 1e-3 /
      median(time_runs(
          [&] { launch(read_kernel, grid(2 * half, kReads), kThreads, 0, stream, a, a, 2 * half); },
          20, 3, stream));
  return result;
}

}  // namespace cbench::cuda
