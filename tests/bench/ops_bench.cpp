// Google Benchmark of the CPU's kernels and matrix products at a tiny and a medium model's shapes.
//
//     ninja bench_ops && tests/bench/bench_ops --benchmark_filter=gemm
#include <algorithm>
#include <vector>

#include <benchmark/benchmark.h>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/linear.h"
#include "runtime/ops.h"
#include "util/random.h"

namespace cbench::cpu {
namespace {

void rate(benchmark::State& state, double flops, double bytes) {
  const auto flags = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["flop/s"] = benchmark::Counter(flops, flags);
  state.counters["byte/s"] = benchmark::Counter(bytes, flags);
}

/// The library's product alone: tokens, rows, cols, add.
void gemm(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  std::vector<float> a(static_cast<size_t>(m * k), 0.5f), b(static_cast<size_t>(n * k), 0.5f);
  std::vector<float> c(static_cast<size_t>(m * n));
  for (auto _ : state) {
    sgemm_nt(m, n, k, a.data(), k, b.data(), c.data(), n, state.range(3) != 0);
    benchmark::DoNotOptimize(c.data());
  }
  rate(state, 2.0 * static_cast<double>(m * n * k),
       4.0 * static_cast<double>(m * k + n * k + m * n));
}
BENCHMARK(gemm)
    ->ArgsProduct({{2048}, {256, 1024}, {256, 512}, {0, 1}})
    ->Unit(benchmark::kMicrosecond);

/// A BF16 matrix as the model multiplies by it: tokens, rows, cols.
void linear(benchmark::State& state) {
  const int64_t tokens = state.range(0), rows = state.range(1), cols = state.range(2);
  std::vector<uint16_t> weights(static_cast<size_t>(rows * cols), 0x3f00);
  const Linear w{.rows = rows, .cols = cols, .bf16 = weights.data()};
  const Linear* matrices[] = {&w};
  Arena arena(host_memory());
  const LinearScratch scratch = make_linear_scratch(arena, tokens, matrices);
  std::vector<float> x(static_cast<size_t>(tokens * cols), 0.5f);
  std::vector<float> y(static_cast<size_t>(tokens * rows));
  for (auto _ : state) {
    multiply(scratch, w, x.data(), tokens, y.data(), rows, false);
    benchmark::DoNotOptimize(y.data());
  }
  rate(state, 2.0 * static_cast<double>(tokens * rows * cols),
       2.0 * static_cast<double>(rows * cols));
}
BENCHMARK(linear)
    ->ArgsProduct({{1, 4, 8, 9, 16, 32, 256}, {1024}, {256, 2048}})
    ->Unit(benchmark::kMicrosecond);

void rms_norm(benchmark::State& state) {
  const int64_t width = state.range(0);
  std::vector<float> x(static_cast<size_t>(width), 0.5f), y = x;
  for (auto _ : state) {
    kernels().rms_norm(x.data(), x.data(), 1e-6f, width, y.data());
    benchmark::DoNotOptimize(y.data());
  }
  rate(state, 4.0 * static_cast<double>(width), 8.0 * static_cast<double>(width));
}
BENCHMARK(rms_norm)->Arg(32)->Arg(256)->Arg(2048);

/// One head's step: key width, value width.
void delta_step(benchmark::State& state) {
  const int64_t dk = state.range(0), dv = state.range(1);
  std::vector<float> s(static_cast<size_t>(dk * dv)), q(static_cast<size_t>(dk), 0.1f);
  std::vector<float> v(static_cast<size_t>(dv), 0.1f), d = v, o = v;
  for (auto _ : state) {
    kernels().delta_step(s.data(), dk, dv, 0.9f, 0.5f, q.data(), q.data(), v.data(), d.data(),
                         o.data());
    benchmark::DoNotOptimize(o.data());
  }
  rate(state, 7.0 * static_cast<double>(dk * dv), 8.0 * static_cast<double>(dk * dv));
}
BENCHMARK(delta_step)->Args({32, 32})->Args({128, 128});

/// A 64-row tile product as attention and the delta net use it.
void tile_matmul(benchmark::State& state) {
  const int64_t n = state.range(0), k = state.range(1);
  std::vector<float> a(static_cast<size_t>(64 * k), 0.5f), b(static_cast<size_t>(k * n), 0.5f);
  std::vector<float> c(static_cast<size_t>(64 * n));
  for (auto _ : state) {
    kernels().matmul(64, n, k, a.data(), k, 1, b.data(), n, c.data(), n, false);
    benchmark::DoNotOptimize(c.data());
  }
  rate(state, 128.0 * static_cast<double>(n * k), 0);
}
BENCHMARK(tile_matmul)->ArgsProduct({{32, 64, 128}, {32, 64, 128}});

/// Rows of routed experts: rows, experts, top_k, width, inner width. Each row's experts are spread
/// evenly. The bytes are those of the active experts.
void routed_experts(benchmark::State& state) {
  const int64_t rows = state.range(0), count = state.range(1), top_k = state.range(2);
  const int64_t width = state.range(3), inner = state.range(4);
  const std::vector<uint16_t> gate_up(static_cast<size_t>(count * 2 * inner * width), 0x3f00);
  const std::vector<uint16_t> down(static_cast<size_t>(count * inner * width), 0x3f00);
  const ExpertsSpec spec{
      .top_k = top_k,
      .gate_up = {.experts = count, .rows = 2 * inner, .cols = width, .bf16 = gate_up.data()},
      .down = {.experts = count, .rows = width, .cols = inner, .bf16 = down.data()}};
  auto ops = make_cpu_ops();
  ops->reserve({.tokens = rows, .sequences = 1, .slots = 1, .max_length = 1, .logits_rows = 1},
               {.experts = {spec}});
  std::vector<int32_t> expert;
  for (int64_t i = 0; i < rows * top_k; ++i) {
    expert.push_back(static_cast<int32_t>((i + i / count) % count));
  }
  std::vector<float> weight(expert.size(), 0.1f), x(static_cast<size_t>(rows * width), 0.5f), y = x;
  for (auto _ : state) {
    ops->experts(spec, {expert.data(), weight.data()}, x.data(), rows, y.data());
    benchmark::DoNotOptimize(y.data());
  }
  const auto pair = static_cast<double>(3 * inner * width);
  rate(state, 2.0 * static_cast<double>(rows * top_k) * pair,
       2.0 * static_cast<double>(std::min(count, rows * top_k)) * pair);
}
BENCHMARK(routed_experts)
    ->ArgsProduct({{1, 16, 128, 256, 512, 1024}, {64}, {8}, {1024}, {512}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

/// rows, experts, top_k, width.
void route(benchmark::State& state) {
  const int64_t rows = state.range(0), count = state.range(1), top_k = state.range(2);
  const int64_t width = state.range(3);
  std::vector<float> weight(static_cast<size_t>(count * width));
  std::vector<float> x(static_cast<size_t>(rows * width));
  Random random(1);
  for (float& value : weight) value = static_cast<float>(random.uniform() - 0.5);
  for (float& value : x) value = static_cast<float>(random.uniform() - 0.5);
  const RouterSpec spec{.experts = count, .top_k = top_k, .weight = weight.data()};
  auto ops = make_cpu_ops();
  ops->reserve({.tokens = rows, .sequences = 1, .slots = 1, .max_length = 1, .logits_rows = 1},
               {.routers = {spec}});
  std::vector<int32_t> expert(static_cast<size_t>(rows * top_k));
  std::vector<float> chosen(expert.size());
  for (auto _ : state) {
    ops->route(spec, x.data(), rows, width, {expert.data(), chosen.data()});
    benchmark::DoNotOptimize(chosen.data());
  }
  rate(state, 2.0 * static_cast<double>(rows * count * width),
       4.0 * static_cast<double>(count * width));
}
BENCHMARK(route)
    ->ArgsProduct({{1, 1024}, {128}, {8}, {2048}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

/// One sequence of a Mamba 2 layer: rows, heads, head width, groups, state. The operations are
/// those of the recurrence.
void mamba2(benchmark::State& state) {
  const int64_t rows = state.range(0);
  Mamba2Spec spec{.heads = state.range(1),
                  .head_dim = state.range(2),
                  .groups = state.range(3),
                  .state = state.range(4),
                  .dt_max = 1};
  const std::vector<float> values(static_cast<size_t>(4 * spec.conv_rows()), -0.1f);
  spec.conv_weight = spec.neg_exp_a = spec.dt_bias = spec.d = values.data();
  spec.out_norm = {values.data(), 1e-5f};
  auto ops = make_cpu_ops();
  ops->reserve({.tokens = rows, .sequences = 1, .slots = 1, .max_length = rows, .logits_rows = 1},
               {.mamba2 = {spec}});
  const int64_t width = spec.inner() + spec.conv_rows() + spec.heads;
  std::vector<float> in(static_cast<size_t>(rows * width), 0.5f);
  std::vector<float> y(static_cast<size_t>(rows * spec.inner()));
  std::vector<float> conv(static_cast<size_t>(spec.conv_rows() * 3));
  std::vector<float> recurrent(static_cast<size_t>(spec.inner() * spec.state));
  const std::vector<int32_t> ids(static_cast<size_t>(rows));
  const Span span{0, 1, 0, static_cast<int32_t>(rows)};
  ops->upload({ids, {&span, 1}});
  for (auto _ : state) {
    ops->mamba2(spec, {conv.data(), recurrent.data()}, in.data(), y.data());
    benchmark::DoNotOptimize(y.data());
  }
  rate(state, 5.0 * static_cast<double>(rows * spec.inner() * spec.state),
       8.0 * static_cast<double>(spec.inner() * spec.state));
}
BENCHMARK(mamba2)
    ->ArgsProduct({{1, 16, 512}, {64}, {64}, {8}, {128}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace cbench::cpu

BENCHMARK_MAIN();
