// The statistics of a verdict: perplexity, the paired bootstrap over blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cbench {

/// Negative log-likelihood of one block's continuation, in nats.
struct BlockNll {
  double sum = 0;
  int64_t tokens = 0;
};

struct Interval {
  double low = 0;
  double high = 0;
};

/// exp of the token-weighted mean, summed in block order.
double perplexity(std::span<const BlockNll> blocks);

/// ln F = (sum of reference NLL - sum of candidate NLL) / tokens, over the same blocks: minus the
/// excess cross-entropy. F = PPL_reference / PPL_candidate.
double log_f(std::span<const BlockNll> reference, std::span<const BlockNll> candidate);

/// 95 % percentile interval of ln F from a paired bootstrap over blocks (Efron and Tibshirani 1993,
/// chapter 13), `resamples` seeded resamples. One block gives a degenerate interval.
Interval bootstrap_log_f(std::span<const BlockNll> reference, std::span<const BlockNll> candidate,
                         uint64_t seed, int resamples = 2000);

/// Median of the values (mean of the middle two for an even count); values must not be empty.
double median(std::vector<double> values);

}  // namespace cbench
