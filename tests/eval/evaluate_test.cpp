// A whole evaluation on a very small task made here, and the audit against plugins that look ahead.
#include "eval/evaluate.h"

#include <cmath>
#include <thread>

#include <gmock/gmock.h>

#include "engine/support.h"
#include "eval/audit.h"
#include "eval/decode_speed.h"
#include "eval/sampling.h"
#include "eval/task_data.h"
#include "util/hash.h"

namespace cbench::testing {
namespace {

using ::testing::HasSubstr;

const std::string kModel = golden_dir("llama_tied");

/// Four blocks that the model itself sampled.
Blocks sampled_blocks(Engine& engine) {
  Blocks blocks;
  blocks.context = 8;
  blocks.continuation = 24;
  for (int32_t b = 0; b < 4; ++b) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 8; ++i) ids.push_back((37 * b + 11 * i + 5) % 128);
    blocks.ids.push_back(ids);
    blocks.documents.push_back("d" + std::to_string(b));
  }
  sample_continuations(engine, blocks, 1, 7, "");
  return blocks;
}

/// A task directory with the fixture as its model; only what a check needs.
struct MiniTask {
  TempDir root{"cbench-test-task"};
  Contract contract;

  MiniTask() {
    make_directories(root.path() + "/models");
    fs::copy(kModel, root.path() + "/models/m");
    contract.name = "mini";
    contract.tasks_root = root.path();
    contract.model = {"mini", "models/m", "", "llama", 100'000, true};
    contract.limit = 2 << 20;
    contract.hardware.device = "cpu";
    contract.likelihood.blocks = 4;
    contract.likelihood.context_tokens = 8;
    contract.likelihood.continuation_tokens = 24;
    contract.decode = {8, 6, 1, 2, 1};
    contract.audit = {2, 16, 2, 0.02};
    contract.timeouts = {900, 900, 300, 120, 60};
    contract.data.root = "data";
    contract.data.reference = "reference";
    const TestPackage source(kModel);
    Engine engine(engine_options(source));
    const Blocks blocks = sampled_blocks(engine);
    make_directories(reference_dir(contract, Mode::kCheck));
    write_blocks(blocks_path(contract, Mode::kCheck), blocks);
    ReferenceFigures figures;
    figures.blocks = measure_likelihood(engine, blocks);
    figures.device = "test";
    figures.tokens_per_second = 1;
    figures.blocks_sha256 = sha256_file(blocks_path(contract, Mode::kCheck));
    write_reference(contract, Mode::kCheck, figures);
  }

  Verdict check(const std::string& package) const {
    EvaluationOptions options;
    options.mode = Mode::kCheck;
    options.package = package;
    options.quiet = true;
    options.program = CBENCH_BINARY_DIR "/cbench";
    return evaluate(contract, options);
  }
};

std::string first_code(const Verdict& v) { return v.reasons.empty() ? "" : v.reasons[0].code; }

TestPackage hostile(const std::string& mode) {
  return TestPackage(kModel, hostile_manifest(read_file(kModel + "/config.json"), mode),
                     plugin_fixture("hostile"));
}

TEST(Evaluate, TheModelItselfScoresTen) {
  const MiniTask task;
  const Verdict v = task.check(TestPackage(kModel).path());
  EXPECT_EQ(v.status, Status::kScored) << first_code(v);
  EXPECT_EQ(v.exit_code(), Exit::kOk);
  ASSERT_TRUE(v.reward);
  EXPECT_NEAR(*v.reward, 10, 1e-3);
  ASSERT_TRUE(v.decode);
  EXPECT_EQ(v.decode->agreement, 1);
  EXPECT_GT(v.storage.resident_after_inference, 200'000);
}

TEST(Evaluate, OutcomesOfSubmissions) {
  const MiniTask task;
  const struct {
    const char* mode;
    const char* code;
  } cases[] = {{"plain", ""},
               {"crash_load", "engine_crashed"},
               {"nan", "non_finite_logits"},
               {"exit0_matmul", "engine_exited"},
               {"hidden_malloc", "resident_over_limit"}};
  for (const auto& c : cases) {
    const TestPackage package = hostile(c.mode);
    const Verdict v = task.check(package.path());
    EXPECT_EQ(first_code(v), c.code) << c.mode;
    EXPECT_EQ(v.status, *c.code == '\0' ? Status::kScored : Status::kGateFailed) << c.mode;
    EXPECT_NEAR(v.reward.value_or(-1), *c.code == '\0' ? 10 : 0, 0.01) << c.mode;
  }
}

TEST(Evaluate, RefusedPackages) {
  const MiniTask task;
  TestPackage sparse(kModel);
  put_file(sparse.path() + "/zeros", "");
  fs::resize_file(sparse.path() + "/zeros", uintmax_t{10} << 30);
  const Verdict far = task.check(sparse.path());
  EXPECT_EQ(first_code(far), "package_over_limit");
  EXPECT_EQ(far.status, Status::kGateFailed);
  EXPECT_EQ(far.package_sha256, "");  // not a byte was read

  TestPackage names(kModel);
  for (int i = 0; i < 400; ++i) {
    put_file(names.path() + "/" + std::to_string(i) + std::string(200, 'n'), "");
  }
  EXPECT_EQ(first_code(task.check(names.path())), "path_bytes");

  TestPackage linked(kModel);
  fs::create_symlink("/etc/passwd", linked.path() + "/link");
  const Verdict v = task.check(linked.path());
  EXPECT_EQ(first_code(v), "symlink");
  EXPECT_EQ(v.status, Status::kGateFailed);
  EXPECT_EQ(v.stages.back().status, "not_run");
}

TEST(Evaluate, OurOwnBadDataIsNoFailureOfTheSubmission) {
  const TestPackage package(kModel);
  {
    const MiniTask task;
    const std::string path = reference_dir(task.contract, Mode::kCheck) + "/reference.json";
    std::string text = read_file(path);
    text.replace(text.find("\"tokens_per_second\": 1"), 22, "\"tokens_per_second\": 2");
    put_file(path, text);
    EXPECT_EQ(caught([&] { task.check(package.path()); }).code, "reference");
  }
  MiniTask task;
  EXPECT_EQ(caught([&] { task.check("/nonexistent/package"); }).code, "not_found");
  task.contract.likelihood.continuation_tokens = 23;
  EXPECT_EQ(caught([&] { task.check(package.path()); }).code, "blocks");
}

TEST(Evaluate, APackageThatChangesWhileItIsMeasured) {
  MiniTask task;
  task.contract.timeouts.reply = 3;
  const TestPackage package = hostile("spin_matmul");
  Verdict v;
  std::thread measuring([&] { v = task.check(package.path()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  fs::resize_file(package.path() + "/weights.safetensors", 100);
  measuring.join();
  EXPECT_EQ(first_code(v), "package_changed");
  EXPECT_EQ(v.status, Status::kGateFailed);
}

/// What the audit says about a plugin in one mode.
AuditResult audited(const std::string& mode) {
  const TestPackage source(kModel);
  Blocks blocks;
  {
    Engine engine(engine_options(source));
    blocks = sampled_blocks(engine);
  }
  const TestPackage package = hostile(mode);
  const auto options = engine_options(package, built_plugin(plugin_fixture("hostile")));
  std::vector<std::vector<RowScore>> scored;
  {
    Engine engine(options);
    scored = score_all_blocks(engine, blocks);
  }
  Engine fresh(options);
  return audit_causality(fresh, blocks, scored, {2, 16, 2, 0.02}, 3);
}

TEST(Audit, FindsWhoLooksAhead) {
  EXPECT_TRUE(audited("plain").passed);
  const AuditResult ahead = audited("look_ahead");
  EXPECT_FALSE(ahead.passed);
  EXPECT_NE(ahead.reason, "");
  EXPECT_FALSE(audited("stepwise_differs").passed);
}

TEST(Audit, FindsWhoLooksAheadOnlyWhileItIsScored) {
  EXPECT_FALSE(audited("look_ahead_first").passed);
}

TEST(Sampling, TextOfTheModelCostsItsOwnEntropy) {
  const TestPackage source(kModel);
  Engine engine(engine_options(source));
  Blocks blocks;
  blocks.context = 4;
  blocks.continuation = 60;
  for (int32_t b = 0; b < 64; ++b) blocks.ids.push_back({b, 2 * b % 128, 7, (b * b) % 128});
  sample_continuations(engine, blocks, 1, 11, "");
  // Per token: entropy of the model's distribution, and what the sampled token costs.
  double excess = 0, square = 0;
  const auto vocab = static_cast<size_t>(engine.vocab());
  for (const auto& ids : blocks.ids) {
    const auto logits = engine_logits(engine, {{ids.begin(), ids.end() - 1}});
    double difference = 0;
    for (size_t t = 3; t + 1 < ids.size(); ++t) {
      const float* row = logits.data() + t * vocab;
      double total = 0, mean = 0;
      for (size_t i = 0; i < vocab; ++i) total += std::exp(double{row[i]});
      for (size_t i = 0; i < vocab; ++i) mean += std::exp(double{row[i]}) * row[i] / total;
      difference += mean - double{row[static_cast<size_t>(ids[t + 1])]};
    }
    excess += difference;
    square += difference * difference;
  }
  EXPECT_GT(square, 0);
  EXPECT_LT(std::abs(excess), 3.5 * std::sqrt(square));
  // The same blocks whatever runs side by side.
  Blocks again = blocks;
  for (auto& ids : again.ids) ids.resize(4);
  EngineOptions narrow = engine_options(source);
  narrow.capacity.slots = narrow.capacity.sequences = 3;
  narrow.capacity.tokens = 8;  // two contexts a forward
  Engine other(narrow);
  sample_continuations(other, again, 1, 11, "");
  EXPECT_EQ(again.ids, blocks.ids);
}

TEST(Sampling, GoesOnInsideAGroup) {
  const TestPackage source(kModel);
  Engine engine(engine_options(source));
  Blocks begun;
  begun.context = 4;
  begun.continuation = 20;
  for (int32_t b = 0; b < 8; ++b) begun.ids.push_back({b, 2 * b % 128, 7, (b * b) % 128});
  Blocks whole = begun;
  sample_continuations(engine, whole, 1, 11, "");

  const TempDir dir("cbench-test-sampling");
  Blocks part = whole;
  part.continuation = 9;
  for (auto& ids : part.ids) ids.resize(13);
  part.ids[5][10] = (part.ids[5][10] + 1) % 128;  // shows that it was read
  write_blocks(dir.path() + "/p.group", part);
  Blocks resumed = begun;
  sample_continuations(engine, resumed, 1, 11, dir.path() + "/p");
  EXPECT_FALSE(fs::exists(dir.path() + "/p.group"));
  for (size_t i = 0; i < whole.ids.size(); ++i) {
    ASSERT_EQ(resumed.ids[i].size(), 24u);
    EXPECT_TRUE(std::equal(part.ids[i].begin(), part.ids[i].end(), resumed.ids[i].begin()));
    EXPECT_EQ(resumed.ids[i] == whole.ids[i], i != 5) << i;
  }

  // A file with other contexts changes nothing.
  part.ids[0][0] = 99;
  write_blocks(dir.path() + "/q.group", part);
  Blocks other = begun;
  sample_continuations(engine, other, 1, 11, dir.path() + "/q");
  EXPECT_EQ(other.ids, whole.ids);
}

TEST(DecodeSpeed, TokensOfAnotherModelAreNotPlausible) {
  // A step that multiplies by other weights than the prefill decodes another model.
  const TestPackage package = hostile("stepwise_differs");
  const std::vector<std::vector<int32_t>> prompts(3, {5, 9, 2, 6, 5, 3, 5, 8});
  const DecodeProtocol protocol{8, 24, 1, 2, 1};
  {
    Engine engine(engine_options(package, built_plugin(plugin_fixture("hostile"))));
    EXPECT_FALSE(measure_decode_speed(engine, protocol, prompts).tokens_plausible);
  }
  const TestPackage honest = hostile("plain");
  Engine engine(engine_options(honest, built_plugin(plugin_fixture("hostile"))));
  const DecodeSpeed speed = measure_decode_speed(engine, protocol, prompts);
  EXPECT_TRUE(speed.tokens_plausible);
  EXPECT_EQ(speed.tokens, 48);
}

}  // namespace
}  // namespace cbench::testing
