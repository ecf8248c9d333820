// Shared by the kernels: BF16 vectors, fixed-order reductions, programmatic dependent launch.
//
// Every kernel is launched by launch() and obeys one rule: before pdl_wait() it reads nothing but
// weights and constants, because earlier kernels may still run; after it, all their results are
// visible. Every block reaches pdl_wait(), so "my predecessor is complete" holds transitively.
#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "check.h"

namespace cbench::cuda {

using bf16 = __nv_bfloat16;

/// Lets the next kernel of the stream start its blocks as soon as this one's have all started.
__device__ __forceinline__ void pdl_trigger() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Waits until the previous kernel of the stream is complete and its writes are visible.
__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void pdl_begin() {
  pdl_trigger();
  pdl_wait();
}

/// Launches with programmatic stream serialization; also inside a stream capture. `cluster` of 1 x
/// 1 x 1 means none.
template <class... P, class... A>
void launch_with(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, dim3 cluster,
                 cudaStream_t stream, A... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster.x, cluster.y, cluster.z};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster.x * cluster.y * cluster.z > 1 ? 2 : 1;
  CBENCH_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...));
}
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
            A... arguments) {
  launch_with(kernel, grid, block, shared, dim3(1, 1, 1), stream, arguments...);
}
template <class... P, class... A>
void launch_cluster(void (*kernel)(P...), dim3 grid, dim3 block, dim3 cluster, cudaStream_t stream,
                    A... arguments) {
  launch_with(kernel, grid, block, 0, cluster, stream, arguments...);
}

/// Raises a kernel's dynamic shared memory limit; call before the first launch.
template <class K>
void allow_shared(K* kernel, size_t bytes) {
  CBENCH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(bytes)));
}

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ uint32_t pack(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ void unpack(uint4 v, float (&f)[8]) {
  f[0] = low(v.x), f[1] = high(v.x), f[2] = low(v.y), f[3] = high(v.y);
  f[4] = low(v.z), f[5] = high(v.z), f[6] = low(v.w), f[7] = high(v.w);
}
__device__ __forceinline__ uint4 pack8(const float (&f)[8]) {
  return {pack(f[0], f[1]), pack(f[2], f[3]), pack(f[4], f[5]), pack(f[6], f[7])};
}
__device__ __forceinline__ float to_float(bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ bf16 to_bf16(float v) { return __float2bfloat16_rn(v); }

/// 16 bytes of weights, read once: not kept in L1, fetched into L2 in 256-byte pieces.
__device__ __forceinline__ uint4 stream_load(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
/// Sum over a block of kThreads, the same bits in every thread. `shared` holds kThreads / 32
/// floats; ends with a barrier, so it may be used again at once.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v, float* shared) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; i++) total += shared[i];
  __syncthreads();
  return total;
}

__device__ __forceinline__ float sigmoid(float v) { return __fdividef(1.f, 1.f + __expf(-v)); }
__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.f + __expf(-v)); }
__device__ __forceinline__ float softplus(float v) { return v > 20.f ? v : log1pf(expf(v)); }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace cbench::cuda
