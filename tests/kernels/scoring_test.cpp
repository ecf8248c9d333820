// The evaluator's kernels against double precision on the host, the shared buffer, and NVML.
#include <algorithm>
#include <cmath>
#include <limits>

#include <cuda_runtime_api.h>
#include <unistd.h>

#include "kernels/support.h"
#include "nll.h"
#include "nvml.h"
#include "shared_buffer.h"

namespace cbench::testing {
namespace {

using cuda::RowScore;

struct DeviceRows {
  Side side{make_cuda_ops(0)};
  int64_t rows, vocab;
  float* logits;

  DeviceRows(std::span<const float> values, int64_t the_rows, int64_t the_vocab)
      : rows(the_rows), vocab(the_vocab), logits(side.floats(values)) {}
  cudaStream_t stream() { return static_cast<cudaStream_t>(side->stream()); }

  std::vector<RowScore> score(std::span<const int32_t> targets) {
    std::vector<RowScore> scores(static_cast<size_t>(rows));
    auto* to = static_cast<RowScore*>(side.put(scores.data(), rows * sizeof(RowScore)));
    const auto* ids = static_cast<const int32_t*>(side.put(targets.data(), targets.size_bytes()));
    cuda::score_rows(logits, ids, rows, vocab, to, stream());
    side->copy_out(scores.data(), to, rows * sizeof(RowScore));
    return scores;
  }
  std::vector<int32_t> sample(std::span<const double> uniforms) {
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    auto* to = static_cast<int32_t*>(side.put(ids.data(), ids.size() * 4));
    const auto* from = static_cast<const double*>(side.put(uniforms.data(), uniforms.size_bytes()));
    cuda::sample_rows(logits, from, rows, vocab, to, stream());
    side->copy_out(ids.data(), to, ids.size() * 4);
    return ids;
  }
};

double log_sum_exp(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float v : row) sum += std::exp(v - top);
  return top + std::log(sum);
}

TEST(ScoreRows, EqualsDoublePrecision) {
  SKIP_WITHOUT_GPU();
  Random random(3);
  for (const int64_t vocab : {1, 2, 3, 131, 1000, 8191, 32000, 248320}) {
    const int64_t rows = 5;
    auto logits = random_values(random, rows * vocab, 12);
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < rows; i++)
      targets.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab))));
    logits[static_cast<size_t>(vocab - 1)] = 80;  // one near-certain id
    DeviceRows device(logits, rows, vocab);
    const auto scores = device.score(targets);
    for (int64_t i = 0; i < rows; i++) {
      const auto row = std::span(logits).subspan(i * vocab, vocab);
      const auto& s = scores[static_cast<size_t>(i)];
      EXPECT_EQ(s.finite, 1);
      EXPECT_EQ(s.argmax, std::max_element(row.begin(), row.end()) - row.begin()) << vocab;
      EXPECT_NEAR(s.logprob,
                  row[static_cast<size_t>(targets[static_cast<size_t>(i)])] - log_sum_exp(row),
                  2e-5)
          << vocab;
    }
    const auto again = device.score(targets);
    EXPECT_EQ(std::memcmp(scores.data(), again.data(), scores.size() * sizeof(RowScore)), 0);
  }
}

TEST(ScoreRows, ClosedFormsAndBadValues) {
  SKIP_WITHOUT_GPU();
  for (const int64_t vocab : {5, 4096, 248320}) {
    const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
    const auto n = static_cast<size_t>(vocab);
    std::vector<float> logits(6 * n, 2.f);  // row 0: uniform
    logits[1 * n + n - 1] = nan;
    logits[2 * n + n / 2] = inf;
    logits[3 * n] = -inf;
    std::fill_n(logits.begin() + static_cast<ptrdiff_t>(4 * n), n, -inf);
    std::fill_n(logits.begin() + static_cast<ptrdiff_t>(5 * n), n, 3e38f);
    const std::vector<int32_t> targets(6, 0);
    DeviceRows device(logits, 6, vocab);
    const auto scores = device.score(targets);
    EXPECT_NEAR(scores[0].logprob, -std::log(static_cast<double>(vocab)), 1e-5);
    EXPECT_EQ(scores[0].argmax, 0);
    for (int i = 1; i <= 4; i++) {
      EXPECT_EQ(scores[static_cast<size_t>(i)].finite, 0) << i;
      EXPECT_TRUE(std::isnan(scores[static_cast<size_t>(i)].logprob)) << i;
    }
    EXPECT_EQ(scores[5].finite, 1);
    EXPECT_NEAR(scores[5].logprob, -std::log(static_cast<double>(vocab)), 1e-5);
  }
}

TEST(SampleRows, InvertsTheDistribution) {
  SKIP_WITHOUT_GPU();
  Random random(4);
  for (const int64_t vocab : {1, 7, 1000, 50257}) {
    const int64_t rows = 16;
    const auto logits = random_values(random, rows * vocab, 3);
    std::vector<double> uniforms = {0, 0x1.fffffffffffffp-1};
    while (static_cast<int64_t>(uniforms.size()) < rows) uniforms.push_back(random.uniform());
    DeviceRows device(logits, rows, vocab);
    const auto ids = device.sample(uniforms);
    for (int64_t i = 0; i < rows; i++) {
      const auto row = std::span(logits).subspan(i * vocab, vocab);
      const double total = log_sum_exp(row), u = uniforms[static_cast<size_t>(i)];
      const int32_t id = ids[static_cast<size_t>(i)];
      ASSERT_GE(id, 0);
      ASSERT_LT(id, vocab);
      double below = 0;
      for (int32_t j = 0; j < id; j++) below += std::exp(row[static_cast<size_t>(j)] - total);
      const double with = below + std::exp(row[static_cast<size_t>(id)] - total);
      EXPECT_LE(below, u + 1e-5) << vocab;
      EXPECT_GE(with, u - 1e-5) << vocab;
    }
    EXPECT_EQ(ids, device.sample(uniforms));
  }
}

TEST(SharedBuffer, TwoMappingsOfOneMemory) {
  SKIP_WITHOUT_GPU();
  using cuda::SharedBuffer;
  SharedBuffer reader = SharedBuffer::create(0, 5 << 20, SharedBuffer::Access::kReadOnly);
  EXPECT_GE(reader.size(), size_t{5} << 20);
  const int descriptor = reader.export_descriptor();
  SharedBuffer writer = SharedBuffer::import_descriptor(0, descriptor, reader.size(),
                                                        SharedBuffer::Access::kReadWrite);
  close(descriptor);
  std::vector<uint32_t> values(1 << 20), back(1 << 20);
  for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<uint32_t>(i * 2654435761u);
  ASSERT_EQ(cudaMemcpy(writer.data(), values.data(), values.size() * 4, cudaMemcpyHostToDevice),
            cudaSuccess);
  ASSERT_EQ(cudaMemcpy(back.data(), reader.data(), back.size() * 4, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(values, back);
}

TEST(Nvml, SeesThisProcess) {
  SKIP_WITHOUT_GPU();
  const cuda::Nvml nvml(0);
  Side side(make_cuda_ops(0));
  const auto before = nvml.process_bytes(getpid());
  ASSERT_TRUE(before.has_value()) << "a pid namespace without /proc hides the process";
  side->arena().allocate(size_t{64} << 20, Category::kWeights, "64 MiB");
  EXPECT_EQ(*nvml.process_bytes(getpid()) - *before, int64_t{64} << 20);
  EXPECT_GT(nvml.used(), int64_t{64} << 20);
  EXPECT_GT(nvml.total(), nvml.used());
  EXPECT_GT(nvml.energy(), 0);
  EXPECT_GT(nvml.power(), 10);
  EXPECT_GT(nvml.sm_clock(), 100);
  EXPECT_FALSE(nvml.process_bytes(1 << 22).has_value());
}

}  // namespace
}  // namespace cbench::testing
