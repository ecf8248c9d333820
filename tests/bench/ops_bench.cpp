// Google Benchmark of the CPU's kernels and matrix products at a tiny and a medium model's shapes.
//
//     ninja bench_ops && tests/bench/bench_ops --benchmark_filter=gemm
#include <vector>

#include <benchmark/benchmark.h>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/linear.h"
#include "runtime/ops.h"

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

}  // namespace
}  // namespace cbench::cpu

BENCHMARK_MAIN();
