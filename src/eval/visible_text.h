// The text that a task shows its agent, as one stream: what hidden items must not occur in.
#pragma once

#include <functional>
#include <string_view>

#include "task/contract.h"

namespace cbench {

/// Calls `use` with every text of the visible data: the strings of JSON and JSON-lines files (also
/// compressed), other text files in pieces that overlap. Files that hold no text (NUL bytes in the
/// beginning, PDF) and links are passed over.
void each_visible_text(const Contract& contract, const std::function<void(std::string_view)>& use);

}  // namespace cbench
