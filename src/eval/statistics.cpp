#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "util/random.h"

namespace cbench {
namespace {

void require_pairs(std::span<const BlockNll> a, std::span<const BlockNll> b) {
  if (a.size() != b.size() || a.empty()) throw std::logic_error("log_f: blocks do not pair up");
}

}  // namespace

double perplexity(std::span<const BlockNll> blocks) {
  double sum = 0;
  int64_t tokens = 0;
  for (const BlockNll& block : blocks) {
    sum += block.sum;
    tokens += block.tokens;
  }
  return std::exp(sum / static_cast<double>(tokens));
}

double log_f(std::span<const BlockNll> reference, std::span<const BlockNll> candidate) {
  require_pairs(reference, candidate);
  double difference = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    difference += reference[i].sum - candidate[i].sum;
    tokens += candidate[i].tokens;
  }
  return difference / static_cast<double>(tokens);
}

Interval bootstrap_log_f(std::span<const BlockNll> reference, std::span<const BlockNll> candidate,
                         uint64_t seed, int resamples) {
  require_pairs(reference, candidate);
  Random random(seed);
  std::vector<double> values;
  values.reserve(static_cast<size_t>(resamples));
  for (int r = 0; r < resamples; ++r) {
    double difference = 0;
    int64_t tokens = 0;
    for (size_t i = 0; i < reference.size(); ++i) {
      const size_t k = random.below(reference.size());
      difference += reference[k].sum - candidate[k].sum;
      tokens += candidate[k].tokens;
    }
    values.push_back(difference / static_cast<double>(tokens));
  }
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    const double position = q * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(position);
    const size_t above = std::min(below + 1, values.size() - 1);
    const double part = position - static_cast<double>(below);
    return values[below] + part * (values[above] - values[below]);
  };
  return {at(0.025), at(0.975)};
}

double median(std::vector<double> values) {
  if (values.empty()) throw std::logic_error("median of nothing");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace cbench
