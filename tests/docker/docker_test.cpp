// What cbench does through a real docker engine: engines, graders, whole runs, the end of a killed
// cbench, and what it says when images, daemon or space are missing. Started by
// scripts/with_docker.sh; skipped, loudly, without an engine.
#include "box/docker.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "box/box.h"
#include "eval/grading/program.h"
#include "util/error.h"
#include "util/json.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTask = "tiny-hybrid-6m_4m_standard_cpu";

class DockerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      BoxSpec spec;
      spec.argv = {"/bin/true"};
      run_in_box(BoxKind::kDocker, spec, 60);
    } catch (const EnvironmentError& error) {
      GTEST_SKIP() << error.what() << " (scripts/with_docker.sh starts an engine)";
    }
  }
};

RunResult run_program(const std::string& program, std::vector<std::string> arguments,
                      const std::map<std::string, std::string>& env = {}) {
  ProcessOptions options;
  options.argv = std::move(arguments);
  options.argv.insert(options.argv.begin(), program);
  options.inherit_env = true;
  options.env = env;
  return run_process(options, 400);
}

RunResult docker(std::vector<std::string> arguments) {
  return run_program("docker", std::move(arguments));
}

std::string cbench_program() { return CBENCH_BINARY_DIR "/cbench"; }

RunResult cbench(std::vector<std::string> arguments,
                 const std::map<std::string, std::string>& env = {}) {
  return run_program(cbench_program(), std::move(arguments), env);
}

BoxSpec shell(const std::string& script) {
  BoxSpec spec;
  spec.argv = {"/bin/sh", "-c", script};
  return spec;
}

std::string code_of(const BoxSpec& spec) {
  try {
    run_in_box(BoxKind::kDocker, spec, 20);
    return "";
  } catch (const Error& error) {
    return error.code();
  }
}

std::string containers() { return docker({"ps", "-aq"}).out; }

bool comes_true(double seconds, const std::function<bool()>& condition) {
  for (int i = 0; i < seconds * 20; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return condition();
}

TEST_F(DockerTest, AnImageByItsDigestAndOneThatIsMissing) {
  std::string id = docker({"image", "inspect", "--format", "{{.Id}}", box_image()}).out;
  while (id.ends_with('\n')) id.pop_back();
  ASSERT_TRUE(id.starts_with("sha256:")) << id;
  BoxSpec spec = shell("echo here");
  spec.image = id;
  EXPECT_EQ(run_in_box(BoxKind::kDocker, spec, 20).out, "here\n");
  spec.image = "sha256:" + std::string(64, '0');
  EXPECT_EQ(code_of(spec), "box_image");
  spec.image = "cbench-no-such-image:1";
  EXPECT_EQ(code_of(spec), "box_image");
  EXPECT_EQ(containers(), "");
}

TEST_F(DockerTest, TheImagesEntryPointAndEnvironmentDoNotMatter) {
  const TempDir dir;
  write_file_atomic(dir.path() + "/Dockerfile",
                    "FROM " + box_image() + "\nENTRYPOINT [\"/bin/false\"]\nENV FROM_IMAGE=1\n");
  ASSERT_TRUE(docker({"build", "-q", "-t", "cbench-entry", dir.path()}).status.ok());
  BoxSpec spec = shell("echo \"<$FROM_IMAGE>\"");
  spec.image = "cbench-entry";
  EXPECT_EQ(run_in_box(BoxKind::kDocker, spec, 20).out, "<>\n");
}

TEST_F(DockerTest, NothingIsShownOutside) {
  BoxSpec spec = shell("sleep 5");
  spec.env = {{"SECRET", "not-for-the-process-list"}};
  Box box(BoxKind::kDocker, spec);
  const RunResult found = run_program("pgrep", {"-f", "not-for-the-process-lis[t]"});
  EXPECT_EQ(found.out, "");
  EXPECT_EQ(docker({"ps", "-q", "--filter", "label=cbench.run"}).out.empty(), false);
  box.kill();
  EXPECT_EQ(containers(), "");
}

TEST_F(DockerTest, WhatRunsInsideCannotHoldTheFirstProcess) {
  // Same user, but neither its memory nor its descriptors can be opened, nor does it take signals.
  const BoxSpec spec = shell(
      "kill -KILL 1; kill -STOP 1; ls /proc/1/fd >/dev/null 2>&1 && echo open; "
      "cat /proc/1/environ >/dev/null 2>&1 && echo readable; ls /.cbench/socket; echo end");
  const RunResult result = run_in_box(BoxKind::kDocker, spec, 20);
  EXPECT_EQ(result.out, "end\n") << result.err;
}

TEST_F(DockerTest, AMountThatItsUserCannotReadIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only as root the box has another user";
  const TempDir closed;  // 0700
  BoxSpec spec = shell("true");
  spec.mounts = {{closed.path(), "/input"}};
  EXPECT_EQ(code_of(spec), "box_mount");
}

TEST_F(DockerTest, AnEngineThatIsNotRunning) {
  const RunResult result = cbench({"check", "/", "--task", kTask, "--box", "docker", "--json"},
                                  {{"DOCKER_HOST", "unix:///nonexistent/docker.sock"}});
  EXPECT_EQ(result.status.code, 3);
  EXPECT_NE(result.err.find("start its daemon"), std::string::npos) << result.err;
}

TEST_F(DockerTest, ProgramsAreGraded) {
  std::vector<Program> programs;
  for (int i = 0; i < 6; ++i) {
    const std::string n = std::to_string(i);
    programs.push_back({n, "def f(x):\n", "    return x * " + n + "\n",
                        "def check(candidate):\n    assert candidate(7) == 21\n", "f"});
  }
  programs.push_back({"loop", "def f(x):\n", "    while True: pass\n",
                      "def check(candidate):\n    candidate(1)\n", "f"});
  ProgramOptions options;
  options.box = BoxKind::kDocker;
  const std::vector<ProgramResult> results = run_programs(programs, options);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(results[i].reason, i == 3 ? "passed" : "assertion") << i;
  }
  EXPECT_EQ(results[6].reason, "time_out");
}

/// A run whose agent packs the checkpoint and checks it: agent box, Checker inside it, and then the
/// Verifier with plugin build, engine and graders, each in a container.
TEST_F(DockerTest, AWholeRun) {
  const TempDir runs;
  const std::string agent =
      "command:rmdir /app/submission 2>/dev/null; cbench pack /input/model --bits 4 --group 128 "
      "--fit mse --plugin fast --out /tmp/p && cp -r /tmp/p/. /app/submission/ && "
      "cbench check /app/submission -q --json > check.json";
  const RunResult result = cbench({"run", kTask, "--agent", agent, "--box", "docker", "--hours",
                                   "0.1", "--runs-dir", runs.path(), "--json", "-q"});
  ASSERT_TRUE(result.status.ok()) << result.out << result.err;
  const std::string task = runs.path() + "/" + kTask;
  const std::string run = fs::directory_iterator(task)->path().string();
  const Json verdict = parse_json(read_file(run + "/verdicts/final.json"), "verdict");
  EXPECT_EQ(verdict["status"], "scored");
  EXPECT_EQ(verdict["box"], "docker");
  EXPECT_EQ(verdict["accuracy"]["benchmarks"]["humaneval"]["errors"], 0);
  // The engine's memory was seen, though it is no child of ours.
  EXPECT_EQ(verdict["storage"]["unexplained"], 0);
  EXPECT_GT(verdict["storage"]["resident_after_inference"], 3 << 20);
  const Json check = parse_json(read_file(run + "/workspace/check.json"), "check");
  EXPECT_EQ(check["status"], "scored");
  EXPECT_EQ(containers(), "");
}

TEST_F(DockerTest, AKilledCbenchLeavesNothing) {
  const TempDir runs;
  ProcessOptions options;
  options.argv = {
      cbench_program(), "run",    kTask,     "--agent", "command:setsid sleep 1000 & sleep 1000",
      "--box",          "docker", "--hours", "0.1",     "--runs-dir",
      runs.path(),      "-q"};
  options.inherit_env = true;
  Process process(options);
  ASSERT_TRUE(comes_true(20, [] {
    return !docker({"ps", "-q", "--filter", "label=cbench.run", "--filter", "status=running"})
                .out.empty();
  }));
  ::kill(process.pid(), SIGKILL);
  process.wait(-1);
  EXPECT_TRUE(comes_true(20, [] { return containers().empty(); })) << containers();
}

TEST_F(DockerTest, OrphansAreRemovedAndOthersAreNot) {
  ProcessOptions options;
  options.argv = {"/bin/sleep", "100"};
  std::string dead;
  {
    const Process process(options);
    dead = box_owner(process.pid());
  }
  ASSERT_NE(dead, "");
  const auto make = [](const std::string& owner) {
    return docker({"create", "--label", "cbench.owner=" + owner, box_image(), "/bin/true"}).out;
  };
  make(dead);
  make(std::string("other-boot/pid:[1]/1/2"));
  const std::string mine = make(box_owner(::getpid()));
  remove_orphaned_boxes();
  const std::string left = containers();
  EXPECT_EQ(std::count(left.begin(), left.end(), '\n'), 2) << left;
  EXPECT_NE(left.find(mine.substr(0, 12)), std::string::npos);
  std::istringstream ids(left);
  for (std::string id; ids >> id;) docker({"rm", "-f", id});
}

/// Last: it fills the engine's root, which scripts/with_docker.sh keeps in memory of its own.
TEST_F(DockerTest, ZFullDisk) {
  const char* root = std::getenv("CBENCH_DOCKER_ROOT");
  if (root == nullptr) GTEST_SKIP() << "only with an engine of scripts/with_docker.sh";
  const std::string path = std::string(root) + "/fill";
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  struct statvfs space {};
  ASSERT_EQ(::statvfs(root, &space), 0);
  const auto free = static_cast<off_t>(space.f_bavail * space.f_frsize);
  ASSERT_EQ(::fallocate(file.get(), 0, 0, free), 0);
  const std::string code = code_of(shell("true"));
  ASSERT_EQ(::ftruncate(file.get(), 0), 0);
  EXPECT_EQ(code, "disk_full");
  EXPECT_EQ(run_in_box(BoxKind::kDocker, shell("echo again"), 20).out, "again\n");
  EXPECT_EQ(containers(), "");
}

}  // namespace
}  // namespace cbench
