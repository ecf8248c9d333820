// v<N>.json: a version to text and back.
#pragma once

#include <string>
#include <string_view>

#include "package/versions.h"

namespace cbench {

std::string version_to_json(const Version& version);

/// Throws InvalidError "version_corrupt" for anything that version_to_json does not write: the file
/// is ours, so a wrong one means damage, and its paths are never followed out of a directory.
Version version_from_json(std::string_view text, const std::string& source);

}  // namespace cbench
