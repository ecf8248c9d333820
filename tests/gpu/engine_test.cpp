// The engine and the evaluator's side of it on a GPU: logits in shared device memory, what the
// driver shows of memory that a plugin took behind the host's back, and kernels that fail.
#include <cstdlib>
#include <map>

#include "engine/support.h"
#include "eval/evaluate.h"
#include "eval/likelihood.h"
#include "kernels/support.h"
#include "model/config.h"
#include "runtime/weight_memory.h"
#include "task/contract.h"
#include "util/random.h"

namespace cbench::testing {
namespace {

constexpr int64_t kHoard = int64_t{256} << 20;
constexpr const char* kMatrix = "model.layers.0.mlp.up_proj.weight";

/// Built beside this test, or where the variable says: the test also runs on other machines.
std::string built(const std::string& file) {
  const char* dir = std::getenv("CBENCH_TEST_BINARIES");
  return (dir != nullptr ? std::string(dir) : std::string(CBENCH_BINARY_DIR)) + "/" + file;
}

BoxKind gpu_box() {
  const char* name = std::getenv("CBENCH_TEST_BOX");
  return parse_box_kind(name != nullptr ? name : "bwrap");
}

struct GpuPackage {
  TestPackage package;
  std::string plugin;

  explicit GpuPackage(const std::string& checkpoint) : package(golden_dir(checkpoint)) {}
  GpuPackage(const std::string& mode, const std::string& library)
      : package(golden_dir("qwen3_5_untied")), plugin(built(library)) {
    fs::copy_file(plugin, package.path() + "/plugin.so");
    Json manifest = {{"formats", {{"hoard", {{"mode", mode}}}}},
                     {"matrices", {{kMatrix, "hoard"}}},
                     {"plugin", {{"library", "plugin.so"}}}};
    package.write_manifest(manifest);
  }

  EngineOptions options(const std::string& device = "cuda") const {
    EngineOptions options;
    options.package = package.path();
    options.plugin = plugin;
    options.config = package.config();
    options.program = built("cbench");
    options.box = gpu_box();
    options.device = device;
    options.capacity = kSmall;
    options.reply_timeout = 20;
    return options;
  }
};

Blocks random_blocks(int64_t vocab) {
  Random random(5);
  Blocks blocks;
  blocks.context = 16;
  blocks.continuation = 48;
  for (int b = 0; b < 5; ++b) {
    std::vector<int32_t> ids(64);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab)));
    blocks.ids.push_back(ids);
  }
  return blocks;
}

std::vector<double> sums(const EngineOptions& options, const char* kind) {
  Engine engine(options);
  EXPECT_STREQ(engine.logits_kind(), kind);
  std::vector<double> out;
  for (const BlockNll& b : measure_likelihood(engine, random_blocks(engine.vocab()))) {
    out.push_back(b.sum);
  }
  engine.close();
  return out;
}

TEST(GpuEngine, LogitsCrossInDeviceMemoryAndThroughTheHost) {
  SKIP_WITHOUT_GPU();
  const GpuPackage package("qwen3_5_tied");
  const std::vector<double> shared = sums(package.options(), "cuda");
  EXPECT_EQ(sums(package.options(), "cuda"), shared) << "the same package, the same bits";
  EngineOptions through_host = package.options();
  through_host.share_device_memory = false;
  const std::vector<double> hosted = sums(through_host, "host");
  const std::vector<double> cpu = sums(package.options("cpu"), "host");
  for (size_t i = 0; i < shared.size(); ++i) {
    EXPECT_NEAR(shared[i], hosted[i], 1e-3) << "the same logits, read in fp32 or in double";
    EXPECT_NEAR(shared[i] / 48, cpu[i] / 48, 0.06)
        << "nats per token of a random net whose logits BF16 moves by a tenth";
  }
}

TEST(GpuEngine, StepsTheGreedyTokensThatScoringSays) {
  SKIP_WITHOUT_GPU();
  const GpuPackage package("qwen3_5_tied");
  Engine engine(package.options());
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  const EngineSequence sequence{0, 0, prompt, 7};
  int32_t first = -1;
  engine.forward({&sequence, 1}, [&](const float* rows, int64_t, int64_t n) {
    first = engine.reader().argmax(rows, n, engine.vocab())[0];
  });
  ASSERT_GE(first, 0);
  int64_t tokens = 0;
  engine.generate(0, first, 8, 40, [&](int32_t) { ++tokens; });
  EXPECT_EQ(tokens, 40);
  engine.close();
}

/// A budget of two slots: every block streams.
int64_t slots_only(const std::string& config_text) {
  const ModelConfig config = parse_model_config(config_text, "config");
  size_t largest = 0;
  for (size_t i = 0; i < config.blocks.size(); ++i) {
    largest = std::max(largest, block_bytes(config, i, sizeof(uint16_t)));
  }
  return static_cast<int64_t>(StreamPlan::kSlots * largest);
}

TEST(GpuEngine, StreamsTheSameBits) {
  SKIP_WITHOUT_GPU();
  const GpuPackage package("qwen3_5_moe");
  EngineOptions options = package.options();
  const std::vector<double> resident = sums(options, "cuda");
  options.stream_budget = slots_only(options.config);
  EXPECT_EQ(sums(options, "cuda"), resident);
}

/// Four blocks of the suite's shapes, 20 GB of host memory, none of which the evaluator misses.
TEST(GpuEngine, StreamedWeightsAreExplained) {
  SKIP_WITHOUT_GPU();
  EngineOptions options = GpuPackage("qwen3_5_moe").options();
  Json config =
      parse_json(read_file(CBENCH_SOURCE_DIR "/tasks/configs/qwen3.5-122b-a10b.json"), "config");
  Json& text = config.contains("text_config") ? config["text_config"] : config;
  text["num_hidden_layers"] = 4;
  if (text.contains("layer_types")) {
    text["layer_types"].erase(text["layer_types"].begin() + 4, text["layer_types"].end());
  }
  options.config = dump_json(config);
  options.package.clear();
  options.synthetic = true;
  options.share_device_memory = false;  // engine_logits() reads them on the host
  options.load_timeout = 120;
  options.stream_budget = slots_only(options.config);
  Engine engine(options);
  EXPECT_TRUE(engine.streams());
  for (int round = 0; round < 3; ++round) engine_logits(engine, {{1, 2, 3, 4, 5}, {6, 7}});
  engine.generate(0, 1, 5, 3, [](int32_t) {});
  const EngineMemory memory = engine.memory();
  std::printf("%.2f GB stream, loaded in %.1f s; host grew by %.2f GB\n",
              static_cast<double>(memory.streamed) / 1e9, engine.load_seconds(),
              static_cast<double>(memory.outside - memory.baseline) / 1e9);
  EXPECT_GT(memory.streamed, int64_t{18} << 30);
  EXPECT_EQ(memory.unexplained(), 0) << memory.explain();
  engine.close();
}

TEST(GpuReader, ReadsWhatTheHostReads) {
  SKIP_WITHOUT_GPU();
  Side side(make_cuda_ops(0));
  Random random(9);
  const int64_t n = 7, vocab = 5003;
  std::vector<float> rows = random_values(random, n * vocab, 9);
  rows[static_cast<size_t>(3 * vocab + 11)] = INFINITY;
  std::vector<int32_t> targets;
  std::vector<double> uniform;
  for (int64_t i = 0; i < n; ++i) {
    targets.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab))));
    uniform.push_back(random.uniform());
  }
  const auto host = make_host_logits_reader();
  const auto gpu = make_cuda_logits_reader(0);
  const float* device = side.floats(rows);
  std::vector<RowScore> a(7), b(7);
  host->score(rows.data(), n, vocab, targets, a);
  gpu->score(device, n, vocab, targets, b);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(a[i].finite, b[i].finite);
    if (!a[i].finite) continue;
    EXPECT_EQ(a[i].argmax, b[i].argmax);
    EXPECT_EQ(a[i].target_gap, b[i].target_gap);
    EXPECT_NEAR(a[i].log_probability, b[i].log_probability, 2e-5);
  }
  EXPECT_EQ(host->argmax(rows.data(), n, vocab), gpu->argmax(device, n, vocab));
  EXPECT_EQ(host->sample(rows.data(), n, vocab, 1, uniform),
            gpu->sample(device, n, vocab, 1, uniform));
}

struct Hoard {
  const char* mode;
  const char* library;
  const char* said;  ///< in the explanation; "" = declared
};

class GpuMemory : public ::testing::TestWithParam<Hoard> {};

TEST_P(GpuMemory, IsSeenAndCounted) {
  SKIP_WITHOUT_GPU();
  const Hoard& hoard = GetParam();
  const GpuPackage package(hoard.mode, hoard.library);
  Engine engine(package.options());
  measure_likelihood(engine, random_blocks(engine.vocab()));
  const EngineMemory m = engine.memory();
  std::printf(
      "  %s: declared %.1f MiB; device growth %.1f, unowned growth %.1f, arena %.1f + %.1f, "
      "host growth %.1f MiB; unexplained: %s\n",
      hoard.mode, static_cast<double>(m.arena.model_storage()) / 1048576,
      static_cast<double>(m.device->engine - m.device_baseline.engine) / 1048576,
      static_cast<double>(m.device->unowned() - m.device_baseline.unowned()) / 1048576,
      static_cast<double>(m.arena.live_total()) / 1048576,
      static_cast<double>(m.arena.padding) / 1048576,
      static_cast<double>(m.outside - m.baseline) / 1048576, m.explain().c_str());
  if (std::string(hoard.mode) == "plain") {
    EXPECT_EQ(m.unexplained(), 0) << m.explain();
    return;
  }
  // What the allowances leave of it, at least; the whole of it, counted once or twice, at most.
  EXPECT_GE(m.resident(), kHoard - (int64_t{64} << 20));
  EXPECT_LE(m.resident(), 2 * kHoard + (int64_t{64} << 20));
  if (hoard.said[0] == '\0') {
    EXPECT_GE(m.arena.model_storage(), kHoard);
  } else {
    EXPECT_NE(m.explain().find(hoard.said), std::string::npos) << m.explain();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plugins, GpuMemory,
    ::testing::Values(Hoard{"plain", "hoard.so", ""}, Hoard{"cuda_malloc", "hoard.so", "device"},
                      Hoard{"mem_create", "hoard.so", "device"},
                      Hoard{"device_array", "hoard_array.so", "device"},
                      Hoard{"pinned", "hoard.so", "host"}, Hoard{"host_copy", "hoard.so", "host"},
                      Hoard{"managed", "hoard.so", "managed"}, Hoard{"bf16_copy", "hoard.so", ""}),
    [](const auto& tested) { return std::string(tested.param.mode); });

/// The code with which an engine of this plugin ends.
std::string ending(const std::string& mode, const std::string& library) {
  const GpuPackage package(mode, library);
  EngineOptions options = package.options();
  options.reply_timeout = 8;
  try {
    Engine engine(options);
    measure_likelihood(engine, random_blocks(engine.vocab()));
  } catch (const Error& error) {
    std::printf("  %s: %s: %.300s\n", mode.c_str(), error.code().c_str(), error.what());
    return error.code();
  }
  return "nothing";
}

TEST(GpuFaults, AnIllegalAccessEndsTheEngineOnly) {
  SKIP_WITHOUT_GPU();
  EXPECT_EQ(ending("illegal", "hoard.so"), "cuda");
  EXPECT_EQ(ending("plain", "hoard.so"), "nothing");
}

TEST(GpuFaults, AKernelForAnotherGpu) {
  SKIP_WITHOUT_GPU();
  EXPECT_EQ(ending("plain", "hoard_arch.so"), "plugin_failed");
}

TEST(GpuFaults, AKernelThatNeverEnds) {
  SKIP_WITHOUT_GPU();
  EXPECT_EQ(ending("hang", "hoard.so"), "engine_hung");
  EXPECT_EQ(ending("plain", "hoard.so"), "nothing");
}

TEST(GpuFaults, TooLittleMemory) {
  SKIP_WITHOUT_GPU();
  GpuPackage package("qwen3_5_tied");
  EngineOptions options = package.options();
  options.capacity.slots = 1 << 20;
  options.capacity.max_length = 1 << 16;
  try {
    Engine engine(options);
    FAIL() << "a petabyte of caches was had";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "engine_out_of_memory") << error.what();
  }
}

/// The shipped task, whose reference was taken on a CPU, measured whole on the GPU.
TEST(GpuEvaluate, TheTinyTask) {
  SKIP_WITHOUT_GPU();
  set_tasks_root(CBENCH_SOURCE_DIR "/tasks");
  const Contract contract = find_task("tiny-hybrid-6m_4m_standard_cpu");
  EvaluationOptions options;
  options.package = contract.checkpoint_dir();
  options.program = built("cbench");
  options.box = gpu_box();
  options.device = "cuda";
  options.quiet = true;
  const Verdict verdict = evaluate(contract, options);
  std::printf("%s", verdict_table(verdict).c_str());
  EXPECT_EQ(verdict.status, Status::kGateFailed);
  for (const Reason& reason : verdict.reasons) {
    EXPECT_TRUE(reason.code.ends_with("_over_limit")) << reason.code << ": " << reason.message;
  }
  ASSERT_TRUE(verdict.likelihood && verdict.audit && verdict.decode && verdict.energy);
  EXPECT_NEAR(verdict.likelihood->f, 1, 0.01) << "BF16 activations against fp32";
  EXPECT_EQ(verdict.storage.unexplained, 0) << verdict.storage.unexplained_what;
  EXPECT_GT(verdict.energy->idle_watts, 0);
}

TEST(NoGpu, IsAnEnvironmentErrorByName) {
  if (gpu_missing().empty()) GTEST_SKIP() << "there is a GPU";
  const GpuPackage package("qwen3_5_tied");
  try {
    Engine engine(package.options());
    FAIL() << "an engine without a GPU";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.code(), "no_gpu") << error.what();
  }
}

}  // namespace
}  // namespace cbench::testing
