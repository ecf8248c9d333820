// The kernels for generic (whatever the build's base instruction set is); flags in
// src/CMakeLists.txt.
#define CBENCH_KERNELS kGenericKernels
#define CBENCH_KERNELS_NAME "generic"
#include "runtime/cpu/kernels.inc"
