#include "engine/logits_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "engine/shared_logits.h"

namespace cbench {
namespace {

struct RowTop {
  float value = -std::numeric_limits<float>::infinity();
  int32_t index = 0;
  bool finite = true;
};

RowTop top_of(const float* row, int64_t vocab) {
  // x - x is 0 for finite x and NaN otherwise, so one sum finds any NaN or infinity without
  // branches.
  float residue = 0;
  float largest = row[0];
#pragma omp simd reduction(+ : residue) reduction(max : largest)
  for (int64_t i = 0; i < vocab; ++i) {
    residue += row[i] - row[i];
    largest = row[i] > largest ? row[i] : largest;
  }
  RowTop top;
  top.finite = residue == 0;
  if (!top.finite) return top;
  top.value = largest;
  while (top.index + 1 < vocab && row[top.index] != largest) ++top.index;
  return top;
}

/// Sum over the row of exp((x - top) * scale), in double and in index order.
double exp_sum(const float* row, int64_t vocab, float top, float scale) {
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp((row[i] - top) * scale);
  return sum;
}

RowScore score_row(const std::vector<float>& row, int32_t target_index) {
  const auto vocab = static_cast<int64_t>(row.size());
  const RowTop top = top_of(row.data(), vocab);
  RowScore score;
  score.finite = top.finite;
  score.argmax = top.index;
  if (!top.finite) return score;
  const float target = row[static_cast<size_t>(target_index)];
  score.target_gap = top.value - target;
  score.log_probability =
      static_cast<double>(target) - top.value - std::log(exp_sum(row.data(), vocab, top.value, 1));
  return score;
}

class HostReader : public LogitsReader {
 public:
  void score(const float* rows, int64_t n, int64_t vocab, std::span<const int32_t> targets,
             std::span<RowScore> out) override;
  std::vector<int32_t> sample(const float* rows, int64_t n, int64_t vocab, double temperature,
                              std::span<const double> uniform) override;
  std::vector<int32_t> argmax(const float* rows, int64_t n, int64_t vocab) override;
};

void HostReader::score(const float* rows, int64_t n, int64_t vocab,
                       std::span<const int32_t> targets, std::span<RowScore> out) {
#pragma omp parallel
  {
    // Scored on a copy: the engine can still write to what it shares, and a row that changed
    // between the two passes would have any probability.
    std::vector<float> row(static_cast<size_t>(vocab));
#pragma omp for schedule(static)
    for (int64_t r = 0; r < n; ++r) {
      std::copy_n(rows + r * vocab, vocab, row.begin());
      out[static_cast<size_t>(r)] = score_row(row, targets[static_cast<size_t>(r)]);
    }
  }
}

std::vector<int32_t> HostReader::sample(const float* rows, int64_t n, int64_t vocab,
                                        double temperature, std::span<const double> uniform) {
  std::vector<int32_t> out(static_cast<size_t>(n), -1);
  const auto scale = static_cast<float>(1 / temperature);
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < n; ++r) {
    const float* row = rows + r * vocab;
    const RowTop top = top_of(row, vocab);
    if (!top.finite) continue;
    const double threshold =
        uniform[static_cast<size_t>(r)] * exp_sum(row, vocab, top.value, scale);
    double sum = 0;
    int32_t chosen = top.index;  // rounding may leave the sum just below the threshold
    for (int64_t i = 0; i < vocab; ++i) {
      sum += std::exp((row[i] - top.value) * scale);
      if (sum > threshold) {
        chosen = static_cast<int32_t>(i);
        break;
      }
    }
    out[static_cast<size_t>(r)] = chosen;
  }
  return out;
}

std::vector<int32_t> HostReader::argmax(const float* rows, int64_t n, int64_t vocab) {
  std::vector<int32_t> out(static_cast<size_t>(n), -1);
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < n; ++r) {
    const RowTop top = top_of(rows + r * vocab, vocab);
    if (top.finite) out[static_cast<size_t>(r)] = top.index;
  }
  return out;
}

}  // namespace

std::unique_ptr<LogitsReader> make_host_logits_reader() { return std::make_unique<HostReader>(); }

std::unique_ptr<LogitsReader> make_logits_reader(const SharedLogits& logits) {
  return std::string_view(logits.kind()) == "cuda" ? make_cuda_logits_reader(0)
                                                   : make_host_logits_reader();
}

}  // namespace cbench
