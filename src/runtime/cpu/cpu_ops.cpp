// The CPU backend's Ops.
#include "runtime/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "runtime/cpu/delta_net.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/mamba2.h"
#include "runtime/cpu/scalar.h"
#include "runtime/cpu/threads.h"

namespace cbench::cpu {
namespace {

constexpr int64_t kUpFloats = 1 << 19;  // 2 MiB
constexpr int64_t kMinPanel = 64;       // rows of the up half computed at a time

const float* floats(const void* x) { return static_cast<const float*>(x); }
float* floats(void* x) { return static_cast<float*>(x); }

bool same(const Rope& a, const Rope& b) {
  return a.inv_freq == b.inv_freq && a.rotary == b.rotary && a.scale == b.scale;
}

}  // namespace

std::string CpuOps::device_name() const {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2) + " (" + std::to_string(thread_count()) + " threads, " +
             kernels().name + ")";
    }
  }
  return "CPU (" + std::to_string(thread_count()) + " threads, " + kernels().name + ")";
}

DeviceFacts CpuOps::facts() const { return {.arch = 0, .multiprocessors = thread_count()}; }

void CpuOps::copy_in(void* to, const void* host, size_t bytes) { std::memcpy(to, host, bytes); }
void CpuOps::copy_out(void* host, const void* from, size_t bytes) {
  std::memcpy(host, from, bytes);
}
void CpuOps::zero(void* to, size_t bytes) { std::memset(to, 0, bytes); }

void CpuOps::reserve(const Capacity& capacity, const OpsPlan& plan) {
  const int64_t tokens = std::max(capacity.tokens, capacity.logits_rows);
  const auto take = [&](int64_t count, const char* name) {
    return arena_.allocate<float>(static_cast<size_t>(count), Category::kWorkspace, name);
  };
  int64_t cols = 1, per_thread = 0, channels = 0;
  for (const Linear* w : plan.matrices) cols = std::max(cols, w->inputs());
  rotary_.emplace_back();
  for (const AttentionSpec& spec : plan.attention) {
    per_thread = std::max(per_thread, attention_scratch(spec, capacity.max_length));
    const Rope& rope = spec.rope;
    const auto known = [&](const RotaryTable& table) { return same(table.rope, rope); };
    if (rope.rotary == 0 || std::any_of(rotary_.begin(), rotary_.end(), known)) continue;
    rotary_.push_back({rope, take(tokens * rope.rotary / 2, "rotary cos"),
                       take(tokens * rope.rotary / 2, "rotary sin")});
  }
  for (const DeltaNetSpec& spec : plan.delta) {
    per_thread = std::max(per_thread, delta_net_scratch(spec));
  }
  for (const Mamba2Spec& spec : plan.mamba2) {
    per_thread = std::max(per_thread, mamba2_scratch(spec));
    channels = std::max(channels, spec.conv_rows());
  }
  batch_.reserve(capacity);
  linear_ = make_linear_scratch(arena_, tokens, plan.matrices, plan.experts);
  experts_ = make_experts_scratch(arena_, tokens, plan.routers, plan.experts);
  normed_ = take(tokens * cols, "normalized input");
  up_floats_ = std::max(kUpFloats, tokens * kMinPanel);
  up_ = take(up_floats_, "MLP up half");
  if (channels > 0) convolved_ = take(tokens * channels, "convolved columns");
  threads_.floats = Pieces::rounded(per_thread);
  threads_.data = take(threads_.floats * thread_count(), "thread scratch");
}

void CpuOps::warm_up() {
  constexpr int64_t kRows = 2048, kSize = 1024;
  std::vector<float> a(kRows * kSize), b(kSize * kSize), c(kRows * kSize);
  for (const int64_t rows : {int64_t{17}, int64_t{64}, kRows}) {
    for (const bool add : {false, true}) {
      sgemm_nt(rows, kSize, kSize, a.data(), kSize, b.data(), c.data(), kSize, add);
      sgemm_nt(rows, 96, 96, a.data(), 96, b.data(), c.data(), 96, add);
    }
  }
}

void CpuOps::upload(const Batch& batch) {
  batch_.set(batch);
  positions_changed();
}

void CpuOps::advance_greedy(const float* logits, int64_t vocab) {
  for (int64_t row = 0; row < batch_.rows(); ++row) {
    const float* first = logits + row * vocab;
    int64_t best = 0;
    float top = -__builtin_inff();
    for (int64_t id = 0; id < vocab; ++id) {
      if (first[id] > top) {
        top = first[id];
        best = id;
      }
    }
    batch_.ids[static_cast<size_t>(row)] = static_cast<int32_t>(best);
  }
  batch_.advance();
  positions_changed();
}

void CpuOps::read_ids(std::span<int32_t> ids) {
  std::copy_n(batch_.ids.begin(), std::min(ids.size(), batch_.ids.size()), ids.begin());
}

std::unique_ptr<Replay> CpuOps::record(std::function<void()> work) {
  return std::make_unique<PlainReplay>(std::move(work));
}

const float* CpuOps::normed(const void* x, const Norm* norm, int64_t rows, int64_t width) {
  if (!norm) return floats(x);
  rms_norm(x, *norm, rows, width, normed_);
  return normed_;
}

void CpuOps::embed(const Linear& table, float scale, void* y) {
  embed_rows(linear_, table, batch_.ids, floats(y));
  const auto count = static_cast<int64_t>(batch_.ids.size()) * table.cols;
  if (scale != 1) kernels().scale(scale, floats(y), count, floats(y));
}

void CpuOps::rms_norm(const void* x, const Norm& norm, int64_t rows, int64_t width, void* y) {
  parallel_ranges(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels().rms_norm(floats(x) + row * width, norm.weight, norm.eps, width,
                         floats(y) + row * width);
    }
  });
}

void CpuOps::project(const void* x, const Norm* norm, int64_t rows, const Projection& w, void* y) {
  const float* input = normed(x, norm, rows, w.cols());
  multiply_range(linear_, w, 0, w.rows(), input, rows, floats(y), w.rows());
}

void CpuOps::project_add(const void* x, int64_t rows, const Linear& w, void* residual) {
  multiply(linear_, w, floats(x), rows, floats(residual), w.rows, true);
}

void CpuOps::gate_up(const void* x, const Norm* norm, int64_t rows, const Projection& w,
                     Activation activation, void* y) {
  const float* input = normed(x, norm, rows, w.cols());
  if (!is_gated(activation)) {
    const int64_t width = w.rows();
    multiply_range(linear_, w, 0, width, input, rows, floats(y), width);
    parallel_ranges(rows, 8, [&](int64_t begin, int64_t end) {
      kernels().relu2(floats(y) + begin * width, (end - begin) * width);
    });
    return;
  }
  const int64_t width = w.rows() / 2;
  multiply_range(linear_, w, 0, width, input, rows, floats(y), width);
  const int64_t panel = std::clamp<int64_t>(up_floats_ / std::max<int64_t>(rows, 1), 1, width);
  for (int64_t first = 0; first < width; first += panel) {
    const int64_t count = std::min(panel, width - first);
    multiply_range(linear_, w, width + first, count, input, rows, up_, count);
    parallel_ranges(rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* gate = floats(y) + row * width + first;
        gated(activation)(gate, up_ + row * count, count, gate);
      }
    });
  }
}

void CpuOps::route(const RouterSpec& spec, const void* x, int64_t rows, int64_t width,
                   const Routing& routing) {
  cpu::route(spec, experts_, floats(x), rows, width, routing);
}

void CpuOps::experts(const ExpertsSpec& spec, const Routing& routing, const void* x, int64_t rows,
                     void* y) {
  cpu::experts(spec, experts_, linear_, routing, floats(x), rows, floats(y));
}

void CpuOps::add_normed(const void* y, const Norm* norm, int64_t rows, int64_t width, float scale,
                        void* residual) {
  parallel_ranges(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = floats(y) + row * width;
      float* to = floats(residual) + row * width;
      if (norm) {
        kernels().add_rms_norm(from, norm->weight, norm->eps, scale, width, to);
      } else {
        kernels().axpy(1, from, width, to);
        if (scale != 1) kernels().scale(scale, to, width, to);
      }
    }
  });
}

void CpuOps::add_gated(const void* y, const void* x, const float* gate, int64_t rows, int64_t width,
                       void* residual) {
  parallel_ranges(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float logit = 0;
      kernels().gemv_f32(gate, 1, width, width, floats(x) + row * width, 1, width, &logit, 1,
                         false);
      kernels().axpy(sigmoid(logit), floats(y) + row * width, width,
                     floats(residual) + row * width);
    }
  });
}

const RotaryTable& CpuOps::rotary(const Rope& rope) {
  if (rope.rotary == 0) return rotary_.front();
  const auto table = std::find_if(rotary_.begin(), rotary_.end(),
                                  [&](const RotaryTable& known) { return same(known.rope, rope); });
  if (table == rotary_.end()) throw std::logic_error("attention with a rotation not planned for");
  if (table->stale) table->compute(batch_);
  return *table;
}

void CpuOps::positions_changed() {
  for (RotaryTable& table : rotary_) table.stale = true;
}

void CpuOps::attention(const AttentionSpec& spec, const KvCache& cache, const void* qkv, void* y) {
  cpu::attention(spec, cache, batch_, rotary(spec.rope), threads_, floats(qkv), floats(y));
}

void CpuOps::delta_net(const DeltaNetSpec& spec, const DeltaNetState& state, const void* in,
                       void* y) {
  cpu::delta_net(spec, state, batch_, threads_, floats(in), floats(y));
}

void CpuOps::mamba2(const Mamba2Spec& spec, const Mamba2State& state, const void* in, void* y) {
  cpu::mamba2(spec, state, batch_, threads_, convolved_, floats(in), floats(y));
}

void CpuOps::gather_rows(const void* x, std::span<const int32_t> rows, int64_t width, void* y) {
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(floats(y) + static_cast<int64_t>(i) * width, floats(x) + rows[i] * width,
                static_cast<size_t>(width) * sizeof(float));
  }
}

void CpuOps::add_bias(void* y, int64_t rows, int64_t width, const float* bias) {
  parallel_ranges(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels().axpy(1.0f, bias, width, floats(y) + row * width);
    }
  });
}

void CpuOps::lm_head(const void* x, const Norm& norm, int64_t rows, const Linear& w, float softcap,
                     float* logits) {
  multiply(linear_, w, normed(x, &norm, rows, w.inputs()), rows, logits, w.rows, false);
  if (softcap <= 0) return;
  parallel_ranges(rows * w.rows, 4096, [&](int64_t begin, int64_t end) {
    kernels().softcap(logits + begin, end - begin, softcap);
  });
}

}  // namespace cbench::cpu

namespace cbench {

std::unique_ptr<Ops> make_cpu_ops() { return std::make_unique<cpu::CpuOps>(); }

}  // namespace cbench
