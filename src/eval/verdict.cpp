#include "eval/verdict.h"

#include <cmath>

namespace cbench {

const char* status_name(Status status) {
  switch (status) {
    case Status::kScored:
      return "scored";
    case Status::kGateFailed:
      return "gate_failed";
    case Status::kInvalid:
      return "invalid";
  }
  return "invalid";
}

Exit Verdict::exit_code() const {
  switch (status) {
    case Status::kScored:
      return Exit::kOk;
    case Status::kGateFailed:
      return Exit::kGateFailed;
    case Status::kInvalid:
      return Exit::kInvalid;
  }
  return Exit::kInvalid;
}

namespace {

double mean_of(const std::vector<BenchmarkResult>& benchmarks, int64_t BenchmarkResult::*right,
               int64_t BenchmarkResult::*total) {
  double sum = 0;
  for (const BenchmarkResult& b : benchmarks) {
    if (b.*total > 0) sum += static_cast<double>(b.*right) / static_cast<double>(b.*total);
  }
  return benchmarks.empty() ? 0 : sum / static_cast<double>(benchmarks.size());
}

}  // namespace

double AccuracyResult::mean() const {
  return mean_of(benchmarks, &BenchmarkResult::right, &BenchmarkResult::total);
}

double AccuracyResult::reference_mean() const {
  return mean_of(benchmarks, &BenchmarkResult::reference_right, &BenchmarkResult::reference_total);
}

}  // namespace cbench
