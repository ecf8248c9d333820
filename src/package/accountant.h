// The disk accountant: how many bytes a package takes, by class, against a limit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "package/tree.h"

namespace cbench {

enum class FileClass { kWeights, kCode, kTokenizer, kManifest, kOther };
inline constexpr size_t kFileClasses = 5;

const char* file_class_name(FileClass file_class);  ///< "weights", "code", ...
FileClass classify_file(std::string_view path);     ///< by name only; every byte counts anyway

struct DiskReport {
  struct ClassTotal {
    uint64_t bytes = 0;
    uint64_t files = 0;
  };
  std::array<ClassTotal, kFileClasses> classes{};  ///< indexed by FileClass
  uint64_t bytes = 0;       ///< sum of the sizes over all paths: what counts against the limit
  uint64_t allocated = 0;   ///< blocks on disk, beside it: holes make it smaller
  uint64_t path_bytes = 0;  ///< bytes of the paths themselves, beside it
  std::optional<uint64_t> limit;
  bool over = false;
  /// One line for people: "3.21 MiB of 3.00 MiB: 215.04 KiB over; largest: weights.safetensors ..."
  std::string explanation;
};

DiskReport account_disk(const PackageTree& tree, std::optional<uint64_t> limit = std::nullopt);

}  // namespace cbench
