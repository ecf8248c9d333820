// What the backends share, and the answer of a build without CUDA.
#include "runtime/ops.h"

#include "util/error.h"

namespace cbench {

int64_t Projection::rows() const {
  int64_t total = 0;
  for (const Linear& part : parts) total += part.rows;
  return total;
}

#if !defined(CBENCH_HAVE_CUDA)
std::unique_ptr<Ops> make_cuda_ops(int) {
  throw EnvironmentError("no_cuda", "this cbench was built without CUDA; use --device cpu");
}
#endif

}  // namespace cbench
