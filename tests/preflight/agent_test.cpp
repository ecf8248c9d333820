// The lines about the agent: its route through the relay, and its program in a box.
#include <algorithm>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "preflight/checks.h"
#include "relay/endpoint.h"
#include "util/error.h"

namespace cbench {
namespace {

using relay::Api;
using relay::Endpoint;

CheckLine only_line(const std::function<void(CheckLines&)>& check) {
  CheckLines lines;
  check(lines);
  EXPECT_EQ(lines.lines().size(), 1u);
  return lines.lines().empty() ? CheckLine{} : lines.lines()[0];
}

class AgentCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("CBENCH_ROUTES", (dir_.path() + "/routes.yaml").c_str(), 1);
    ::setenv("CBENCH_ROUTE_KEY_ENV", "CBENCH_TEST_KEY", 1);
    ::setenv("CBENCH_ROUTE_MODEL", "test-model", 1);
    ::setenv("CBENCH_TEST_KEY", "sk-test-1234567890", 1);
    ::unsetenv("CBENCH_ROUTE_URL");
    options_.program = CBENCH_BINARY_DIR "/cbench";
    options_.box = BoxKind::kDirect;
  }
  void TearDown() override {
    for (const char* name : {"CBENCH_ROUTES", "CBENCH_ROUTE_KEY_ENV", "CBENCH_ROUTE_MODEL",
                             "CBENCH_ROUTE_URL", "CBENCH_TEST_KEY"}) {
      ::unsetenv(name);
    }
  }
  CheckLine route(const std::string& agent, const std::string& url = "") {
    if (!url.empty()) ::setenv("CBENCH_ROUTE_URL", url.c_str(), 1);
    options_.agent = agent;
    return only_line([&](CheckLines& lines) { check_route(options_, lines); });
  }
  CheckLine start(const std::string& agent, const std::string& script) {
    const std::string cli = dir_.path() + "/" + agent;
    write_file_atomic(cli, "#!/bin/sh\n" + script, 0755);
    write_file_atomic(dir_.path() + "/routes.yaml",
                      "routes:\n  " + agent + ":\n    cli: " + cli + "\n");
    options_.agent = agent;
    return only_line([&](CheckLines& lines) { check_agent_start(options_, lines); });
  }

  TempDir dir_;
  PreflightOptions options_;
};

TEST_F(AgentCheck, NothingIsNeededWithoutARoute) {
  for (const char* agent : {"baseline", "command:./agent.sh"}) {
    const CheckLine line = route(agent);
    EXPECT_EQ(line.level, CheckLevel::kOk);
    EXPECT_TRUE(line.seen.starts_with("not needed")) << line.seen;
    options_.agent = agent;
    EXPECT_TRUE(only_line([&](CheckLines& l) {
                  check_agent_start(options_, l);
                }).seen.starts_with("not needed"));
  }
}

TEST_F(AgentCheck, OnlyAnAgentThatRunDrivesIsReady) {
  for (const auto& [agent, level] : {std::pair{"baseline", CheckLevel::kOk},
                                     {"command:./agent.sh", CheckLevel::kOk},
                                     {"claude", CheckLevel::kFail},
                                     {"codex", CheckLevel::kFail}}) {
    options_.agent = agent;
    EXPECT_EQ(only_line([&](CheckLines& l) { check_agent_run(options_, l); }).level, level)
        << agent;
  }
}

TEST_F(AgentCheck, ARouteThatAnswers) {
  for (const auto& [api, agent] : {std::pair{Api::kAnthropic, "claude"}, {Api::kOpenai, "codex"}}) {
    Endpoint endpoint(api);
    const CheckLine line = route(agent, endpoint.url());
    EXPECT_EQ(line.level, CheckLevel::kOk) << line.seen;
    EXPECT_EQ(endpoint.requests().size(), 1u);
  }
}

TEST_F(AgentCheck, EveryTroubleHasItsOwnAdvice) {
  std::vector<std::string> advice;
  for (const char* status : {"401", "403", "404", "429", "500"}) {
    Endpoint endpoint(Api::kAnthropic, {"--all", "--fault", std::string(status) + ":0:9"});
    const CheckLine line = route("claude", endpoint.url());
    EXPECT_EQ(line.level, CheckLevel::kFail);
    EXPECT_NE(line.seen.find(status), std::string::npos) << line.seen;
    advice.push_back(line.todo);
  }
  const CheckLine nobody = route("claude", "http://127.0.0.1:1");
  EXPECT_EQ(nobody.level, CheckLevel::kFail);
  advice.push_back(nobody.todo);
  ::unsetenv("CBENCH_ROUTE_MODEL");
  advice.push_back(route("claude").todo);
  ::unsetenv("CBENCH_TEST_KEY");
  const CheckLine no_key = route("claude");
  EXPECT_EQ(no_key.level, CheckLevel::kFail);
  EXPECT_NE(no_key.seen.find("CBENCH_TEST_KEY"), std::string::npos) << no_key.seen;
  advice.push_back(no_key.todo);
  std::ranges::sort(advice);
  EXPECT_EQ(std::ranges::adjacent_find(advice), advice.end());
  EXPECT_NE(advice.front(), "");
}

TEST_F(AgentCheck, ColdStarts) {
  std::vector<BoxKind> kinds = {BoxKind::kDirect};
  try {
    require_box(BoxKind::kBwrap);
    kinds.push_back(BoxKind::kBwrap);
  } catch (const EnvironmentError&) {
  }
  for (const BoxKind kind : kinds) {
    options_.box = kind;
    const CheckLine good = start("claude", "[ \"$1\" = --version ] && echo 1.2.3\n");
    EXPECT_EQ(good.level, CheckLevel::kOk) << good.seen;
    EXPECT_TRUE(good.seen.starts_with("1.2.3 starts cold")) << good.seen;
    EXPECT_EQ(start("claude", "echo no node >&2; exit 1\n").level, CheckLevel::kFail);
  }
  options_.box = kinds.back();
  if (kinds.size() == 2) {
    EXPECT_EQ(start("codex", "echo 0.1\n").level, CheckLevel::kWarn);
    write_file_atomic(dir_.path() + "/codex-code-mode-host", "", 0755);
    EXPECT_EQ(start("codex", "echo 0.1\n").level, CheckLevel::kOk);
  }
  write_file_atomic(dir_.path() + "/routes.yaml", "routes:\n  claude:\n    cli: /no/such/claude\n");
  options_.agent = "claude";
  const CheckLine none = only_line([&](CheckLines& lines) { check_agent_start(options_, lines); });
  EXPECT_EQ(none.level, CheckLevel::kFail);
  EXPECT_NE(none.todo.find("install"), std::string::npos);
}

}  // namespace
}  // namespace cbench
