// A package as a source of weights: plain BF16 tensors, plugin matrices, low-rank factors.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/plugin.h"
#include "package/manifest.h"
#include "package/safetensors.h"
#include "runtime/checkpoint_source.h"
#include "runtime/model.h"

namespace cbench {

class PackageWeights : public WeightSource {
 public:
  /// `plugin` may be null when the manifest gives no matrix to one. All must outlive this object.
  /// `memory` as of CheckpointSource, for what is plain.
  PackageWeights(Ops& ops, const TensorStore& tensors, const Manifest& manifest, Plugin* plugin,
                 std::shared_ptr<WeightMemory> memory = nullptr);

  Linear matrix(const std::string& name, int64_t rows, int64_t cols, Category category) override;
  Projection projection(std::span<const std::string> names, std::span<const int64_t> rows,
                        int64_t cols) override;
  ExpertLinear experts(const std::string& name, std::span<const int64_t> kept, int64_t rows,
                       int64_t cols) override;
  const float* vector(const std::string& name, std::span<const int64_t> shape, float add) override;
  std::vector<float> host_vector(const std::string& name, std::span<const int64_t> shape) override;
  bool has(const std::string& name) const override;
  std::shared_ptr<WeightMemory> memory() override { return plain_.memory(); }

 private:
  bool is_plain(const std::string& name) const;
  Linear factor(const std::string& name, int64_t rows, int64_t cols, Category category);
  const PluginMatrix* from_plugin(const cb_matrix& matrix, Category category);

  const TensorStore& tensors_;
  const Manifest& manifest_;
  Plugin* plugin_;
  CheckpointSource plain_;
  std::map<std::string, Linear> loaded_;  // a tied embedding is asked for twice
  std::vector<std::unique_ptr<PluginMatrix>> plugin_matrices_;
};

}  // namespace cbench
