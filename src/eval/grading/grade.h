// What every grader returns, the bound on answers, and the accuracy gate. Rules: docs/grading.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cbench {

struct Grade {
  bool right = false;
  std::string extracted;  ///< the answer the rule found in the text; "" if none
  std::string reason;     ///< a stable word: "equal", "different", "no_number", "too_long", ...
};

/// Longer answers are wrong unread: no token budget of a benchmark reaches this.
inline constexpr size_t kMaxAnswerBytes = 1u << 20;

/// Text after the thinking part: a leading <think> block ends at its first </think> (unterminated:
/// nothing is left); elsewhere, everything up to the last </think> is dropped.
std::string_view after_thinking(std::string_view text);

/// candidate/candidate_total >= num/den * reference/reference_total, in integers (inclusive).
/// False when a total is not positive, a count is negative or above its total.
bool passes_gate(int64_t candidate_correct, int64_t candidate_total, int64_t reference_correct,
                 int64_t reference_total, int64_t num = 4, int64_t den = 5);

/// The unbiased estimator 1 - C(n-c, k) / C(n, k) (Chen et al. 2021). Throws UsageError ("passk")
/// unless 0 <= c <= n and 1 <= k <= n.
double pass_at_k(int64_t n, int64_t c, int64_t k);

}  // namespace cbench
