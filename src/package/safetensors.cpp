#include "package/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>

#include "package/safetensors_header.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

struct DTypeInfo {
  const char* name;
  int bits;
};

/// In the order of DType.
constexpr std::array<DTypeInfo, 22> kDTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

[[noreturn]] void refuse(std::string_view source, std::string_view code, const std::string& what) {
  throw UsageError(code, std::string(source) + ": not a usable safetensors file: " + what);
}

/// What a file really is when its first bytes are text: common accidents of downloads.
std::string accident_hint(std::string_view file) {
  if (file.starts_with("version https://git-lfs")) {
    return "; this is a Git LFS pointer, not the weights: fetch the file itself (git lfs pull)";
  }
  if (file.starts_with("<!") || file.starts_with("<html") || file.starts_with("<HTML")) {
    return "; this is an HTML page, not the weights: download the file again";
  }
  return "";
}

std::string_view header_of(std::string_view file, std::string_view source) {
  if (file.size() < 8) {
    refuse(source, "header_too_small",
           "it has " + std::to_string(file.size()) + " bytes, fewer than the 8 of the length");
  }
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<unsigned char>(file[i]);
  if (size > kMaxSafetensorsHeader) {
    refuse(source, "header_too_large",
           "its header claims " + std::to_string(size) + " bytes, at most " +
               std::to_string(kMaxSafetensorsHeader) + " are allowed" + accident_hint(file));
  }
  if (size > file.size() - 8) {
    refuse(source, "header_past_eof",
           "its header claims " + std::to_string(size) + " bytes, " +
               std::to_string(file.size() - 8) + " follow: truncated?");
  }
  return file.substr(8, size);
}

/// The data must be covered exactly once, without holes, to the last byte.
void check_coverage(std::vector<TensorEntry>& entries, uint64_t data_size,
                    std::string_view source) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t expected = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != expected) {
      refuse(source, entry.begin < expected ? "overlap" : "hole",
             "tensor \"" + printable(entry.name) + "\" starts at byte " +
                 std::to_string(entry.begin) + " where " + std::to_string(expected) +
                 " was expected");
    }
    expected = entry.end;
  }
  if (expected != data_size) {
    refuse(source, expected < data_size ? "trailing_bytes" : "truncated",
           "its tensors take " + std::to_string(expected) + " bytes, the file has " +
               std::to_string(data_size) + " after the header");
  }
}

}  // namespace

const char* dtype_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

int dtype_bits(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bits; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim == 0) return 0;
  }
  for (const int64_t dim : shape) count *= dim;
  return count;
}

namespace {

/// Non-finite means that all exponent bits are set, in every one of the IEEE formats.
template <typename Word>
uint64_t count_full_exponents(std::string_view bytes, Word exponent) {
  uint64_t count = 0;
  for (size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    count += (word & exponent) == exponent ? 1 : 0;
  }
  return count;
}

}  // namespace

uint64_t count_non_finite(const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF16:
      return count_full_exponents<uint16_t>(tensor.bytes, 0x7c00);
    case DType::kBF16:
      return count_full_exponents<uint16_t>(tensor.bytes, 0x7f80);
    case DType::kF32:
      return count_full_exponents<uint32_t>(tensor.bytes, 0x7f800000);
    case DType::kF64:
      return count_full_exponents<uint64_t>(tensor.bytes, 0x7ff0000000000000);
    default:
      return 0;
  }
}

ParsedTensors parse_safetensors(std::string_view file, std::string_view source) {
  static_assert(std::endian::native == std::endian::little, "tensors are little endian");
  const std::string_view header = header_of(file, source);
  const std::string_view data = file.substr(8 + header.size());
  SafetensorsHeader parsed = parse_safetensors_header(header, source);
  check_coverage(parsed.entries, data.size(), source);

  ParsedTensors out;
  out.metadata = std::move(parsed.metadata);
  out.tensors.reserve(parsed.entries.size());
  for (TensorEntry& entry : parsed.entries) {
    out.tensors.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                           data.substr(entry.begin, entry.end - entry.begin)});
  }
  return out;
}

TensorFile::TensorFile(const std::string& path) : TensorFile(open_regular(path), path) {}

TensorFile::TensorFile(const Fd& fd, std::string_view source)
    : map_(fd, source), parsed_(parse_safetensors(map_.bytes(), source)) {}

}  // namespace cbench
