// Picks the kernels' instruction set.
#include "runtime/cpu/kernels.h"

#include <vector>

namespace cbench::cpu {

#if defined(CBENCH_X86_KERNELS)
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx2Kernels;
#endif
extern const Kernels kGenericKernels;

std::span<const Kernels* const> runnable_kernels() {
  static const std::vector<const Kernels*> sets = [] {
    std::vector<const Kernels*> found;
#if defined(CBENCH_X86_KERNELS)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
      found.push_back(&kAvx512Kernels);
    }
    if (avx2) found.push_back(&kAvx2Kernels);
#endif
    found.push_back(&kGenericKernels);
    return found;
  }();
  return sets;
}

const Kernels& kernels() {
  static const Kernels& best = *runnable_kernels().front();
  return best;
}

}  // namespace cbench::cpu
