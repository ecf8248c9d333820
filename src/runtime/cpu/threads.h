// Parallel loops of the CPU backend over the OpenMP pool that oneDNN shares.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>

#include <omp.h>

namespace cbench::cpu {

/// Fixed at the first call, since scratch is planned for it: a plugin may change OpenMP's own
/// number.
inline int thread_count() {
  static const int count = omp_get_max_threads();
  return count;
}

/// body(begin, end) on contiguous ranges of [0, n), one per thread, cut at multiples of `grain`.
/// Small loops (below two grains) stay on the calling thread.
template <typename Body>
void parallel_ranges(int64_t n, int64_t grain, Body&& body) {
  const int64_t pieces = (n + grain - 1) / grain;
  const int64_t threads = std::min<int64_t>(thread_count(), pieces);
  if (threads <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    const int64_t id = omp_get_thread_num(), count = omp_get_num_threads();
    const int64_t begin = std::min(n, pieces * id / count * grain);
    const int64_t end = std::min(n, pieces * (id + 1) / count * grain);
    if (begin < end) body(begin, end);
  }
}

/// Below about this many floating-point operations a fork costs more than it saves.
inline constexpr int64_t kForkFlops = 100'000;

/// body(task, thread) for every task in [0, n), handed out one at a time; `flops` is what all of
/// them take together, roughly.
template <typename Body>
void parallel_tasks(int64_t n, int64_t flops, Body&& body) {
  if (n == 1 || flops < kForkFlops || thread_count() == 1) {
    for (int64_t task = 0; task < n; ++task) body(task, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(thread_count())
  for (int64_t task = 0; task < n; ++task) body(task, omp_get_thread_num());
}

}  // namespace cbench::cpu
