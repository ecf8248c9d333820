// Grouped product of many pairs on tensor cores: a block multiplies up to 128 pairs of one expert,
// gathered from rows of x wherever they lie, by 256 of its weight rows (128 gate and 128 up rows
// when gated, so that the activation happens in registers) and puts the results down by pair.
//
// Two warpgroups take 64 pairs each; one whose pairs are missing does not multiply. Operands travel
// through a ring of kStages slabs of 64 columns: while slab s is multiplied, s + 1 arrives and s +
// 2 is requested in place of s - 2, which both warpgroups have finished. A row's sum runs over the
// columns in ascending order whatever tile it is in, so that it does not depend on how other rows
// were routed.
// Assumes k % 8 == 0, n % 8 == 0 and 16-byte aligned rows.
#include "experts.cuh"
#include "wgmma.cuh"

namespace cbench::cuda {
namespace {

constexpr int kM = kExpertTile, kHalf = 128, kSlab = 64, kStages = 4, kThreads = 256;
constexpr int kTileBytes = 128 * kSlab * 2, kStageBytes = 3 * kTileBytes;
constexpr int kRowsPer = 128 * (kSlab / 8) / kThreads;  // rows of a tile that a thread fetches from
static_assert(kM == 128);

struct Problem {
  const bf16* x;
  const bf16* w;
  bf16* y;
  ExpertOrder order;
  int share, n, k, first_expert, first_tile;
};

/// What a thread carries into shared memory: 16 bytes of kRowsPer rows of x and of both halves of
/// w.
template <bool kGated>
struct Loader {
  const bf16* x;
  const bf16* w;
  uint32_t x_offset[kRowsPer], w_offset[2][kRowsPer], place[kRowsPer];
  uint32_t valid = 0;  // bit i: row i of x; bits 8 + i and 16 + i: of w's halves
  int k, col;

  __device__ Loader(const Problem& p, const int32_t* pair, int expert, int n0) : x(p.x), k(p.k) {
    w = p.w + static_cast<size_t>(expert - p.first_expert) * (kGated ? 2 : 1) * p.n * p.k;
    const int row0 = threadIdx.x / 8, chunk = threadIdx.x % 8;
    col = chunk * 8;
#pragma unroll
    for (int i = 0; i < kRowsPer; i++) {
      const int row = row0 + i * (kThreads / 8), mine = pair[row];
      place[i] = swizzled(row, chunk);
      x_offset[i] = static_cast<uint32_t>(max(mine, 0) / p.share) * p.k + col;
      valid |= (mine >= 0 ? 1u : 0u) << i;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int own = n0 + row + (kGated ? 0 : half * kHalf);
        const bool inside = own < p.n;
        w_offset[half][i] =
            static_cast<uint32_t>((inside ? own : 0) + (kGated ? half * p.n : 0)) * p.k + col;
        valid |= (inside ? 1u : 0u) << (8 + 8 * half + i);
      }
    }
  }
  __device__ __forceinline__ void request(uint32_t stage, int slab) const {
    const int from = slab * kSlab;
    const bool inside = from + col < k;
    const int at = inside ? from : 0;
#pragma unroll
    for (int i = 0; i < kRowsPer; i++) {
      copy_async(stage + place[i], x + x_offset[i] + at, inside && (valid >> i & 1));
#pragma unroll
      for (int half = 0; half < 2; half++)
        copy_async(stage + (1 + half) * kTileBytes + place[i], w + w_offset[half][i] + at,
                   inside && (valid >> (8 + 8 * half + i) & 1));
    }
  }
};

/// Four lanes with 4 pairs of columns each, of 4 blocks of 8 columns: afterwards lane q % 4 has all
/// of block q.
__device__ __forceinline__ uint4 gather_block(uint32_t (&v)[4]) {
  const int lane = threadIdx.x;
  const auto exchange = [&](uint32_t& a, uint32_t& b, int mask) {
    const bool upper = lane & mask;
    const uint32_t got = __shfl_xor_sync(~0u, upper ? a : b, mask);
    (upper ? a : b) = got;
  };
  exchange(v[0], v[1], 1);
  exchange(v[2], v[3], 1);
  exchange(v[0], v[2], 2);
  exchange(v[1], v[3], 2);
  return {v[0], v[1], v[2], v[3]};
}

/// Puts 64 pairs x 128 columns from `n0` on down.
template <ExpertOutput kOutput>
__device__ __forceinline__ void store(const Problem& p, const int32_t* pair, int rows, int n0,
                                      const float (&first)[64], const float (&second)[64]) {
  const int lane = threadIdx.x % 32, row0 = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = row0 + half * 8;
    bf16* y = p.y + static_cast<size_t>(row < rows ? pair[row] : 0) * p.n;
#pragma unroll
    for (int b = 0; b < 16; b += 4) {
      uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int at = (b + j) * 4 + half * 2;
        v[j] = pack(finish<kOutput>(first[at], second[at]),
                    finish<kOutput>(first[at + 1], second[at + 1]));
      }
      const uint4 block = gather_block(v);
      const int col = n0 + (b + lane % 4) * 8;
      if (row < rows && col < p.n) *reinterpret_cast<uint4*>(y + col) = block;
    }
  }
}

template <ExpertOutput kOutput>
__global__ void __launch_bounds__(kThreads, 1) grouped_kernel(const __grid_constant__ Problem p) {
  constexpr bool kGated = kIsGated<kOutput>;
  extern __shared__ unsigned char raw[];
  __shared__ int32_t pair[kM];
  pdl_begin();
  const int tile = p.first_tile + blockIdx.y;
  if (tile >= p.order.tile_first[p.order.experts]) return;
  const int expert = p.order.tile_expert[tile];
  const int begin = p.order.first[expert] + (tile - p.order.tile_first[expert]) * kM;
  const int rows = min(kM, p.order.first[expert + 1] - begin);
  if (threadIdx.x < kM)
    pair[threadIdx.x] =
        static_cast<int>(threadIdx.x) < rows ? p.order.pair[begin + threadIdx.x] : -1;
  __syncthreads();

  const int n0 = blockIdx.x * (kGated ? kHalf : 2 * kHalf), slabs = (p.k + kSlab - 1) / kSlab;
  const uint32_t ring = (shared_address(raw) + 1023) / 1024 * 1024;
  const Loader<kGated> loader(p, pair, expert, n0);
#pragma unroll
  for (int s = 0; s < kStages - 2; s++) {
    if (s < slabs) loader.request(ring + s * kStageBytes, s);
    copy_commit();
  }
  // The same in a whole warp, and known to be: wgmma is serialized on paths that may diverge.
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const bool active = __shfl_sync(~0u, static_cast<int>(group * 64 < rows), 0);
  const auto arrive = [&] {  // the next slab is there, and the one before the last is used up
    copy_wait<kStages - 3>();
    fence_operands();
    __syncthreads();
  };
  const auto ask = [&](int slab) {
    const int ahead = slab + kStages - 2;
    if (ahead < slabs) loader.request(ring + ahead % kStages * kStageBytes, ahead);
    copy_commit();
  };
  if (!active) {
    for (int slab = 0; slab < slabs; slab++) arrive(), ask(slab);
    return;
  }
  float first[64] = {}, second[64] = {};
  for (int slab = 0; slab < slabs; slab++) {
    arrive();
    const uint32_t stage = ring + slab % kStages * kStageBytes;
    const uint64_t x = tile_descriptor(stage + group * 64 * kSlab * 2);
    const uint64_t w0 = tile_descriptor(stage + kTileBytes);
    const uint64_t w1 = tile_descriptor(stage + 2 * kTileBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSlab / 16; k++) {
      wgmma_64x128(first, x + k * kDescriptorStep, w0 + k * kDescriptorStep);
      wgmma_64x128(second, x + k * kDescriptorStep, w1 + k * kDescriptorStep);
    }
    wgmma_commit();
    ask(slab);
    wgmma_wait<1>();
  }
  wgmma_wait<0>();
  if constexpr (kGated) {
    store<kOutput>(p, pair, rows, n0, first, second);
  } else {
    store<kOutput>(p, pair, rows, n0, first, first);
    store<kOutput>(p, pair, rows, n0 + kHalf, second, second);
  }
}

template <ExpertOutput kOutput>
void run(const Problem& p, int64_t count, cudaStream_t stream) {
  constexpr size_t kBytes = kStageBytes * kStages + 1024;
  static const bool ready = (allow_shared(grouped_kernel<kOutput>, kBytes), true);
  (void)ready;
  const int columns = kIsGated<kOutput> ? kHalf : 2 * kHalf;
  constexpr int64_t kMostTiles = 32768;  // grid.y is limited to 65535
  Problem part = p;
  for (int64_t done = 0; done < count; done += kMostTiles) {
    part.first_tile = p.first_tile + static_cast<int>(done);
    const dim3 grid(static_cast<unsigned>(ceil_div(p.n, columns)),
                    static_cast<unsigned>(std::min(kMostTiles, count - done)));
    launch(grouped_kernel<kOutput>, grid, kThreads, kBytes, stream, part);
  }
}

}  // namespace

bool expert_tiles_take(const ExpertProduct& a) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return a.k % 8 == 0 && a.n % 8 == 0 && aligned(a.x) && aligned(a.w) && aligned(a.y);
}

void expert_grouped(const ExpertProduct& a, const ExpertOrder& order, int64_t first, int64_t count,
                    cudaStream_t stream) {
  Problem p{};
  p.x = static_cast<const bf16*>(a.x);
  p.w = static_cast<const bf16*>(a.w);
  p.y = static_cast<bf16*>(a.y);
  p.order = order;
  p.share = static_cast<int>(a.share);
  p.n = static_cast<int>(a.n), p.k = static_cast<int>(a.k);
  p.first_expert = static_cast<int>(a.first_expert);
  p.first_tile = static_cast<int>(first);
  switch (a.output) {
    case ExpertOutput::kPlain:
      return run<ExpertOutput::kPlain>(p, count, stream);
    case ExpertOutput::kSilu:
      return run<ExpertOutput::kSilu>(p, count, stream);
    case ExpertOutput::kGelu:
      return run<ExpertOutput::kGelu>(p, count, stream);
    case ExpertOutput::kRelu2:
      return run<ExpertOutput::kRelu2>(p, count, stream);
  }
}

}  // namespace cbench::cuda
