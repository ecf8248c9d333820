// Text inside markup: what HTML and XML documents of ours quote.
#pragma once

#include <string>
#include <string_view>

namespace cbench {

/// `text` with & < > " as entities, for element content and double-quoted attributes.
std::string escape_markup(std::string_view text);

}  // namespace cbench
