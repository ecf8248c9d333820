// Exact values of small expressions: sums of rational multiples of square roots and symbols.
#pragma once

#include <string_view>

namespace cbench {

/// Whether both canonical LaTeX expressions (math_latex.h) have the same exact value: rationals,
/// + - * / ^, \frac, \sqrt, \pi, single-letter symbols, implicit products, mixed numbers. False
/// when either cannot be read or grows beyond its bounds (128-bit integers, 200 terms, depth 32).
bool same_value(std::string_view a, std::string_view b);

}  // namespace cbench
