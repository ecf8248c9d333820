// What the evaluator computes from raw logits, in its own process: log-probabilities, argmax,
// samples. One interface; the rows lie where the engine's logits cross the border, in host or
// device memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace cbench {

class SharedLogits;

/// One row of logits reduced against its target.
struct RowScore {
  double log_probability = 0;  ///< natural log of softmax(row)[target]
  int32_t argmax = 0;          ///< lowest index among the largest
  float target_gap = 0;        ///< largest logit minus the target's logit, >= 0
  bool finite = false;         ///< every logit of the row is finite
};

/// Reads rows [n, vocab] fp32. A row's results depend on that row alone: the same row gives the
/// same bits wherever it stands. Results are complete when a call returns.
class LogitsReader {
 public:
  virtual ~LogitsReader() = default;

  /// targets[i] in [0, vocab); out[i] is about row i.
  virtual void score(const float* rows, int64_t n, int64_t vocab, std::span<const int32_t> targets,
                     std::span<RowScore> out) = 0;
  /// For each row the index that the inverse CDF of softmax(row / temperature) assigns to
  /// uniform[i] in [0, 1); -1 if the row has a non-finite logit.
  virtual std::vector<int32_t> sample(const float* rows, int64_t n, int64_t vocab,
                                      double temperature, std::span<const double> uniform) = 0;
  /// For each row the lowest index of its largest logit; -1 if the row has a non-finite logit.
  virtual std::vector<int32_t> argmax(const float* rows, int64_t n, int64_t vocab) = 0;
};

/// The reader for where `logits` lies.
std::unique_ptr<LogitsReader> make_logits_reader(const SharedLogits& logits);

/// Host memory: log-sum-exp with the maximum taken out, the sum in double, in index order.
std::unique_ptr<LogitsReader> make_host_logits_reader();
/// Memory of GPU `device`, by kernels/nll.h. Throws EnvironmentError ("no_cuda") in a build without
/// CUDA.
std::unique_ptr<LogitsReader> make_cuda_logits_reader(int device);

}  // namespace cbench
