// Warp-level tensor core products of BF16 with fp32 accumulation: m16n8k16, operands by ldmatrix.
//
// Fragment of C (16 x 8): c[0], c[1] at row lane/4, columns 2*(lane%4) + {0, 1}; c[2], c[3] eight
// rows below.
#pragma once

#include "device.cuh"

namespace cbench::cuda {

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// A tile of shared memory with rows of `kStride` BF16 (a multiple of 8, not of 64, so that eight
/// rows fall into different banks). Each function loads fragments for one mma of 16 x 16.
template <int kStride>
struct Tile {
  uint32_t base;  ///< shared address
  __device__ explicit Tile(const bf16* p) : base(shared_address(p)) {}
  __device__ __forceinline__ uint32_t at(int row, int col) const {
    return base + static_cast<uint32_t>(row * kStride + col) * 2;
  }
  /// A = tile[row.., col..], 16 x 16.
  __device__ __forceinline__ void a(uint32_t (&r)[4], int row, int col) const {
    const int lane = threadIdx.x % 32;
    ldmatrix(r, at(row + lane % 16, col + lane / 16 * 8));
  }
  /// A = transpose of tile[k.., m..]: the tile holds A's columns as rows.
  __device__ __forceinline__ void a_transposed(uint32_t (&r)[4], int m, int k) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_trans(r, at(k + lane % 8 + lane / 16 * 8, m + lane / 8 % 2 * 8));
  }
  /// B of two products (n and n + 8): rows of the tile are n, contiguous in k. b0,b1 = r[0],r[1]
  /// and r[2],r[3].
  __device__ __forceinline__ void b_rows_n(uint32_t (&r)[4], int n, int k) const {
    const int lane = threadIdx.x % 32;
    ldmatrix(r, at(n + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
  }
  /// The same where rows of the tile are k, contiguous in n.
  __device__ __forceinline__ void b_rows_k(uint32_t (&r)[4], int k, int n) const {
    const int lane = threadIdx.x % 32;
    ldmatrix_trans(r, at(k + lane % 16, n + lane / 16 * 8));
  }
};

/// d [16, 8 kTiles] += a b^T: rows [r, r + 16) of a, rows of b from c on, `kDepth` columns of both.
template <int kDepth, int kTiles, int kA, int kB>
__device__ __forceinline__ void add_rows(float (&d)[kTiles][4], const Tile<kA>& a, int r,
                                         const Tile<kB>& b, int c) {
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t x[4], y[4];
    a.a(x, r, k);
#pragma unroll
    for (int n = 0; n < kTiles / 2; n++) {
      b.b_rows_n(y, c + n * 16, k);
      mma(d[2 * n], x, y[0], y[1]);
      mma(d[2 * n + 1], x, y[2], y[3]);
    }
  }
}
/// d [16, 8 kTiles] += a b where a is lower triangular: rows [r, r + 16) of a, columns of b from c
/// on.
template <int kTiles, int kA, int kB>
__device__ __forceinline__ void add_lower(float (&d)[kTiles][4], const Tile<kA>& a, int r,
                                          const Tile<kB>& b, int c) {
  for (int k = 0; k <= r; k += 16) {
    uint32_t x[4], y[4];
    a.a(x, r, k);
#pragma unroll
    for (int n = 0; n < kTiles / 2; n++) {
      b.b_rows_k(y, k, c + n * 16);
      mma(d[2 * n], x, y[0], y[1]);
      mma(d[2 * n + 1], x, y[2], y[3]);
    }
  }
}
/// d [16, 8 kTiles] = decay d + a^T b: columns of a from r on and of b from c on, `kDepth` rows of
/// both.
template <int kDepth, int kTiles, int kA, int kB>
__device__ __forceinline__ void decay_and_add(float (&d)[kTiles][4], float decay, const Tile<kA>& a,
                                              int r, const Tile<kB>& b, int c) {
#pragma unroll
  for (int n = 0; n < kTiles; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) d[n][i] *= decay;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t x[4], y[4];
    a.a_transposed(x, r, k);
#pragma unroll
    for (int n = 0; n < kTiles / 2; n++) {
      b.b_rows_k(y, k, c + n * 16);
      mma(d[2 * n], x, y[0], y[1]);
      mma(d[2 * n + 1], x, y[2], y[3]);
    }
  }
}

/// 16 bytes from global to shared memory without registers; zeros when `valid` is false.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Requests rows [0, kRows) of kCols columns for a tile of stride kCols + 8, by a block of
/// kThreads; rows >= valid become zeros.
template <int kCols, int kRows, int kThreads>
__device__ __forceinline__ void request_rows(bf16* to, const bf16* from, size_t row_step,
                                             int valid) {
  constexpr int kPerRow = kCols / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kPerRow; i += kThreads) {
    const int row = i / kPerRow, col = i % kPerRow * 8;
    copy_async(shared_address(to + row * (kCols + 8) + col),
               from + (row < valid ? row : 0) * row_step + col, row < valid);
  }
}
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace cbench::cuda
