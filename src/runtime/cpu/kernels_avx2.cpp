// The kernels for avx2; flags in src/CMakeLists.txt.
#if defined(__AVX2__)
#define CBENCH_KERNELS kAvx2Kernels
#define CBENCH_KERNELS_NAME "avx2"
#include "runtime/cpu/kernels.inc"
#endif
