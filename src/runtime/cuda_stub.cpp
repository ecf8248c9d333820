// make_cuda_ops() of a build without CUDA.
#ifndef CBENCH_HAVE_CUDA
#include "runtime/ops.h"
#include "util/error.h"

namespace cbench {

std::unique_ptr<Ops> make_cuda_ops(int) {
  throw EnvironmentError("no_cuda",
                         "this build of cbench has no CUDA backend; install the CUDA Toolkit and "
                         "build again, or run on the CPU");
}

}  // namespace cbench
#endif
