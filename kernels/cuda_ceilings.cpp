// The ceilings of `cbench bench` on a GPU (runtime/bench.h): products of the model's shapes by the
// library, and the bandwidth of kernels that only read or copy.
#include <algorithm>

#include "ceilings.h"
#include "check.h"
#include "gemm.h"
#include "runtime/bench.h"

namespace cbench {
namespace {

/// Device memory outside the arena: it belongs to the measurement, not to the model.
class Buffer {
 public:
  explicit Buffer(size_t bytes) { CBENCH_CUDA(cudaMalloc(&data_, bytes)); }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class CudaCeilings : public Ceilings {
 public:
  explicit CudaCeilings(Ops& ops) : stream_(static_cast<cudaStream_t>(ops.stream())) {}

  double gemm_seconds(int64_t m, int64_t n, int64_t k) override {
    const Buffer x(static_cast<size_t>(m * k) * 2), w(static_cast<size_t>(n * k) * 2);
    const Buffer y(static_cast<size_t>(m * n) * 2), workspace(cuda::Gemm::kWorkspace);
    cuda::fill_random(x.data(), m * k, 1, 1, stream_);
    cuda::fill_random(w.data(), n * k, 2, 0.02f, stream_);
    cuda::Gemm gemm(stream_);
    gemm.set_workspace(workspace.data());
    cuda::GemmArguments a;
    a.x = x.data(), a.w = w.data(), a.y = y.data();
    a.rows = m, a.n = n, a.k = k, a.y_stride = n;
    // Long enough for the power limit to act, as it does on the model: the first half is warm-up.
    const double once = cuda::median(cuda::time_runs([&] { gemm.run(a); }, 3, 1, stream_));
    const int runs = std::clamp(static_cast<int>(kMilliseconds / once), 3, 1000);
    return cuda::median(cuda::time_runs([&] { gemm.run(a); }, runs, runs, stream_)) / 1e3;
  }
  double read_bandwidth(int64_t) override { return bandwidth().read; }
  double copy_bandwidth(int64_t) override { return bandwidth().copy; }

 private:
  static constexpr double kMilliseconds = 100;
  static constexpr size_t kBytes = size_t{2} << 30;  // many times the L2
  cuda::Bandwidth bandwidth() {
    const Buffer data(kBytes);
    return cuda::measure_bandwidth(data.data(), kBytes, stream_);
  }
  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<Ceilings> make_cuda_ceilings(Ops& ops) {
  return std::make_unique<CudaCeilings>(ops);
}

}  // namespace cbench
