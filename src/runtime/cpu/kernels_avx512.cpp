// The kernels for avx512; flags in src/CMakeLists.txt.
#if defined(__AVX512F__)
#define CBENCH_KERNELS kAvx512Kernels
#define CBENCH_KERNELS_NAME "avx512"
#include "runtime/cpu/kernels.inc"
#endif
