// Weights straight from a checkpoint's plain BF16, F16 or F32 tensors.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "package/safetensors.h"
#include "runtime/model.h"

namespace cbench {

/// BF16 stays as it is. F16 and F32 matrices become fp32 on the CPU, and are rounded to BF16
/// (nearest even) on CUDA. The store must outlive the source, not the model. Throws UsageError
/// "missing_tensor", "shape" or "dtype", naming the tensor.
class CheckpointSource final : public WeightSource {
 public:
  /// Without a `memory`, all on the device.
  CheckpointSource(Ops& ops, const TensorStore& store,
                   std::shared_ptr<WeightMemory> memory = nullptr)
      : ops_(ops),
        store_(store),
        memory_(memory ? std::move(memory) : std::make_shared<WeightMemory>(ops)) {}

  Linear matrix(const std::string& name, int64_t rows, int64_t cols, Category category) override;
  Projection projection(std::span<const std::string> names, std::span<const int64_t> rows,
                        int64_t cols) override;
  ExpertLinear experts(const std::string& name, std::span<const int64_t> kept, int64_t rows,
                       int64_t cols) override;
  const float* vector(const std::string& name, std::span<const int64_t> shape, float add) override;
  std::vector<float> host_vector(const std::string& name, std::span<const int64_t> shape) override;
  bool has(const std::string& name) const override { return store_.find(name) != nullptr; }
  std::shared_ptr<WeightMemory> memory() override { return memory_; }

 private:
  const Tensor& require(const std::string& name, std::span<const int64_t> shape) const;
  /// Tensors of one stored type, one behind the other.
  struct Placed {
    const void* bf16 = nullptr;
    const float* f32 = nullptr;
  };
  Placed place(std::span<const Tensor* const> tensors, Category category, const std::string& name);
  Linear stack(std::span<const Tensor* const> tensors, int64_t cols, Category category);

  Ops& ops_;
  const TensorStore& store_;
  std::shared_ptr<WeightMemory> memory_;
};

/// The values of a BF16, F16, F32 or F64 tensor; UsageError "dtype" for others.
std::vector<float> tensor_floats(const Tensor& tensor);

/// Nearest BF16, ties to even; NaN stays NaN.
uint16_t to_bf16(float value);

}  // namespace cbench
