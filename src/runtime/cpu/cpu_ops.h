// The CPU backend: the op families of this folder behind the Ops interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/cpu/attention.h"
#include "runtime/cpu/batch.h"
#include "runtime/cpu/experts.h"
#include "runtime/cpu/linear.h"
#include "runtime/ops.h"

namespace cbench::cpu {

class CpuOps final : public Ops {
 public:
  CpuOps() : arena_(host_memory()) {}

  std::string device_name() const override;
  bool is_cuda() const override { return false; }
  DeviceFacts facts() const override;
  int64_t activation_bytes() const override { return sizeof(float); }
  Arena& arena() override { return arena_; }
  void* stream() override { return nullptr; }

  void copy_in(void* to, const void* host, size_t bytes) override;
  void copy_out(void* host, const void* from, size_t bytes) override;
  void zero(void* to, size_t bytes) override;
  void synchronize() override {}
  void warm_up() override;
  void reserve(const Capacity& limits, const OpsPlan& plan) override;
  void trim() override {}

  void upload(const Batch& batch) override;
  void advance_greedy(const float* logits, int64_t vocab) override;
  void read_ids(std::span<int32_t> ids) override;
  std::unique_ptr<Replay> record(std::function<void()> work) override;

  void embed(const Linear& table, float scale, void* y) override;
  void rms_norm(const void* x, const Norm& norm, int64_t rows, int64_t width, void* y) override;
  void project(const void* x, const Norm* norm, int64_t rows, const Projection& w,
               void* y) override;
  void project_add(const void* x, int64_t rows, const Linear& w, void* residual) override;
  void gate_up(const void* x, const Norm* norm, int64_t rows, const Projection& w,
               Activation activation, void* y) override;
  void route(const RouterSpec& spec, const void* x, int64_t rows, int64_t width,
             const Routing& routing) override;
  void experts(const ExpertsSpec& spec, const Routing& routing, const void* x, int64_t rows,
               void* y) override;
  void add_normed(const void* y, const Norm* norm, int64_t rows, int64_t width, float scale,
                  void* residual) override;
  void add_gated(const void* y, const void* x, const float* gate, int64_t rows, int64_t width,
                 void* residual) override;
  void attention(const AttentionSpec& spec, const KvCache& cache, const void* qkv,
                 void* y) override;
  void delta_net(const DeltaNetSpec& spec, const DeltaNetState& state, const void* in,
                 void* y) override;
  void mamba2(const Mamba2Spec& spec, const Mamba2State& state, const void* in, void* y) override;
  void gather_rows(const void* x, std::span<const int32_t> rows, int64_t width, void* y) override;
  void add_bias(void* y, int64_t rows, int64_t width, const float* bias) override;
  void lm_head(const void* x, const Norm& norm, int64_t rows, const Linear& w, float softcap,
               float* logits) override;

 private:
  /// norm(x) in the workspace, or x itself without a norm.
  const float* normed(const void* x, const Norm* norm, int64_t rows, int64_t width);

  /// The table of `rope`, up to date; an empty one without rotation.
  const RotaryTable& rotary(const Rope& rope);
  void positions_changed();

  Arena arena_;
  CurrentBatch batch_;
  LinearScratch linear_;
  ExpertsScratch experts_;
  ThreadScratch threads_;
  std::vector<RotaryTable> rotary_;  ///< one per kind of rotation in the model, after an empty one
  float* normed_ = nullptr;          ///< [tokens, widest input]
  float* up_ = nullptr;              ///< [up_floats_] the up half of a gated MLP, panel by panel
  int64_t up_floats_ = 0;
  float* convolved_ = nullptr;  ///< [tokens, widest Mamba 2 convolution]
};

}  // namespace cbench::cpu
