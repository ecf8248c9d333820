// Matrix products of the CPU backend.
#include "runtime/cpu/linear.h"

#include <algorithm>
#include <bit>

#include <dnnl.h>

#include "runtime/cpu/threads.h"
#include "runtime/plugin_matrix.h"
#include "util/error.h"

namespace cbench::cpu {
namespace {

constexpr int64_t kPanelFloats = 1 << 20;    // 4 MiB of widened weights at a time
constexpr int64_t kProductFloats = 1 << 18;  // 1 MiB

bool plugin_matmul(const LinearScratch& scratch, const PluginMatrix& matrix, const float* x,
                   int64_t tokens, float* y, int64_t y_stride) {
  (void)matrix.workspace(tokens);  // refuses what was not planned
  return matrix.matmul(x, tokens, y, y_stride, scratch.plugin, nullptr);
}

void gemv_bf16(const uint16_t* w, int64_t rows, int64_t cols, const float* x, int64_t tokens,
               float* y, int64_t y_stride, bool add) {
  // A thread's share is worth a fork only from about 64 KiB of weights.
  const int64_t grain = std::max<int64_t>(4, (32768 / cols + 3) / 4 * 4);
  parallel_ranges(rows, grain, [&](int64_t begin, int64_t end) {
    kernels().gemv_bf16(w + begin * cols, end - begin, cols, cols, x, tokens, cols, y + begin,
                        y_stride, add);
  });
}

void gemv_f32(const float* w, int64_t rows, int64_t cols, const float* x, int64_t tokens, float* y,
              int64_t y_stride, bool add) {
  const int64_t grain = std::max<int64_t>(4, (16384 / cols + 3) / 4 * 4);
  parallel_ranges(rows, grain, [&](int64_t begin, int64_t end) {
    kernels().gemv_f32(w + begin * cols, end - begin, cols, cols, x, tokens, cols, y + begin,
                       y_stride, add);
  });
}

/// Panels of BF16 rows, given by `rows_at(first, count)`, widened and multiplied.
template <typename RowsAt>
void multiply_panels(const LinearScratch& scratch, int64_t rows, int64_t cols, const float* x,
                     int64_t tokens, float* y, int64_t y_stride, bool add, RowsAt rows_at) {
  const int64_t panel = std::clamp<int64_t>(scratch.panel_floats / cols, 1, rows);
  for (int64_t first = 0; first < rows; first += panel) {
    const int64_t count = std::min(panel, rows - first);
    const uint16_t* w = rows_at(first, count);
    if (tokens <= kGemvTokens) {
      gemv_bf16(w, count, cols, x, tokens, y + first, y_stride, add);
      continue;
    }
    parallel_ranges(count * cols, 8192, [&](int64_t begin, int64_t end) {
      kernels().widen(w + begin, end - begin, scratch.panel + begin);
    });
    sgemm_nt(tokens, count, cols, x, cols, scratch.panel, y + first, y_stride, add);
  }
}

/// x as the plugin's dequantized rows want it.
const float* transformed(const LinearScratch& scratch, const PluginMatrix& matrix, const float* x,
                         int64_t tokens) {
  if (!matrix.has_transform()) return x;
  matrix.transform(x, tokens, scratch.transformed, nullptr);
  return scratch.transformed;
}

void multiply_plugin(const LinearScratch& scratch, const PluginMatrix& matrix, int64_t row0,
                     int64_t rows, const float* x, int64_t tokens, float* y, int64_t y_stride,
                     bool add) {
  x = transformed(scratch, matrix, x, tokens);
  multiply_panels(scratch, rows, matrix.cols(), x, tokens, y, y_stride, add,
                  [&](int64_t first, int64_t count) {
                    matrix.dequantize(row0 + first, count, scratch.bf16, nullptr);
                    return scratch.bf16;
                  });
}

/// The plugin's matmul in blocks of tokens that fit `product`, added to y.
bool add_plugin_matmul(const LinearScratch& scratch, const Linear& w, const float* x,
                       int64_t tokens, float* y, int64_t y_stride) {
  const int64_t block = std::max<int64_t>(1, scratch.product_floats / w.rows);
  for (int64_t t = 0; t < tokens; t += block) {
    const int64_t count = std::min(block, tokens - t);
    if (!plugin_matmul(scratch, *w.plugin, x + t * w.cols, count, scratch.product, w.rows)) {
      multiply_plugin(scratch, *w.plugin, 0, w.rows, x + t * w.cols, count, y + t * y_stride,
                      y_stride, true);
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      kernels().axpy(1.0f, scratch.product + i * w.rows, w.rows, y + (t + i) * y_stride);
    }
  }
  return true;
}

}  // namespace

LinearScratch make_linear_scratch(Arena& arena, int64_t tokens,
                                  std::span<const Linear* const> matrices,
                                  std::span<const ExpertsSpec> experts) {
  int64_t cols = 1, rows = 1, rank = 0, transformed = 0;
  size_t plugin_bytes = 0;
  bool any_plugin = false;
  const auto visit = [&](const auto& w, int64_t calls) {
    cols = std::max(cols, w.cols);
    rows = std::max(rows, w.rows);
    if (!w.plugin) return;
    any_plugin = true;
    plugin_bytes = std::max(plugin_bytes, w.plugin->plan_workspace(calls));
    if (w.plugin->has_transform()) transformed = std::max(transformed, w.cols);
  };
  for (const Linear* w : matrices) {
    visit(*w, tokens);
    if (!w->low_rank_b) continue;
    visit(*w->low_rank_b, tokens);
    rank = std::max(rank, w->cols);
  }
  for (const ExpertsSpec& spec : experts) {
    visit(spec.gate_up, tokens * spec.top_k);
    visit(spec.down, tokens * spec.top_k);
  }
  const auto floats = [&](int64_t count, const char* name) {
    return count > 0 ? arena.allocate<float>(static_cast<size_t>(count), Category::kWorkspace, name)
                     : nullptr;
  };
  LinearScratch scratch;
  scratch.panel_floats = std::max(kPanelFloats, cols);
  scratch.panel = floats(scratch.panel_floats, "widened weights");
  scratch.factor = floats(tokens * rank, "low-rank product");
  scratch.transformed = floats(tokens * transformed, "transformed input");
  if (any_plugin) {
    scratch.bf16 = arena.allocate<uint16_t>(static_cast<size_t>(scratch.panel_floats),
                                            Category::kWorkspace, "dequantized weights");
    scratch.product_floats = std::max(kProductFloats, rows);
    scratch.product = floats(scratch.product_floats, "plugin product");
    scratch.plugin = arena.allocate(plugin_bytes, Category::kWorkspace, "plugin workspace");
  }
  return scratch;
}

void sgemm_nt(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
              float* c, int64_t ldc, bool add) {
  const dnnl_status_t status =
      dnnl_sgemm('N', 'T', m, n, k, 1.0f, a, lda, b, k, add ? 1.0f : 0.0f, c, ldc);
  if (status != dnnl_success) {
    throw InvalidError("gemm", "oneDNN refused a product of " + std::to_string(m) + " x " +
                                   std::to_string(n) + " x " + std::to_string(k));
  }
}

void multiply_rows(const LinearScratch& scratch, const Linear& w, int64_t row0, int64_t rows,
                   const float* x, int64_t tokens, float* y, int64_t y_stride, bool add) {
  if (rows == 0 || tokens == 0) return;
  if (w.low_rank_b) {
    const Linear& b = *w.low_rank_b;
    multiply(scratch, b, x, tokens, scratch.factor, b.rows, false);
    x = scratch.factor;
  }
  if (w.plugin) {
    multiply_plugin(scratch, *w.plugin, row0, rows, x, tokens, y, y_stride, add);
  } else if (w.f32) {
    const float* first = w.f32 + row0 * w.cols;
    if (tokens <= kGemvTokens) {
      gemv_f32(first, rows, w.cols, x, tokens, y, y_stride, add);
    } else {
      sgemm_nt(tokens, rows, w.cols, x, w.cols, first, y, y_stride, add);
    }
  } else {
    const auto* first = static_cast<const uint16_t*>(w.bf16) + row0 * w.cols;
    multiply_panels(scratch, rows, w.cols, x, tokens, y, y_stride, add,
                    [&](int64_t row, int64_t) { return first + row * w.cols; });
  }
}

void multiply(const LinearScratch& scratch, const Linear& w, const float* x, int64_t tokens,
              float* y, int64_t y_stride, bool add) {
  if (w.plugin && tokens > 0) {
    const float* input = x;
    if (w.low_rank_b) {
      multiply(scratch, *w.low_rank_b, x, tokens, scratch.factor, w.cols, false);
      input = scratch.factor;
    }
    if (add ? add_plugin_matmul(scratch, w, input, tokens, y, y_stride)
            : plugin_matmul(scratch, *w.plugin, input, tokens, y, y_stride)) {
      return;
    }
    multiply_plugin(scratch, *w.plugin, 0, w.rows, input, tokens, y, y_stride, add);
    return;
  }
  multiply_rows(scratch, w, 0, w.rows, x, tokens, y, y_stride, add);
}

void multiply_range(const LinearScratch& scratch, const Projection& w, int64_t row0, int64_t rows,
                    const float* x, int64_t tokens, float* y, int64_t y_stride) {
  int64_t part_begin = 0;
  for (const Linear& part : w.parts) {
    const int64_t begin = std::max(row0, part_begin);
    const int64_t end = std::min(row0 + rows, part_begin + part.rows);
    if (begin < end) {
      float* out = y + (begin - row0);
      if (end - begin == part.rows) {
        multiply(scratch, part, x, tokens, out, y_stride, false);
      } else {
        multiply_rows(scratch, part, begin - part_begin, end - begin, x, tokens, out, y_stride,
                      false);
      }
    }
    part_begin += part.rows;
  }
}

void multiply_expert(const LinearScratch& scratch, const PluginMatrix& matrix, int64_t expert,
                     const float* x, int64_t tokens, float* y) {
  const int64_t rows = matrix.rows(), cols = matrix.cols();
  const int64_t panel = std::clamp<int64_t>(scratch.panel_floats / cols, 1, rows);
  x = transformed(scratch, matrix, x, tokens);
  for (int64_t first = 0; first < rows; first += panel) {
    const int64_t count = std::min(panel, rows - first);
    matrix.dequantize_expert(expert, first, count, scratch.bf16, nullptr);
    gemv_bf16(scratch.bf16, count, cols, x, tokens, y + first, rows, false);
  }
}

bool plugin_experts(const LinearScratch& scratch, const PluginMatrix& matrix, const float* x,
                    const int32_t* expert, const int32_t* row, int64_t n, float* y) {
  if (!matrix.has_experts()) return false;
  (void)matrix.workspace(n);  // refuses what was not planned
  return matrix.experts(x, expert, row, n, y, scratch.plugin, nullptr);
}

void embed_rows(const LinearScratch& scratch, const Linear& table, std::span<const int32_t> ids,
                float* y) {
  const auto n = static_cast<int64_t>(ids.size());
  if (table.plugin && !table.low_rank_b) {
    if (table.plugin->embed(ids.data(), n, y, nullptr)) return;
    if (!table.plugin->has_transform()) {
      for (int64_t i = 0; i < n; ++i) {
        table.plugin->dequantize(ids[static_cast<size_t>(i)], 1, scratch.bf16, nullptr);
        kernels().widen(scratch.bf16, table.cols, y + i * table.cols);
      }
      return;
    }
  }
  if (table.plugin || table.low_rank_b) {
    throw Error(Exit::kGateFailed, "plugin_failed",
                "an embedding table can neither be factored nor be stored transformed without the "
                "plugin's embed function");
  }
  parallel_ranges(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = ids[static_cast<size_t>(i)];
      if (table.f32) {
        kernels().scale(1.0f, table.f32 + row * table.cols, table.cols, y + i * table.cols);
      } else {
        kernels().widen(static_cast<const uint16_t*>(table.bf16) + row * table.cols, table.cols,
                        y + i * table.cols);
      }
    }
  });
}

}  // namespace cbench::cpu
