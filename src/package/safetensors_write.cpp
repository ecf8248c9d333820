// The writing half of safetensors.h.
#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "package/atomic_file.h"
#include "package/safetensors.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(std::string_view code, const Tensor& tensor, const std::string& what) {
  throw UsageError(code, "cannot write tensor \"" + printable(tensor.name) + "\": " + what);
}

void check_tensor(const Tensor& tensor) {
  if (!is_utf8(tensor.name)) refuse("utf8", tensor, "its name is not valid UTF-8");
  if (tensor.name == "__metadata__") refuse("metadata", tensor, "the name is reserved");
  uint64_t bits = static_cast<uint64_t>(dtype_bits(tensor.dtype));
  for (const int64_t dim : tensor.shape) {
    if (dim < 0 || __builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits)) {
      refuse("overflow", tensor, "its shape is negative or too large");
    }
  }
  if (bits % 8 != 0 || bits / 8 != tensor.bytes.size()) {
    refuse("size_mismatch", tensor,
           "dtype and shape need " + std::to_string(bits / 8) + " bytes, it has " +
               std::to_string(tensor.bytes.size()));
  }
}

/// Falling element size keeps every tensor aligned to its element without padding between them.
std::vector<const Tensor*> file_order(std::span<const Tensor> tensors) {
  std::vector<const Tensor*> order;
  order.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    check_tensor(tensor);
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    const int bits_a = dtype_bits(a->dtype);
    const int bits_b = dtype_bits(b->dtype);
    return bits_a != bits_b ? bits_a > bits_b : a->name < b->name;
  });
  std::vector<std::string_view> names;
  for (const Tensor* tensor : order) names.push_back(tensor->name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    throw UsageError("duplicate_tensor",
                     "cannot write two tensors named \"" + printable(*twice) + "\"");
  }
  return order;
}

/// One `"name":{...}` member; the header is joined from text, since a JSON object of a million
/// members would cost far more than the header itself.
std::string member(const std::string& name, const Json& value) {
  return Json(name).dump() + ":" + value.dump();
}

std::string header_text(const std::vector<const Tensor*>& order,
                        const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    for (const auto& [key, value] : metadata) {
      if (!is_utf8(key) || !is_utf8(value)) {
        throw UsageError("utf8", "cannot write metadata that is not valid UTF-8");
      }
    }
    header += member("__metadata__", Json(metadata));
  }
  uint64_t offset = 0;
  for (const Tensor* tensor : order) {
    if (header.size() > 1) header += ',';
    const uint64_t end = offset + tensor->bytes.size();
    header += member(tensor->name, Json{{"dtype", dtype_name(tensor->dtype)},
                                        {"shape", tensor->shape},
                                        {"data_offsets", {offset, end}}});
    offset = end;
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const Tensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<const Tensor*> order = file_order(tensors);
  const std::string header = header_text(order, metadata);
  if (header.size() > kMaxSafetensorsHeader) {
    throw UsageError("header_too_large", path + ": the header would take " +
                                             std::to_string(header.size()) +
                                             " bytes; write fewer tensors per file");
  }
  AtomicFile file(path);
  const uint64_t size = header.size();
  char prefix[8];
  std::memcpy(prefix, &size, sizeof prefix);
  file.write({prefix, sizeof prefix});
  file.write(header);
  for (const Tensor* tensor : order) file.write(tensor->bytes);
  file.commit();
}

}  // namespace cbench
