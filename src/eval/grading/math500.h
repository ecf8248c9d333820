// MATH-500: the last box, a string layer for LaTeX spelling, exact arithmetic for values.
#pragma once

#include <string>
#include <string_view>

#include "eval/grading/grade.h"

namespace cbench {

/// `gold` is the bare LaTeX answer ("\frac{14}{3}").
Grade grade_math500(std::string_view text, std::string_view gold);

/// Whether two bare LaTeX answers are the same by the rule of docs/grading.md.
bool math_equal(std::string_view answer, std::string_view gold);

}  // namespace cbench
