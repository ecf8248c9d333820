// Grouped product of many pairs on tensor cores: a block multiplies up to 128 pairs of one expert,
// gathered from rows of x wherever they lie, by 128 of its weight rows (64 gate and 64 up rows when
// gated, so that the activation happens in registers) and puts the results down by pair.
//
// Operands travel through a ring of kStages slabs of 64 columns. A row's sum runs over the columns
// in ascending order whatever tile it is in, so that it does not depend on how other rows were
// routed. Assumes k % 8 == 0, n % 8 == 0 and 16-byte aligned rows.
#include "activation.cuh"
#include "experts.h"
#include "mma.cuh"

namespace cbench::cuda {
namespace {

constexpr int kM = kExpertTile, kN = 128, kSlab = 64, kStages = 3, kThreads = 256;
constexpr int kStride = kSlab + 8, kPerThread = kM * (kSlab / 8) / kThreads;
static_assert(kM == kN);

struct Stage {
  bf16 x[kM * kStride], w[kN * kStride];
};

struct Problem {
  const bf16* x;
  const bf16* w;
  bf16* y;
  ExpertOrder order;
  int share, n, k, first_expert, first_tile;
};

template <ExpertOutput kOutput>
__device__ __forceinline__ float combine(float gate, float up) {
  constexpr Activation kActivation = kOutput == ExpertOutput::kSilu   ? Activation::kSilu
                                     : kOutput == ExpertOutput::kGelu ? Activation::kGeluTanh
                                                                      : Activation::kRelu2;
  return activate<kActivation>(gate, up);
}

/// What a thread carries into shared memory: 16 bytes of 4 rows of each operand.
template <bool kGated>
struct Loader {
  const bf16* x;
  const bf16* w;
  uint32_t x_offset[kPerThread], w_offset[kPerThread];
  uint32_t valid = 0;  // bit i: row i of x; bit 8 + i: of w
  int k, row, col;

  __device__ Loader(const Problem& p, const int32_t* pair, int expert, int n0) : x(p.x), k(p.k) {
    w = p.w + static_cast<size_t>(expert - p.first_expert) * (kGated ? 2 : 1) * p.n * p.k;
    row = threadIdx.x / 8, col = threadIdx.x % 8 * 8;
#pragma unroll
    for (int i = 0; i < kPerThread; i++) {
      const int r = row + i * 32, own = kGated ? n0 + r % 64 : n0 + r, mine = pair[r];
      x_offset[i] = static_cast<uint32_t>(max(mine, 0) / p.share) * p.k + col;
      const bool inside = own < p.n;
      w_offset[i] =
          static_cast<uint32_t>((inside ? own : 0) + (kGated && r >= 64 ? p.n : 0)) * p.k + col;
      valid |= (mine >= 0 ? 1u : 0u) << i | (inside ? 1u : 0u) << (8 + i);
    }
  }
  __device__ __forceinline__ void request(Stage& to, int slab) const {
    const int from = slab * kSlab;
    const bool inside = from + col < k;
    const int at = inside ? from : 0;
#pragma unroll
    for (int i = 0; i < kPerThread; i++) {
      const int place = (row + i * 32) * kStride + col;
      copy_async(shared_address(to.x + place), x + x_offset[i] + at, inside && (valid >> i & 1));
      copy_async(shared_address(to.w + place), w + w_offset[i] + at,
                 inside && (valid >> (8 + i) & 1));
    }
  }
};

template <ExpertOutput kOutput>
__global__ void __launch_bounds__(kThreads, 2) grouped_kernel(const __grid_constant__ Problem p) {
  constexpr bool kGated = kIsGated<kOutput>;
  extern __shared__ __align__(16) unsigned char raw[];
  auto* stages = reinterpret_cast<Stage*>(raw);
  __shared__ int32_t pair[kM];
  pdl_begin();
  const int tile = p.first_tile + blockIdx.y;
  if (tile >= p.order.tile_first[p.order.experts]) return;
  const int expert = p.order.tile_expert[tile];
  const int first = p.order.first[expert] + (tile - p.order.tile_first[expert]) * kM;
  const int rows = min(kM, p.order.first[expert + 1] - first);
  if (threadIdx.x < kM)
    pair[threadIdx.x] =
        static_cast<int>(threadIdx.x) < rows ? p.order.pair[first + threadIdx.x] : -1;
  __syncthreads();

  const int n0 = blockIdx.x * (kGated ? kN / 2 : kN), slabs = (p.k + kSlab - 1) / kSlab;
  const Loader<kGated> loader(p, pair, expert, n0);
#pragma unroll
  for (int s = 0; s < kStages - 1; s++) {
    if (s < slabs) loader.request(stages[s], s);
    copy_commit();
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int m0 = warp % 2 * 64, own = warp / 2;  // 64 pairs x a quarter of the weight rows
  const int b0 = kGated ? own * 16 : own * 32, b1 = kGated ? 64 + own * 16 : own * 32 + 16;
  float sum[4][4][4] = {};
  for (int slab = 0; slab < slabs; slab++) {
    copy_wait<kStages - 2>();
    __syncthreads();
    if (slab + kStages - 1 < slabs)
      loader.request(stages[(slab + kStages - 1) % kStages], slab + kStages - 1);
    copy_commit();
    if (m0 >= rows) continue;  // the lower half of a tile that is not full
    const Stage& now = stages[slab % kStages];
    const Tile<kStride> tx(now.x), tw(now.w);
#pragma unroll
    for (int k = 0; k < kSlab; k += 16) {
      uint32_t a[4], b[2][4];
      tw.b_rows_n(b[0], b0, k);
      tw.b_rows_n(b[1], b1, k);
#pragma unroll
      for (int m = 0; m < 4; m++) {
        tx.a(a, m0 + m * 16, k);
        mma(sum[m][0], a, b[0][0], b[0][1]);
        mma(sum[m][1], a, b[0][2], b[0][3]);
        mma(sum[m][2], a, b[1][0], b[1][1]);
        mma(sum[m][3], a, b[1][2], b[1][3]);
      }
    }
  }

#pragma unroll
  for (int m = 0; m < 4; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = m0 + m * 16 + lane / 4 + half * 8;
      if (row >= rows) continue;
      bf16* y = p.y + static_cast<size_t>(pair[row]) * p.n;
#pragma unroll
      for (int j = 0; j < (kGated ? 2 : 4); j++) {
        const int col = n0 + (kGated ? b0 + j * 8 : own * 32 + j * 8) + lane % 4 * 2;
        if (col >= p.n) continue;
        float v0 = sum[m][j][2 * half], v1 = sum[m][j][2 * half + 1];
        if constexpr (kGated) {
          v0 = combine<kOutput>(v0, sum[m][j + 2][2 * half]);
          v1 = combine<kOutput>(v1, sum[m][j + 2][2 * half + 1]);
        } else if constexpr (kOutput == ExpertOutput::kRelu2) {
          v0 = combine<kOutput>(0, v0), v1 = combine<kOutput>(0, v1);
        }
        *reinterpret_cast<uint32_t*>(y + col) = pack(v0, v1);
      }
    }
}

template <ExpertOutput kOutput>
void run(const Problem& p, int64_t count, cudaStream_t stream) {
  constexpr size_t kBytes = sizeof(Stage) * kStages;
  static const bool ready = (allow_shared(grouped_kernel<kOutput>, kBytes), true);
  (void)ready;
  const int columns = kIsGated<kOutput> ? kN / 2 : kN;
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
