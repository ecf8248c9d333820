#include "package/pack.h"

#include <cstring>
#include <deque>
#include <filesystem>

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
  return name.ends_with("embed_tokens.weight") || name.ends_with("lm_head.weight");
}

/// The matrices of the model; norms, convolutions, routers and gate projections stay BF16.
bool is_matrix(const Tensor& tensor) {
  const std::string_view name = tensor.name;
  if (tensor.dtype != DType::kBF16 || tensor.shape.size() != 2) return false;
  if (tensor.elements() < kLeastElements || name.ends_with("in_proj_a.weight") ||
      name.ends_with("in_proj_b.weight")) {
    return false;
  }
  return is_embedding(name) || name.ends_with("_proj.weight") ||
         name.ends_with("in_proj_qkv.weight") || name.ends_with("in_proj_z.weight");
}

RtnChoice choice_for(const Tensor& tensor, const PackChoice& choice) {
  RtnChoice own = choice.weights;
  if (choice.embedding_bits != 0 && is_embedding(tensor.name)) own.bits = choice.embedding_bits;
  return own;
}

bool fits(const Tensor& tensor, const RtnChoice& choice) {
  return choice.group > 0 && tensor.shape[1] % choice.group == 0;
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

  void add_rtn(const Tensor& tensor, const RtnChoice& choice) {
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    std::vector<uint16_t> weights(static_cast<size_t>(rows * cols));
    std::memcpy(weights.data(), tensor.bytes.data(), tensor.bytes.size());
    RtnMatrix matrix = quantise_rtn(weights, rows, cols, choice);
    const std::vector<int64_t> groups = {rows, cols / choice.group};
    add(tensor.name + ".q", DType::kU8, {rows, rtn_row_bytes(cols, choice.bits)},
        std::move(matrix.codes));
    add(tensor.name + ".scale", DType::kBF16, groups, std::move(matrix.scale));
    add(tensor.name + ".min", DType::kBF16, groups, std::move(matrix.min));
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
  for (const Tensor& tensor : store.tensors()) {
    const RtnChoice own = choice_for(tensor, choice);
    const bool quantised = is_matrix(tensor) && fits(tensor, own);
    sum += quantised ? rtn_bytes(tensor.shape[0], tensor.shape[1], own)
                     : static_cast<int64_t>(tensor.bytes.size());
    // The header's entries and the manifest's line.
    sum += static_cast<int64_t>(tensor.name.size() + 80) * (quantised ? 4 : 1);
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
  for (const Tensor& tensor : store.tensors()) {
    const RtnChoice own = choice_for(tensor, choice);
    if (!is_matrix(tensor) || !fits(tensor, own)) {
      if (is_matrix(tensor)) report.skipped.push_back(tensor.name);
      writer.keep(tensor);
      ++report.kept;
      continue;
    }
    writer.add_rtn(tensor, own);
    formats[format_name(own)] = {{"bits", own.bits}, {"group", own.group}};
    matrices[tensor.name] = format_name(own);
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
