// Shared pieces of the graders.
#include "eval/grading/grade.h"

#include <string>
#include <utility>

#include "util/error.h"

namespace cbench {

std::string_view after_thinking(std::string_view text) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text.substr(first).starts_with(kOpen)) {
    const size_t close = text.find(kClose, first);
    return close == std::string_view::npos ? "" : text.substr(close + kClose.size());
  }
  const size_t close = text.rfind(kClose);
  return close == std::string_view::npos ? text : text.substr(close + kClose.size());
}

bool passes_gate(int64_t candidate_correct, int64_t candidate_total, int64_t reference_correct,
                 int64_t reference_total, int64_t num, int64_t den) {
  if (candidate_total <= 0 || reference_total <= 0 || num < 0 || den <= 0) return false;
  if (candidate_correct < 0 || candidate_correct > candidate_total) return false;
  if (reference_correct < 0 || reference_correct > reference_total) return false;
  __extension__ typedef __int128 Wide;
  const auto product = [](int64_t a, int64_t b, int64_t c, Wide& out) {
    const Wide first = static_cast<Wide>(a) * b;
    return !__builtin_mul_overflow(first, static_cast<Wide>(c), &out);
  };
  Wide left = 0, right = 0;
  return product(candidate_correct, reference_total, den, left) &&
         product(reference_correct, candidate_total, num, right) && left >= right;
}

double pass_at_k(int64_t n, int64_t c, int64_t k) {
  if (c < 0 || n < c || k < 1 || k > n) {
    throw UsageError("passk",
                     "pass@k needs 0 <= c <= n and 1 <= k <= n, not n=" + std::to_string(n) +
                         " c=" + std::to_string(c) + " k=" + std::to_string(k));
  }
  if (n - c < k) return 1.0;
  // C(n-c, k) / C(n, k) = prod over i in (n-c, n] of (i - k) / i: exact while it fits.
  __extension__ typedef __int128 Wide;
  Wide top = 1, bottom = 1;
  double none_passes = 1.0;
  bool exact = true;
  for (int64_t i = n - c + 1; i <= n; ++i) {
    none_passes *= static_cast<double>(i - k) / static_cast<double>(i);
    exact = exact && !__builtin_mul_overflow(top, static_cast<Wide>(i - k), &top) &&
            !__builtin_mul_overflow(bottom, static_cast<Wide>(i), &bottom);
    if (!exact) continue;
    Wide a = top, b = bottom;
    while (b != 0) a = std::exchange(b, a % b);
    top /= a;
    bottom /= a;
  }
  if (!exact) return 1.0 - none_passes;
  return static_cast<double>(bottom - top) / static_cast<double>(bottom);
}

}  // namespace cbench
