#include "engine/weights.h"

#include "util/error.h"

namespace cbench {

PackageWeights::PackageWeights(Ops& ops, const TensorStore& tensors, const Manifest& manifest,
                               Plugin* plugin, std::shared_ptr<WeightMemory> memory)
    : tensors_(tensors),
      manifest_(manifest),
      plugin_(plugin),
      plain_(ops, tensors, std::move(memory)) {}

bool PackageWeights::is_plain(const std::string& name) const {
  return manifest_.parameters_of(name) == nullptr && !manifest_.graph.low_rank.contains(name);
}

bool PackageWeights::has(const std::string& name) const {
  return !is_plain(name) || tensors_.find(name) != nullptr;
}

Linear PackageWeights::factor(const std::string& name, int64_t rows, int64_t cols,
                              Category category) {
  const std::string* params = manifest_.parameters_of(name);
  if (params == nullptr) return plain_.matrix(name, rows, cols, category);
  Linear linear;
  linear.rows = rows;
  linear.cols = cols;
  linear.plugin = from_plugin({name.c_str(), rows, cols, 1, params->c_str()}, category);
  return linear;
}

const PluginMatrix* PackageWeights::from_plugin(const cb_matrix& matrix, Category category) {
  if (plugin_ == nullptr) {
    throw Error(Exit::kGateFailed, "plugin_missing",
                "the manifest gives " + std::string(matrix.name) +
                    " to a plugin, but the package has none");
  }
  plugin_matrices_.push_back(plugin_->load(matrix, category));
  return plugin_matrices_.back().get();
}

ExpertLinear PackageWeights::experts(const std::string& name, std::span<const int64_t> kept,
                                     int64_t rows, int64_t cols) {
  const std::string* params = manifest_.parameters_of(name);
  if (params == nullptr) return plain_.experts(name, kept, rows, cols);
  ExpertLinear linear;
  linear.experts = static_cast<int64_t>(kept.size());
  linear.rows = rows;
  linear.cols = cols;
  linear.plugin =
      from_plugin({name.c_str(), rows, cols, linear.experts, params->c_str()}, Category::kWeights);
  return linear;
}

Linear PackageWeights::matrix(const std::string& name, int64_t rows, int64_t cols,
                              Category category) {
  if (const auto found = loaded_.find(name); found != loaded_.end()) return found->second;
  Linear linear;
  const auto low_rank = manifest_.graph.low_rank.find(name);
  if (low_rank == manifest_.graph.low_rank.end()) {
    linear = factor(name, rows, cols, category);
  } else {
    const int64_t rank = low_rank->second;
    linear = factor(name + ".A", rows, rank, category);
    linear.low_rank_b = std::make_shared<Linear>(factor(name + ".B", rank, cols, category));
  }
  loaded_.emplace(name, linear);
  return linear;
}

Projection PackageWeights::projection(std::span<const std::string> names,
                                      std::span<const int64_t> rows, int64_t cols) {
  bool all_plain = true;
  for (const std::string& name : names) all_plain &= is_plain(name);
  if (all_plain) return plain_.projection(names, rows, cols);
  Projection projection;
  for (size_t i = 0; i < names.size(); ++i) {
    projection.parts.push_back(matrix(names[i], rows[i], cols, Category::kWeights));
  }
  return projection;
}

const float* PackageWeights::vector(const std::string& name, std::span<const int64_t> shape,
                                    float add) {
  return plain_.vector(name, shape, add);
}

std::vector<float> PackageWeights::host_vector(const std::string& name,
                                               std::span<const int64_t> shape) {
  return plain_.host_vector(name, shape);
}

}  // namespace cbench
