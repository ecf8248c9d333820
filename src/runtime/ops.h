// The ops that a model is made of, once per backend (runtime/cpu, kernels/). Model code calls these
// and never knows the backend. The CPU version of each op is its reference.
//
// Conventions
//  - `act` is the activation type: float on the CPU, BF16 on CUDA (see activation_bytes()). Matrix
//    products take act operands and accumulate in fp32; norms, gates, softmax, recurrences and
//    states are fp32 inside.
//  - T rows are the tokens of a packed batch: sequences one after another, none padded. An op that
//    needs sequence structure reads the batch given to upload().
//  - Ops never allocate: scratch comes from the workspace planned by reserve().
//  - Pointers are device pointers of this backend unless the comment says host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/arena.h"

namespace cbench {

class PluginMatrix;

/// A matrix [rows, cols] as the runtime multiplies by it: BF16 rows, or a plugin's business.
struct Linear {
  int64_t rows = 0;                      ///< outputs
  int64_t cols = 0;                      ///< inputs
  const void* bf16 = nullptr;            ///< [rows, cols] BF16 when stored plainly
  const float* f32 = nullptr;            ///< [rows, cols] fp32: CPU only, F16 and F32 checkpoints
  const PluginMatrix* plugin = nullptr;  ///< else the plugin's handle
  /// W = bf16/plugin of `low_rank_b` followed by this one: y = A (B x); then `cols` is the rank. B
  /// is not factored itself. Null when not factored.
  std::shared_ptr<const Linear> low_rank_b;
  int64_t inputs() const { return low_rank_b ? low_rank_b->cols : cols; }
};

/// Several matrices with one input whose outputs are wanted side by side (q|k|v, gate|up). Adjacent
/// BF16 parts are stored contiguously at load, so a projection is often one product.
struct Projection {
  std::vector<Linear> parts;
  int64_t rows() const;
  int64_t cols() const { return parts.front().inputs(); }  ///< width of the common input
};

/// RMS norm: x * rsqrt(mean(x^2) + eps) * weight. A zero-centred weight gets its 1 added at load.
struct Norm {
  const float* weight = nullptr;  ///< [width] fp32
  float eps = 0;
};

/// Rotary embedding over the first `rotary` dims of a head, halves convention (x1, x2 = halves):
/// angle(position, i) = position * inv_freq[i], i < rotary / 2.
struct Rope {
  const float* inv_freq = nullptr;  ///< [rotary / 2] fp32
  int64_t rotary = 0;               ///< even; 0 = none
  float scale = 1;                  ///< multiplies cos and sin
};

/// One sequence's rows in a batch.
struct Span {
  int32_t slot;   ///< which cache
  int32_t start;  ///< tokens of this sequence already in the cache = position of the first row
  int32_t row;    ///< first row in the batch
  int32_t count;  ///< rows
};

/// A packed batch on the host. Rows are ids.size(); spans cover them in order without gaps. In a
/// step every count is 1.
struct Batch {
  std::span<const int32_t> ids;
  std::span<const Span> spans;
};

/// Between the two halves of an MLP. The first two are gated, act(gate) * up; kRelu2 is not:
/// max(0, up)^2. kGeluTanh is the tanh approximation of GELU.
enum class Activation { kSilu, kGeluTanh, kRelu2 };
constexpr bool is_gated(Activation activation) { return activation != Activation::kRelu2; }

/// The same matrix of every expert of a layer: experts x [rows, cols], one behind the other.
struct ExpertLinear {
  int64_t experts = 0;
  int64_t rows = 0;                      ///< outputs of one expert
  int64_t cols = 0;                      ///< inputs
  const void* bf16 = nullptr;            ///< [experts, rows, cols] BF16 when stored plainly
  const float* f32 = nullptr;            ///< the same in fp32: CPU only, F16 and F32 checkpoints
  const PluginMatrix* plugin = nullptr;  ///< else the plugin's handle
};

/// Which experts serve a row, and with what weight. Scores are fp32: the softmax or the sigmoid of
/// W x. The `top_k` best are taken by score + selection_bias (ties: the lowest index first; NaN
/// after every number), after only the best `kept_groups` of `groups` equal runs of experts were
/// kept (a group's worth is the sum of its two best, or its only one; ties as above). Their weights
/// are the scores without the bias, divided by their sum (+ 1e-20) if `normalize`, times `scale`,
/// times expert_scale[expert]. A row's choice does not depend on the other rows of the batch.
/// Required: top_k <= experts / groups * kept_groups.
/// Sources: the public Qwen3.5-MoE, Gemma 4 and Nemotron-H implementations in transformers.
struct RouterSpec {
  enum class Score { kSoftmax, kSigmoid };
  Score score = Score::kSoftmax;
  int64_t experts = 0;
  int64_t top_k = 0;
  const float* weight = nullptr;          ///< [experts, width] fp32
  const float* selection_bias = nullptr;  ///< [experts] or null
  const float* expert_scale = nullptr;    ///< [experts] or null
  int64_t groups = 1, kept_groups = 1;
  bool normalize = true;
  float scale = 1;
};
/// A batch's routing: expert [T, top_k], best first and distinct, and weight [T, top_k].
struct Routing {
  int32_t* expert = nullptr;
  float* weight = nullptr;
};
/// The experts' MLP: gate_up holds gate then up (or up alone if the activation is not gated).
struct ExpertsSpec {
  int64_t top_k = 0;
  Activation activation = Activation::kSilu;
  ExpertLinear gate_up;  ///< [experts, 2I or I, width]
  ExpertLinear down;     ///< [experts, width, I]
};

/// Full attention. q_norm/k_norm have a null weight when the model has none.
struct AttentionSpec {
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool gated = false;  ///< the q part holds [q | gate] per head; output *= sigmoid(gate)
  Norm q_norm, k_norm;
  Rope rope;
  float scale = 0;       ///< usually head_dim^-0.5
  int64_t window = 0;    ///< a row sees itself and window - 1 rows before it; 0 = all
  float v_norm_eps = 0;  ///< > 0: v is RMS-normalized per head, without a weight, and cached so
  bool k_is_v = false;   ///< no v part in qkv: v is k before its norm and rotation
};
/// One layer's cache: k and v [slots, max_length, kv_heads, head_dim] act.
struct KvCache {
  void* k = nullptr;
  void* v = nullptr;
  int64_t max_length = 0;
};

/// Gated delta net (Qwen3.5; formulas in docs/architecture.md): causal convolution of width `conv`
/// with SiLU over q|k|v, L2-normalized q and k, gates g = -exp(A_log) softplus(a + dt_bias),
/// beta = sigmoid(b), delta rule, then RMS norm per head times SiLU(z).
struct DeltaNetSpec {
  int64_t key_heads = 0;
  int64_t value_heads =
      0;                  ///< a multiple of key_heads; key head h serves value heads h*r .. h*r+r-1
  int64_t key_dim = 0;    ///< per head
  int64_t value_dim = 0;  ///< per head
  int64_t conv = 4;
  const float* conv_weight = nullptr;  ///< [2*key_heads*key_dim + value_heads*value_dim, conv] fp32
  const float* neg_exp_a = nullptr;    ///< [value_heads] fp32, -exp(A_log)
  const float* dt_bias = nullptr;      ///< [value_heads] fp32
  Norm out_norm;                       ///< over value_dim
  int64_t conv_rows() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};
/// One layer's states, fp32: conv [slots, conv_rows, conv - 1] (oldest first),
/// recurrent [slots, value_heads, key_dim, value_dim].
struct DeltaNetState {
  float* conv = nullptr;
  float* recurrent = nullptr;
};

/// Mamba 2 (Nemotron-H): causal convolution with bias and SiLU over x|B|C; per head
/// dt = clamp(softplus(dt + dt_bias), dt_min, dt_max), h <- exp(dt A) h + (dt x) B^T,
/// y = h C + D x; then the gated norm: y * silu(z), RMS-normalized per group of
/// heads * head_dim / groups columns, times the norm's weight. Head h uses B and C of group
/// h / (heads / groups). Source: the public Mamba 2 recurrence, in fp32.
struct Mamba2Spec {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t groups = 1;
  int64_t state = 0;  ///< columns of B and C per group
  int64_t conv = 4;   ///< at most 16, as in DeltaNetSpec
  float dt_min = 0;
  float dt_max = 0;                    ///< infinity = none
  const float* conv_weight = nullptr;  ///< [conv_rows(), conv] fp32
  const float* conv_bias = nullptr;    ///< [conv_rows()] fp32, or null
  const float* neg_exp_a = nullptr;    ///< [heads] fp32, -exp(A_log)
  const float* dt_bias = nullptr;      ///< [heads] fp32
  const float* d = nullptr;            ///< [heads] fp32
  Norm out_norm;                       ///< [heads * head_dim]
  int64_t inner() const { return heads * head_dim; }
  int64_t conv_rows() const { return inner() + 2 * groups * state; }
};
/// One layer's states, fp32: conv [slots, conv_rows, conv - 1] (oldest first),
/// recurrent [slots, heads, head_dim, state].
struct Mamba2State {
  float* conv = nullptr;
  float* recurrent = nullptr;
};

/// Everything a model multiplies and mixes with: what reserve() plans the workspace for.
struct OpsPlan {
  std::vector<const Linear*> matrices;
  std::vector<AttentionSpec> attention;
  std::vector<DeltaNetSpec> delta;
  std::vector<Mamba2Spec> mamba2;
  std::vector<RouterSpec> routers;
  std::vector<ExpertsSpec> experts;
};

/// What the largest batch needs; given once to reserve().
struct Capacity {
  int64_t tokens = 0;       ///< rows of one forward
  int64_t sequences = 0;    ///< spans of one forward
  int64_t slots = 0;        ///< caches
  int64_t max_length = 0;   ///< tokens per cache
  int64_t logits_rows = 0;  ///< rows per LM head call
};

/// What a plugin is told about the device.
struct DeviceFacts {
  int32_t arch = 0;             ///< CUDA: 10 * major + minor compute capability
  int32_t multiprocessors = 0;  ///< CUDA: SMs; CPU: threads
};

/// Work recorded once and run again; a CUDA graph, or a plain call on the CPU. It reads the batch
/// that is current when it runs, which must have as many rows and spans as the one it was recorded
/// with.
class Replay {
 public:
  virtual ~Replay() = default;
  virtual void run() = 0;
};

/// Device memory of which each slot is filled again and again from host memory, beside the work of
/// the ops (runtime/weight_memory.h).
class Slots {
 public:
  virtual ~Slots() = default;
  virtual void* data(size_t slot) = 0;
  /// Page-locks host memory that fill() will read, for as long as the slots live. Throws
  /// EnvironmentError ("host_memory").
  virtual void pin(void* host, size_t bytes) = 0;
  /// Fills the slot as soon as all ops given before leave(slot) are done.
  virtual void fill(size_t slot, const void* host, size_t bytes) = 0;
  /// Ops given from now on see what the last fill() brought.
  virtual void arrive(size_t slot) = 0;
  /// The ops given so far are the last to read the slot's contents.
  virtual void leave(size_t slot) = 0;
};

/// Work that is simply done again: on the CPU, and where it needs the host between its kernels.
class PlainReplay final : public Replay {
 public:
  explicit PlainReplay(std::function<void()> work) : work_(std::move(work)) {}
  void run() override { work_(); }

 private:
  std::function<void()> work_;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual std::string device_name() const = 0;
  virtual bool is_cuda() const = 0;
  virtual DeviceFacts facts() const = 0;
  virtual int64_t activation_bytes() const = 0;  ///< 4 on the CPU, 2 on CUDA
  virtual Arena& arena() = 0;
  virtual void* stream() = 0;  ///< cudaStream_t, or nullptr

  // --- memory
  // -------------------------------------------------------------------------------------
  virtual void copy_in(void* to, const void* host, size_t bytes) = 0;  ///< done when it returns
  virtual void copy_out(void* host, const void* from, size_t bytes) = 0;
  virtual void zero(void* to, size_t bytes) = 0;
  virtual void synchronize() = 0;
  /// Makes the libraries take what they keep for good (threads, generated code, packing buffers)
  /// before memory is first measured.
  virtual void warm_up() {}
  /// Plans the workspace for batches up to `limits` of a model made of `plan`; once, at load.
  virtual void reserve(const Capacity& limits, const OpsPlan& plan) = 0;
  /// `count` slots of `bytes` each in the arena. The backend must outlive them. The default fills
  /// them at once, by copy_in().
  virtual std::unique_ptr<Slots> make_slots(size_t count, size_t bytes);
  /// Releases caches and scratch that are not needed between measurements.
  virtual void trim() = 0;

  // --- the batch
  // ----------------------------------------------------------------------------------
  /// Makes `batch` current: ids, positions and spans as the device reads them.
  virtual void upload(const Batch& batch) = 0;
  /// After a step: the id of row i becomes the argmax (lowest id on ties) of logits row i [B,
  /// vocab] fp32, and every span's start grows by one. Stays on the device.
  virtual void advance_greedy(const float* logits, int64_t vocab) = 0;
  /// The current batch's ids to the host (synchronizes).
  virtual void read_ids(std::span<int32_t> ids) = 0;
  virtual std::unique_ptr<Replay> record(std::function<void()> work) = 0;

  // --- model ops
  // ----------------------------------------------------------------------------------
  /// y [T, D] act = scale * rows ids[t] of the table.
  virtual void embed(const Linear& table, float scale, void* y) = 0;
  /// y [T, D] = norm(x [T, D]).
  virtual void rms_norm(const void* x, const Norm& norm, int64_t rows, int64_t width, void* y) = 0;
  /// y [T, w.rows()] = W norm(x [T, K]); norm may be null. Parts side by side in y.
  virtual void project(const void* x, const Norm* norm, int64_t rows, const Projection& w,
                       void* y) = 0;
  /// residual [T, N] += W x [T, K].
  virtual void project_add(const void* x, int64_t rows, const Linear& w, void* residual) = 0;
  /// The first half of an MLP: y [T, I] = act(W_gate norm(x)) * (W_up norm(x)), or
  /// act(W_up norm(x)) if the activation is not gated. w holds gate then up, I rows each.
  virtual void gate_up(const void* x, const Norm* norm, int64_t rows, const Projection& w,
                       Activation activation, void* y) = 0;
  /// Routes each of the rows x [T, width] act.
  virtual void route(const RouterSpec& spec, const void* x, int64_t rows, int64_t width,
                     const Routing& routing) = 0;
  /// y [T, width] act = sum over a row's experts, best first, of weight * down act(gate_up x).
  virtual void experts(const ExpertsSpec& spec, const Routing& routing, const void* x, int64_t rows,
                       void* y) = 0;
  /// residual [T, width] = (residual + norm(y)) * scale; norm may be null.
  virtual void add_normed(const void* y, const Norm* norm, int64_t rows, int64_t width, float scale,
                          void* residual) = 0;
  /// residual [T, width] += sigmoid(gate [width] . x[t]) * y[t].
  virtual void add_gated(const void* y, const void* x, const float* gate, int64_t rows,
                         int64_t width, void* residual) = 0;
  /// qkv [T, q | k | v] act, q part [heads, head_dim * (gated ? 2 : 1)]; appends k, v to the cache
  /// and attends causally over it; y [T, query_heads * head_dim].
  virtual void attention(const AttentionSpec& spec, const KvCache& cache, const void* qkv,
                         void* y) = 0;
  /// in [T, qkv | z | b | a] act: conv_rows, value_heads * value_dim, value_heads, value_heads
  /// columns. y [T, value_heads * value_dim]. Reads and updates the states; a span with start 0
  /// begins from zero.
  virtual void delta_net(const DeltaNetSpec& spec, const DeltaNetState& state, const void* in,
                         void* y) = 0;
  /// in [T, z | xBC | dt] act: inner(), conv_rows(), heads columns. y [T, inner()]. Reads and
  /// updates the states; a span with start 0 begins from zero.
  virtual void mamba2(const Mamba2Spec& spec, const Mamba2State& state, const void* in,
                      void* y) = 0;
  /// y [n, D] = x [rows[i], D]; rows on the host.
  virtual void gather_rows(const void* x, std::span<const int32_t> rows, int64_t width,
                           void* y) = 0;
  /// y [T, N] += bias [N] (fp32).
  virtual void add_bias(void* y, int64_t rows, int64_t width, const float* bias) = 0;
  /// logits [n, vocab] fp32 = W norm(x [n, D]); then softcap * tanh(logits / softcap) if it is
  /// above 0.
  virtual void lm_head(const void* x, const Norm& norm, int64_t rows, const Linear& w,
                       float softcap, float* logits) = 0;
};

std::unique_ptr<Ops> make_cpu_ops();
/// Throws EnvironmentError when the build has no CUDA or the machine no usable GPU.
std::unique_ptr<Ops> make_cuda_ops(int device);

}  // namespace cbench
