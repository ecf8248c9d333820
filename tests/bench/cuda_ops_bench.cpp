// Single CUDA ops of models with routed experts, Mamba 2 and sliding windows, at their true shapes,
// against ceilings of the same run:
//   bench_cuda_ops [--only route|experts|mamba|attention] [--rows 8192]
// Prints one line per figure: name, median, unit, share of its ceiling.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "ceilings.h"
#include "check.h"
#include "gemm.h"
#include "runtime/ops.h"
#include "util/error.h"
#include "util/random.h"

namespace cbench {
namespace {

double copy_rate = 0, read_rate = 0, gemm_rate = 0;  // of this GPU: bytes/s, FLOP/s

void line(const std::string& name, double value, const char* unit, const std::string& note = "") {
  std::printf("%-58s %10.2f %-8s %s\n", name.c_str(), value, unit, note.c_str());
  std::fflush(stdout);
}
std::string of_memory(double bytes, double seconds) {
  char text[128];
  std::snprintf(text, sizeof text, "%.0f GB/s, %.1f %% of copy, %.1f %% of read",
                bytes / seconds / 1e9, 100 * bytes / seconds / copy_rate,
                100 * bytes / seconds / read_rate);
  return text;
}
std::string of_gemm(double flops, double seconds) {
  char text[128];
  std::snprintf(text, sizeof text, "%.0f TFLOP/s, %.1f %% of GEMM", flops / seconds / 1e12,
                100 * flops / seconds / gemm_rate);
  return text;
}

/// A backend with random data around it.
struct Device {
  std::unique_ptr<Ops> ops = make_cuda_ops(0);
  uint32_t seed = 1;

  Ops* operator->() { return ops.get(); }
  cudaStream_t stream() { return static_cast<cudaStream_t>(ops->stream()); }
  void* bf16(int64_t n, float amplitude) {
    void* data = ops->arena().allocate(static_cast<size_t>(n) * 2, Category::kWeights, "bench");
    cuda::fill_random(data, n, seed++, amplitude, stream());
    return data;
  }
  float* floats(int64_t n, float low, float high) {
    auto* data = ops->arena().allocate<float>(static_cast<size_t>(n), Category::kWeights, "bench");
    cuda::fill_random_float(data, n, seed++, low, high, stream());
    return data;
  }
  /// Sequences of `length` rows after `start` others; length 1 is a step.
  void upload(int64_t sequences, int64_t start, int64_t length) {
    std::vector<int32_t> ids(static_cast<size_t>(sequences * length), 1);
    std::vector<Span> spans;
    for (int64_t s = 0; s < sequences; s++)
      spans.push_back({static_cast<int32_t>(s), static_cast<int32_t>(start),
                       static_cast<int32_t>(s * length), static_cast<int32_t>(length)});
    ops->upload({ids, spans});
  }
  /// Seconds of one of `count` calls that are recorded together, as a decoded token records them.
  double recorded(int count, const std::function<void(int)>& call) {
    const auto replay = ops->record([&] {
      for (int i = 0; i < count; i++) call(i);
    });
    return cuda::median(cuda::time_runs([&] { replay->run(); }, 20, 3, stream())) / 1e3 / count;
  }
  double direct(const std::function<void()>& call) {
    return cuda::median(cuda::time_runs(call, 10, 3, stream())) / 1e3;
  }
};

void ceilings() {
  Device d;
  const size_t bytes = size_t{4} << 30;
  void* data = d.bf16(static_cast<int64_t>(bytes / 2), 1);
  const cuda::Bandwidth b = cuda::measure_bandwidth(data, bytes, d.stream());
  copy_rate = b.copy, read_rate = b.read;
  line("copy kernel, read + write", copy_rate / 1e9, "GB/s");
  line("read-only stream", read_rate / 1e9, "GB/s");
  const int64_t rows = 8192, n = 8192, k = 4096;
  cuda::Gemm gemm(d.stream());
  gemm.set_workspace(d.bf16(static_cast<int64_t>(cuda::Gemm::kWorkspace / 2), 1));
  cuda::GemmArguments a;
  a.x = d.bf16(rows * k, 1), a.w = d.bf16(n * k, 0.02f), a.y = d.bf16(rows * n, 1);
  a.rows = rows, a.n = n, a.k = k, a.y_stride = n;
  const double ms = cuda::median(cuda::time_runs([&] { gemm.run(a); }, 1500, 1500, d.stream()));
  gemm_rate = 2.0 * static_cast<double>(rows * n) * static_cast<double>(k) / ms * 1e3;
  line("sustained GEMM 8192 x 8192 x 4096", gemm_rate / 1e12, "TFLOP/s");
}

struct Moe {
  const char* name;
  RouterSpec::Score score;
  int64_t experts, top_k, width, inner;
  Activation activation;
};
const Moe kMoes[] = {
    {"qwen3.5-122b", RouterSpec::Score::kSoftmax, 256, 8, 3072, 1024, Activation::kSilu},
    {"gemma-4-26b", RouterSpec::Score::kSoftmax, 128, 8, 2816, 704, Activation::kGeluTanh},
    {"nemotron-3-super", RouterSpec::Score::kSigmoid, 512, 22, 1024, 2688, Activation::kRelu2},
};

Capacity capacity(int64_t rows, int64_t max_length) {
  return {.tokens = rows, .sequences = 64, .slots = 64, .max_length = max_length, .logits_rows = 1};
}

void bench_route(int64_t rows) {
  for (const Moe& m : kMoes) {
    Device d;
    const int64_t width = std::strcmp(m.name, "nemotron-3-super") == 0 ? 4096 : m.width;
    RouterSpec spec;
    spec.score = m.score, spec.experts = m.experts, spec.top_k = m.top_k;
    std::vector<float*> weights;
    for (int i = 0; i < 24; i++) weights.push_back(d.floats(m.experts * width, -0.03f, 0.03f));
    const void* x = d.bf16(rows * width, 1);
    const Routing routing{static_cast<int32_t*>(static_cast<void*>(d.floats(rows * m.top_k, 0, 1))),
                          d.floats(rows * m.top_k, 0, 1)};
    d->reserve(capacity(rows, 8), {.routers = {spec}});
    const auto call = [&](int i, int64_t n) {
      spec.weight = weights[static_cast<size_t>(i) % weights.size()];
      d->route(spec, x, n, width, routing);
    };
    const std::string name = std::string("route ") + m.name;
    d.upload(1, 3, 1);
    line(name + ", decode", 1e6 * d.recorded(24, [&](int i) { call(i, 1); }), "us");
    d.upload(64, 3, 1);
    line(name + ", step of 64", 1e6 * d.recorded(24, [&](int i) { call(i, 64); }), "us");
    d.upload(1, 0, rows);
    const double s = d.direct([&] { call(0, rows); });
    line(name + ", " + std::to_string(rows) + " rows", 1e3 * s, "ms",
         of_gemm(2.0 * static_cast<double>(rows * m.experts) * static_cast<double>(width), s));
  }
}

/// `calls` routings of `rows` rows each, experts drawn evenly; how many experts each call touches.
struct Routings {
  std::vector<Routing> list;
  double touched = 0;

  Routings(Device& d, const Moe& m, int64_t rows, int calls) {
    Random random(static_cast<uint64_t>(rows + calls));
    for (int c = 0; c < calls; c++) {
      std::vector<int32_t> expert;
      std::set<int32_t> used;
      for (int64_t row = 0; row < rows; row++) {
        std::set<int32_t> mine;
        while (static_cast<int64_t>(mine.size()) < m.top_k)
          mine.insert(
              std::min(static_cast<int32_t>(random.uniform() * static_cast<double>(m.experts)),
                       static_cast<int32_t>(m.experts - 1)));
        expert.insert(expert.end(), mine.begin(), mine.end());
        used.insert(mine.begin(), mine.end());
      }
      touched += static_cast<double>(used.size()) / calls;
      auto* data = d->arena().allocate<int32_t>(expert.size(), Category::kActivations, "routing");
      d->copy_in(data, expert.data(), expert.size() * 4);
      list.push_back({data, d.floats(rows * m.top_k, 0, 0.2f)});
    }
  }
};

void bench_experts(int64_t rows) {
  for (const Moe& m : kMoes) {
    Device d;
    const int64_t first = is_gated(m.activation) ? 2 * m.inner : m.inner;
    ExpertsSpec spec;
    spec.top_k = m.top_k, spec.activation = m.activation;
    spec.gate_up = {m.experts, first, m.width, d.bf16(m.experts * first * m.width, 0.03f)};
    spec.down = {m.experts, m.width, m.inner, d.bf16(m.experts * m.width * m.inner, 0.03f)};
    d->reserve(capacity(rows, 8), {.experts = {spec}});
    const void* x = d.bf16(rows * m.width, 1);
    void* y = d.bf16(rows * m.width, 1);
    const double one =
        2.0 * static_cast<double>((first + m.inner) * m.width);  // bytes of an expert
    const std::string name = std::string("experts ") + m.name;
    for (const int64_t sequences : {1, 2, 8, 64}) {
      const int calls = sequences == 1 ? 24 : 6;
      const Routings routings(d, m, sequences, calls);
      d.upload(sequences, 3, 1);
      const double s = d.recorded(calls, [&](int i) {
        d->experts(spec, routings.list[static_cast<size_t>(i)], x, sequences, y);
      });
      line(name + ", step of " + std::to_string(sequences), 1e6 * s, "us",
           of_memory(routings.touched * one, s));
    }
    for (const int64_t n : {rows / 8, rows}) {
      const Routings routings(d, m, n, 1);
      d.upload(1, 0, n);
      const double s = d.direct([&] { d->experts(spec, routings.list[0], x, n, y); });
      line(name + ", " + std::to_string(n) + " rows", 1e3 * s, "ms",
           of_gemm(one * static_cast<double>(n * m.top_k), s));
    }
  }
}

void bench_mamba(int64_t rows) {
  Device d;
  Mamba2Spec spec;
  spec.heads = 128, spec.head_dim = 64, spec.groups = 8, spec.state = 128;
  spec.dt_max = std::numeric_limits<float>::infinity();
  spec.conv_weight = d.floats(spec.conv_rows() * spec.conv, -0.5f, 0.5f);
  spec.conv_bias = d.floats(spec.conv_rows(), -0.5f, 0.5f);
  spec.neg_exp_a = d.floats(spec.heads, -1.f, -0.01f);
  spec.dt_bias = d.floats(spec.heads, -1, 1);
  spec.d = d.floats(spec.heads, -1, 1);
  spec.out_norm = {d.floats(spec.inner(), 0.5f, 1.5f), 1e-5f};
  const int layers = 24;
  std::vector<Mamba2State> states;
  for (int i = 0; i < layers; i++)
    states.push_back({d.floats(64 * spec.conv_rows() * (spec.conv - 1), -1, 1),
                      d.floats(64 * spec.inner() * spec.state, -1, 1)});
  d->reserve(capacity(rows, 8), {.mamba2 = {spec}});
  const int64_t width = spec.inner() + spec.conv_rows() + spec.heads;
  const void* in = d.bf16(rows * width, 1);
  void* y = d.bf16(rows * spec.inner(), 1);
  const double state_bytes = 8.0 * static_cast<double>(spec.inner() * spec.state);
  for (const int64_t sequences : {1, 8, 64}) {
    d.upload(sequences, 3, 1);
    const double s =
        d.recorded(layers, [&](int i) { d->mamba2(spec, states[static_cast<size_t>(i)], in, y); });
    line("mamba2, step of " + std::to_string(sequences), 1e6 * s, "us",
         of_memory(static_cast<double>(sequences) * state_bytes, s));
  }
  for (const int64_t length : {int64_t{512}, int64_t{2048}, rows}) {
    d.upload(rows / length, 0, length);
    const double s = d.direct([&] { d->mamba2(spec, states[0], in, y); });
    const double bytes = 2.0 * static_cast<double>(rows * (width + spec.inner()));
    line("mamba2, " + std::to_string(rows / length) + " x " + std::to_string(length) + " rows",
         1e3 * s, "ms", of_memory(bytes, s) + " over in and out");
  }
}

struct Heads {
  const char* name;
  int64_t query, kv, dim, window;
};
const Heads kHeads[] = {
    {"gemma-4 window 1024", 16, 8, 256, 1024},     {"gemma-4 the same, no window", 16, 8, 256, 0},
    {"gemma-4 full, heads of 512", 16, 2, 512, 0}, {"nemotron-3, heads of 128", 32, 2, 128, 0},
    {"qwen3.5, heads of 256", 32, 2, 256, 0},      {"heads of 64", 32, 8, 64, 0},
};

void bench_attention(int64_t rows) {
  for (const Heads& h : kHeads) {
    Device d;
    AttentionSpec spec;
    spec.query_heads = h.query, spec.kv_heads = h.kv, spec.head_dim = h.dim;
    spec.window = h.window, spec.scale = 1 / std::sqrt(static_cast<float>(h.dim));
    const int64_t length = rows + 64, cache = length * h.kv * h.dim;
    d->reserve({.tokens = rows, .sequences = 4, .slots = 4, .max_length = length, .logits_rows = 1},
               {.attention = {spec}});
    const int layers = 12;
    std::vector<KvCache> caches;
    for (int i = 0; i < layers; i++)
      caches.push_back({d.bf16(4 * cache, 1), d.bf16(4 * cache, 1), length});
    const void* qkv = d.bf16(rows * (h.query + 2 * h.kv) * h.dim, 1);
    void* y = d.bf16(rows * h.query * h.dim, 1);
    const std::string name = std::string("attention ") + h.name;
    d.upload(1, rows, 1);
    const double step = d.recorded(
        layers, [&](int i) { d->attention(spec, caches[static_cast<size_t>(i)], qkv, y); });
    const int64_t seen = h.window ? std::min(h.window, rows) : rows;
    line(name + ", decode after " + std::to_string(rows), 1e6 * step, "us",
         of_memory(4.0 * static_cast<double>(seen * h.kv * h.dim), step));
    d.upload(rows / 2048, 0, 2048);
    const double s = d.direct([&] { d->attention(spec, caches[0], qkv, y); });
    const double each = h.window && h.window < 2048 ? static_cast<double>(h.window) *
                                                          (2048 - static_cast<double>(h.window) / 2)
                                                    : 2048.0 * 2048 / 2;
    line(name + ", " + std::to_string(rows / 2048) + " x 2048 rows", 1e3 * s, "ms",
         of_gemm(4.0 * each * static_cast<double>(rows / 2048 * h.query * h.dim), s));
  }
}

int run(int argc, char** argv) {
  std::string only;
  int64_t rows = 8192;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--only")) only = argv[i + 1];
    if (!std::strcmp(argv[i], "--rows")) rows = std::atoll(argv[i + 1]);
  }
  ceilings();
  const auto wanted = [&](const char* name) { return only.empty() || only == name; };
  if (wanted("route")) bench_route(rows);
  if (wanted("experts")) bench_experts(rows);
  if (wanted("mamba")) bench_mamba(rows);
  if (wanted("attention")) bench_attention(rows);
  return 0;
}

}  // namespace
}  // namespace cbench

int main(int argc, char** argv) {
  try {
    return cbench::run(argc, argv);
  } catch (const cbench::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
