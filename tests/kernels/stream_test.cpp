// Weights that stream through slots on the GPU: bit for bit what the resident model computes, and
// how fast they arrive.
#include <chrono>
#include <cstdio>

#include "kernels/support.h"
#include "model/config.h"
#include "package/safetensors.h"
#include "runtime/model.h"
#include "runtime/synthetic_source.h"
#include "runtime/weight_memory.h"
#include "util/file.h"

namespace cbench::testing {
namespace {

struct Piece {
  int32_t slot, start;
  std::vector<int32_t> ids;
};

/// A model on an Ops of its own; `plan` says what streams, `store` is null for random weights.
struct GpuModel {
  Side side{make_cuda_ops(0)};
  ModelConfig config;
  Capacity capacity;
  std::shared_ptr<WeightMemory> memory;
  std::unique_ptr<Model> model;
  float* logits = nullptr;

  GpuModel(const ModelConfig& the_config, const TensorStore* store, const Capacity& the_capacity,
           StreamPlan plan)
      : config(the_config), capacity(the_capacity) {
    memory = std::make_shared<WeightMemory>(side.ops(), std::move(plan));
    std::unique_ptr<WeightSource> source;
    if (store) {
      source = std::make_unique<CheckpointSource>(side.ops(), *store, memory);
    } else {
      source = std::make_unique<SyntheticSource>(side.ops(), memory);
    }
    model = std::make_unique<Model>(side.ops(), config, *source, capacity);
    logits = side->arena().allocate<float>(static_cast<size_t>(capacity.logits_rows * config.vocab),
                                           Category::kLogits, "logits");
  }

  void forward(const std::vector<Piece>& pieces) {
    std::vector<int32_t> ids;
    std::vector<Span> spans;
    for (const Piece& p : pieces) {
      spans.push_back(
          {p.slot, p.start, static_cast<int32_t>(ids.size()), static_cast<int32_t>(p.ids.size())});
      ids.insert(ids.end(), p.ids.begin(), p.ids.end());
    }
    model->forward({ids, spans});
    rows = static_cast<int32_t>(ids.size());
  }
  /// Logits of the last rows of the last forward, as many as fit one call.
  std::vector<float> last_logits() {
    std::vector<int32_t> wanted;
    const auto count = std::min<int32_t>(rows, static_cast<int32_t>(capacity.logits_rows));
    for (int32_t i = rows - count; i < rows; ++i) wanted.push_back(i);
    model->logits(wanted, logits);
    return side.read_floats(logits, count * config.vocab);
  }
  std::vector<int32_t> some_ids(int32_t count, int32_t seed) const {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < count; ++i) {
      ids.push_back((seed + 7 * i + i % 64 * (i % 64)) % static_cast<int32_t>(config.vocab));
    }
    return ids;
  }
  int32_t rows = 0;
};

/// Every `period`-th block streams; 0 = none.
StreamPlan every(const ModelConfig& config, size_t period) {
  StreamPlan plan;
  for (size_t i = 0; period > 0 && i < config.blocks.size(); ++i) {
    plan.bytes.push_back((i + 1) % period == 0 ? block_bytes(config, i, sizeof(uint16_t)) : 0);
  }
  return plan;
}

/// Prefill, steps of several sequences and of one, and greedy decoding in turn.
std::vector<float> work(GpuModel& gpu) {
  std::vector<float> all;
  const auto add = [&](const std::vector<Piece>& pieces) {
    gpu.forward(pieces);
    const auto logits = gpu.last_logits();
    all.insert(all.end(), logits.begin(), logits.end());
  };
  add({{0, 0, gpu.some_ids(37, 3)}, {2, 0, gpu.some_ids(70, 5)}, {1, 0, {4}}});
  for (int32_t t = 0; t < 3; ++t) add({{0, 37 + t, {t}}, {2, 70 + t, {t + 1}}});
  add({{1, 1, {9}}});
  for (int round = 0; round < 2; ++round) {
    add({{3, 0, gpu.some_ids(11, 8)}});
    gpu.model->generate(3, 1, 11, 9, [&](int32_t id) {
      all.push_back(static_cast<float>(id));
      return true;
    });
  }
  return all;
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected,
                      const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  EXPECT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float))) << what;
}

class GpuStreaming : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuStreaming, IsTheResidentModelBitForBit) {
  SKIP_WITHOUT_GPU();
  const std::string dir = std::string(CBENCH_FIXTURES "/golden/") + GetParam();
  const ModelConfig config = parse_model_config(read_file(dir + "/config.json"), "config.json");
  const TensorStore store = TensorStore::open_checkpoint(dir);
  const Capacity capacity{
      .tokens = 128, .sequences = 4, .slots = 4, .max_length = 96, .logits_rows = 128};
  GpuModel resident(config, &store, capacity, {});
  const auto expected = work(resident);
  for (const size_t period : {size_t{1}, size_t{2}, config.blocks.size()}) {
    GpuModel streamed(config, &store, capacity, every(config, period));
    const std::string what = "every " + std::to_string(period) + "th block streams";
    for (int round = 0; round < 3; ++round) expect_same_bits(work(streamed), expected, what);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GpuStreaming,
                         ::testing::Values("qwen3_5_tied", "qwen3_5_shapes", "llama_untied_bias",
                                           "qwen3_5_moe", "gemma4_moe", "nemotron_h"),
                         [](const auto& test) { return std::string(test.param); });

double seconds(GpuModel& gpu, const std::function<void()>& run) {
  gpu.side->synchronize();
  const auto begin = std::chrono::steady_clock::now();
  run();
  gpu.side->synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Steps of many sequences and whole prefills, in seconds; the figures are printed.
void measure(GpuModel& gpu, const char* what) {
  const auto bytes = static_cast<double>(gpu.memory->streamed());
  const auto slots = static_cast<int32_t>(gpu.capacity.slots);
  int32_t at = 0;
  for (int i = 0; i < 4; ++i) {
    std::vector<Piece> step;
    for (int32_t s = 0; s < slots; ++s) step.push_back({s, at, {s + at}});
    ++at;
    const double t = seconds(gpu, [&] { gpu.forward(step); });
    std::printf("%s: a step of %d sequences %.4f s, %.1f GB/s\n", what, slots, t, bytes / t / 1e9);
  }
  for (int i = 0; i < 3; ++i) {
    std::vector<Piece> prefill;
    const auto each = static_cast<int32_t>(gpu.capacity.tokens) / 8;
    for (int32_t s = 0; s < 8; ++s) prefill.push_back({s, 0, gpu.some_ids(each, s)});
    const double t = seconds(gpu, [&] { gpu.forward(prefill); });
    std::printf("%s: prefill of %d tokens %.4f s, %.1f GB/s\n", what, 8 * each, t, bytes / t / 1e9);
  }
}

class GpuStreamingLarge : public ::testing::TestWithParam<const char*> {};

/// A few blocks of the suite's shapes: the same bits, and the rate at which they arrive.
TEST_P(GpuStreamingLarge, SameBitsAtTheBusSpeed) {
  SKIP_WITHOUT_GPU();
  const std::string path = std::string(CBENCH_SOURCE_DIR "/tasks/configs/") + GetParam();
  ModelConfig config = parse_model_config(read_file(path), "config.json");
  config.blocks.resize(8);
  const Capacity capacity{
      .tokens = 16384, .sequences = 256, .slots = 256, .max_length = 2048, .logits_rows = 256};
  const StreamPlan plan = every(config, 1);
  if (static_cast<int64_t>(plan.host_bytes()) > available_host_memory() / 4 * 3) {
    GTEST_SKIP() << "NOT TESTED: too little host memory";
  }
  std::vector<float> expected;
  {
    GpuModel resident(config, nullptr, capacity, {});
    measure(resident, "resident");
    expected = resident.last_logits();
  }
  for (const size_t period : {size_t{1}, size_t{2}}) {
    std::unique_ptr<GpuModel> streamed;
    const auto begin = std::chrono::steady_clock::now();
    streamed = std::make_unique<GpuModel>(config, nullptr, capacity, every(config, period));
    const double load =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%s: %.2f GB stream, loaded in %.2f s\n", GetParam(),
                static_cast<double>(streamed->memory->streamed()) / 1e9, load);
    measure(*streamed, period == 1 ? "all stream" : "every second block streams");
    expect_same_bits(streamed->last_logits(), expected, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuStreamingLarge,
                         ::testing::Values("qwen3.5-122b-a10b.json",
                                           "nemotron-3.5-super-120b-a12b.json"),
                         [](const auto& test) { return std::string(test.param).substr(0, 4); });

}  // namespace
}  // namespace cbench::testing
