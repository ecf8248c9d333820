// What the evaluator computes from logits in its own process: log-probability of the target, greedy
// choice, finiteness, and samples at temperature 1. Rows are fp32 and as long as the vocabulary.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace cbench::cuda {

struct RowScore {
  float logprob;   ///< of the target, natural logarithm; NaN if the row is not finite
  int32_t argmax;  ///< lowest id of the largest logit
  int32_t finite;  ///< 1 if every logit of the row is finite
  float
      target_gap;  ///< largest logit minus the target's, >= 0; 0 without a target or if not finite
};
/// scores[i] of logits row i against targets[i]; all device memory. A target < 0 gives logprob 0.
/// One pass over the row in fp32; sums in a fixed order.
void score_rows(const float* logits, const int32_t* targets, int64_t rows, int64_t vocab,
                RowScore* scores, cudaStream_t stream);

/// ids[i] = the smallest id whose cumulative softmax of logits row i exceeds uniforms[i] in [0, 1):
/// the inverse of the distribution function, summed in double in ascending order of 1,024 fixed
/// parts.
void sample_rows(const float* logits, const double* uniforms, int64_t rows, int64_t vocab,
                 int32_t* ids, cudaStream_t stream);

}  // namespace cbench::cuda
