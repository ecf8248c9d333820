#include "eval/blocks.h"

#include <cstring>

#include "package/safetensors.h"
#include "util/error.h"
#include "util/json.h"
#include "util/units.h"

namespace cbench {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw UsageError("blocks", path + ": not a set of likelihood blocks: " + why +
                                 "; make it anew with cbench reference");
}

}  // namespace

void write_blocks(const std::string& path, const Blocks& blocks) {
  std::vector<int32_t> flat;
  for (const auto& block : blocks.ids) flat.insert(flat.end(), block.begin(), block.end());
  Tensor tensor;
  tensor.name = "ids";
  tensor.dtype = DType::kI32;
  tensor.shape = {static_cast<int64_t>(blocks.ids.size()), blocks.length()};
  tensor.bytes = {reinterpret_cast<const char*>(flat.data()), flat.size() * sizeof(int32_t)};
  write_safetensors(path, {&tensor, 1},
                    {{"context", std::to_string(blocks.context)},
                     {"documents", dump_json(Json(blocks.documents))}});
}

Blocks read_blocks(const std::string& path, int64_t vocab) {
  const TensorFile file(path);
  if (file.tensors().size() != 1) refuse(path, "expected one tensor");
  const Tensor& tensor = file.tensors()[0];
  if (tensor.name != "ids" || tensor.dtype != DType::kI32 || tensor.shape.size() != 2) {
    refuse(path, "expected ids I32 [blocks, length]");
  }
  Blocks blocks;
  for (const auto& [key, value] : file.metadata()) {
    double number = 0;
    if (key == "context" && parse_decimal(value, number)) {
      blocks.context = static_cast<int64_t>(number);
    }
    if (key == "documents") {
      for (const Json& id : parse_json(value, path)) {
        if (!id.is_string()) refuse(path, "documents must be strings");
        blocks.documents.push_back(id.get<std::string>());
      }
    }
  }
  const int64_t length = tensor.shape[1];
  if (blocks.context < 1 || blocks.context >= length) refuse(path, "context out of range");
  blocks.continuation = length - blocks.context;
  for (int64_t b = 0; b < tensor.shape[0]; ++b) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    std::memcpy(ids.data(), tensor.bytes.data() + static_cast<size_t>(b * length) * sizeof(int32_t),
                ids.size() * sizeof(int32_t));
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab) refuse(path, "a token id outside the vocabulary");
    }
    blocks.ids.push_back(std::move(ids));
  }
  if (blocks.ids.empty()) refuse(path, "no blocks");
  return blocks;
}

}  // namespace cbench
