#include "eval/verdict.h"

#include <cmath>
#include <numeric>

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

bool passes_mean_gate(const std::vector<BenchmarkResult>& benchmarks, int64_t num, int64_t den) {
  __extension__ using Wide = __int128;  // totals are at most 100,000 and three benchmarks exist
  int64_t common = 1;
  for (const BenchmarkResult& b : benchmarks) {
    if (b.total <= 0 || b.reference_total <= 0 || b.right < 0 || b.right > b.total ||
        b.reference_right < 0 || b.reference_right > b.reference_total) {
      return false;
    }
    common = std::lcm(common, std::lcm(b.total, b.reference_total));
  }
  Wide candidate = 0, reference = 0;
  for (const BenchmarkResult& b : benchmarks) {
    candidate += Wide{b.right} * (common / b.total);
    reference += Wide{b.reference_right} * (common / b.reference_total);
  }
  return !benchmarks.empty() && den * candidate >= num * reference;
}

double AccuracyResult::mean() const {
  return mean_of(benchmarks, &BenchmarkResult::right, &BenchmarkResult::total);
}

double AccuracyResult::reference_mean() const {
  return mean_of(benchmarks, &BenchmarkResult::reference_right, &BenchmarkResult::reference_total);
}

}  // namespace cbench
