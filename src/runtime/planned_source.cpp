// Weights that are not there.
#include "runtime/planned_source.h"

#include <algorithm>

namespace cbench {
namespace {

/// Of a plugin nobody calls but for its workspace.
constexpr cb_plugin kNobody = {
    .abi = CB_ABI_VERSION,
    .size = sizeof(cb_plugin),
    .workspace = [](void* m, int64_t) { return *static_cast<size_t*>(m); },
    .transform = [](void*, const void*, int64_t, void*, cb_stream) -> int { return CB_ERROR; },
};
constexpr float kNothing = 0;

}  // namespace

const PluginMatrix* PlannedSource::planned(const std::string& name, int64_t rows, int64_t cols,
                                           int64_t experts) {
  const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(cols) * 2;
  workspaces_.push_back(std::make_unique<size_t>(std::min(bytes, kPluginWorkspace)));
  matrices_.push_back(
      std::make_unique<PluginMatrix>(kNobody, workspaces_.back().get(), name, rows, cols, experts));
  return matrices_.back().get();
}

Linear PlannedSource::matrix(const std::string& name, int64_t rows, int64_t cols, Category) {
  Linear linear;
  linear.rows = rows;
  linear.cols = cols;
  if (const auto factored = low_rank_.find(name); factored != low_rank_.end()) {
    auto inner = std::make_shared<Linear>();
    inner->rows = linear.cols = factored->second;
    inner->cols = cols;
    inner->plugin = planned(name + ".B", inner->rows, inner->cols, 1);
    linear.low_rank_b = std::move(inner);
  }
  linear.plugin = planned(name, linear.rows, linear.cols, 1);
  return linear;
}

Projection PlannedSource::projection(std::span<const std::string> names,
                                     std::span<const int64_t> rows, int64_t cols) {
  Projection projection;
  for (size_t i = 0; i < names.size(); ++i) {
    projection.parts.push_back(matrix(names[i], rows[i], cols, Category::kWeights));
  }
  return projection;
}

ExpertLinear PlannedSource::experts(const std::string& name, std::span<const int64_t> kept,
                                    int64_t rows, int64_t cols) {
  const auto count = static_cast<int64_t>(kept.size());
  return {count, rows, cols, nullptr, nullptr, planned(name, rows, cols, count)};
}

const float* PlannedSource::vector(const std::string&, std::span<const int64_t>, float) {
  return &kNothing;
}

std::vector<float> PlannedSource::host_vector(const std::string&, std::span<const int64_t> shape) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return std::vector<float>(count);
}

}  // namespace cbench
