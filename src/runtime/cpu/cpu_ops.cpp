// The CPU backend's Ops.
#include "runtime/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "runtime/cpu/delta_net.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/threads.h"

namespace cbench::cpu {
namespace {

constexpr int64_t kUpFloats = 1 << 19;  // 2 MiB
constexpr int64_t kMinPanel = 64;       // rows of the up half computed at a time

class PlainReplay : public Replay {
 public:
  explicit PlainReplay(std::function<void()> work) : work_(std::move(work)) {}
  void run() override { work_(); }

 private:
  std::function<void()> work_;
};

const float* floats(const void* x) { return static_cast<const float*>(x); }
float* floats(void* x) { return static_cast<float*>(x); }

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
  int64_t cols = 1, rotary = 0, per_thread = 0;
  for (const Linear* w : plan.matrices) {
    cols = std::max(cols, w->inputs());
  }
  for (const AttentionSpec& spec : plan.attention) {
    rotary = std::max(rotary, spec.rope.rotary);
    per_thread = std::max(per_thread, attention_scratch(spec, capacity.max_length));
  }
  for (const DeltaNetSpec& spec : plan.delta) {
    per_thread = std::max(per_thread, delta_net_scratch(spec));
  }
  const auto take = [&](int64_t count, const char* name) {
    return arena_.allocate<float>(static_cast<size_t>(count), Category::kWorkspace, name);
  };
  const int64_t tokens = std::max(capacity.tokens, capacity.logits_rows);
  batch_.reserve(capacity);
  linear_ = make_linear_scratch(arena_, tokens, plan.matrices);
  normed_ = take(tokens * cols, "normalized input");
  up_floats_ = std::max(kUpFloats, tokens * kMinPanel);
  up_ = take(up_floats_, "MLP up half");
  rotary_.cos = take(tokens * rotary / 2, "rotary cos");
  rotary_.sin = take(tokens * rotary / 2, "rotary sin");
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
  rotary_.inv_freq = nullptr;
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
  rotary_.inv_freq = nullptr;
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
  if (activation != Activation::kSilu) throw std::logic_error("not built");
  const int64_t width = w.rows() / 2;
  const float* input = normed(x, norm, rows, w.cols());
  multiply_range(linear_, w, 0, width, input, rows, floats(y), width);
  const int64_t panel = std::clamp<int64_t>(up_floats_ / std::max<int64_t>(rows, 1), 1, width);
  for (int64_t first = 0; first < width; first += panel) {
    const int64_t count = std::min(panel, width - first);
    multiply_range(linear_, w, width + first, count, input, rows, up_, count);
    parallel_ranges(rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* gate = floats(y) + row * width + first;
        kernels().silu_mul(gate, up_ + row * count, count, gate);
      }
    });
  }
}

void CpuOps::attention(const AttentionSpec& spec, const KvCache& cache, const void* qkv, void* y) {
  if (spec.rope.rotary > 0 && rotary_.inv_freq != spec.rope.inv_freq) {
    rotary_.compute(batch_, spec.rope);
  }
  cpu::attention(spec, cache, batch_, rotary_, threads_, floats(qkv), floats(y));
}

void CpuOps::delta_net(const DeltaNetSpec& spec, const DeltaNetState& state, const void* in,
                       void* y) {
  cpu::delta_net(spec, state, batch_, threads_, floats(in), floats(y));
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
  if (softcap > 0) throw std::logic_error("not built");
}

void CpuOps::route(const RouterSpec&, const void*, int64_t, int64_t, const Routing&) {
  throw std::logic_error("not built");
}
void CpuOps::experts(const ExpertsSpec&, const Routing&, const void*, int64_t, void*) {
  throw std::logic_error("not built");
}
void CpuOps::add_normed(const void*, const Norm*, int64_t, int64_t, float, void*) {
  throw std::logic_error("not built");
}
void CpuOps::add_gated(const void*, const void*, const float*, int64_t, int64_t, void*) {
  throw std::logic_error("not built");
}
void CpuOps::mamba2(const Mamba2Spec&, const Mamba2State&, const void*, void*) {
  throw std::logic_error("not built");
}

}  // namespace cbench::cpu

namespace cbench {

std::unique_ptr<Ops> make_cpu_ops() { return std::make_unique<cpu::CpuOps>(); }

}  // namespace cbench
