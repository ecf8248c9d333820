// Reads logits in device memory with the kernels of kernels/nll.h.
#include "engine/logits_reader.h"
#include "util/error.h"

#if defined(CBENCH_HAVE_CUDA)
#include <utility>

#include <cuda_runtime_api.h>

#include "check.h"
#include "nll.h"

namespace cbench {
namespace {

/// Device memory that grows to what was asked for.
class Scratch {
 public:
  ~Scratch() { cudaFree(data_); }
  template <typename T>
  T* take(size_t count) {
    if (count * sizeof(T) > bytes_) {
      CBENCH_CUDA(cudaFree(std::exchange(data_, nullptr)));
      bytes_ = 0;
      CBENCH_CUDA(cudaMalloc(&data_, count * sizeof(T)));
      bytes_ = count * sizeof(T);
    }
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class CudaReader : public LogitsReader {
 public:
  explicit CudaReader(int device) : device_(device) {
    CBENCH_CUDA(cudaSetDevice(device));
    CBENCH_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CudaReader() override {
    if (stream_) cudaStreamDestroy(stream_);
  }

  void score(const float* rows, int64_t n, int64_t vocab, std::span<const int32_t> targets,
             std::span<RowScore> out) override {
    const std::span<const cuda::RowScore> scores = reduce(rows, n, vocab, targets.data());
    for (size_t i = 0; i < scores.size(); ++i) {
      const cuda::RowScore& s = scores[i];
      out[i] = {s.logprob, s.argmax, s.target_gap, s.finite != 0};
    }
  }

  std::vector<int32_t> argmax(const float* rows, int64_t n, int64_t vocab) override {
    none_.assign(static_cast<size_t>(n), -1);
    std::vector<int32_t> ids;
    for (const cuda::RowScore& s : reduce(rows, n, vocab, none_.data())) {
      ids.push_back(s.finite != 0 ? s.argmax : -1);
    }
    return ids;
  }

  std::vector<int32_t> sample(const float* rows, int64_t n, int64_t vocab, double temperature,
                              std::span<const double> uniform) override {
    if (temperature != 1) {
      throw UsageError("temperature", "on a GPU the evaluator samples at temperature 1 only");
    }
    const std::vector<int32_t> best = argmax(rows, n, vocab);  // tells which rows are finite
    const auto count = static_cast<size_t>(n);
    auto* from = uniforms_.take<double>(count);
    auto* to = ids_.take<int32_t>(count);
    copy(from, uniform.data(), count * sizeof(double), cudaMemcpyHostToDevice);
    cuda::sample_rows(rows, from, n, vocab, to, stream_);
    std::vector<int32_t> ids(count);
    copy(ids.data(), to, count * sizeof(int32_t), cudaMemcpyDeviceToHost);
    CBENCH_CUDA(cudaStreamSynchronize(stream_));
    for (size_t i = 0; i < count; ++i) {
      if (best[i] < 0) ids[i] = -1;
    }
    return ids;
  }

 private:
  std::span<const cuda::RowScore> reduce(const float* rows, int64_t n, int64_t vocab,
                                         const int32_t* targets) {
    CBENCH_CUDA(cudaSetDevice(device_));  // the caller's thread may never have used CUDA
    const auto count = static_cast<size_t>(n);
    auto* ids = ids_.take<int32_t>(count);
    auto* scores = scores_.take<cuda::RowScore>(count);
    copy(ids, targets, count * sizeof(int32_t), cudaMemcpyHostToDevice);
    cuda::score_rows(rows, ids, n, vocab, scores, stream_);
    host_.resize(count);
    copy(host_.data(), scores, count * sizeof(cuda::RowScore), cudaMemcpyDeviceToHost);
    CBENCH_CUDA(cudaStreamSynchronize(stream_));
    return host_;
  }
  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    CBENCH_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream_));
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  Scratch ids_, scores_, uniforms_;
  std::vector<cuda::RowScore> host_;
  std::vector<int32_t> none_;
};

}  // namespace

std::unique_ptr<LogitsReader> make_cuda_logits_reader(int device) {
  return std::make_unique<CudaReader>(device);
}

}  // namespace cbench

#else

namespace cbench {

std::unique_ptr<LogitsReader> make_cuda_logits_reader(int) {
  throw EnvironmentError("no_cuda", "this cbench was built without CUDA; use --device cpu");
}

}  // namespace cbench

#endif
