// The CUDA backend: runtime/ops.h on one GPU of compute capability 9.0.
//
// Two ways through every op. A step (each span has one row) of a single sequence runs the fused
// GEMV kernels; everything else runs cuBLASLt products with one algorithm per shape, chosen
// separately for steps of several sequences and for prefill. A row's values therefore depend on
// which of the three it went through, but not on what else was in the batch.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "attention.h"
#include "batch.h"
#include "delta.h"
#include "experts.h"
#include "gemm.h"
#include "memory.h"
#include "runtime/ops.h"
#include "staging.h"

namespace cbench::cuda {

/// Thrown inside record() by work that needs the host to read device memory.
struct NotRecordable {};

class CudaOps : public Ops {
 public:
  explicit CudaOps(int device);
  ~CudaOps() override;

  std::string device_name() const override { return name_; }
  bool is_cuda() const override { return true; }
  DeviceFacts facts() const override { return facts_; }
  int64_t activation_bytes() const override { return 2; }
  Arena& arena() override { return arena_; }
  void* stream() override { return stream_; }

  void copy_in(void* to, const void* host, size_t bytes) override;
  void copy_out(void* host, const void* from, size_t bytes) override;
  void zero(void* to, size_t bytes) override;
  void synchronize() override;
  void warm_up() override;
  void reserve(const Capacity& limits, const OpsPlan& plan) override;
  std::unique_ptr<Slots> make_slots(size_t count, size_t bytes) override;
  void trim() override;

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
  /// Where a product goes.
  struct Target {
    void* y = nullptr;
    int64_t stride = 0;
    bool fp32 = false;
    bool accumulate = false;
  };
  bool single_step(int64_t rows) const { return step_ && rows == 1; }
  void multiply(const void* x, int64_t rows, const Linear& w, const Target& target);
  void multiply_stored(const void* x, int64_t rows, int64_t n, int64_t k, const void* w,
                       const Target& target);
  void multiply_plugin(const void* x, int64_t rows, const Linear& w, const Target& target);
  bool plugin_matmul(const void* x, int64_t rows, const Linear& w, const Target& target);
  void embed_plugin(const Linear& table, void* y);
  const void* normalized(const void* x, const Norm* norm, int64_t rows, int64_t width);
  bool gate_up_step(const void* x, const Norm* norm, const Projection& w, Activation activation,
                    void* y);
  struct ExpertWork;
  void experts_of_rows(const ExpertsSpec& spec, const Routing& routing, const void* x, int64_t rows,
                       void* y);
  void multiply_experts(ExpertWork& work, const ExpertLinear& w, const ExpertProduct& product,
                        Activation activation);
  void sort_once(ExpertWork& work);
  bool plugin_experts(ExpertWork& work, const ExpertLinear& w, const ExpertProduct& product,
                      Activation activation);
  void dequantized_experts(ExpertWork& work, const ExpertLinear& w, ExpertProduct product);
  void abandon_capture();
  size_t scratch_bytes(const Capacity& c, const OpsPlan& plan);

  int device_;
  std::string name_;
  DeviceFacts facts_;
  DeviceMemory memory_;
  Arena arena_{memory_};
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<Staging> staging_;  ///< from the first large copy or warm_up() on
  Workspace scratch_;
  size_t panel_bytes_ = 0;      ///< for dequantized rows
  size_t temporary_bytes_ = 0;  ///< for rows of an intermediate product
  BatchStage stage_;
  DeviceBatch batch_;
  bool step_ = false;
  bool capturing_ = false;
  std::vector<int32_t> host_ids_;  ///< empty once the ids have moved on the device
  int32_t* indices_ = nullptr;
  unsigned* arrived_ = nullptr;                       ///< a counter that kernels leave at 0
  std::list<std::vector<int32_t>> captured_indices_;  ///< host memory that a recorded copy reads
};

/// Scratch of CudaOps::experts for up to `tokens` rows.
size_t experts_scratch_bytes(const ExpertsSpec& spec, int64_t tokens);

}  // namespace cbench::cuda
