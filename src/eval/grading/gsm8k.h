// GSM8K: the "final number" rule with exact decimals. docs/grading.md gives its reasons.
#pragma once

#include <string_view>

#include "eval/grading/grade.h"

namespace cbench {

/// `gold` is the number alone ("1,450,000"). Throws UsageError ("gold") when it is not a number.
Grade grade_gsm8k(std::string_view text, std::string_view gold);

/// The gold number of a solution text: what stands behind its one "#### ". Throws UsageError
/// ("gold") if there is not exactly one anchor with a number.
std::string gsm8k_gold(std::string_view solution);

}  // namespace cbench
