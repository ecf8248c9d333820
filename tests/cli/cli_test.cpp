// The built binary as people meet it: help, version, near matches, exit codes, JSON errors.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "util/file.h"
#include "util/json.h"
#include "util/process.h"

namespace cbench {
namespace {

using testing::HasSubstr;
using testing::Not;

RunResult cbench(const std::vector<std::string>& arguments) {
  ProcessOptions options;
  options.argv = {CBENCH_BINARY_DIR "/cbench"};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.inherit_env = true;
  options.cwd = CBENCH_SOURCE_DIR;
  return run_process(options, 60);
}

TEST(Cli, HelpSaysWhatItIsAndHowItEnds) {
  const RunResult result = cbench({"--help"});
  EXPECT_EQ(result.status.code, 0);
  EXPECT_THAT(result.out, HasSubstr("compress a language model"));
  EXPECT_THAT(result.out, HasSubstr("Exit codes:"));
  EXPECT_THAT(result.out, HasSubstr("task"));
  EXPECT_LE(std::count(result.out.begin(), result.out.end(), '\n'), 45) << "more than one screen";
  EXPECT_EQ(result.err, "");
}

TEST(Cli, EveryCommandHasHelp) {
  const RunResult completion = cbench({"completion", "fish"});
  size_t commands = 0;
  for (const char* name :
       {"fetch", "preflight", "run", "check", "verify", "report", "task", "status", "reference",
        "papers", "inspect", "tokenize", "grade", "bench"}) {
    if (completion.out.find(std::string("__fish_use_subcommand -a ") + name + " -d") ==
        std::string::npos)
      continue;
    ++commands;
    SCOPED_TRACE(name);
    const RunResult result = cbench({name, "--help"});
    EXPECT_EQ(result.status.code, 0);
    EXPECT_THAT(result.out, HasSubstr("Usage: cbench " + std::string(name)));
  }
  EXPECT_GE(commands, 1u);
  for (const char* name : {"list", "show", "check", "render", "new", "diff"}) {
    EXPECT_EQ(cbench({"task", name, "--help"}).status.code, 0) << name;
  }
}

TEST(Cli, VersionNamesTheBuild) {
  const RunResult result = cbench({"--version"});
  EXPECT_EQ(result.status.code, 0);
  EXPECT_THAT(result.out, testing::StartsWith("cbench 0."));
  EXPECT_THAT(result.out, HasSubstr("CUDA "));
}

TEST(Cli, NothingGivenShowsHelpAndFails) {
  const RunResult result = cbench({});
  EXPECT_EQ(result.status.code, 2);
  EXPECT_THAT(result.err, HasSubstr("Usage:"));
  EXPECT_EQ(result.out, "");
}

struct Mistake {
  std::vector<std::string> arguments;
  const char* message;
};

TEST(Cli, MistakesAreOneLineWithTheNearMatch) {
  const Mistake mistakes[] = {
      {{"taks", "list"}, "did you mean task?"},
      {{"complation", "bash"}, "did you mean completion?"},
      {{"task", "lsit"}, "did you mean list?"},
      {{"task", "list", "--jsn"}, "did you mean --json?"},
      {{"--taks", "x", "task", "list"}, "did you mean --tasks?"},
      {{"task", "show", "tiny-hybrid-6m_4m_standard_cpv"},
       "did you mean tiny-hybrid-6m_4m_standard_cpu?"},
      {{"task", "show"}, "required"},
      {{"task", "show", "a", "b"}, "b"},
      {{"task"}, "subcommand"},
      {{"task", "show", "./nowhere/"}, "no contract.yaml"},
      {{"--tasks", "/nowhere", "task", "list"}, "--tasks"},
      {{"completion", "tcsh"}, "bash, zsh or fish"},
      {{"engine-of-war"}, "unknown command"},
      {{""}, ""},
      {{"--", "task"}, ""},
      {{"\xff\xfe\x1b[31m"}, "unknown command"},
  };
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(testing::PrintToString(mistake.arguments));
    const RunResult result = cbench(mistake.arguments);
    EXPECT_TRUE(result.status.exited);
    EXPECT_EQ(result.status.code, 2);
    EXPECT_THAT(result.err, testing::StartsWith("cbench: "));
    EXPECT_THAT(result.err, HasSubstr(mistake.message));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("\x1b")));
    EXPECT_EQ(result.out, "");
  }
}

TEST(Cli, JsonErrorsAreObjects) {
  const RunResult result = cbench({"task", "show", "nope", "--json"});
  EXPECT_EQ(result.status.code, 2);
  const Json json = parse_json(result.out, "output");
  EXPECT_EQ(json["schema"], "cbench.error.v1");
  EXPECT_EQ(json["error"]["code"], "unknown_task");
  EXPECT_EQ(json["error"]["exit"], 2);
}

TEST(Cli, TasksAreListedShownAndRendered) {
  const RunResult names = cbench({"task", "list", "--names"});
  EXPECT_EQ(names.status.code, 0);
  EXPECT_THAT(names.out, HasSubstr("Qwen3.8-27B_12g_standard_1xH200NVL\n"));
  const Json list = parse_json(cbench({"task", "list", "--json"}).out, "output");
  EXPECT_EQ(static_cast<long>(list.size()), std::count(names.out.begin(), names.out.end(), '\n'));
  const RunResult check = cbench({"task", "check"});
  EXPECT_EQ(check.status.code, 0) << check.err;
  const Json shown = parse_json(
      cbench({"task", "show", "Qwen3.8-27B_12g_standard_1xH200NVL", "--json"}).out, "output");
  EXPECT_EQ(shown["limit"], int64_t{12} << 30);
  EXPECT_EQ(shown["budget"], 28800.0);
  EXPECT_EQ(shown["likelihood"]["blocks"], 256);
}

TEST(Cli, RenderedContractLoadsAsItself) {
  const std::string name = "gemma-4-26B-A4B-it_16g_standard_1xH200NVL";
  const RunResult rendered = cbench({"task", "render", name});
  EXPECT_EQ(rendered.status.code, 0);
  TempDir directory;
  make_directories(directory.path() + "/tasks/" + name);
  write_file_atomic(directory.path() + "/tasks/" + name + "/contract.yaml", rendered.out);
  const RunResult again = cbench({"--tasks", directory.path() + "/tasks", "task", "render", name});
  EXPECT_EQ(again.out, rendered.out);
  const RunResult diff = cbench({"task", "diff", name, directory.path() + "/tasks/" + name});
  EXPECT_EQ(diff.out, "no difference\n");
}

TEST(Cli, BadContractIsExitTwo) {
  TempDir directory;
  make_directories(directory.path() + "/bad");
  write_file_atomic(directory.path() + "/bad/contract.yaml", "schema: 1\nhours: 012\n");
  const RunResult result = cbench({"--tasks", directory.path(), "task", "check"});
  EXPECT_EQ(result.status.code, 2);
  EXPECT_THAT(result.err, HasSubstr("bad/contract.yaml:2: unknown key \"hours\""));
}

TEST(Cli, FullStandardOutputIsAnError) {
  ProcessOptions options;
  options.argv = {"sh", "-c",
                  CBENCH_BINARY_DIR
                  "/cbench task render tiny-hybrid-6m_4m_standard_cpu >/dev/full"};
  options.inherit_env = true;
  options.cwd = CBENCH_SOURCE_DIR;
  const RunResult result = run_process(options, 60);
  EXPECT_EQ(result.status.code, 3);
  EXPECT_THAT(result.err, HasSubstr("standard output"));
}

TEST(Cli, ReaderThatLeavesIsNoError) {
  ProcessOptions options;
  options.argv = {"bash", "-c",
                  "set -o pipefail; " CBENCH_BINARY_DIR "/cbench task list --json | head -c 1"};
  options.inherit_env = true;
  options.cwd = CBENCH_SOURCE_DIR;
  const RunResult result = run_process(options, 60);
  EXPECT_EQ(result.status.code, 0) << result.err;
}

TEST(Cli, CompletionScriptsParse) {
  TempDir directory;
  const std::string script = directory.path() + "/completion.bash";
  write_file_atomic(script, cbench({"completion", "bash"}).out);
  ProcessOptions options;
  options.inherit_env = true;
  options.argv = {"bash", "-c",
                  "source " + script +
                      "; COMP_WORDS=(cbench task sh); COMP_CWORD=2; _cbench; echo ${COMPREPLY[@]}"};
  EXPECT_EQ(run_process(options, 60).out, "show\n");
}

TEST(Cli, ReportRegeneratesTheLeaderboard) {
  TempDir directory;
  make_directories(directory.path() + "/runs");
  const RunResult empty = cbench({"report", "--runs-dir", directory.path() + "/runs", "--json"});
  if (empty.err.find("unknown command") != std::string::npos) GTEST_SKIP() << "report not built";
  EXPECT_EQ(empty.status.code, 0) << empty.err;
  EXPECT_EQ(parse_json(empty.out, "output")["runs"], 0);
  EXPECT_THAT(read_file(directory.path() + "/runs/leaderboard.csv"),
              testing::StartsWith("rank,task,model,"));
  EXPECT_EQ(cbench({"report", "--runs-dir", "/nowhere"}).status.code, 2);
}

}  // namespace
}  // namespace cbench
