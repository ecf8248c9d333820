// Random weights of a model's shapes, for measurements that need no checkpoint.
#pragma once

#include <string>
#include <vector>

#include "runtime/model.h"

namespace cbench {

/// BF16 matrices with deviation about 1 / sqrt(cols), vectors near zero (norms near one). The
/// values come from a block of random numbers laid end to end, so that large models are filled
/// quickly.
class SyntheticSource final : public WeightSource {
 public:
  /// Without a `memory`, all on the device.
  explicit SyntheticSource(Ops& ops, std::shared_ptr<WeightMemory> memory = nullptr);

  Linear matrix(const std::string& name, int64_t rows, int64_t cols, Category category) override;
  Projection projection(std::span<const std::string> names, std::span<const int64_t> rows,
                        int64_t cols) override;
  ExpertLinear experts(const std::string& name, std::span<const int64_t> kept, int64_t rows,
                       int64_t cols) override;
  const float* vector(const std::string& name, std::span<const int64_t> shape, float add) override;
  std::vector<float> host_vector(const std::string& name, std::span<const int64_t> shape) override;
  bool has(const std::string&) const override { return true; }
  std::shared_ptr<WeightMemory> memory() override { return memory_; }

 private:
  Ops& ops_;
  std::shared_ptr<WeightMemory> memory_;
  std::vector<float> block_;  ///< uniform in [-1, 1)
};

}  // namespace cbench
