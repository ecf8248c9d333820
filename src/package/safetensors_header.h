// The JSON header of a safetensors file: from untrusted bytes to checked entries.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "package/safetensors.h"

namespace cbench {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  ///< byte range in the data; end - begin is what dtype and shape need
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  ///< in the order of the header; names unique
  TensorMetadata metadata;
};

/// Checks everything that the header alone can tell; whether the ranges cover the data is the
/// caller's part. Streams, so that a 100 MB header costs seconds and little more than its tensors.
SafetensorsHeader parse_safetensors_header(std::string_view header, std::string_view source);

}  // namespace cbench
