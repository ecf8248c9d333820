// The strict loader: every bad contract gives one error that names file, line, key and expectation.
#include "task/contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "task/harbor.h"
#include "task/scaffold.h"
#include "util/error.h"
#include "util/file.h"

namespace cbench {
namespace {

using testing::HasSubstr;

constexpr const char* kGood = R"(schema: 1
title: A test task
limit: 4 MiB
budget: 10m
model:
  name: tiny
  repository: models/tiny
  architecture: qwen3_5
  parameters: 6000000
  shipped: true
hardware:
  device: cpu
likelihood:
  blocks: 48
  context_tokens: 64
  continuation_tokens: 192
  temperature: 1
  seed: 7
  sources: [prose, math]
accuracy:
  retain: 0.8
  benchmarks:
    - {name: gsm8k, items: 50, shots: 4, max_tokens: 128}
    - {name: triviaqa, items: 50, shots: 5, max_tokens: 16}
decode:
  prompt_tokens: 128
  new_tokens: 64
  warmup_requests: 1
  rounds: 3
  requests_per_round: 3
audit:
  stepwise_blocks: 2
  stepwise_tokens: 32
  suffix_blocks: 2
  tolerance: 0.02
timeouts:
  verification: 5m
  check: 2m
  build: 60s
  load: 30s
  reply: 30s
data:
  root: data/tiny
  items: items
  shots: shots
  documents: documents
  reference: reference
  visible: visible
)";

/// A tasks directory with one task "t" and room for templates.
class ContractTest : public testing::Test {
 protected:
  std::string write(const std::string& text, const std::string& name = "t") {
    make_directories(root() + "/" + name);
    const std::string path = root() + "/" + name + "/contract.yaml";
    write_file_atomic(path, text);
    return path;
  }
  std::string root() const { return directory_.path() + "/tasks"; }

  static std::string replaced(const std::string& from, const std::string& to) {
    std::string text = kGood;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  }

  TempDir directory_;
};

TEST_F(ContractTest, ReadsEveryField) {
  const Contract contract = load_contract(write(kGood));
  EXPECT_EQ(contract.name, "t");
  EXPECT_EQ(contract.limit, 4 << 20);
  EXPECT_EQ(contract.budget, 600);
  EXPECT_EQ(contract.model.parameters, 6000000);
  EXPECT_TRUE(contract.model.shipped);
  EXPECT_EQ(contract.likelihood.sources, (std::vector<std::string>{"prose", "math"}));
  ASSERT_EQ(contract.accuracy.benchmarks.size(), 2u);
  EXPECT_EQ(contract.accuracy.benchmarks[1].shots, 5);
  EXPECT_EQ(contract.accuracy.retain_numerator, 4);
  EXPECT_EQ(contract.accuracy.retain_denominator, 5);
  EXPECT_EQ(contract.timeouts.build, 60);
  EXPECT_EQ(contract.checkpoint_dir(), root() + "/models/tiny");
  EXPECT_EQ(contract.data_path("items/gsm8k.jsonl"), root() + "/data/tiny/items/gsm8k.jsonl");
  EXPECT_TRUE(contract.fetch.empty());
}

TEST_F(ContractTest, FrozenCopyLoadsFromElsewhere) {
  const Contract contract = load_contract(write(kGood));
  const std::string frozen = directory_.path() + "/run/contract.yaml";
  make_directories(directory_.path() + "/run");
  write_file_atomic(frozen, contract.text);
  const Contract copy = load_contract(frozen, root());
  EXPECT_EQ(copy.name, "t");
  EXPECT_EQ(copy.text, contract.text);
  EXPECT_EQ(copy.sha256, contract.sha256);
  EXPECT_EQ(copy.checkpoint_dir(), contract.checkpoint_dir());
  EXPECT_TRUE(diff_contracts(copy, contract).empty());
}

struct BadCase {
  const char* label;
  const char* from;  ///< text of the good contract
  const char* to;
  const char* code;
  const char* where;     ///< "contract.yaml:LINE: KEY..."
  const char* expected;  ///< more words of the message
};

const BadCase kBadCases[] = {
    {"octal", "blocks: 48", "blocks: 012", "contract_type", ":14: likelihood.blocks: ", "octal"},
    {"octal_eight", "blocks: 48", "blocks: 08", "contract_type",
     ":14: likelihood.blocks: ", "octal"},
    {"hex", "blocks: 48", "blocks: 0x10", "contract_type", ":14: likelihood.blocks: ", "decimal"},
    {"underscore", "blocks: 48", "blocks: 1_000", "contract_type",
     ":14: likelihood.blocks: ", "underscores"},
    {"sexagesimal", "blocks: 48", "blocks: 1:30", "contract_type",
     ":14: likelihood.blocks: ", "base 60"},
    {"real_for_integer", "blocks: 48", "blocks: 4.5", "contract_type",
     ":14: likelihood.blocks: ", "an integer from 1 to 65536"},
    {"exponent", "blocks: 48", "blocks: 1e3", "contract_type",
     ":14: likelihood.blocks: ", "an integer"},
    {"plus", "blocks: 48", "blocks: +48", "contract_type",
     ":14: likelihood.blocks: ", "an integer"},
    {"quoted_number", "blocks: 48", "blocks: \"48\"", "contract_type",
     ":14: likelihood.blocks: ", "without quotes"},
    {"word_for_number", "blocks: 48", "blocks: many", "contract_type",
     ":14: likelihood.blocks: ", "found \"many\""},
    {"nothing", "blocks: 48", "blocks:", "contract_type",
     ":14: likelihood.blocks: ", "found nothing"},
    {"list_for_number", "blocks: 48", "blocks: [48]", "contract_type",
     ":14: likelihood.blocks: ", "found a list"},
    {"negative", "blocks: 48", "blocks: -1", "contract_range",
     ":14: likelihood.blocks: ", "from 1 to"},
    {"too_large", "blocks: 48", "blocks: 65537", "contract_range",
     ":14: likelihood.blocks: ", "65536"},
    {"overflow", "blocks: 48", "blocks: 99999999999999999999", "contract_range",
     ":14: likelihood.blocks: ", "65536"},
    {"nan", "temperature: 1", "temperature: .nan", "contract_type",
     ":17: likelihood.temperature: ", "a number"},
    {"nan_word", "temperature: 1", "temperature: nan", "contract_type",
     ":17: likelihood.temperature: ", "a number"},
    {"infinity", "temperature: 1", "temperature: .inf", "contract_type",
     ":17: likelihood.temperature: ", "a number"},
    {"huge_exponent", "temperature: 1", "temperature: 1e999", "contract_type",
     ":17: likelihood.temperature: ", "a number"},
    {"zero_temperature", "temperature: 1", "temperature: 0", "contract_range",
     ":17: likelihood.temperature: ", "0.01"},
    {"yes", "shipped: true", "shipped: yes", "contract_type",
     ":10: model.shipped: ", "true or false"},
    {"on", "shipped: true", "shipped: on", "contract_type",
     ":10: model.shipped: ", "true or false"},
    {"capital_true", "shipped: true", "shipped: True", "contract_type",
     ":10: model.shipped: ", "true or false"},
    {"boolean_for_text", "name: tiny", "name: no", "contract_type", ":6: model.name: ", "quotes"},
    {"number_for_text", "name: tiny", "name: 012", "contract_type", ":6: model.name: ", "quotes"},
    {"null_for_text", "name: tiny", "name: ~", "contract_type",
     ":6: model.name: ", "found nothing"},
    {"size_without_unit", "limit: 4 MiB", "limit: 4194304", "contract_type",
     ":3: limit: ", "8 GiB"},
    {"size_with_wrong_unit", "limit: 4 MiB", "limit: 4 Mib", "contract_type",
     ":3: limit: ", "8 GiB"},
    {"negative_size", "limit: 4 MiB", "limit: -4 MiB", "contract_type", ":3: limit: ", "8 GiB"},
    {"zero_size", "limit: 4 MiB", "limit: 0 B", "contract_range", ":3: limit: ", "from 1 B"},
    {"huge_size", "limit: 4 MiB", "limit: 1000 TiB", "contract_range", ":3: limit: ", "from 1 B"},
    {"nan_size", "limit: 4 MiB", "limit: nan GiB", "contract_type", ":3: limit: ", "8 GiB"},
    {"duration_without_unit", "budget: 10m", "budget: 600", "contract_type", ":4: budget: ", "8h"},
    {"duration_octal", "budget: 10m", "budget: 012h", "contract_type", ":4: budget: ", "8h"},
    {"duration_sexagesimal", "budget: 10m", "budget: 1:30", "contract_type",
     ":4: budget: ", "base 60"},
    {"duration_zero", "budget: 10m", "budget: 0h", "contract_type", ":4: budget: ", "8h"},
    {"duration_huge", "budget: 10m", "budget: 9999h", "contract_range", ":4: budget: ", "at most"},
    {"unknown_key", "blocks: 48", "blcks: 48", "contract_unknown_key", ":14: unknown key",
     "did you mean \"blocks\"?"},
    {"unknown_top_key", "budget: 10m", "budget: 10m\nspeed: 3", "contract_unknown_key",
     ":5: unknown key \"speed\"", "expected one of"},
    {"unknown_item_key", "shots: 4,", "shots: 4, retries: 2,", "contract_unknown_key",
     ":23: unknown key \"accuracy.benchmarks[0].retries\"", "expected one of"},
    {"missing_key", "  blocks: 48\n", "", "contract_missing", ":13: missing key",
     "likelihood.blocks"},
    {"missing_section", "hardware:\n  device: cpu\n", "", "contract_missing", ":1: missing key",
     "hardware"},
    {"duplicate_key", "  seed: 7", "  seed: 7\n  seed: 8", "contract_duplicate",
     ":19: duplicate key \"seed\"", "line 18"},
    {"duplicate_section", "decode:", "model:\n  name: x\ndecode:", "contract_duplicate",
     ":25: duplicate key \"model\"", "line 5"},
    {"tab", "  blocks: 48", "\tblocks: 48", "contract_syntax", ":14: tab", "spaces"},
    {"anchor", "blocks: 48", "blocks: &b 48", "contract_syntax", ":14: anchors", ""},
    {"alias", "blocks: 48", "blocks: *b", "contract_syntax", ":14: ", ""},
    {"merge_key", "  blocks: 48", "  <<: {blocks: 48}", "contract_syntax", ":14: merge keys", ""},
    {"tag", "blocks: 48", "blocks: !!int 48", "contract_syntax", ":14: tags", ""},
    {"second_document", "schema: 1", "schema: 1\n---\nschema: 1", "contract_syntax",
     ":3: a second document", ""},
    {"unclosed", "sources: [prose, math]", "sources: [prose, math", "contract_syntax",
     ":20: not valid", ""},
    {"control_character", "title: A test task", "title: \"A\x01 task\"", "contract_syntax",
     ":2: control character", ""},
    {"bad_utf8", "title: A test task", "title: A \xff task", "contract_syntax",
     ":2: not valid UTF-8", ""},
    {"text_for_mapping", "hardware:\n  device: cpu", "hardware: cpu", "contract_type",
     ":11: hardware: ", "a mapping"},
    {"text_for_list", "sources: [prose, math]", "sources: prose", "contract_type",
     ":19: likelihood.sources: ", "a list"},
    {"empty_list", "sources: [prose, math]", "sources: []", "contract_type",
     ":19: likelihood.sources: ", "a list of 1 to"},
    {"repeated_entry", "sources: [prose, math]", "sources: [prose, prose]", "contract_type",
     ":19: likelihood.sources[1]: ", "once"},
    {"list_of_wrong_type", "sources: [prose, math]", "sources: [prose, 3]", "contract_type",
     ":19: likelihood.sources[1]: ", "quotes"},
    {"benchmark_twice", "name: triviaqa", "name: gsm8k", "contract_conflict",
     ":24: accuracy.benchmarks[1].name: ", "once"},
    {"unknown_benchmark", "name: triviaqa", "name: mmlu", "contract_type",
     ":24: accuracy.benchmarks[1].name: ", "gsm8k, humaneval or triviaqa"},
    {"benchmarks_mapping",
     "    - {name: gsm8k, items: 50, shots: 4, max_tokens: 128}\n    - {name: "
     "triviaqa, items: 50, shots: 5, max_tokens: 16}\n",
     "    name: gsm8k\n", "contract_type", ":22: accuracy.benchmarks: ", "a list"},
    {"retain_zero", "retain: 0.8", "retain: 0", "contract_range", ":21: accuracy.retain: ", "0.8"},
    {"retain_above_one", "retain: 0.8", "retain: 80", "contract_range",
     ":21: accuracy.retain: ", "0.8"},
    {"retain_fraction", "retain: 0.8", "retain: 4/5", "contract_type",
     ":21: accuracy.retain: ", "0.8"},
    {"path_up", "root: data/tiny", "root: ../data", "contract_type", ":43: data.root: ", "'..'"},
    {"absolute_path", "root: data/tiny", "root: /data", "contract_type",
     ":43: data.root: ", "relative"},
    {"device", "device: cpu", "device: tpu", "contract_type",
     ":12: hardware.device: ", "cpu or cuda"},
    {"gpu_missing", "device: cpu", "device: cuda", "contract_conflict",
     ":11: hardware.gpu: ", "name"},
    {"gpu_on_cpu", "device: cpu", "device: cpu\n  gpus: 1", "contract_conflict",
     ":11: hardware: ", "cpu"},
    {"one_new_token", "new_tokens: 64", "new_tokens: 1", "contract_range",
     ":27: decode.new_tokens: ", "from 2"},
    {"audit_beyond_blocks", "stepwise_blocks: 2", "stepwise_blocks: 49", "contract_conflict",
     ":31: audit: ", "48"},
    {"audit_beyond_tokens", "stepwise_tokens: 32", "stepwise_tokens: 193", "contract_conflict",
     ":33: audit.stepwise_tokens: ", "192"},
    {"check_beyond_verification", "check: 2m", "check: 6m", "contract_conflict",
     ":38: timeouts.check: ", "verification"},
    {"wrong_schema", "schema: 1", "schema: 2", "contract_range", ":1: schema: ", "expected 1"},
    {"wrong_name", "schema: 1", "schema: 1\nname: other", "contract_conflict",
     ":2: name: ", "\"t\""},
    {"top_is_list", "schema: 1\n", "- 1\n", "contract_syntax", ":", ""},
    {"unpinned", "shipped: true", "shipped: false", "contract_conflict",
     ":5: model.revision: ", "commit"},
    {"include_up", "schema: 1", "schema: 1\ninclude: ../../x.yaml", "contract_include",
     ":2: include: ", "outside"},
    {"include_absolute", "schema: 1", "schema: 1\ninclude: /x.yaml", "contract_include",
     ":2: include: ", "relative"},
    {"include_missing", "schema: 1", "schema: 1\ninclude: ../shared/x.yaml", "contract_include",
     ":2: include: ", "x.yaml"},
    {"include_mapping", "schema: 1", "schema: 1\ninclude: {a: b}", "contract_include",
     ":2: include: ", "template"},
};

TEST_F(ContractTest, BadContractsNameFileLineKeyAndExpectation) {
  for (const BadCase& bad : kBadCases) {
    SCOPED_TRACE(bad.label);
    const std::string path = write(replaced(bad.from, bad.to));
    try {
      load_contract(path);
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.code(), bad.code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(path + bad.where));
      EXPECT_THAT(error.what(), HasSubstr(bad.expected));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

TEST_F(ContractTest, BoundsDepthAndSize) {
  const std::string deep = "a: " + std::string(100000, '[') + "\n";
  EXPECT_THROW(load_contract(write(deep)), UsageError);
  EXPECT_THROW(load_contract(write("a: " + std::string(100000, '{'))), UsageError);
  EXPECT_THROW(load_contract(write(std::string(1 << 20, '#'))), UsageError);
  EXPECT_THROW(load_contract(write("")), UsageError);
  EXPECT_THROW(load_contract(write("# nothing\n")), UsageError);
  std::string many = "a: [";
  for (int i = 0; i < 30000; ++i) many += "1,";
  EXPECT_THROW(load_contract(write(many + "1]")), UsageError);
  EXPECT_THROW(load_contract(write(std::string("schema: 1\0\n", 11))), UsageError);
}

TEST_F(ContractTest, TemplatesMergeKeyByKeyAndTheTaskWins) {
  make_directories(root() + "/shared");
  write_file_atomic(root() + "/shared/base.yaml", kGood);
  write_file_atomic(root() + "/shared/more.yaml",
                    "model:\n  parameters: 5\ndecode:\n  rounds: 4\n");
  const Contract contract = load_contract(write(
      "include: [../shared/base.yaml, ../shared/more.yaml]\nlimit: 3 MiB\ndecode:\n  rounds: 5\n"
      "likelihood:\n  sources: [code]\n"));
  EXPECT_EQ(contract.limit, 3 << 20);
  EXPECT_EQ(contract.decode.rounds, 5);
  EXPECT_EQ(contract.decode.new_tokens, 64);
  EXPECT_EQ(contract.model.parameters, 5);
  EXPECT_EQ(contract.likelihood.sources, (std::vector<std::string>{"code"}));
}

TEST_F(ContractTest, ErrorsInATemplateNameTheTemplate) {
  make_directories(root() + "/shared");
  write_file_atomic(root() + "/shared/base.yaml", replaced("blocks: 48", "blocks: 012"));
  try {
    load_contract(write("include: ../shared/base.yaml\n"));
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("shared/base.yaml:14: likelihood.blocks"));
  }
  write_file_atomic(root() + "/shared/base.yaml", "include: ../shared/other.yaml\n");
  try {
    load_contract(write("include: ../shared/base.yaml\n"));
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.code(), "contract_include");
  }
}

TEST_F(ContractTest, TheNameMustAgreeWithTheLimit) {
  EXPECT_NO_THROW(load_contract(write(kGood, "tiny_4m_standard_cpu")));
  EXPECT_THROW(load_contract(write(kGood, "tiny_5m_standard_cpu")), UsageError);
}

TEST_F(ContractTest, FindsTasksAndSuggests) {
  write(kGood, "alpha_4m_standard_cpu");
  write(kGood, "beta");
  EXPECT_EQ(list_tasks(root()), (std::vector<std::string>{"alpha_4m_standard_cpu", "beta"}));
  EXPECT_EQ(find_task("beta", root()).name, "beta");
  EXPECT_EQ(find_task(root() + "/beta").name, "beta");
  EXPECT_EQ(find_task(root() + "/beta/contract.yaml").name, "beta");
  try {
    find_task("alpha_4n_standard_cpu", root());
    ADD_FAILURE() << "found";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.code(), "unknown_task");
    EXPECT_THAT(error.what(), HasSubstr("did you mean alpha_4m_standard_cpu?"));
  }
}

TEST_F(ContractTest, DiffNamesTheFields) {
  const Contract left = load_contract(write(kGood, "a"));
  const Contract right = load_contract(write(replaced("rounds: 3", "rounds: 5"), "b"));
  const auto differences = diff_contracts(left, right);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].key, "name");
  EXPECT_EQ(differences[1].key, "decode.rounds");
  EXPECT_EQ(differences[1].left, "3");
  EXPECT_EQ(differences[1].right, "5");
}

TEST_F(ContractTest, ScaffoldsATaskThatLoads) {
  make_directories(root() + "/shared");
  write_file_atomic(root() + "/shared/base.yaml", kGood);
  write("include: ../shared/base.yaml\nlimit: 4 MiB\n", "old");
  NewTask task;
  task.name = "new";
  task.from = "old";
  task.limit = "2 MiB";
  EXPECT_EQ(load_contract(create_task(task, root())).limit, 2 << 20);
  EXPECT_THROW(create_task(task, root()), UsageError);
  task.name = "worse";
  task.limit = "2";
  EXPECT_THROW(create_task(task, root()), UsageError);
  EXPECT_EQ(list_tasks(root()), (std::vector<std::string>{"new", "old"}));
}

TEST_F(ContractTest, ExportsAHarborTask) {
  const Contract contract = load_contract(write(kGood));
  const std::string out = directory_.path() + "/harbor";
  export_harbor(contract, out);
  EXPECT_THAT(read_file(out + "/task.toml"), HasSubstr("schema_version = \"1.4\""));
  EXPECT_THAT(read_file(out + "/task.toml"), HasSubstr("timeout_sec = 600.0"));
  EXPECT_THAT(read_file(out + "/task.toml"), HasSubstr("network_mode = \"allowlist\""));
  EXPECT_THAT(read_file(out + "/instruction.md"), HasSubstr("4.00 MiB"));
  EXPECT_THAT(read_file(out + "/tests/test.sh"), HasSubstr("reward.txt"));
  EXPECT_EQ(load_contract(out + "/tests/tasks/t/contract.yaml").text, contract.text);
  EXPECT_THROW(export_harbor(contract, out), UsageError);
}

TEST(Suite, EveryContractOfTheRepositoryLoads) {
  const std::string root = CBENCH_SOURCE_DIR "/tasks";
  const std::vector<std::string> names = list_tasks(root);
  EXPECT_EQ(names.size(), 10u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Contract contract = find_task(name, root);
    EXPECT_EQ(contract.accuracy.benchmarks.size(), 3u);
    EXPECT_EQ(contract.likelihood.blocks % static_cast<int64_t>(contract.likelihood.sources.size()),
              0);
    if (!contract.model.shipped) {
      EXPECT_EQ(contract.fetch.at(0).name, "checkpoint");
      EXPECT_EQ(contract.budget, 8 * 3600);
      EXPECT_EQ(contract.timeouts.verification, 3600);
      EXPECT_EQ(contract.likelihood.blocks, 256);
      EXPECT_EQ(contract.likelihood.context_tokens + contract.likelihood.continuation_tokens, 2048);
    }
  }
}

}  // namespace
}  // namespace cbench
