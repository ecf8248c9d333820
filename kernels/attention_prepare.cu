// Norm and rotate q and k, and append k and v to the cache. v may be normalized too, and may be k
// as the projection left it. One warp per row and head; a head's values pass through shared memory
// so that any head width and rotary width works.
#include "attention_prepare.cuh"

namespace cbench::cuda {
namespace {

constexpr int kWarps = 4, kMaxHead = 512;

struct Problem {
  const bf16* qkv;
  bf16* q;
  bf16* k_cache;
  bf16* v_cache;
  DeviceBatch batch;
  Norm q_norm, k_norm;
  Rope rope;
  int query_heads, kv_heads, head_dim, q_step;  // q_step: columns from one query head to the next
  int64_t width, max_length;
  float v_norm_eps;
  bool k_is_v;
};

__global__ void __launch_bounds__(kWarps * 32) prepare_kernel(const __grid_constant__ Problem p) {
  __shared__ float shared[kWarps][kMaxHead];
  pdl_begin();
  const int warp = threadIdx.x / 32, row = blockIdx.x;
  const int head = blockIdx.y * kWarps + warp, d = p.head_dim;
  if (head >= p.query_heads + 2 * p.kv_heads) return;
  const int position = p.batch.positions[row];
  const int slot = p.batch.spans[p.batch.row_span[row]].slot;
  const bf16* from = p.qkv + row * p.width;
  const size_t cache_row = (static_cast<size_t>(slot) * p.max_length + position) * p.kv_heads;

  const int kv_head = head - p.query_heads;
  if (kv_head >= p.kv_heads) {  // v: copied, or normalized without a weight
    const int h = kv_head - p.kv_heads;
    from += p.query_heads * p.q_step + (p.k_is_v ? h : p.kv_heads + h) * d;
    append_value(from, d, p.v_norm_eps, p.v_cache + (cache_row + h) * d, nullptr);
    return;
  }
  const bool query = kv_head < 0;
  from += query ? head * p.q_step : p.query_heads * p.q_step + kv_head * d;
  const Norm& norm = query ? p.q_norm : p.k_norm;
  bf16* to = query ? p.q + (static_cast<size_t>(row) * p.query_heads + head) * d
                   : p.k_cache + (cache_row + kv_head) * d;
  prepare_head(from, norm, p.rope, d, position, shared[warp], to, nullptr);
}

}  // namespace

void attention_prepare(const AttentionCall& call) {
  const AttentionSpec& s = *call.spec;
  Problem p{static_cast<const bf16*>(call.qkv),
            static_cast<bf16*>(call.q),
            static_cast<bf16*>(call.cache.k),
            static_cast<bf16*>(call.cache.v),
            call.batch,
            s.q_norm,
            s.k_norm,
            s.rope,
            static_cast<int>(s.query_heads),
            static_cast<int>(s.kv_heads),
            static_cast<int>(s.head_dim),
            static_cast<int>(s.head_dim * (s.gated ? 2 : 1)),
            call.width(),
            call.cache.max_length,
            s.v_norm_eps,
            s.k_is_v};
  const dim3 grid(static_cast<unsigned>(call.batch.rows),
                  static_cast<unsigned>(ceil_div(s.query_heads + 2 * s.kv_heads, kWarps)));
  launch(prepare_kernel, grid, kWarps * 32, 0, call.stream, p);
}

}  // namespace cbench::cuda
