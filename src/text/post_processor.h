// Post-processors: the special tokens a file puts around a text, such as a leading <bos>.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "util/json.h"

namespace cbench {

struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

/// ByteLevel (adds nothing), TemplateProcessing (its `single` form), Sequence, null. Throws
/// UsageError "post_processor" for another type.
PostProcessor make_post_processor(const Json& config, std::string_view source);

}  // namespace cbench
