// Device, memory, batch and recording of the CUDA backend.
#include "cuda_ops.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "check.h"
#include "mamba.h"
#include "rows.h"
#include "runtime/plugin_matrix.h"
#include "util/error.h"
#include "warm_up.h"

namespace cbench::cuda {
namespace {

constexpr size_t kMostTemporary = size_t{512} << 20, kMostPanel = size_t{128} << 20;
constexpr size_t kMostDecode = size_t{512} << 20;

class GraphReplay : public Replay {
 public:
  GraphReplay(cudaGraphExec_t graph, cudaStream_t stream, std::list<std::vector<int32_t>> held)
      : graph_(graph), stream_(stream), held_(std::move(held)) {}
  ~GraphReplay() override { cudaGraphExecDestroy(graph_); }
  void run() override { CBENCH_CUDA(cudaGraphLaunch(graph_, stream_)); }

 private:
  cudaGraphExec_t graph_;
  cudaStream_t stream_;
  std::list<std::vector<int32_t>> held_;
};

}  // namespace

CudaOps::CudaOps(int device) : device_(device) {
  int count = 0;
  CBENCH_CUDA(cudaGetDeviceCount(&count));
  if (device < 0 || device >= count) {
    throw EnvironmentError("no_gpu", "there is no GPU " + std::to_string(device) +
                                         "; this machine has " + std::to_string(count));
  }
  CBENCH_CUDA(cudaSetDevice(device));
  cudaDeviceProp properties{};
  CBENCH_CUDA(cudaGetDeviceProperties(&properties, device));
  name_ = properties.name;
  facts_ = {10 * properties.major + properties.minor, properties.multiProcessorCount};
  if (facts_.arch != 90) {
    throw EnvironmentError("gpu_arch", name_ + " has compute capability " +
                                           std::to_string(properties.major) + "." +
                                           std::to_string(properties.minor) +
                                           "; this build has kernels for 9.0 (H100, H200) only");
  }
  CBENCH_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  gemm_ = std::make_unique<Gemm>(stream_);
}

CudaOps::~CudaOps() {
  if (stream_) cudaStreamSynchronize(stream_);
  gemm_.reset();
  if (stream_) cudaStreamDestroy(stream_);
}

void CudaOps::copy_in(void* to, const void* host, size_t bytes) {
  if (bytes >= Staging::kWorth) {
    synchronize();  // what was enqueued on `to` before comes first
    if (!staging_) staging_ = std::make_unique<Staging>(device_);
    return staging_->copy(to, host, bytes);
  }
  CBENCH_CUDA(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_));
  CBENCH_CUDA(cudaStreamSynchronize(stream_));
}
void CudaOps::copy_out(void* host, const void* from, size_t bytes) {
  CBENCH_CUDA(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_));
  CBENCH_CUDA(cudaStreamSynchronize(stream_));
}
void CudaOps::zero(void* to, size_t bytes) { CBENCH_CUDA(cudaMemsetAsync(to, 0, bytes, stream_)); }
void CudaOps::warm_up() {
  warm_up_device(device_);
  if (!staging_) staging_ = std::make_unique<Staging>(device_);
}
void CudaOps::synchronize() { CBENCH_CUDA(cudaStreamSynchronize(stream_)); }

size_t CudaOps::scratch_bytes(const Capacity& c, const OpsPlan& plan) {
  const auto rows = static_cast<size_t>(std::max(c.tokens, c.logits_rows));
  size_t widest = 1, longest = 1, rank = 0, plugin_workspace = 0;
  bool plugin = false;
  const std::function<void(const Linear&)> look = [&](const Linear& w) {
    widest = std::max(widest, static_cast<size_t>(w.cols));
    longest = std::max(longest, static_cast<size_t>(w.rows));
    if (w.plugin) {
      plugin = true;
      plugin_workspace = std::max(plugin_workspace, w.plugin->plan_workspace(c.tokens));
    }
    if (w.low_rank_b) {
      rank = std::max(rank, static_cast<size_t>(w.low_rank_b->rows));
      look(*w.low_rank_b);
    }
  };
  for (const Linear* w : plan.matrices) look(*w);

  temporary_bytes_ = std::min(kMostTemporary, rows * longest * 2 * 2);
  panel_bytes_ = plugin ? std::min(kMostPanel, longest * widest * 2) : 0;
  panel_bytes_ = std::max(panel_bytes_, plugin ? widest * 2 : 0);
  const size_t rows_bytes = rows * (widest * (plugin ? 2 : 1) + rank) * 2;
  size_t mixers = argmax_scratch(c.sequences);
  for (const AttentionSpec& s : plan.attention) {
    const auto q = static_cast<size_t>(c.tokens * s.query_heads * s.head_dim) * 2 + 256;
    const size_t one = attention_decode_scratch(s, c.max_length, 1);
    mixers = std::max(
        mixers,
        q + std::max(one, std::min(kMostDecode,
                                   attention_decode_scratch(
                                       s, c.max_length,
                                       attention_prefill_takes(s) ? c.sequences : c.tokens))));
  }
  for (const DeltaNetSpec& s : plan.delta)
    mixers = std::max(mixers, delta_scratch_bytes(s, c.tokens, c.sequences));
  for (const Mamba2Spec& s : plan.mamba2)
    mixers = std::max(mixers, mamba_scratch_bytes(s, c.tokens) + 256);
  for (const RouterSpec& s : plan.routers)
    mixers = std::max(mixers, static_cast<size_t>(c.tokens * s.experts) * sizeof(float) + 256);
  for (const ExpertsSpec& s : plan.experts)
    mixers = std::max(mixers, experts_scratch_bytes(s, c.tokens));
  return std::max(rows_bytes + temporary_bytes_ + panel_bytes_ + plugin_workspace, mixers) + 8192;
}

void CudaOps::reserve(const Capacity& limits, const OpsPlan& plan) {
  const size_t bytes = scratch_bytes(limits, plan);
  scratch_.set(arena_.allocate(bytes, Category::kWorkspace, "scratch"), bytes);
  gemm_->set_workspace(arena_.allocate(Gemm::kWorkspace, Category::kWorkspace, "cuBLASLt"));
  stage_.allocate(limits,
                  arena_.allocate(BatchStage::bytes(limits), Category::kWorkspace, "batch"));
  indices_ =
      arena_.allocate<int32_t>(static_cast<size_t>(std::max(limits.tokens, limits.logits_rows)),
                               Category::kWorkspace, "rows");
  arrived_ = arena_.allocate<unsigned>(1, Category::kWorkspace, "counter");
  zero(arrived_, sizeof *arrived_);
}

void CudaOps::trim() {
  synchronize();
  cudaMemPool_t pool = nullptr;
  CBENCH_CUDA(cudaDeviceGetDefaultMemPool(&pool, device_));
  CBENCH_CUDA(cudaMemPoolTrimTo(pool, 0));
}

void CudaOps::upload(const Batch& batch) {
  if (capturing_) throw std::logic_error("upload inside record");
  batch_ = stage_.upload(batch, stream_);
  host_ids_.assign(batch.ids.begin(), batch.ids.end());
  step_ = std::all_of(batch.spans.begin(), batch.spans.end(),
                      [](const Span& s) { return s.count == 1; });
}

void CudaOps::advance_greedy(const float* logits, int64_t vocab) {
  if (!step_) throw std::logic_error("advance_greedy after a batch that is no step");
  scratch_.reset();
  cuda::advance_greedy(logits, batch_.rows, vocab, batch_.ids, batch_.positions,
                       scratch_.take(argmax_scratch(batch_.rows)), stream_);
  host_ids_.clear();
}

void CudaOps::read_ids(std::span<int32_t> ids) {
  copy_out(ids.data(), batch_.ids, ids.size() * sizeof(int32_t));
}

void CudaOps::abandon_capture() {
  cudaGraph_t graph = nullptr;
  capturing_ = false;
  captured_indices_.clear();
  cudaStreamEndCapture(stream_, &graph);
  if (graph) cudaGraphDestroy(graph);
}

std::unique_ptr<Replay> CudaOps::record(std::function<void()> work) {
  cudaGraph_t graph = nullptr;
  CBENCH_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  capturing_ = true;
  try {
    work();
  } catch (const NotRecordable&) {
    abandon_capture();
    host_ids_.clear();
    return std::make_unique<PlainReplay>(std::move(work));
  } catch (...) {
    abandon_capture();
    throw;
  }
  capturing_ = false;
  host_ids_.clear();
  CBENCH_CUDA(cudaStreamEndCapture(stream_, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  CBENCH_CUDA(error);
  CBENCH_CUDA(cudaGraphUpload(executable, stream_));
  return std::make_unique<GraphReplay>(executable, stream_, std::move(captured_indices_));
}

}  // namespace cbench::cuda

namespace cbench {

std::unique_ptr<Ops> make_cuda_ops(int device) { return std::make_unique<cuda::CudaOps>(device); }

}  // namespace cbench
