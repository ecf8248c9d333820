// TensorStore (safetensors.h): checkpoints with their index, packages with several weight files.
#include <algorithm>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "package/safetensors.h"
#include "package/tree.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 256u << 20;

struct Index {
  std::map<std::string, std::string> shard_of;  ///< tensor -> file
  std::optional<uint64_t> total_size;
};

[[noreturn]] void refuse(std::string_view source, std::string_view code, const std::string& what) {
  throw UsageError(code, std::string(source) + ": " + what);
}

/// A file name in the same directory and nothing else.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && is_utf8(name) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

Index parse_index(std::string_view text, const std::string& source) {
  const SortedJson json = parse_sorted_json(text, source, {.max_bytes = kMaxIndexBytes});
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    refuse(source, "index_type", "the index needs an object \"weight_map\"");
  }
  Index index;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      refuse(source, "index_type", "\"" + printable(tensor) + "\" must map to a file name");
    }
    const auto& name = shard.get_ref<const std::string&>();
    if (!is_plain_name(name)) {
      refuse(source, "index_path",
             "\"" + printable(tensor) + "\" maps to \"" + printable(name) +
                 "\"; only plain names of files beside the index are allowed");
    }
    index.shard_of.emplace_hint(index.shard_of.end(), tensor, name);
  }
  const auto metadata = json.find("metadata");
  if (metadata != json.end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");
    if (total != metadata->end() && total->is_number_unsigned()) {
      index.total_size = total->get<uint64_t>();
    }
  }
  return index;
}

/// Both directions: what the index names is there, what is there is named, in that very shard.
void check_index(const Index& index, const std::string& shard, std::span<const Tensor> tensors,
                 const std::string& source) {
  std::set<std::string_view> present;
  for (const Tensor& tensor : tensors) {
    present.insert(tensor.name);
    const auto listed = index.shard_of.find(tensor.name);
    if (listed == index.shard_of.end() || listed->second != shard) {
      refuse(source, "index_tensor_unlisted",
             shard + " holds tensor \"" + printable(tensor.name) +
                 "\", which the index does not place there");
    }
  }
  for (const auto& [tensor, file] : index.shard_of) {
    if (file == shard && present.count(tensor) == 0) {
      refuse(source, "index_tensor_absent",
             "the index places tensor \"" + printable(tensor) + "\" in " + shard +
                 ", which does not hold it");
    }
  }
}

bool is_weights_file(std::string_view path) {
  return path.starts_with("weights") && path.ends_with(".safetensors") &&
         path.find('/') == std::string_view::npos;
}

MappedFile map_file(const PackageTree& tree, const TreeFile& file) {
  return MappedFile(tree.open(file), file.path);
}

}  // namespace

void TensorStore::add_file(const std::string& name, MappedFile map) {
  ParsedTensors parsed = parse_safetensors(map.bytes(), name);
  maps_.push_back(std::move(map));
  files_.push_back(name);
  std::move(parsed.tensors.begin(), parsed.tensors.end(), std::back_inserter(tensors_));
}

void TensorStore::sort_unique() {
  const auto by_name = [](const Tensor& a, const Tensor& b) { return a.name < b.name; };
  std::sort(tensors_.begin(), tensors_.end(), by_name);
  const auto twice =
      std::adjacent_find(tensors_.begin(), tensors_.end(),
                         [](const Tensor& a, const Tensor& b) { return a.name == b.name; });
  if (twice != tensors_.end()) {
    throw UsageError("duplicate_tensor", "tensor \"" + printable(twice->name) +
                                             "\" is in two weight files; keep it in one of them");
  }
}

/// `open(name)` gives the mapped shard, or nothing when there is no such file.
template <typename Open>
TensorStore TensorStore::open_index(std::string_view text, const std::string& source, Open open) {
  const Index index = parse_index(text, source);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index.shard_of) shards.insert(shard);

  TensorStore store;
  uint64_t total = 0;
  for (const std::string& shard : shards) {
    std::optional<MappedFile> map = open(shard);
    if (!map) {
      refuse(source, "index_missing_shard",
             "the index names " + printable(shard) + ", which is not there: fetch it");
    }
    const size_t first = store.tensors_.size();
    store.add_file(shard, std::move(*map));
    const std::span<const Tensor> added = std::span(store.tensors_).subspan(first);
    check_index(index, shard, added, source);
    for (const Tensor& tensor : added) total += tensor.bytes.size();
  }
  if (index.total_size && *index.total_size != total) {
    store.warnings_.push_back(source + ": total_size says " + std::to_string(*index.total_size) +
                              " bytes, the shards hold " + std::to_string(total));
  }
  store.sort_unique();
  return store;
}

TensorStore TensorStore::open_checkpoint(const std::string& dir) {
  const auto in_dir = [&](std::string_view name) { return dir + "/" + std::string(name); };
  const auto open = [&](std::string_view name) -> std::optional<MappedFile> {
    if (!std::filesystem::exists(in_dir(name))) return std::nullopt;
    return MappedFile(in_dir(name));
  };
  if (const std::optional<MappedFile> index = open(kIndexName)) {
    return open_index(index->bytes(), in_dir(kIndexName), open);
  }
  std::optional<MappedFile> single = open(kSingleName);
  if (!single) {
    throw UsageError("no_weights", dir + " has neither " + std::string(kIndexName) + " nor " +
                                       std::string(kSingleName));
  }
  TensorStore store;
  store.add_file(in_dir(kSingleName), std::move(*single));
  store.sort_unique();
  return store;
}

TensorStore TensorStore::open_checkpoint(const PackageTree& tree) {
  const auto open = [&](std::string_view name) -> std::optional<MappedFile> {
    const TreeFile* file = tree.find(name);
    if (file == nullptr) return std::nullopt;
    return map_file(tree, *file);
  };
  if (const TreeFile* index = tree.find(kIndexName)) {
    return open_index(tree.read(*index, kMaxIndexBytes), std::string(kIndexName), open);
  }
  std::optional<MappedFile> single = open(kSingleName);
  if (!single) {
    throw UsageError("no_weights", tree.root() + " has neither cbench.json nor " +
                                       std::string(kIndexName) + " nor " +
                                       std::string(kSingleName));
  }
  TensorStore store;
  store.add_file(std::string(kSingleName), std::move(*single));
  store.sort_unique();
  return store;
}

TensorStore TensorStore::open_package(const PackageTree& tree) {
  TensorStore store;
  for (const TreeFile& file : tree.files()) {
    if (is_weights_file(file.path)) store.add_file(file.path, map_file(tree, file));
  }
  store.sort_unique();
  return store;
}

const Tensor* TensorStore::find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const Tensor& tensor, std::string_view key) { return tensor.name < key; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

}  // namespace cbench
