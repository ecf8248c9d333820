#include "package/pack.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>

#include "package/expert_tensors.h"
#include "package/manifest.h"
#include "package/safetensors.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kLeastElements = 16384;  // smaller matrices cost more in scales than they save

bool is_embedding(std::string_view name) {
  return name.ends_with("embed_tokens.weight") || name.ends_with("lm_head.weight") ||
         name.ends_with("backbone.embeddings.weight");
}

/// The text model's tensors; others (vision, sound, multi-token prediction) are never read.
bool is_of_text_model(std::string_view name) {
  for (const std::string_view prefix :
       {"model.language_model.", "model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.",
        "backbone.", "language_model.backbone.", "language_model.lm_head."}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

/// The matrices of the model; norms, convolutions, routers and gate projections stay BF16.
bool is_matrix(const Tensor& tensor) {
  const std::string_view name = tensor.name;
  if (tensor.dtype != DType::kBF16) return false;
  if (tensor.shape.size() == 3) return is_stacked_name(name);
  if (tensor.shape.size() != 2 || tensor.elements() < kLeastElements ||
      name.ends_with("in_proj_a.weight") || name.ends_with("in_proj_b.weight")) {
    return false;
  }
  return is_embedding(name) || name.ends_with("_proj.weight") ||
         name.ends_with("in_proj_qkv.weight") || name.ends_with("in_proj_z.weight");
}

/// A tensor as it is, or a matrix: one tensor, or the experts of a layer one behind the other.
struct PackItem {
  std::string name;
  std::vector<const Tensor*> tensors;
  bool matrix = false;

  const Tensor& first() const { return *tensors.front(); }
  int64_t cols() const { return first().shape.back(); }
  int64_t elements() const {
    int64_t sum = 0;
    for (const Tensor* tensor : tensors) sum += tensor->elements();
    return sum;
  }
  int64_t rows() const { return elements() / cols(); }
};

/// Experts that are stored one by one, gathered under the name of their stacked matrix. A stack
/// with a gap, or of unlike tensors, is not one: its tensors stay.
class ExpertStacks {
 public:
  /// False when the tensor is no expert's matrix.
  bool add(const Tensor& tensor) {
    const auto name = parse_expert_tensor(tensor.name);
    if (!name || tensor.shape.size() != 2) return false;
    parts_[name->prefix][name->part][name->expert] = &tensor;
    return true;
  }

  void finish(std::vector<PackItem>& items) const {
    for (const auto& [prefix, parts] : parts_) {
      const bool gated = parts.contains("gate_proj");
      for (const std::string word : {gated ? "gate_up_proj" : "up_proj", "down_proj"}) {
        PackItem item = stacked(prefix + word, parts);
        if (item.matrix) {
          items.push_back(std::move(item));
        } else {
          for (const Tensor* tensor : item.tensors)
            items.push_back({tensor->name, {tensor}, false});
        }
      }
    }
  }

 private:
  using Parts = std::map<std::string, std::map<int64_t, const Tensor*>>;

  static PackItem stacked(const std::string& name, const Parts& parts) {
    PackItem item{name, {}, true};
    std::vector<const std::map<int64_t, const Tensor*>*> columns;
    for (const std::string& part : expert_parts(name)) {
      const auto found = parts.find(part);
      if (found != parts.end()) columns.push_back(&found->second);
      item.matrix &= found != parts.end();
    }
    const auto experts = columns.empty() ? 0 : static_cast<int64_t>(columns.front()->size());
    for (const auto* column : columns) {  // each has all numbers below `experts`
      item.matrix &=
          static_cast<int64_t>(column->size()) == experts && column->rbegin()->first < experts;
    }
    if (!item.matrix) {
      for (const auto* column : columns) {
        for (const auto& [expert, tensor] : *column) item.tensors.push_back(tensor);
      }
      return item;
    }
    for (int64_t expert = 0; expert < experts; ++expert) {
      for (const auto* column : columns) item.tensors.push_back(column->at(expert));
    }
    for (const Tensor* tensor : item.tensors) {
      item.matrix &= tensor->dtype == DType::kBF16 && tensor->shape == item.first().shape;
    }
    return item;
  }

  std::map<std::string, Parts> parts_;
};

/// What goes into a package of this checkpoint.
std::vector<PackItem> pack_items(const TensorStore& store) {
  const auto& tensors = store.tensors();
  const bool filter = std::any_of(tensors.begin(), tensors.end(),
                                  [](const Tensor& t) { return is_of_text_model(t.name); });
  std::vector<PackItem> items;
  ExpertStacks stacks;
  for (const Tensor& tensor : tensors) {
    if (filter && !is_of_text_model(tensor.name)) continue;
    if (!stacks.add(tensor)) items.push_back({tensor.name, {&tensor}, is_matrix(tensor)});
  }
  stacks.finish(items);
  return items;
}

RtnChoice choice_for(const PackItem& item, const PackChoice& choice) {
  RtnChoice own = choice.weights;
  if (choice.embedding_bits != 0 && is_embedding(item.name)) own.bits = choice.embedding_bits;
  return own;
}

bool fits(const PackItem& item, const RtnChoice& choice) {
  return item.matrix && item.elements() > 0 && choice.group > 0 && item.cols() % choice.group == 0;
}

std::string format_name(const RtnChoice& choice) {
  return "rtn" + std::to_string(choice.bits) + "g" + std::to_string(choice.group);
}

/// Collects tensors whose bytes are ours.
class Writer {
 public:
  void add(std::string name, DType dtype, std::vector<int64_t> shape, std::string bytes) {
    const std::string& kept = storage_.emplace_back(std::move(bytes));
    tensors_.push_back({std::move(name), dtype, std::move(shape), kept});
  }
  void keep(const Tensor& tensor) { tensors_.push_back(tensor); }

  void add_rtn(const PackItem& item, const RtnChoice& choice) {
    const int64_t rows = item.rows(), cols = item.cols();
    std::vector<uint16_t> weights(static_cast<size_t>(rows * cols));
    auto* to = reinterpret_cast<char*>(weights.data());
    for (const Tensor* tensor : item.tensors) {
      std::memcpy(to, tensor->bytes.data(), tensor->bytes.size());
      to += tensor->bytes.size();
    }
    RtnMatrix matrix = quantise_rtn(weights, rows, cols, choice);
    const std::vector<int64_t> groups = {rows, cols / choice.group};
    add(item.name + ".q", DType::kU8, {rows, rtn_row_bytes(cols, choice.bits)},
        std::move(matrix.codes));
    add(item.name + ".scale", DType::kBF16, groups, std::move(matrix.scale));
    add(item.name + ".min", DType::kBF16, groups, std::move(matrix.min));
  }

  void write(const std::string& path) const { write_safetensors(path, tensors_); }

 private:
  std::deque<std::string> storage_;
  std::vector<Tensor> tensors_;
};

int64_t file_bytes(const std::string& directory) {
  int64_t sum = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) sum += static_cast<int64_t>(entry.file_size());
  }
  return sum;
}

void require_new(const std::string& out) {
  std::error_code error;
  if (fs::exists(out, error) && !(fs::is_directory(out, error) && fs::is_empty(out, error))) {
    throw UsageError("not_empty", out + " exists and is not empty; name a new directory");
  }
}

}  // namespace

std::string PackChoice::text() const {
  std::string out = std::to_string(weights.bits) + "-bit g" + std::to_string(weights.group);
  if (embedding_bits != 0 && embedding_bits != weights.bits) {
    out = "e" + std::to_string(embedding_bits) + " " + out;
  }
  return weights.fit_mse ? out + " mse" : out;
}

int64_t packed_bytes(const std::string& checkpoint, const PackChoice& choice) {
  const TensorStore store = TensorStore::open_checkpoint(checkpoint);
  auto sum = static_cast<int64_t>(plugin_source(choice.plugin).size());
  for (const PackItem& item : pack_items(store)) {
    const RtnChoice own = choice_for(item, choice);
    const bool quantised = fits(item, own);
    sum += quantised ? rtn_bytes(item.rows(), item.cols(), own)
                     : item.elements() * static_cast<int64_t>(dtype_bits(item.first().dtype)) / 8;
    // The header's entries and the manifest's line.
    const auto entry = static_cast<int64_t>(item.name.size() + 80);
    sum += entry * (quantised ? 4 : static_cast<int64_t>(item.tensors.size()));
  }
  return sum;
}

PackReport pack_checkpoint(const std::string& checkpoint, const std::string& task,
                           const PackChoice& choice, const std::string& out) {
  require_new(out);
  const TensorStore store = TensorStore::open_checkpoint(checkpoint);
  Writer writer;
  PackReport report;
  Json formats = Json::object(), matrices = Json::object();
  for (const PackItem& item : pack_items(store)) {
    const RtnChoice own = choice_for(item, choice);
    if (!fits(item, own)) {
      if (item.matrix) report.skipped.push_back(item.name);
      for (const Tensor* tensor : item.tensors) writer.keep(*tensor);
      report.kept += static_cast<int64_t>(item.tensors.size());
      continue;
    }
    writer.add_rtn(item, own);
    formats[format_name(own)] = {{"bits", own.bits}, {"group", own.group}};
    matrices[item.name] = format_name(own);
    ++report.quantised;
  }
  Json manifest = {{"format", 1}};
  if (!task.empty()) manifest["task"] = task;
  manifest["plugin"] = {{"sources", Json::array({"src/plugin.cpp"})}};
  manifest["formats"] = formats;
  manifest["matrices"] = matrices;
  make_directories(out + "/src");
  writer.write(out + "/weights.safetensors");
  write_file_atomic(out + "/src/plugin.cpp", plugin_source(choice.plugin));
  write_file_atomic(out + "/" + std::string(kManifestName), dump_json(manifest, 1) + "\n");
  report.bytes = file_bytes(out);
  return report;
}

}  // namespace cbench
