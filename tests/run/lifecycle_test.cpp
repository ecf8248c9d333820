// Whole runs with fake agents: what they may do, and what must hold whatever they do.
#include <algorithm>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "package/tree.h"
#include "run/agent_box.h"
#include "run/rig.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/json.h"
#include "util/process.h"

namespace cbench::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

bool boxes_work() {
  try {
    require_box(BoxKind::kBwrap);
    return true;
  } catch (const EnvironmentError&) {
    return false;
  }
}

class Lifecycle : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!boxes_work()) GTEST_SKIP() << "no bubblewrap boxes on this machine";
  }
  Json summary() const { return read_json(rig.dir.file("SUMMARY.json")); }
  Rig rig;
};

TEST_F(Lifecycle, SavesVersionsAndVerifiesEachPackageOnce) {
  const RunOutcome outcome = rig.run(
      "printf 3 > /app/submission/score; ./version 'first, \"quoted\"' && "
      "printf 5 > /app/submission/score; ./version second && ./version again");
  EXPECT_EQ(outcome.state, "done");
  EXPECT_EQ(outcome.status, "scored");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.reward, 5.0);
  EXPECT_EQ(outcome.best_version, "v2");
  const RunState state = rig.state();
  EXPECT_EQ(state.stage, "done");
  EXPECT_EQ(state.search_ended, "finished");
  ASSERT_EQ(state.versions.size(), 3u);
  EXPECT_EQ(state.versions.at(1).note, "first, \"quoted\"");
  EXPECT_EQ(state.verdicts.at("v1").reward, 3.0);
  EXPECT_EQ(state.verdicts.at("v2").taken_from, "final");
  EXPECT_EQ(state.verdicts.at("v3").taken_from, "final");
  const std::string measured = rig.text("verified");
  EXPECT_EQ(std::count(measured.begin(), measured.end(), '\n'), 2);
  const Json json = summary();
  EXPECT_EQ(json["versions"], 3);
  EXPECT_EQ(json["best_version"], "v2");
  EXPECT_EQ(json["final"]["reward"], 5.0);
  EXPECT_EQ(json["launches"][0]["why"], "exited");
  EXPECT_EQ(read_json(rig.dir.file("METRICS.json"))["versions"].size(), 3u);
}

TEST_F(Lifecycle, TheBoxHoldsThePublicSideOnly) {
  rig.run(
      "cat /input/model/weights /input/data/* /opt/cbench/tasks/*/contract.yaml; "
      "cat /opt/cbench/tasks/data/reference/public/reference.json; echo; "
      "test -s /input/include/cbench/submission.h && echo header; "
      "grep -c fake /app/instruction.md; "
      "grep -rl SECRET / 2>/dev/null --exclude-dir=proc --exclude-dir=usr --exclude-dir=sys "
      "--exclude-dir=cbench-self --exclude=cbench; "
      "ls -R /opt /input /app; touch /input/model/x /opt/cbench/x /app/instruction.md; "
      "echo 1 > /app/submission/score");
  const std::string out = rig.text("agent/launch-1.out");
  for (const char* expected : {"BF16", "visible", "name: fake_task", "public-figures", "header"}) {
    EXPECT_THAT(out, HasSubstr(expected));
  }
  for (const char* never : {"SECRET", "hidden", "items", "documents"}) {
    const std::string listing = out.substr(out.find("header"));
    EXPECT_THAT(listing, Not(HasSubstr(never)));
  }
  EXPECT_THAT(rig.text("agent/launch-1.err"), HasSubstr("Read-only file system"));
}

TEST_F(Lifecycle, AgentThatDoesNothingIsInert) {
  const RunOutcome outcome = rig.run("exit 0");
  EXPECT_EQ(outcome.status, "gate_failed");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(rig.state().search_ended, "agent_inert");
  EXPECT_EQ(rig.state().launches.size(), 3u);
}

TEST_F(Lifecycle, CommandThatIsMissingIsInertToo) {
  const RunOutcome outcome = rig.run("no-such-agent");
  EXPECT_EQ(rig.state().search_ended, "agent_inert");
  EXPECT_EQ(rig.state().launches[0].status, "exit code 127");
  EXPECT_EQ(outcome.exit_code, 1);
}

TEST_F(Lifecycle, KeepsAnyBytesThatAreSaidUpToABound) {
  rig.run(
      "printf '\\377\\376\\0abc\\033]0;x\\007'; echo 1 > /app/submission/score; "
      "head -c 300000 /dev/zero >&2");
  EXPECT_EQ(rig.text("agent/launch-1.out"), std::string("\xff\xfe\0abc\x1b]0;x\x07", 12));
  EXPECT_EQ(rig.text("agent/launch-1.err").size(), 65536u);
  EXPECT_THAT(rig.text("journal.jsonl"), HasSubstr("\"stderr_bytes\":300000,\"output_cut\":true"));
}

TEST_F(Lifecycle, DaemonThatHoldsThePipesDiesWithItsLaunch) {
  const double before = boot_seconds();
  rig.run(
      "(setsid sh -c 'trap \"\" TERM HUP; while :; do date > /app/work/alive; sleep 0.05; done' "
      "&) ; sleep 0.2; printf 2 > /app/submission/score",
      300);
  EXPECT_LT(boot_seconds() - before, 200) << "waited for the holder of the pipes";
  EXPECT_TRUE(marked_processes(rig.dir.id()).empty());
  EXPECT_THAT(rig.text("journal.jsonl"), HasSubstr("\"alive\":0"));
  const std::string alive = rig.text("workspace/alive");
  ::usleep(200'000);
  EXPECT_EQ(rig.text("workspace/alive"), alive);
}

TEST_F(Lifecycle, WritesAfterTheDeadlineDoNotCount) {
  const RunOutcome outcome = rig.run(
      "trap '' TERM INT HUP; printf 1 > /app/submission/score; "
      "(setsid sh -c 'while :; do date +%N > /app/submission/time; done' &); "
      "while :; do sleep 1; done",
      1.5);
  EXPECT_EQ(rig.state().search_ended, "deadline");
  EXPECT_EQ(rig.state().launches.back().why, "deadline");
  EXPECT_EQ(outcome.status, "scored");
  PackageTree sealed = PackageTree::walk(rig.dir.submission());
  sealed.hash_files();
  EXPECT_EQ(rig.text("submission.manifest"), sealed.hash_manifest());
  for (const TreeFile& file : sealed.files()) EXPECT_EQ(file.mode & 0222, 0u) << file.path;
  EXPECT_TRUE(marked_processes(rig.dir.id()).empty());
}

TEST_F(Lifecycle, RefusesAHostileSubmissionByName) {
  const RunOutcome outcome = rig.run(
      "printf 4 > /app/submission/score; ./version good; ln -s /etc/passwd /app/submission/link; "
      "./version bad; echo rc $?");
  EXPECT_EQ(outcome.status, "gate_failed");
  EXPECT_EQ(outcome.reward, 0.0);
  EXPECT_EQ(outcome.best_version, "v1");
  EXPECT_EQ(rig.state().frozen->code, "symlink");
  EXPECT_EQ(rig.state().versions.size(), 1u);
  EXPECT_THAT(rig.text("agent/launch-1.out"), HasSubstr("rc 2"));
  EXPECT_THAT(rig.text("agent/launch-1.err"), HasSubstr("symlink"));
}

TEST_F(Lifecycle, FailedMeasurementsAreRecordedAndTheOthersGoOn) {
  const RunOutcome outcome = rig.run(
      "cd /app/submission; v=/app/work/version; printf crash > score; $v a; "
      "printf babble > score; $v b; printf 7 > score; $v c");
  EXPECT_EQ(outcome.status, "scored");
  const RunState state = rig.state();
  EXPECT_EQ(state.verdicts.at("v1").status, "invalid");
  EXPECT_EQ(state.verdicts.at("v2").status, "invalid");
  EXPECT_EQ(state.verdicts.at("v3").reward, 7.0);
  const Json verdict = read_json(rig.dir.file("verdicts/v1.json"));
  EXPECT_EQ(verdict["reward"], nullptr);
  EXPECT_THAT(verdict["reasons"][0]["message"].get<std::string>(), HasSubstr("signal 6"));
}

TEST_F(Lifecycle, HostileBytesOnTheSocketAreHarmless) {
  if (find_program("python3").empty()) GTEST_SKIP() << "python3 plays the attacker";
  rig.run(
      "cat > /app/work/a.py <<'END'\n"
      "import socket\n"
      "def say(b, wait=True):\n"
      "  s = socket.socket(socket.AF_UNIX); s.connect('/app/control.sock')\n"
      "  try:\n"
      "    s.sendall(b)\n"
      "    if wait: s.shutdown(socket.SHUT_WR); print(s.recv(4096)[:60])\n"
      "  except OSError as e: print(e)\n"
      "for b in [b'', b'\\xff\\x00\\n', b'[' * 4000 + b'\\n', b'x' * 100000,\n"
      "          b'{\"command\": \"rm\"}\\n', b'{\"command\": \"version\"}\\n',\n"
      "          b'{\"command\": \"version\", \"note\": \"a\\\\nb\"}\\n',\n"
      "          b'{\"command\": \"version\", \"note\": 5}\\n']: say(b)\n"
      "say(b'{', False)\n"
      "END\n"
      "python3 /app/work/a.py; printf 1 > /app/submission/score; ./version fine");
  EXPECT_EQ(rig.state().versions.size(), 1u);
  EXPECT_THAT(rig.text("agent/launch-1.out"), HasSubstr("saved v1"));
}

TEST_F(Lifecycle, RelaunchesUntilThereIsAResult) {
  rig.run("echo x >> n; test $(wc -l < n) -ge 3 || exit 1; printf 1 > /app/submission/score");
  EXPECT_EQ(rig.state().launches.size(), 3u);
  EXPECT_EQ(rig.state().search_ended, "finished");
}

TEST_F(Lifecycle, DirectBoxIsUsableAndCleansUp) {
  const RunOutcome outcome = rig.run(
      "(setsid sleep 1000 &); printf 6 > ../submission/score; ./version direct; "
      "test -e ../input/tasks/fake_task/contract.yaml && echo tasks",
      30, BoxKind::kDirect);
  EXPECT_EQ(outcome.reward, 6.0);
  EXPECT_EQ(rig.state().versions.size(), 1u);
  EXPECT_THAT(rig.text("agent/launch-1.out"), HasSubstr("tasks"));
  EXPECT_TRUE(marked_processes(rig.dir.id()).empty());
}

TEST_F(Lifecycle, OneProcessDrivesARun) {
  rig.dir = create_run(rig.new_run("true", 5));
  const Fd lock = lock_run(rig.dir);
  EXPECT_TRUE(run_is_driven(rig.dir));
  try {
    drive_run(rig.dir, rig.drive_options());
    FAIL() << "drove a run that is driven";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.code(), "run_busy");
  }
}

TEST_F(Lifecycle, StopsCleanlyWhenAsked) {
  rig.dir =
      create_run(rig.new_run("printf 1 > /app/submission/score; ./version a; sleep 100", 200));
  auto [read, write] = make_pipe();
  DriveOptions options = rig.drive_options();
  options.interrupt_fd = read.get();
  std::thread stopper([&] {
    while (rig.events().size() < 4) ::usleep(20'000);
    ASSERT_EQ(::write(write.get(), "x", 1), 1);
  });
  const RunOutcome outcome = drive_run(rig.dir, options);
  stopper.join();
  EXPECT_EQ(outcome.state, "interrupted");
  EXPECT_EQ(outcome.exit_code, kInterruptedExit);
  EXPECT_EQ(rig.events().back(), "interrupted");
  EXPECT_TRUE(marked_processes(rig.dir.id()).empty());
}

/// Starts `drive` as a process, kills it when `event` is in the journal, resumes it; twice.
class CrashAt : public Lifecycle, public ::testing::WithParamInterface<const char*> {};

TEST_P(CrashAt, NothingSavedIsLost) {
  rig.dir = create_run(
      rig.new_run("test -e seen && { printf 8 > /app/submission/score; exit 0; }; touch seen; "
                  "printf 3 > /app/submission/score; ./version one; sleep 1000",
                  3));
  const std::string wanted = GetParam();
  ProcessOptions process;
  process.argv = {self_program(), "drive", rig.dir.path};
  process.inherit_env = true;
  {
    Process driver(process);
    const double deadline = boot_seconds() + 60;
    while (boot_seconds() < deadline && !driver.wait(0.005)) {
      const std::vector<std::string> events = rig.events();
      if (std::find(events.begin(), events.end(), wanted) != events.end()) break;
    }
    ::kill(driver.pid(), SIGKILL);
    driver.wait(-1);
  }
  const RunOutcome outcome = drive_run(rig.dir, rig.drive_options());
  EXPECT_EQ(outcome.state, "done");
  EXPECT_EQ(outcome.status, "scored");
  const RunState state = rig.state();
  EXPECT_EQ(state.stage, "done");
  EXPECT_LE(state.versions.size(), 2u);
  EXPECT_GE(state.versions.size(), 1u);
  EXPECT_EQ(state.verdicts.size(), state.versions.size() + 1);
  EXPECT_TRUE(marked_processes(rig.dir.id()).empty());
  EXPECT_TRUE(fs::exists(rig.dir.file("SUMMARY.json")));
  EXPECT_FALSE(fs::exists(rig.dir.file("submission.live")));
  EXPECT_FALSE(fs::exists(rig.dir.file("submission.sealing")));
}

INSTANTIATE_TEST_SUITE_P(Events, CrashAt,
                         ::testing::Values("created", "prepared", "launch", "version",
                                           "launch_ended", "search_ended", "frozen", "verifying",
                                           "verdict", "done"));

TEST_F(Lifecycle, FullDiskStopsAndResumes) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root for a small file system";
  const std::string runs = rig.temp.path() + "/runs";
  make_directories(runs);
  const std::string mount = "mount -t tmpfs -o size=2m none " + runs;
  if (std::system(mount.c_str()) != 0) GTEST_SKIP() << "cannot mount";
  RunOutcome outcome;
  std::string code;
  rig.dir =
      create_run(rig.new_run("printf 3 > /app/submission/score; ./version small; "
                             "dd if=/dev/zero of=/app/work/fill bs=4k 2>/dev/null; "
                             "printf 4 > /app/submission/score; ./version big; true",
                             20));
  try {
    outcome = drive_run(rig.dir, rig.drive_options());
  } catch (const EnvironmentError& error) {
    code = error.code();
  }
  EXPECT_EQ(code, "disk_full");
  EXPECT_EQ(rig.state().versions.size(), 1u);
  fs::remove(rig.dir.workspace() + "/fill");
  outcome = drive_run(rig.dir, rig.drive_options());
  EXPECT_EQ(outcome.state, "done");
  EXPECT_EQ(rig.state().verdicts.at("v1").reward, 3.0);
  ::testing::internal::CaptureStderr();
  ASSERT_EQ(std::system(("umount -l " + runs).c_str()), 0);
  ::testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace cbench::testing
