// Gated delta net of the CPU backend.
//
// Chunk of C = 64 tokens, per value head, with gamma = cumsum(g) inside the chunk and decay(i, j) =
// exp(gamma_i - gamma_j) taken for j <= i only:
//   A = strict_lower(beta_i k_i.k_j decay(i, j))
//   (I + A) v' = beta (v - e^gamma (k S))          solved by forward substitution, 16 rows at a
//   time o = e^gamma (q S) + lower(q_i.k_j decay(i, j)) v' S <- e^gamma_C S + k^T (e^(gamma_C -
//   gamma) v')
#include "runtime/cpu/delta_net.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/scalar.h"
#include "runtime/cpu/threads.h"

namespace cbench::cpu {
namespace {

constexpr int64_t kChunk = 64;
constexpr int64_t kSolve = 16;    // rows solved one by one between block products
constexpr int32_t kStepRows = 8;  // spans up to this long use the recurrence
constexpr int64_t kMaxTaps = 16;

/// One key head of one span: where its columns are and the scratch that it works in.
struct Task {
  const DeltaNetSpec& spec;
  const float* in;  // first row of the span
  float* y;         // first row of the span
  int64_t key_head;
  float* conv_state;  // [conv_rows, conv - 1] of the slot
  float* state;       // [value_heads, key_dim, value_dim] of the slot
  bool fresh;         // the sequence starts here: states count as zero

  int64_t heads() const { return spec.value_heads / spec.key_heads; }
  int64_t value_head(int64_t r) const { return key_head * heads() + r; }
  int64_t padded() const { return Pieces::rounded(spec.value_dim); }
  int64_t values() const { return spec.value_heads * spec.value_dim; }
  int64_t row_stride() const { return spec.conv_rows() + values() + 2 * spec.value_heads; }
  const float* row(int64_t t) const { return in + t * row_stride(); }
  const float* z(int64_t t, int64_t r) const {
    return row(t) + spec.conv_rows() + value_head(r) * spec.value_dim;
  }
  float b(int64_t t, int64_t r) const {
    return row(t)[spec.conv_rows() + values() + value_head(r)];
  }
  float a(int64_t t, int64_t r) const {
    return row(t)[spec.conv_rows() + values() + spec.value_heads + value_head(r)];
  }
  int64_t query_column() const { return key_head * spec.key_dim; }
  int64_t key_column() const { return (spec.key_heads + key_head) * spec.key_dim; }
  int64_t value_column() const {
    return 2 * spec.key_heads * spec.key_dim + key_head * heads() * spec.value_dim;
  }
  float* out(int64_t t, int64_t r) const {
    return y + t * values() + value_head(r) * spec.value_dim;
  }
};

struct Scratch {
  float* q;        // [kChunk, key_dim]
  float* k;        // [kChunk, key_dim]
  float* kt;       // [key_dim, kChunk]
  float* v;        // [kChunk, heads * value_dim]
  float* kk;       // [kChunk, kChunk] k k^T
  float* qk;       // [kChunk, kChunk] q k^T
  float* decay;    // [kChunk, kChunk] -A of one value head
  float* read;     // [kChunk, kChunk] lower(q k^T decay) of one value head
  float* u;        // [kChunk, padded] the solved v'
  float* o;        // [kChunk, padded]
  float* state;    // [heads, key_dim, padded]
  float* history;  // [conv - 1, key_dim | key_dim | heads * value_dim] inputs before the span
  float* gamma;    // [kChunk]
  float* beta;     // [kChunk]

  Scratch(const DeltaNetSpec& spec, float* data) {
    const int64_t heads = spec.value_heads / spec.key_heads;
    const int64_t padded = Pieces::rounded(spec.value_dim);
    Pieces pieces(data);
    q = pieces.take(kChunk * spec.key_dim);
    k = pieces.take(kChunk * spec.key_dim);
    kt = pieces.take(kChunk * spec.key_dim);
    v = pieces.take(kChunk * heads * spec.value_dim);
    kk = pieces.take(kChunk * kChunk);
    qk = pieces.take(kChunk * kChunk);
    decay = pieces.take(kChunk * kChunk);
    read = pieces.take(kChunk * kChunk);
    u = pieces.take(kChunk * padded);
    o = pieces.take(kChunk * padded);
    state = pieces.take(heads * spec.key_dim * padded);
    history = pieces.take((spec.conv - 1) * (2 * spec.key_dim + heads * spec.value_dim));
    gamma = pieces.take(kChunk);
    beta = pieces.take(kChunk);
  }
};

/// The three column ranges of a task: q, k, v.
struct Columns {
  int64_t first;  ///< in the input row and in conv_weight
  int64_t count;
  int64_t offset;  ///< in a history row
};
std::array<Columns, 3> columns_of(const Task& task) {
  const int64_t key = task.spec.key_dim;
  return {{{task.query_column(), key, 0},
           {task.key_column(), key, key},
           {task.value_column(), task.heads() * task.spec.value_dim, 2 * key}}};
}

int64_t history_stride(const Task& task) {
  return 2 * task.spec.key_dim + task.heads() * task.spec.value_dim;
}

void load_history(const Task& task, const Scratch& scratch) {
  const int64_t taps = task.spec.conv - 1, stride = history_stride(task);
  if (task.fresh) {
    std::fill_n(scratch.history, taps * stride, 0.0f);
    return;
  }
  for (const Columns& columns : columns_of(task)) {
    for (int64_t c = 0; c < columns.count; ++c) {
      const float* from = task.conv_state + (columns.first + c) * taps;
      for (int64_t j = 0; j < taps; ++j) scratch.history[j * stride + columns.offset + c] = from[j];
    }
  }
}

/// Input row t of the span (negative: before it) at a column range.
const float* input_row(const Task& task, const Scratch& scratch, int64_t t,
                       const Columns& columns) {
  if (t >= 0) return task.row(t) + columns.first;
  return scratch.history + (task.spec.conv - 1 + t) * history_stride(task) + columns.offset;
}

void save_history(const Task& task, const Scratch& scratch, int64_t count) {
  const int64_t taps = task.spec.conv - 1;
  for (const Columns& columns : columns_of(task)) {
    for (int64_t j = 0; j < taps; ++j) {
      const float* from = input_row(task, scratch, count - taps + j, columns);
      float* to = task.conv_state + columns.first * taps + j;
      for (int64_t c = 0; c < columns.count; ++c) to[c * taps] = from[c];
    }
  }
}

/// q, k (normalized) and v of rows [first, first + count).
void convolve(const Task& task, const Scratch& scratch, int64_t first, int64_t count) {
  const auto ranges = columns_of(task);
  const std::array<float*, 3> outs = {scratch.q, scratch.k, scratch.v};
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(task.spec.key_dim));
  std::array<const float*, kMaxTaps> rows{};
  for (size_t part = 0; part < ranges.size(); ++part) {
    const Columns& columns = ranges[part];
    const float* weight = task.spec.conv_weight + columns.first * task.spec.conv;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < task.spec.conv; ++j) {
        rows[static_cast<size_t>(j)] =
            input_row(task, scratch, first + i - task.spec.conv + 1 + j, columns);
      }
      float* out = outs[part] + i * columns.count;
      kernels().conv_silu(rows.data(), weight, nullptr, task.spec.conv, columns.count, out);
      if (part < 2) kernels().l2_norm(out, columns.count, part == 0 ? query_scale : 1.0f);
    }
  }
}

float log_decay(const Task& task, int64_t t, int64_t r) {
  const int64_t head = task.value_head(r);
  return task.spec.neg_exp_a[head] * softplus(task.a(t, r) + task.spec.dt_bias[head]);
}

float write_strength(const Task& task, int64_t t, int64_t r) { return sigmoid(task.b(t, r)); }

/// gamma = cumsum(g) and beta of a chunk's rows.
void load_gates(const Task& task, const Scratch& scratch, int64_t first, int64_t count, int64_t r) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += log_decay(task, first + i, r);
    scratch.gamma[i] = sum;
    scratch.beta[i] = write_strength(task, first + i, r);
  }
}

/// Solves (I + A) u = u in place, -A strictly lower in `decay`.
void solve(const Scratch& scratch, int64_t count, int64_t padded) {
  for (int64_t block = 0; block < count; block += kSolve) {
    const int64_t rows = std::min(kSolve, count - block);
    float* u = scratch.u + block * padded;
    const float* a = scratch.decay + block * kChunk;
    if (block > 0) {
      kernels().matmul(rows, padded, block, a, kChunk, 1, scratch.u, padded, u, padded, true);
    }
    for (int64_t i = 1; i < rows; ++i) {
      kernels().matmul(1, padded, i, a + i * kChunk + block, kChunk, 1, u, padded, u + i * padded,
                       padded, true);
    }
  }
}

/// One chunk of one value head; kk and qk hold the chunk's products.
void chunk_head(const Task& task, const Scratch& s, int64_t first, int64_t count, int64_t r) {
  const int64_t key_dim = task.spec.key_dim, width = task.spec.value_dim, padded = task.padded();
  const int64_t value_stride = task.heads() * width;
  float* state = s.state + r * key_dim * padded;
  load_gates(task, s, first, count, r);
  std::array<float, kChunk> grown;
  kernels().exp(s.gamma, count, grown.data());

  kernels().matmul(count, padded, key_dim, s.k, key_dim, 1, state, padded, s.u, padded, false);
  for (int64_t i = 0; i < count; ++i) {
    const float beta = s.beta[i];
    float* u = s.u + i * padded;
    kernels().scale(-beta * grown[static_cast<size_t>(i)], u, padded, u);
    kernels().axpy(beta, s.v + i * value_stride + r * width, width, u);
    kernels().delta_masks(s.gamma, i, kChunk, beta, s.kk + i * kChunk, s.qk + i * kChunk,
                          s.decay + i * kChunk, s.read + i * kChunk);
  }
  solve(s, count, padded);

  kernels().matmul(count, padded, key_dim, s.q, key_dim, 1, state, padded, s.o, padded, false);
  for (int64_t i = 0; i < count; ++i) {
    kernels().scale(grown[static_cast<size_t>(i)], s.o + i * padded, padded, s.o + i * padded);
  }
  kernels().matmul(count, padded, count, s.read, kChunk, 1, s.u, padded, s.o, padded, true);

  std::array<float, kChunk> left;
  const float last = s.gamma[count - 1];
  for (int64_t i = 0; i < count; ++i) left[static_cast<size_t>(i)] = last - s.gamma[i];
  kernels().exp(left.data(), count, left.data());
  for (int64_t i = 0; i < count; ++i) {
    kernels().scale(left[static_cast<size_t>(i)], s.u + i * padded, padded, s.u + i * padded);
  }
  kernels().scale(grown[static_cast<size_t>(count - 1)], state, key_dim * padded, state);
  kernels().matmul(key_dim, padded, count, s.k, 1, key_dim, s.u, padded, state, padded, true);
}

void finish_row(const Task& task, int64_t t, int64_t r, const float* o) {
  kernels().gated_norm(o, task.spec.out_norm.weight, task.spec.out_norm.eps, task.z(t, r),
                       task.spec.value_dim, task.out(t, r));
}

void copy_state(const Task& task, const Scratch& scratch, bool load) {
  const int64_t width = task.spec.value_dim, padded = task.padded();
  const int64_t rows = task.heads() * task.spec.key_dim;
  float* stored = task.state + task.value_head(0) * task.spec.key_dim * width;
  const size_t bytes = static_cast<size_t>(width) * sizeof(float);
  if (load) std::fill_n(scratch.state, rows * padded, 0.0f);
  if (load && task.fresh) return;
  for (int64_t i = 0; i < rows; ++i) {
    float* mine = scratch.state + i * padded;
    float* theirs = stored + i * width;
    std::memcpy(load ? mine : theirs, load ? theirs : mine, bytes);
  }
}

void run_chunks(const Task& task, const Scratch& scratch, int64_t count) {
  const int64_t key_dim = task.spec.key_dim;
  copy_state(task, scratch, true);
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t rows = std::min(kChunk, count - first);
    convolve(task, scratch, first, rows);
    for (int64_t d = 0; d < key_dim; ++d) {
      float* column = scratch.kt + d * kChunk;
      for (int64_t j = 0; j < rows; ++j) column[j] = scratch.k[j * key_dim + d];
      std::fill(column + rows, column + kChunk, 0.0f);
    }
    kernels().matmul(rows, kChunk, key_dim, scratch.k, key_dim, 1, scratch.kt, kChunk, scratch.kk,
                     kChunk, false);
    kernels().matmul(rows, kChunk, key_dim, scratch.q, key_dim, 1, scratch.kt, kChunk, scratch.qk,
                     kChunk, false);
    for (int64_t r = 0; r < task.heads(); ++r) {
      chunk_head(task, scratch, first, rows, r);
      for (int64_t i = 0; i < rows; ++i) {
        finish_row(task, first + i, r, scratch.o + i * task.padded());
      }
    }
  }
  copy_state(task, scratch, false);
}

void run_steps(const Task& task, const Scratch& scratch, int64_t count) {
  const int64_t key_dim = task.spec.key_dim, width = task.spec.value_dim;
  const int64_t size = key_dim * width;
  float* states = task.state + task.value_head(0) * size;
  if (task.fresh) std::fill_n(states, task.heads() * size, 0.0f);
  convolve(task, scratch, 0, count);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t r = 0; r < task.heads(); ++r) {
      kernels().delta_step(states + r * size, key_dim, width, std::exp(log_decay(task, t, r)),
                           write_strength(task, t, r), scratch.q + t * key_dim,
                           scratch.k + t * key_dim, scratch.v + (t * task.heads() + r) * width,
                           scratch.u, scratch.o);
      finish_row(task, t, r, scratch.o);
    }
  }
}

}  // namespace

int64_t delta_net_scratch(const DeltaNetSpec& spec) {
  const int64_t heads = spec.value_heads / spec.key_heads;
  const int64_t padded = Pieces::rounded(spec.value_dim);
  const int64_t rows = 3 * spec.key_dim + heads * spec.value_dim + 2 * padded + 4 * kChunk + 2;
  return kChunk * rows + heads * spec.key_dim * padded +
         (spec.conv - 1) * (2 * spec.key_dim + heads * spec.value_dim) + 16 * 15;
}

void delta_net(const DeltaNetSpec& spec, const DeltaNetState& state, const CurrentBatch& batch,
               const ThreadScratch& scratch, const float* in, float* y) {
  const int64_t values = spec.value_heads * spec.value_dim;
  const int64_t in_stride = spec.conv_rows() + values + 2 * spec.value_heads;
  const auto spans = static_cast<int64_t>(batch.spans.size());
  const int64_t flops = 8 * batch.rows() * values * spec.key_dim;
  parallel_tasks(spans * spec.key_heads, flops, [&](int64_t index, int thread) {
    const Span& span = batch.spans[static_cast<size_t>(index / spec.key_heads)];
    const Task task{spec,
                    in + span.row * in_stride,
                    y + span.row * values,
                    index % spec.key_heads,
                    state.conv + span.slot * spec.conv_rows() * (spec.conv - 1),
                    state.recurrent + span.slot * spec.value_heads * spec.key_dim * spec.value_dim,
                    span.start == 0};
    const Scratch own(spec, scratch.of(thread));
    load_history(task, own);
    if (span.count <= kStepRows) {
      run_steps(task, own, span.count);
    } else {
      run_chunks(task, own, span.count);
    }
    save_history(task, own, span.count);
  });
}

}  // namespace cbench::cpu
