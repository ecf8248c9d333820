// Warpgroup tensor core products of BF16 with fp32 accumulation on compute capability 9.0: operands
// in shared memory, K side by side, rows of 64 BF16 in the 128-byte swizzle.
//
// A tile of such rows starts at a multiple of 1024 bytes; 16 bytes number c of row r lie at
// r * 128 + (c ^ r % 8) * 16. Fragment of C (64 x 128) of a warpgroup: d[4 j + {0, 1}] at row
// 16 warp + lane/4, columns 8 j + 2 (lane%4) + {0, 1}; d[4 j + {2, 3}] eight rows below.
#pragma once

#include "mma.cuh"

namespace cbench::cuda {

/// Byte offset of 16 bytes number `chunk` of a row of 64 BF16.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return static_cast<uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}
/// Matrix descriptor of the tile at a shared address; eight rows are 1024 bytes.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | ((address & 0x3ffff) >> 4);
}
/// What a descriptor grows by per 16 columns.
constexpr uint64_t kDescriptorStep = 32 >> 4;
/// The same tile read the other way: its rows are K. A product takes 64 columns of it and 16 rows,
/// and the descriptor grows by kTransposedStep per 16 rows.
__device__ __forceinline__ uint64_t transposed_descriptor(uint32_t address) {
  return tile_descriptor(address);
}
constexpr uint64_t kTransposedStep = 16 * 128 >> 4;

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Makes this thread's writes to shared memory visible to wgmma, once a barrier follows.
__device__ __forceinline__ void fence_operands() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// d += a [64, 16] b [128, 16]^T, asynchronously.
__device__ __forceinline__ void wgmma_64x128(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "{wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, 1, 1, 1, 0, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "l"(a), "l"(b));
}

// The 32 registers of a 64 x 64 result as an instruction names them, and as its operands d[0] ...
#define CBENCH_WGMMA_32_NAMES                \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define CBENCH_WGMMA_32_OPERANDS(d)                                                               \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),    \
      "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),  \
      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),  \
      "+f"(d[29]), "+f"(d[30]), "+f"(d[31])

/// d += a [64, 16] b [64, 16]^T, asynchronously.
__device__ __forceinline__ void wgmma_64x64(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("{wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" CBENCH_WGMMA_32_NAMES
               "}, %32, %33, 1, 1, 1, 0, 0;}"
               : CBENCH_WGMMA_32_OPERANDS(d)
               : "l"(a), "l"(b));
}
/// d += a [64, 16] b [16, 64], asynchronously: `a` as fragments of mma.cuh in each warp, b's rows
/// are K (a descriptor of transposed_descriptor()).
__device__ __forceinline__ void wgmma_64x64(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("{wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" CBENCH_WGMMA_32_NAMES
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;}"
               : CBENCH_WGMMA_32_OPERANDS(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef CBENCH_WGMMA_32_NAMES
#undef CBENCH_WGMMA_32_OPERANDS

}  // namespace cbench::cuda
