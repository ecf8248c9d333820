// Which file names are accepted from an untrusted tree.
#pragma once

#include <string>
#include <string_view>

namespace cbench {

/// Why one path component is refused, as the end of a sentence; "" when it is fine.
std::string bad_name_reason(std::string_view name);

/// True for a relative path that stays inside its directory: acceptable components, single slashes.
bool is_plain_path(std::string_view path);

}  // namespace cbench
