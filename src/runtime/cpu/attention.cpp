// Full attention of the CPU backend.
#include "runtime/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/threads.h"

namespace cbench::cpu {
namespace {

constexpr int64_t kBlock = 64;    // queries and keys of a tile
constexpr int32_t kStepRows = 8;  // spans up to this long are computed query by query

/// Everything an attention task needs, with the strides spelled out.
struct Context {
  const AttentionSpec& spec;
  const KvCache& cache;
  const CurrentBatch& batch;
  const RotaryTable& table;
  const float* qkv;
  float* y;

  int64_t group() const { return spec.query_heads / spec.kv_heads; }
  int64_t width() const { return spec.head_dim; }
  int64_t padded() const { return Pieces::rounded(spec.head_dim); }
  int64_t query_stride() const { return spec.head_dim * (spec.gated ? 2 : 1); }
  int64_t row_stride() const {
    return spec.query_heads * query_stride() + (spec.k_is_v ? 1 : 2) * cache_stride();
  }
  int64_t cache_stride() const { return spec.kv_heads * spec.head_dim; }
  const float* query(int64_t row, int64_t head) const {
    return qkv + row * row_stride() + head * query_stride();
  }
  const float* key(int64_t row, int64_t head) const {
    return qkv + row * row_stride() + spec.query_heads * query_stride() + head * width();
  }
  const float* value(int64_t row, int64_t head) const {
    return key(row, head) + (spec.k_is_v ? 0 : cache_stride());
  }
  /// The first key that the query at `position` sees.
  int64_t first_key(int64_t position) const {
    return spec.window > 0 ? std::max<int64_t>(0, position - spec.window + 1) : 0;
  }
  float* out(int64_t row, int64_t head) const {
    return y + (row * spec.query_heads + head) * width();
  }
  float* cached(void* data, int32_t slot, int64_t position, int64_t head) const {
    return static_cast<float*>(data) + (slot * cache.max_length + position) * cache_stride() +
           head * width();
  }
};

/// `to` [head_dim] = rotary(norm(from)) at the position of `row`.
void prepare_head(const Context& c, const Norm& norm, int64_t row, const float* from, float* to) {
  if (norm.weight) {
    kernels().rms_norm(from, norm.weight, norm.eps, c.width(), to);
  } else {
    std::memcpy(to, from, static_cast<size_t>(c.width()) * sizeof(float));
  }
  const int64_t half = c.spec.rope.rotary / 2;
  if (half > 0) {
    kernels().rotate(to, c.table.cos + row * half, c.table.sin + row * half, half);
  }
}

/// The values of `row`, all heads, as the cache keeps them.
void store_values(const Context& c, int64_t row, float* to) {
  const float* from = c.value(row, 0);
  if (c.spec.v_norm_eps > 0) {
    for (int64_t head = 0; head < c.spec.kv_heads; ++head) {
      const int64_t at = head * c.width();
      kernels().rms_norm(from + at, nullptr, c.spec.v_norm_eps, c.width(), to + at);
    }
  } else {
    std::memcpy(to, from, static_cast<size_t>(c.cache_stride()) * sizeof(float));
  }
}

void append_to_cache(const Context& c) {
  parallel_ranges(c.batch.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto index = static_cast<size_t>(row);
      const int32_t slot = c.batch.spans[static_cast<size_t>(c.batch.span_of[index])].slot;
      const int64_t position = c.batch.position[index];
      for (int64_t head = 0; head < c.spec.kv_heads; ++head) {
        prepare_head(c, c.spec.k_norm, row, c.key(row, head),
                     c.cached(c.cache.k, slot, position, head));
      }
      store_values(c, row, c.cached(c.cache.v, slot, position, 0));
    }
  });
}

/// Divides by the softmax sum, applies the gate, writes one head of one row.
void finish_head(const Context& c, int64_t row, int64_t head, const float* o, float sum) {
  float* out = c.out(row, head);
  kernels().scale(1.0f / sum, o, c.width(), out);
  if (c.spec.gated) kernels().sigmoid_mul(c.query(row, head) + c.width(), c.width(), out);
}

/// The rows of a short span for one kv head, one query at a time.
void attend_steps(const Context& c, const Span& span, int64_t kv_head, float* scratch) {
  const int64_t group = c.group(), max_length = c.cache.max_length;
  Pieces pieces(scratch);
  float* q = pieces.take(group * c.width());
  float* scores = pieces.take(group * max_length);
  float* o = pieces.take(c.width());
  for (int32_t i = 0; i < span.count; ++i) {
    const int64_t row = span.row + i, position = span.start + i;
    const int64_t first = c.first_key(position), keys = position + 1 - first;
    const float* k = c.cached(c.cache.k, span.slot, first, kv_head);
    const float* v = c.cached(c.cache.v, span.slot, first, kv_head);
    for (int64_t g = 0; g < group; ++g) {
      prepare_head(c, c.spec.q_norm, row, c.query(row, kv_head * group + g), q + g * c.width());
    }
    kernels().gemv_f32(k, keys, c.width(), c.cache_stride(), q, group, c.width(), scores,
                       max_length, false);
    for (int64_t g = 0; g < group; ++g) {
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      float* p = scores + g * max_length;
      kernels().softmax_row(p, keys, keys, c.spec.scale, &max, &sum, o, 0);
      kernels().weighted_sum(p, v, keys, c.cache_stride(), c.width(), o);
      finish_head(c, row, kv_head * group + g, o, sum);
    }
  }
}

/// One tile's scratch: all query heads of a kv head, one block of queries.
struct Tile {
  float* q;       // [group, kBlock, width]
  float* o;       // [group, kBlock, padded]
  float* keys;    // [width, kBlock] transposed
  float* values;  // [kBlock, padded]
  float* scores;  // [kBlock, kBlock]
  float* max;     // [group, kBlock]
  float* sum;     // [group, kBlock]
  Tile(const Context& c, float* scratch) {
    Pieces pieces(scratch);
    q = pieces.take(c.group() * kBlock * c.width());
    o = pieces.take(c.group() * kBlock * c.padded());
    keys = pieces.take(c.width() * kBlock);
    values = pieces.take(kBlock * c.padded());
    scores = pieces.take(kBlock * kBlock);
    max = pieces.take(c.group() * kBlock);
    sum = pieces.take(c.group() * kBlock);
  }
};

void load_keys(const Context& c, const Span& span, int64_t kv_head, int64_t first, int64_t count,
               const Tile& tile) {
  const size_t bytes = static_cast<size_t>(c.width()) * sizeof(float);
  for (int64_t j = 0; j < kBlock; ++j) {
    float* value = tile.values + j * c.padded();
    if (j >= count) {
      std::memset(value, 0, bytes);
      for (int64_t d = 0; d < c.width(); ++d) tile.keys[d * kBlock + j] = 0;
      continue;
    }
    const float* key = c.cached(c.cache.k, span.slot, first + j, kv_head);
    for (int64_t d = 0; d < c.width(); ++d) tile.keys[d * kBlock + j] = key[d];
    std::memcpy(value, c.cached(c.cache.v, span.slot, first + j, kv_head), bytes);
  }
}

/// Scores of query `i` of a tile, at `position`, against keys [key, key + keys): softmax over those
/// that it sees.
void softmax_tile_row(const Context& c, const Tile& tile, int64_t g, int64_t i, int64_t position,
                      int64_t key, int64_t keys) {
  float* scores = tile.scores + i * kBlock;
  const int64_t hidden = std::clamp<int64_t>(c.first_key(position) - key, 0, keys);
  const int64_t visible = std::clamp<int64_t>(position + 1 - key, hidden, keys) - hidden;
  std::fill_n(scores, hidden, 0.0f);
  if (visible == 0) {  // wholly behind the window: no maximum to rescale to
    std::fill_n(scores, kBlock, 0.0f);
    return;
  }
  const int64_t at = g * kBlock + i;
  kernels().softmax_row(scores + hidden, visible, kBlock - hidden, c.spec.scale, tile.max + at,
                        tile.sum + at, tile.o + at * c.padded(), c.padded());
}

/// Rows [first, first + count) of a span for one kv head.
void attend_tile(const Context& c, const Span& span, int64_t kv_head, int64_t first, int64_t count,
                 float* scratch) {
  const Tile tile(c, scratch);
  const int64_t group = c.group(), width = c.width(), padded = c.padded();
  for (int64_t g = 0; g < group; ++g) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = span.row + first + i;
      prepare_head(c, c.spec.q_norm, row, c.query(row, kv_head * group + g),
                   tile.q + (g * kBlock + i) * width);
    }
  }
  std::fill_n(tile.o, group * kBlock * padded, 0.0f);
  std::fill_n(tile.sum, group * kBlock, 0.0f);
  std::fill_n(tile.max, group * kBlock, -std::numeric_limits<float>::infinity());
  const int64_t length = span.start + first + count;  // keys that the last row sees
  const int64_t begin = c.first_key(span.start + first) / kBlock * kBlock;
  for (int64_t key = begin; key < length; key += kBlock) {
    const int64_t keys = std::min(kBlock, length - key);
    load_keys(c, span, kv_head, key, keys, tile);
    for (int64_t g = 0; g < group; ++g) {
      float* o = tile.o + g * kBlock * padded;
      kernels().matmul(count, kBlock, width, tile.q + g * kBlock * width, width, 1, tile.keys,
                       kBlock, tile.scores, kBlock, false);
      for (int64_t i = 0; i < count; ++i) {
        softmax_tile_row(c, tile, g, i, span.start + first + i, key, keys);
      }
      kernels().matmul(count, padded, keys, tile.scores, kBlock, 1, tile.values, padded, o, padded,
                       true);
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    for (int64_t i = 0; i < count; ++i) {
      finish_head(c, span.row + first + i, kv_head * group + g, tile.o + (g * kBlock + i) * padded,
                  tile.sum[g * kBlock + i]);
    }
  }
}

int64_t blocks_of(const Span& span) {
  return span.count <= kStepRows ? 1 : (span.count + kBlock - 1) / kBlock;
}

}  // namespace

void RotaryTable::compute(const CurrentBatch& batch) {
  const int64_t half = rope.rotary / 2;
  stale = false;
  parallel_ranges(batch.rows(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto position = static_cast<float>(batch.position[static_cast<size_t>(row)]);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = position * rope.inv_freq[i];
        cos[row * half + i] = std::cos(angle) * rope.scale;
        sin[row * half + i] = std::sin(angle) * rope.scale;
      }
    }
  });
}

int64_t attention_scratch(const AttentionSpec& spec, int64_t max_length) {
  const int64_t group = spec.query_heads / spec.kv_heads, width = Pieces::rounded(spec.head_dim);
  const int64_t step = group * (width + Pieces::rounded(max_length)) + width;
  const int64_t tile =
      2 * group * kBlock * width + 2 * kBlock * width + kBlock * kBlock + 2 * group * kBlock;
  return std::max(step, tile) + 16 * 8;
}

void attention(const AttentionSpec& spec, const KvCache& cache, const CurrentBatch& batch,
               const RotaryTable& table, const ThreadScratch& scratch, const float* qkv, float* y) {
  const Context context{spec, cache, batch, table, qkv, y};
  append_to_cache(context);
  int64_t blocks = 0, flops = 0;
  for (const Span& span : batch.spans) {
    blocks += blocks_of(span);
    const int64_t length = span.start + span.count;
    const int64_t seen = spec.window > 0 ? std::min(spec.window, length) : length;
    flops += 4 * spec.query_heads * spec.head_dim * span.count * seen;
  }
  parallel_tasks(blocks * spec.kv_heads, flops, [&](int64_t task, int thread) {
    const int64_t kv_head = task % spec.kv_heads;
    int64_t block = blocks - 1 - task / spec.kv_heads;  // the long, late blocks first
    size_t s = 0;
    while (block >= blocks_of(batch.spans[s])) block -= blocks_of(batch.spans[s++]);
    const Span& span = batch.spans[s];
    if (span.count <= kStepRows) {
      attend_steps(context, span, kv_head, scratch.of(thread));
    } else {
      const int64_t first = block * kBlock;
      attend_tile(context, span, kv_head, first, std::min(kBlock, span.count - first),
                  scratch.of(thread));
    }
  });
}

}  // namespace cbench::cpu
