// Weights that are not there: a model bound to them takes the caches, activations and workspace
// that the same model with weights would take, and nothing else. How much that is can then be said
// before a byte of a submission is read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model.h"
#include "runtime/plugin_matrix.h"

namespace cbench {

/// Every matrix is as a plugin would serve it, so that the panels for dequantized rows are planned
/// too. A plugin's own workspace is allowed to the bytes of the matrix in BF16, at most
/// kPluginWorkspace. Never run a model bound to this.
class PlannedSource final : public WeightSource {
 public:
  static constexpr size_t kPluginWorkspace = size_t{64} << 20;
  /// Matrix name -> rank of its two factors.
  explicit PlannedSource(std::map<std::string, int64_t> low_rank)
      : low_rank_(std::move(low_rank)) {}

  Linear matrix(const std::string& name, int64_t rows, int64_t cols, Category category) override;
  Projection projection(std::span<const std::string> names, std::span<const int64_t> rows,
                        int64_t cols) override;
  ExpertLinear experts(const std::string& name, std::span<const int64_t> kept, int64_t rows,
                       int64_t cols) override;
  const float* vector(const std::string& name, std::span<const int64_t> shape, float add) override;
  std::vector<float> host_vector(const std::string& name, std::span<const int64_t> shape) override;
  bool has(const std::string&) const override { return true; }

 private:
  const PluginMatrix* planned(const std::string& name, int64_t rows, int64_t cols, int64_t experts);

  std::map<std::string, int64_t> low_rank_;
  std::vector<std::unique_ptr<size_t>> workspaces_;  ///< what each matrix's plugin may take
  std::vector<std::unique_ptr<PluginMatrix>> matrices_;
};

}  // namespace cbench
