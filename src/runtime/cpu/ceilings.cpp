// The CPU's ceilings: oneDNN's sgemm, and plain passes over memory.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "runtime/bench.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/linear.h"
#include "runtime/cpu/threads.h"

namespace cbench {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class CpuCeilings final : public Ceilings {
 public:
  double gemm_seconds(int64_t m, int64_t n, int64_t k) override {
    grow(a_, m * k);
    grow(b_, n * k);
    grow(c_, m * n);
    cpu::sgemm_nt(m, n, k, a_.data(), k, b_.data(), c_.data(), n, false);
    const double begin = now();
    cpu::sgemm_nt(m, n, k, a_.data(), k, b_.data(), c_.data(), n, false);
    return now() - begin;
  }

  double read_bandwidth(int64_t bytes) override {
    const int64_t count = std::max<int64_t>(bytes, 1 << 16) / static_cast<int64_t>(sizeof(float));
    grow(a_, count);
    float total = 0;
    const auto pass = [&] {
      cpu::parallel_ranges(count, 4096, [&](int64_t begin, int64_t end) {
        const float part = cpu::kernels().sum(a_.data() + begin, end - begin);
#pragma omp atomic
        total += part;
      });
    };
    pass();  // so that what fits into a cache is there, as a model's weights are
    const double begin = now();
    pass();
    pass();
    const double seconds = (now() - begin) / 2;
    keep_ = total;
    return static_cast<double>(count) * sizeof(float) / seconds;
  }

  double copy_bandwidth(int64_t bytes) override {
    const int64_t count = bytes / 2 / static_cast<int64_t>(sizeof(float));
    grow(a_, count);
    grow(c_, count);
    double seconds = 0;
    for (int round = 0; round < 2; ++round) {
      const double begin = now();
      cpu::parallel_ranges(count, 4096, [&](int64_t first, int64_t end) {
        std::memcpy(c_.data() + first, a_.data() + first,
                    static_cast<size_t>(end - first) * sizeof(float));
      });
      seconds = now() - begin;
    }
    return 2.0 * static_cast<double>(count) * sizeof(float) / seconds;
  }

 private:
  static void grow(std::vector<float>& buffer, int64_t count) {
    if (static_cast<int64_t>(buffer.size()) < count)
      buffer.assign(static_cast<size_t>(count), 0.5f);
  }

  std::vector<float> a_, b_, c_;
  volatile float keep_ = 0;
};

}  // namespace

std::unique_ptr<Ceilings> make_cpu_ceilings() { return std::make_unique<CpuCeilings>(); }

}  // namespace cbench
