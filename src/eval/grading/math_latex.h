// The string layer of the MATH grader: one spelling for each LaTeX answer, and its parts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

/// The content of the last \boxed{...} or \fbox{...}; nullopt if there is none or the last one does
/// not end.
std::optional<std::string> last_box(std::string_view text);

/// Removes what carries no meaning (spacing, \left, degrees, currency, percent, units in a trailing
/// \text), unwraps \text, braces every argument. Nesting beyond 32 gives the text back as it came.
std::string latex_canonical(std::string_view text);

/// Splits at `separator` where no bracket is open.
std::vector<std::string> split_top_level(std::string_view text, std::string_view separator);

}  // namespace cbench
