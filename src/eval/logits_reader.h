// What the evaluator computes from raw logits, in its own process: log-probabilities, argmax,
// samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cbench {

/// One row of logits reduced against its target.
struct RowScore {
  double log_probability = 0;  ///< natural log of softmax(row)[target]
  int32_t argmax = 0;          ///< lowest index among the largest
  float target_gap = 0;        ///< largest logit minus the target's logit, >= 0
  bool finite = false;         ///< every logit of the row is finite
};

/// rows [n, vocab] fp32 in host memory; targets[i] in [0, vocab). Log-sum-exp with the maximum
/// taken out, the sum in double, in index order: the same row gives the same bits anywhere.
void score_rows(const float* rows, int64_t n, int64_t vocab, std::span<const int32_t> targets,
                std::span<RowScore> out);

/// For each row the index that the inverse CDF of softmax(row / temperature) assigns to uniform[i]
/// in [0, 1); -1 if the row has a non-finite logit.
std::vector<int32_t> sample_rows(const float* rows, int64_t n, int64_t vocab, double temperature,
                                 std::span<const double> uniform);

/// For each row the lowest index of its largest logit; -1 if the row has a non-finite logit.
std::vector<int32_t> argmax_rows(const float* rows, int64_t n, int64_t vocab);

}  // namespace cbench
