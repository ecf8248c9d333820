// What --agent accepts, and what the baseline would try.
#include "agent/agent.h"

#include <gtest/gtest.h>

#include "agent/baseline.h"
#include "util/error.h"
#include "util/file.h"

namespace cbench {
namespace {

TEST(Agent, IsBaselineOrACommand) {
  EXPECT_EQ(parse_agent("baseline").kind, AgentSpec::Kind::kBaseline);
  const AgentSpec command = parse_agent("command:echo 'a b'; exit 1");
  EXPECT_EQ(command.command, "echo 'a b'; exit 1");
  EXPECT_EQ(agent_argv(command, {}, "t", 1),
            (std::vector<std::string>{"/bin/sh", "-c", "echo 'a b'; exit 1"}));
  for (const char* wrong : {"", "command", "command:", "command:  ", "Baseline", "bash:ls"}) {
    EXPECT_THROW(parse_agent(wrong), UsageError) << wrong;
  }
}

TEST(Baseline, ChoicesFitAndGrow) {
  const std::string model = std::string(CBENCH_SOURCE_DIR) + "/tasks/models/tiny-hybrid-6m";
  for (const int64_t limit : {int64_t{4} << 20, int64_t{3} << 20}) {
    const auto choices = baseline_choices(model, limit, 3);
    ASSERT_GE(choices.size(), 2u);
    int64_t last = 0;
    for (const PackChoice& choice : choices) {
      const int64_t bytes = packed_bytes(model, choice);
      EXPECT_LE(bytes, limit) << choice.text();
      EXPECT_GT(bytes, last) << choice.text();
      last = bytes;
    }
  }
  EXPECT_TRUE(baseline_choices(model, 1000, 3).empty());
}

TEST(Baseline, PredictsThePackageSize) {
  const std::string model = std::string(CBENCH_SOURCE_DIR) + "/tasks/models/tiny-hybrid-6m";
  TempDir temp;
  const PackChoice choice{{3, 64, false}, 4, PackPlugin::kFast};
  const int64_t predicted = packed_bytes(model, choice);
  const PackReport report = pack_checkpoint(model, "t", choice, temp.path() + "/p");
  EXPECT_LE(report.bytes, predicted);
  EXPECT_GT(report.bytes, predicted - predicted / 50);
  EXPECT_THROW(pack_checkpoint(model, "t", choice, temp.path() + "/p"), UsageError);
}

}  // namespace
}  // namespace cbench
