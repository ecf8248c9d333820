// Routed experts of the CPU backend.
#include "runtime/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/scalar.h"
#include "runtime/cpu/threads.h"

namespace cbench::cpu {
namespace {

constexpr int64_t kPairFloats = 1 << 24;  // 64 MiB of pairs at a time
constexpr int64_t kTaskRows = 64;         // rows of an expert's matrix that a task multiplies
constexpr int64_t kTaskTokens = 8;        // and the inputs that it takes at a time
constexpr float kLeastSum = 1e-20f;       // keeps a row whose scores all underflowed finite

// --- routing
// --------------------------------------------------------------------------------------

/// The `capacity` best of the candidates, offered in the order of their index: of equal keys the
/// first offered stays ahead, and NaN comes after every number.
struct BestList {
  int32_t* index;
  float* key;
  int64_t capacity;
  int64_t size = 0;

  static bool better(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

  void offer(int32_t candidate, float value) {
    int64_t at = size;
    while (at > 0 && better(value, key[at - 1])) --at;
    if (at == capacity) return;
    if (size < capacity) ++size;
    for (int64_t i = size - 1; i > at; --i) {
      index[i] = index[i - 1];
      key[i] = key[i - 1];
    }
    index[at] = candidate;
    key[at] = value;
  }
};

/// Router logits: the GEMV whatever the number of rows, so that a row is routed alike in any batch.
void router_logits(const RouterSpec& spec, const float* x, int64_t rows, int64_t width,
                   float* logits) {
  const int64_t row_blocks = (rows + kGemvTokens - 1) / kGemvTokens;
  const int64_t expert_blocks = (spec.experts + kTaskRows - 1) / kTaskRows;
  parallel_tasks(
      row_blocks * expert_blocks, 2 * rows * spec.experts * width, [&](int64_t task, int) {
        const int64_t row = task / expert_blocks * kGemvTokens;
        const int64_t expert = task % expert_blocks * kTaskRows;
        kernels().gemv_f32(spec.weight + expert * width, std::min(kTaskRows, spec.experts - expert),
                           width, width, x + row * width, std::min(kGemvTokens, rows - row), width,
                           logits + row * spec.experts + expert, spec.experts, false);
      });
}

void scores_of(const RouterSpec& spec, float* scores) {
  if (spec.score == RouterSpec::Score::kSigmoid) {
    for (int64_t e = 0; e < spec.experts; ++e) scores[e] = sigmoid(scores[e]);
    return;
  }
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  kernels().softmax_row(scores, spec.experts, spec.experts, 1, &max, &sum, nullptr, 0);
  kernels().scale(1 / sum, scores, spec.experts, scores);
}

/// One row: its scores in, `groups` as scratch for the kept ones, its experts and weights out.
void choose(const RouterSpec& spec, const float* scores, BestList groups, int32_t* expert,
            float* weight) {
  const auto key = [&](int64_t e) {
    return spec.selection_bias ? scores[e] + spec.selection_bias[e] : scores[e];
  };
  const int64_t size = spec.experts / spec.groups;
  BestList best{expert, weight, spec.top_k};
  if (spec.kept_groups == spec.groups) {
    for (int64_t e = 0; e < spec.experts; ++e) best.offer(static_cast<int32_t>(e), key(e));
  } else {
    for (int64_t g = 0; g < spec.groups; ++g) {
      int32_t index[2];
      float value[2] = {0, 0};
      BestList two{index, value, 2};
      for (int64_t e = g * size; e < (g + 1) * size; ++e) {
        two.offer(static_cast<int32_t>(e), key(e));
      }
      groups.offer(static_cast<int32_t>(g), value[0] + value[1]);
    }
    std::sort(groups.index, groups.index + groups.size);
    for (int64_t i = 0; i < groups.size; ++i) {
      const int64_t first = groups.index[i] * size;
      for (int64_t e = first; e < first + size; ++e) best.offer(static_cast<int32_t>(e), key(e));
    }
  }
  float sum = kLeastSum;
  for (int64_t j = 0; j < spec.top_k; ++j) sum += scores[expert[j]];
  const float factor = spec.normalize ? spec.scale / sum : spec.scale;
  for (int64_t j = 0; j < spec.top_k; ++j) {
    weight[j] = scores[expert[j]] * factor;
    if (spec.expert_scale) weight[j] *= spec.expert_scale[expert[j]];
  }
}

// --- the experts' products
// ------------------------------------------------------------------------

/// The routed pairs of a block of rows, sorted by expert.
struct Pairs {
  const ExpertsSpec& spec;
  const ExpertsScratch& scratch;
  const LinearScratch& linear;
  int64_t count = 0;
  std::span<const ExpertRun> runs;
};

/// Rows whose pairs are computed together.
int64_t block_rows(const ExpertsSpec& spec, int64_t rows) {
  const int64_t floats = spec.gate_up.cols + spec.gate_up.rows + spec.down.cols;
  return std::clamp<int64_t>(kPairFloats / (spec.top_k * floats), 1, rows);
}

/// A counting sort; pairs of one expert stay in the order of their rows.
void sort_pairs(Pairs& pairs, const int32_t* expert) {
  const ExpertsScratch& s = pairs.scratch;
  const int64_t experts = pairs.spec.gate_up.experts;
  std::fill_n(s.end, experts, 0);
  for (int64_t i = 0; i < pairs.count; ++i) ++s.end[expert[i]];
  int32_t begin = 0;
  size_t active = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int32_t size = s.end[e];
    if (size > 0) s.runs[active++] = {static_cast<int32_t>(e), begin, size};
    s.end[e] = begin;  // moves to the end as the expert's pairs are placed
    begin += size;
  }
  for (int64_t i = 0; i < pairs.count; ++i) {
    const int32_t at = s.end[expert[i]]++;
    s.place[i] = at;
    s.expert[at] = expert[i];
    s.row[at] = static_cast<int32_t>(i / pairs.spec.top_k);
  }
  pairs.runs = {s.runs, active};
}

/// Rows [row, row + rows) of an expert's matrix times the inputs of its run, a few of them at a
/// time so that they stay in the first cache.
void multiply_task(const ExpertLinear& w, const ExpertRun& run, int64_t row, int64_t rows,
                   const float* x, float* y) {
  const int64_t first = (run.expert * w.rows + row) * w.cols;
  for (int64_t i = run.begin; i < run.begin + run.count; i += kTaskTokens) {
    const int64_t tokens = std::min<int64_t>(kTaskTokens, run.begin + run.count - i);
    const float* in = x + i * w.cols;
    float* out = y + i * w.rows + row;
    if (w.f32) {
      kernels().gemv_f32(w.f32 + first, rows, w.cols, w.cols, in, tokens, w.cols, out, w.rows,
                         false);
    } else {
      kernels().gemv_bf16(static_cast<const uint16_t*>(w.bf16) + first, rows, w.cols, w.cols, in,
                          tokens, w.cols, out, w.rows, false);
    }
  }
}

/// y [pairs, w.rows] = W[expert] x of every pair; x [pairs, w.cols].
void multiply_runs(const Pairs& pairs, const ExpertLinear& w, const float* x, float* y) {
  if (w.plugin) {
    for (const ExpertRun& run : pairs.runs) {
      multiply_expert(pairs.linear, *w.plugin, run.expert, x + run.begin * w.cols, run.count,
                      y + run.begin * w.rows);
    }
    return;
  }
  const int64_t blocks = (w.rows + kTaskRows - 1) / kTaskRows;
  const auto runs = static_cast<int64_t>(pairs.runs.size());
  parallel_tasks(runs * blocks, 2 * pairs.count * w.rows * w.cols, [&](int64_t task, int) {
    const int64_t row = task % blocks * kTaskRows;
    multiply_task(w, pairs.runs[static_cast<size_t>(task / blocks)], row,
                  std::min(kTaskRows, w.rows - row), x, y);
  });
}

/// wide = gate_up x of every pair's row; x [rows, width].
void first_product(const Pairs& pairs, const float* x) {
  const ExpertLinear& w = pairs.spec.gate_up;
  const ExpertsScratch& s = pairs.scratch;
  if (w.plugin &&
      plugin_experts(pairs.linear, *w.plugin, x, s.expert, s.row, pairs.count, s.wide)) {
    return;
  }
  parallel_ranges(pairs.count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(s.ends + i * w.cols, x + s.row[i] * w.cols,
                  static_cast<size_t>(w.cols) * sizeof(float));
    }
  });
  multiply_runs(pairs, w, s.ends, s.wide);
}

/// The activation of every pair; [pairs, I].
const float* activate(const Pairs& pairs) {
  const ExpertsScratch& s = pairs.scratch;
  const int64_t width = pairs.spec.down.cols;
  const Activation activation = pairs.spec.activation;
  if (!is_gated(activation)) {
    parallel_ranges(pairs.count, 16, [&](int64_t begin, int64_t end) {
      kernels().relu2(s.wide + begin * width, (end - begin) * width);
    });
    return s.wide;
  }
  parallel_ranges(pairs.count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* gate = s.wide + i * 2 * width;
      gated(activation)(gate, gate + width, width, s.hidden + i * width);
    }
  });
  return s.hidden;
}

/// ends = down hidden of every pair.
void second_product(const Pairs& pairs, const float* hidden) {
  const ExpertLinear& w = pairs.spec.down;
  const ExpertsScratch& s = pairs.scratch;
  if (w.plugin &&
      plugin_experts(pairs.linear, *w.plugin, hidden, s.expert, s.itself, pairs.count, s.ends)) {
    return;
  }
  multiply_runs(pairs, w, hidden, s.ends);
}

/// y [rows, width] = the weighted sum of each row's pairs, best first.
void combine(const Pairs& pairs, const float* weight, int64_t rows, float* y) {
  const ExpertsScratch& s = pairs.scratch;
  const int64_t top_k = pairs.spec.top_k, width = pairs.spec.down.rows;
  parallel_ranges(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* out = y + row * width;
      for (int64_t j = 0; j < top_k; ++j) {
        const int64_t i = row * top_k + j;
        const float* from = s.ends + s.place[i] * width;
        if (j == 0) {
          kernels().scale(weight[i], from, width, out);
        } else {
          kernels().axpy(weight[i], from, width, out);
        }
      }
    }
  });
}

}  // namespace

ExpertsScratch make_experts_scratch(Arena& arena, int64_t tokens,
                                    std::span<const RouterSpec> routers,
                                    std::span<const ExpertsSpec> experts) {
  int64_t scores = 0, kept = 0, pairs = 0, ends = 0, wide = 0, hidden = 0, count = 0;
  for (const RouterSpec& spec : routers) {
    scores = std::max(scores, tokens * spec.experts);
    if (spec.kept_groups < spec.groups) kept = std::max(kept, tokens * spec.kept_groups);
  }
  for (const ExpertsSpec& spec : experts) {
    const int64_t most = block_rows(spec, tokens) * spec.top_k;
    count = std::max(count, spec.gate_up.experts);
    pairs = std::max(pairs, most);
    ends = std::max(ends, most * spec.gate_up.cols);
    wide = std::max(wide, most * spec.gate_up.rows);
    if (is_gated(spec.activation)) hidden = std::max(hidden, most * spec.down.cols);
  }
  const auto take = [&]<typename T>(T*& piece, int64_t size, const char* name) {
    if (size > 0) {
      piece = arena.allocate<T>(static_cast<size_t>(size), Category::kWorkspace, name);
    }
  };
  ExpertsScratch scratch;
  take(scratch.scores, scores, "router scores");
  take(scratch.kept, kept, "router groups");
  take(scratch.worth, kept, "router group scores");
  take(scratch.expert, pairs, "experts of the pairs");
  take(scratch.row, pairs, "rows of the pairs");
  take(scratch.itself, pairs, "numbers of the pairs");
  take(scratch.place, pairs, "places of the pairs");
  take(scratch.end, count, "ends of the experts");
  take(scratch.runs, count, "active experts");
  take(scratch.ends, ends, "inputs and outputs of the pairs");
  take(scratch.wide, wide, "products of the pairs");
  take(scratch.hidden, hidden, "activations of the pairs");
  std::iota(scratch.itself, scratch.itself + pairs, 0);
  return scratch;
}

void route(const RouterSpec& spec, const ExpertsScratch& scratch, const float* x, int64_t rows,
           int64_t width, const Routing& routing) {
  router_logits(spec, x, rows, width, scratch.scores);
  parallel_ranges(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* scores = scratch.scores + row * spec.experts;
      BestList groups{nullptr, nullptr, spec.kept_groups};
      if (spec.kept_groups < spec.groups) {
        groups.index = scratch.kept + row * spec.kept_groups;
        groups.key = scratch.worth + row * spec.kept_groups;
      }
      scores_of(spec, scores);
      choose(spec, scores, groups, routing.expert + row * spec.top_k,
             routing.weight + row * spec.top_k);
    }
  });
}

void experts(const ExpertsSpec& spec, const ExpertsScratch& scratch, const LinearScratch& linear,
             const Routing& routing, const float* x, int64_t rows, float* y) {
  if (rows == 0) return;
  const int64_t block = block_rows(spec, rows), width = spec.gate_up.cols;
  for (int64_t first = 0; first < rows; first += block) {
    const int64_t count = std::min(block, rows - first);
    Pairs pairs{spec, scratch, linear, count * spec.top_k, {}};
    sort_pairs(pairs, routing.expert + first * spec.top_k);
    first_product(pairs, x + first * width);
    second_product(pairs, activate(pairs));
    combine(pairs, routing.weight + first * spec.top_k, count, y + first * spec.down.rows);
  }
}

}  // namespace cbench::cpu
