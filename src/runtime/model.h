// A model ready to run: a list of blocks bound to weights, and its caches. One visitor runs it over
// packed batches; a step is a batch whose sequences have one row each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "runtime/ops.h"
#include "runtime/weight_memory.h"

namespace cbench {

/// Where a model's tensors come from: a checkpoint, or a package with its plugin. Implemented by
/// the engine (engine/weights.h) and by tests.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The matrix `name` [rows, cols] placed in the arena (BF16) or served by a plugin; low-rank
  /// factors are resolved here. Throws Error ("missing_tensor", "shape") naming it.
  virtual Linear matrix(const std::string& name, int64_t rows, int64_t cols, Category category) = 0;
  /// Like matrix() for several that share an input: adjacent BF16 ones become one contiguous part.
  virtual Projection projection(std::span<const std::string> names, std::span<const int64_t> rows,
                                int64_t cols) = 0;
  /// The matrices [rows, cols] of the experts `kept` (source ids, rising), one behind the other.
  /// `name` is the stacked matrix's canonical name (docs/package.md), whatever the layout on disk.
  virtual ExpertLinear experts(const std::string& name, std::span<const int64_t> kept, int64_t rows,
                               int64_t cols) = 0;
  /// A small tensor as fp32 on the device, plus `add` to each element. Any float dtype; exact
  /// shape.
  virtual const float* vector(const std::string& name, std::span<const int64_t> shape,
                              float add) = 0;
  /// The same on the host.
  virtual std::vector<float> host_vector(const std::string& name,
                                         std::span<const int64_t> shape) = 0;
  virtual bool has(const std::string& name) const = 0;
  /// Where the matrices of blocks are put, if some may stream; the model keeps it.
  virtual std::shared_ptr<WeightMemory> memory() { return nullptr; }
};

class Model {
 public:
  /// Binds every block of `config` to its weights, allocates caches and activations for `limits`,
  /// and plans the workspace.
  Model(Ops& ops, const ModelConfig& config, WeightSource& weights, const Capacity& limits);
  ~Model();

  const ModelConfig& config() const;
  const Capacity& limits() const;

  /// Runs the batch through all blocks. The final hidden rows stay on the device until the next
  /// call. Throws UsageError ("batch") if it exceeds the limits or a span does not continue its
  /// slot.
  void forward(const Batch& batch);
  /// logits [rows.size(), vocab] fp32 of the given rows of the last forward, at most logits_rows of
  /// them, written to `out` (device memory of the backend, or host memory on the CPU).
  void logits(std::span<const int32_t> rows, float* out);

  /// Greedy decoding of one sequence: its last token is `first` at position `start` of `slot`;
  /// calls `token` with each of up to `count` new ids as soon as it is known; stops early if it
  /// returns false. The same values as forward + logits + argmax, from one recorded step.
  void generate(int32_t slot, int32_t first, int32_t start, int64_t count,
                const std::function<bool(int32_t)>& token);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cbench
