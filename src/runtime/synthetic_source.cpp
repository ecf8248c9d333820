// Random weights of a model's shapes.
#include "runtime/synthetic_source.h"

#include <algorithm>
#include <cmath>

#include "runtime/checkpoint_source.h"
#include "util/random.h"

namespace cbench {
namespace {

constexpr size_t kBlock = (1 << 20) - 3;  // not a multiple of usual widths: rows differ

}  // namespace

SyntheticSource::SyntheticSource(Ops& ops, std::shared_ptr<WeightMemory> memory)
    : ops_(ops),
      memory_(memory ? std::move(memory) : std::make_shared<WeightMemory>(ops)),
      block_(kBlock) {
  Random random(1);
  for (float& value : block_) value = static_cast<float>(2 * random.uniform() - 1);
}

Linear SyntheticSource::matrix(const std::string& name, int64_t rows, int64_t cols,
                               Category category) {
  Linear linear;
  linear.rows = rows;
  linear.cols = cols;
  const size_t count = static_cast<size_t>(rows * cols);
  auto* data = static_cast<uint16_t*>(memory_->allocate(count * sizeof(uint16_t), category, name));
  linear.bf16 = data;
  std::vector<uint16_t> block(block_.size());
  const float scale = std::sqrt(3.0f / static_cast<float>(cols));
  for (size_t i = 0; i < block.size(); ++i) block[i] = to_bf16(block_[i] * scale);
  for (size_t first = 0; first < count; first += block.size()) {
    const size_t size = std::min(block.size(), count - first);
    memory_->write(data + first, block.data(), size * sizeof(uint16_t));
  }
  return linear;
}

Projection SyntheticSource::projection(std::span<const std::string> names,
                                       std::span<const int64_t> rows, int64_t cols) {
  int64_t total = 0;
  for (const int64_t count : rows) total += count;
  return {{matrix(names.front(), total, cols, Category::kWeights)}};
}

ExpertLinear SyntheticSource::experts(const std::string& name, std::span<const int64_t> kept,
                                      int64_t rows, int64_t cols) {
  const auto count = static_cast<int64_t>(kept.size());
  const Linear all = matrix(name, count * rows, cols, Category::kWeights);
  return {count, rows, cols, all.bf16, all.f32, nullptr};
}

const float* SyntheticSource::vector(const std::string& name, std::span<const int64_t> shape,
                                     float add) {
  std::vector<float> values = host_vector(name, shape);
  for (float& value : values) value += add;
  auto* data = ops_.arena().allocate<float>(values.size(), Category::kMetadata, name);
  ops_.copy_in(data, values.data(), values.size() * sizeof(float));
  return data;
}

std::vector<float> SyntheticSource::host_vector(const std::string& name,
                                                std::span<const int64_t> shape) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  // Norms and scales multiply; layer after layer near zero would leave nothing to measure.
  const bool norm =
      name.find("norm") != std::string::npos || name.find("scal") != std::string::npos;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = (norm ? 1.0f : 0.0f) + block_[i % kBlock] * 0.1f;
  return values;
}

}  // namespace cbench
