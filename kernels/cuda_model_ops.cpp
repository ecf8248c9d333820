// The model ops of the CUDA backend: which kernels serve which call.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "check.h"
#include "cuda_ops.h"
#include "gemv.h"
#include "mamba.h"
#include "rows.h"
#include "runtime/plugin_matrix.h"
#include "util/error.h"

namespace cbench::cuda {
namespace {

const void* at(const void* base, int64_t elements, int64_t size = 2) {
  return static_cast<const unsigned char*>(base) + elements * size;
}
void* at(void* base, int64_t elements, int64_t size = 2) {
  return static_cast<unsigned char*>(base) + elements * size;
}
bool stored(const Linear& w) { return w.bf16 && !w.low_rank_b; }

}  // namespace

// --- products
// -------------------------------------------------------------------------------------
void CudaOps::multiply_stored(const void* x, int64_t rows, int64_t n, int64_t k, const void* w,
                              const Target& t) {
  if (single_step(rows)) {
    GemvArguments a;
    a.w = w, a.x = x, a.rows = n, a.cols = k, a.y = t.y;
    if (t.fp32 && t.accumulate) throw std::logic_error("fp32 outputs are not accumulated");
    gemv(t.fp32         ? GemvOutput::kLogits
         : t.accumulate ? GemvOutput::kAdd
                        : GemvOutput::kStore,
         a, stream_);
    return;
  }
  GemmArguments a;
  a.x = x, a.w = w, a.y = t.y;
  a.rows = rows, a.n = n, a.k = k, a.y_stride = t.stride;
  a.fp32 = t.fp32, a.accumulate = t.accumulate, a.step = step_;
  gemm_->run(a);
}

void CudaOps::multiply(const void* x, int64_t rows, const Linear& w, const Target& target) {
  const size_t mark = scratch_.used();
  if (w.low_rank_b) {
    const Linear& b = *w.low_rank_b;
    void* inner = scratch_.take(static_cast<size_t>(rows * b.rows) * 2);
    multiply(x, rows, b, {inner, b.rows});
    x = inner;
  }
  if (w.bf16) {
    multiply_stored(x, rows, w.rows, w.cols, w.bf16, target);
  } else if (w.plugin) {
    multiply_plugin(x, rows, w, target);
  } else {
    throw std::logic_error("a matrix without BF16 rows or a plugin on the GPU");
  }
  scratch_.rewind(mark);
}

/// Lets the plugin multiply, through a temporary when it cannot write to the target directly.
bool CudaOps::plugin_matmul(const void* x, int64_t rows, const Linear& w, const Target& t) {
  if (t.fp32 && !single_step(rows)) return false;  // scored logits are never rounded to BF16
  const size_t mark = scratch_.used();
  const size_t bytes = w.plugin->workspace(rows);
  void* workspace = bytes ? scratch_.take(bytes) : nullptr;
  const bool direct = !t.fp32 && !t.accumulate;
  const auto per_row = static_cast<size_t>(w.rows) * 2;
  if (!direct && per_row * static_cast<size_t>(rows) > scratch_.left()) {
    scratch_.rewind(mark);
    return false;
  }
  void* y = direct ? t.y : scratch_.take(per_row * static_cast<size_t>(rows));
  const bool served = w.plugin->matmul(x, rows, y, direct ? t.stride : w.rows, workspace, stream_);
  if (served && t.accumulate) add_rows(y, rows, w.rows, t.y, stream_);
  if (served && t.fp32) widen(y, rows * w.rows, static_cast<float*>(t.y), stream_);
  scratch_.rewind(mark);
  return served;
}

void CudaOps::multiply_plugin(const void* x, int64_t rows, const Linear& w, const Target& t) {
  if (plugin_matmul(x, rows, w, t)) return;
  if (w.plugin->has_transform()) {
    void* transformed = scratch_.take(static_cast<size_t>(rows * w.cols) * 2);
    w.plugin->transform(x, rows, transformed, stream_);
    x = transformed;
  }
  int64_t most = static_cast<int64_t>(panel_bytes_) / (w.cols * 2);
  most = std::min(w.rows, most >= 64 ? most / 64 * 64 : most);
  void* panel = scratch_.take(static_cast<size_t>(most * w.cols) * 2);
  for (int64_t row = 0; row < w.rows; row += most) {
    const int64_t n = std::min(most, w.rows - row);
    w.plugin->dequantize(row, n, panel, stream_);
    multiply_stored(x, rows, n, w.cols, panel,
                    {at(t.y, row, t.fp32 ? 4 : 2), t.stride, t.fp32, t.accumulate});
  }
}

const void* CudaOps::normalized(const void* x, const Norm* norm, int64_t rows, int64_t width) {
  if (!norm) return x;
  void* y = scratch_.take(static_cast<size_t>(rows * width) * 2);
  cuda::rms_norm(x, norm->weight, norm->eps, rows, width, y, stream_);
  return y;
}

void CudaOps::project(const void* x, const Norm* norm, int64_t rows, const Projection& w, void* y) {
  scratch_.reset();
  const int64_t width = w.rows();
  int64_t column = 0;
  if (single_step(rows) && std::all_of(w.parts.begin(), w.parts.end(), stored)) {
    for (const Linear& part : w.parts) {
      GemvArguments a;
      a.w = part.bf16, a.x = x, a.rows = part.rows, a.cols = part.cols, a.y = at(y, column);
      if (norm) a.norm = norm->weight, a.eps = norm->eps;
      gemv(GemvOutput::kStore, a, stream_);
      column += part.rows;
    }
    return;
  }
  const void* input = normalized(x, norm, rows, w.cols());
  for (const Linear& part : w.parts) {
    multiply(input, rows, part, {at(y, column), width});
    column += part.rows;
  }
}

void CudaOps::project_add(const void* x, int64_t rows, const Linear& w, void* residual) {
  scratch_.reset();
  multiply(x, rows, w, {residual, w.rows, false, true});
}

bool CudaOps::gate_up_step(const void* x, const Norm* norm, const Projection& w,
                           Activation activation, void* y) {
  const size_t halves = is_gated(activation) ? 2 : 1;
  if (w.parts.size() > halves || !std::all_of(w.parts.begin(), w.parts.end(), stored)) return false;
  const int64_t width = w.rows() / static_cast<int64_t>(halves);
  GemvArguments a;
  a.w = w.parts[0].bf16;
  if (halves == 2) a.w2 = w.parts.size() == 2 ? w.parts[1].bf16 : at(a.w, width * w.cols());
  a.x = x, a.rows = width, a.cols = w.cols(), a.y = y;
  if (norm) a.norm = norm->weight, a.eps = norm->eps;
  gemv(activation == Activation::kSilu       ? GemvOutput::kSiluPair
       : activation == Activation::kGeluTanh ? GemvOutput::kGeluPair
                                             : GemvOutput::kRelu2,
       a, stream_);
  return true;
}

void CudaOps::gate_up(const void* x, const Norm* norm, int64_t rows, const Projection& w,
                      Activation activation, void* y) {
  scratch_.reset();
  if (single_step(rows) && gate_up_step(x, norm, w, activation, y)) return;
  const bool gated = is_gated(activation);
  const int64_t width = gated ? w.rows() / 2 : w.rows(), cols = w.cols();
  int64_t most = static_cast<int64_t>(temporary_bytes_) / (width * 4);
  most = std::max<int64_t>(1, most >= 128 ? most / 128 * 128 : most);
  for (int64_t row = 0; row < rows; row += most) {
    scratch_.reset();
    const int64_t n = std::min(most, rows - row);
    const void* input = normalized(at(x, row * cols), norm, n, cols);
    void* to = at(y, row * width);
    void* halves = gated ? scratch_.take(static_cast<size_t>(n * width) * 4) : to;
    int64_t column = 0;
    for (const Linear& part : w.parts) {
      multiply(input, n, part, {at(halves, column), w.rows()});
      column += part.rows;
    }
    activate_rows(activation, halves, n, width, to, stream_);
  }
}

void CudaOps::lm_head(const void* x, const Norm& norm, int64_t rows, const Linear& w, float softcap,
                      float* logits) {
  scratch_.reset();
  if (single_step(rows) && stored(w)) {
    GemvArguments a;
    a.w = w.bf16, a.x = x, a.rows = w.rows, a.cols = w.cols, a.y = logits;
    a.norm = norm.weight, a.eps = norm.eps, a.softcap = softcap;
    gemv(GemvOutput::kLogits, a, stream_);
    return;
  }
  const void* input = normalized(x, &norm, rows, w.cols);
  multiply(input, rows, w, {logits, w.rows, true, false});
  if (softcap > 0) cap_logits(logits, rows * w.rows, softcap, stream_);
}

// --- rows
// -----------------------------------------------------------------------------------------
void CudaOps::embed(const Linear& table, float scale, void* y) {
  scratch_.reset();
  const int64_t rows = batch_.rows, width = table.cols;
  if (table.bf16) {
    cuda::gather_rows(table.bf16, batch_.ids, rows, width, 0, table.rows, scale, y, stream_);
    return;
  }
  embed_plugin(table, y);
  if (scale != 1) scale_rows(y, rows * width, scale, stream_);
}

void CudaOps::embed_plugin(const Linear& table, void* y) {
  const int64_t rows = batch_.rows, width = table.cols;
  if (!table.plugin)
    throw std::logic_error("an embedding without BF16 rows or a plugin on the GPU");
  const PluginMatrix& plugin = *table.plugin;
  if (plugin.embed(batch_.ids, rows, y, stream_)) return;
  if (plugin.has_transform()) {
    throw Error(Exit::kGateFailed, "plugin_failed",
                "the package's plugin has transform but no embed for " + plugin.name() +
                    ": rows of an embedding cannot be transformed back; implement embed");
  }
  if (static_cast<int64_t>(host_ids_.size()) == rows && rows <= 256 && !capturing_) {
    for (int64_t i = 0; i < rows; i++)
      plugin.dequantize(host_ids_[i], 1, at(y, i * width), stream_);
    return;
  }
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(panel_bytes_) / (width * 2));
  void* panel = scratch_.take(static_cast<size_t>(std::min(most, table.rows) * width) * 2);
  for (int64_t row = 0; row < table.rows; row += most) {
    const int64_t n = std::min(most, table.rows - row);
    plugin.dequantize(row, n, panel, stream_);
    cuda::gather_rows(panel, batch_.ids, rows, width, row, n, 1, y, stream_);
  }
}

void CudaOps::rms_norm(const void* x, const Norm& norm, int64_t rows, int64_t width, void* y) {
  cuda::rms_norm(x, norm.weight, norm.eps, rows, width, y, stream_);
}

void CudaOps::gather_rows(const void* x, std::span<const int32_t> rows, int64_t width, void* y) {
  const void* source = rows.data();
  if (capturing_) source = captured_indices_.emplace_back(rows.begin(), rows.end()).data();
  CBENCH_CUDA(
      cudaMemcpyAsync(indices_, source, rows.size_bytes(), cudaMemcpyHostToDevice, stream_));
  cuda::gather_rows(x, indices_, static_cast<int64_t>(rows.size()), width, 0, INT32_MAX, 1, y,
                    stream_);
}

void CudaOps::add_normed(const void* y, const Norm* norm, int64_t rows, int64_t width, float scale,
                         void* residual) {
  add_normed_rows(y, norm ? *norm : Norm{}, rows, width, scale, residual, stream_);
}

void CudaOps::add_gated(const void* y, const void* x, const float* gate, int64_t rows,
                        int64_t width, void* residual) {
  add_gated_rows(y, x, gate, rows, width, residual, stream_);
}

void CudaOps::add_bias(void* y, int64_t rows, int64_t width, const float* bias) {
  cuda::add_bias(bias, rows, width, y, stream_);
}

// --- mixers
// ---------------------------------------------------------------------------------------
void CudaOps::attention(const AttentionSpec& spec, const KvCache& cache, const void* qkv, void* y) {
  scratch_.reset();
  AttentionCall call;
  call.spec = &spec, call.cache = cache, call.batch = batch_;
  call.qkv = qkv, call.y = y, call.step = step_, call.stream = stream_;
  call.q = scratch_.take(static_cast<size_t>(batch_.rows * spec.query_heads * spec.head_dim) * 2);
  if (!step_) attention_prepare(call);
  if (!step_ && attention_prefill_takes(spec)) return attention_prefill(call);
  const size_t one = attention_decode_scratch(spec, cache.max_length, 1);
  const int64_t most = std::clamp<int64_t>(static_cast<int64_t>(scratch_.left() / one), 1, 32768);
  for (int64_t row = 0; row < batch_.rows; row += most) {
    const int64_t n = std::min<int64_t>(most, batch_.rows - row);
    const size_t mark = scratch_.used();
    attention_decode(call, row, n,
                     scratch_.take(attention_decode_scratch(spec, cache.max_length, n)));
    scratch_.rewind(mark);
  }
}

void CudaOps::delta_net(const DeltaNetSpec& spec, const DeltaNetState& state, const void* in,
                        void* y) {
  scratch_.reset();
  DeltaCall call;
  call.spec = &spec, call.state = state, call.batch = batch_;
  call.in = in, call.y = y, call.stream = stream_;
  if (step_ && delta_step_takes(spec)) return delta_step(call);
  const int64_t tiles = batch_.tile_count;
  const DeltaScratch scratch =
      delta_scratch(spec, batch_.rows, tiles,
                    scratch_.take(delta_scratch_bytes(spec, batch_.rows, batch_.span_count)));
  delta_conv(call, scratch);
  if (!step_ && delta_chunks_take(spec)) {
    delta_chunk_prepare(call, scratch);
    delta_chunk_state(call, scratch);
  } else {
    delta_rows(call, scratch);
  }
  delta_conv_state(call);
}

void CudaOps::mamba2(const Mamba2Spec& spec, const Mamba2State& state, const void* in, void* y) {
  scratch_.reset();
  MambaCall call;
  call.spec = &spec, call.state = state, call.batch = batch_;
  call.in = in, call.y = y, call.stream = stream_;
  const MambaScratch scratch =
      mamba_scratch(spec, batch_.rows, scratch_.take(mamba_scratch_bytes(spec, batch_.rows)));
  if (step_ && mamba_step_takes(spec)) {
    mamba_step(call, scratch);
    return mamba_norm(call, scratch, MambaReadout::kStep);
  }
  mamba_conv(call, scratch);
  if (!step_ && mamba_chunks_take(spec)) {
    mamba_chunks(call, scratch);
    mamba_norm(call, scratch, MambaReadout::kBf16);
  } else {
    mamba_rows(call, scratch);
    mamba_norm(call, scratch, MambaReadout::kFloat);
  }
  mamba_conv_state(call);
}

}  // namespace cbench::cuda
