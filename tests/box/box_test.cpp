// Boxes of every kind that can run here: what gets in, what cannot get out, and that all of it
// ends.
#include "box/box.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "box/isolation.h"
#include "util/error.h"

namespace cbench {
namespace {

BoxSpec shell(const std::string& script) {
  BoxSpec spec;
  spec.argv = {"/bin/bash", "-c", script};
  spec.tmp_bytes = 64u << 20;
  return spec;
}

/// Whether boxes of this kind start; docker also needs its image (scripts/with_docker.sh has one).
bool available(BoxKind kind) {
  static std::map<BoxKind, bool> known;
  if (known.contains(kind)) return known[kind];
  try {
    run_in_box(kind, shell("true"), 60);
    known[kind] = true;
  } catch (const EnvironmentError& error) {
    EXPECT_TRUE(error.code() == "box_unavailable" || error.code() == "box_image") << error.what();
    known[kind] = false;
  }
  return known[kind];
}

/// Processes on this machine whose command line holds `mark`.
int alive(const std::string& mark) {
  ProcessOptions options;
  options.argv = {"/usr/bin/pgrep", "-c", "-f", "--", mark};
  const RunResult result = run_process(options, 10);
  return result.out.empty() ? 0 : std::stoi(result.out);
}

std::string unique_mark() {
  static int count = 0;
  return "4" + std::to_string(::getpid()) + "." + std::to_string(++count);
}

class BoxTest : public ::testing::TestWithParam<BoxKind> {
 protected:
  void SetUp() override {
    if (!available(GetParam())) GTEST_SKIP() << box_kind_name(GetParam()) << " is not available";
  }
  RunResult run(const BoxSpec& spec, double timeout = 20) {
    return run_in_box(GetParam(), spec, timeout);
  }
};

TEST_P(BoxTest, ReportsExitCodesAndSignals) {
  EXPECT_TRUE(run(shell("exit 0")).status.ok());
  const ExitStatus seven = run(shell("exit 7")).status;
  EXPECT_TRUE(seven.exited);
  EXPECT_EQ(seven.code, 7);
  const ExitStatus killed = run(shell("kill -SEGV $$")).status;
  EXPECT_FALSE(killed.exited);
  EXPECT_EQ(killed.signal, SIGSEGV);
}

TEST_P(BoxTest, CapturesOutputAndPassesTheEnvironmentOnly) {
  ::setenv("CBENCH_TEST_LEAK", "leaked", 1);
  BoxSpec spec = shell("echo out; echo err >&2; echo \"$GIVEN,$CBENCH_TEST_LEAK\"");
  spec.env = {{"GIVEN", "given"}};
  const RunResult result = run(spec);
  EXPECT_EQ(result.out, "out\ngiven,\n");
  EXPECT_EQ(result.err, "err\n");
}

TEST_P(BoxTest, EverythingDies) {
  struct Case {
    const char* name;
    const char* script;  // MARK is replaced by a duration that no other sleep uses
  };
  const Case cases[] = {
      {"setsid spinner",
       "setsid bash -c 'while :; do :; done; : MARK' & sleep 0.2; echo up; sleep MARK"},
      {"daemon that leaves", "(setsid setsid sleep MARK >/dev/null 2>&1 &) ; sleep 0.1; exit 0"},
      {"ignores TERM", "trap '' TERM HUP INT; echo up; while :; do sleep MARK; done"},
      {"double fork", "( ( setsid sleep MARK & ) & ) ; sleep 0.1; echo up; sleep MARK"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string mark = unique_mark();
    std::string script = c.script;
    for (size_t at; (at = script.find("MARK")) != std::string::npos;) script.replace(at, 4, mark);
    Box box(GetParam(), shell(script));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    // bwrap ends the box with its command, so a daemon is gone at once.
    if (!box.wait(0)) {
      EXPECT_GE(alive(mark), 1);
    }
    box.kill();
    EXPECT_EQ(alive(mark), 0);
  }
}

TEST_P(BoxTest, DestructorKills) {
  const std::string mark = unique_mark();
  {
    const Box box(GetParam(), shell("setsid sleep " + mark + " & sleep " + mark));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_GE(alive(mark), 2);
  }
  EXPECT_EQ(alive(mark), 0);
}

TEST_P(BoxTest, StopLetsTheCommandSayGoodbye) {
  auto [read_end, write_end] = make_pipe();
  BoxSpec spec = shell("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done");
  spec.stdout_fd = write_end.get();
  Box box(GetParam(), spec);
  write_end.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const ExitStatus status = box.stop(5);
  EXPECT_EQ(status.text(), "exit code 3");
  char buffer[64] = {};
  size_t n = 0;
  while (const size_t more = read_some(read_end, buffer + n, sizeof buffer - n, "test")) n += more;
  EXPECT_EQ(std::string(buffer, n), "up\nbye\n");
}

TEST_P(BoxTest, GrandchildHoldingStdoutDoesNotDelayUs) {
  const RunResult result = run(shell("setsid sleep 100 & echo done"), 20);
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.out, "done\n");
}

TEST_P(BoxTest, TimeOutKills) {
  const RunResult result = run(shell("trap '' TERM; echo start; while :; do :; done"), 0.5);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.out, "start\n");
  EXPECT_FALSE(result.status.exited);
}

TEST_P(BoxTest, EndlessOutputIsBounded) {
  const RunResult result = run_in_box(GetParam(), shell("yes"), 0.5, 1000);
  EXPECT_TRUE(result.timed_out);
  EXPECT_TRUE(result.truncated);
  EXPECT_EQ(result.out.size(), 1000u);
}

TEST_P(BoxTest, LimitsHold) {
  BoxSpec spec = shell(
      "head -c 2000000 /dev/zero > /tmp/cbench-limit-$$; s=$?; "
      "rm -f /tmp/cbench-limit-$$; exit $s");
  spec.limits.file_size = 1'000'000;
  EXPECT_FALSE(run(spec).status.ok());
  spec = shell("python3 -c 'x = bytearray(1 << 40)'");
  spec.limits.address_space = uint64_t{1} << 30;
  EXPECT_FALSE(run(spec).status.ok());
  spec = shell("ulimit -n; ulimit -c");
  spec.limits.open_files = 20;
  EXPECT_EQ(run(spec).out, "20\n0\n");
  spec = shell("while :; do :; done");
  spec.limits.cpu_seconds = 1;
  const RunResult result = run(spec, 20);
  EXPECT_FALSE(result.timed_out);
  EXPECT_FALSE(result.status.ok());
}

TEST_P(BoxTest, DescriptorsArriveAndNoOthers) {
  auto [read_end, write_end] = make_pipe();
  const Fd leak(::dup(write_end.get()));  // not close-on-exec: must not get in all the same
  BoxSpec spec = shell("echo hello >&5; echo /proc/self/fd/*");
  spec.fds = {{write_end.get(), 5}};
  const RunResult result = run(spec);
  // The shell's own listing descriptor may add one; bash expands the glob with fd 3.
  EXPECT_TRUE(result.out ==
                  "/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3 "
                  "/proc/self/fd/5\n" ||
              result.out == "/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/5\n")
      << result.out;
  char buffer[16] = {};
  EXPECT_EQ(read_some(read_end, buffer, sizeof buffer, "test"), 6u);
  EXPECT_STREQ(buffer, "hello\n");
}

TEST_P(BoxTest, RefusesWhatIsNotThere) {
  BoxSpec spec = shell("true");
  spec.mounts = {{"/nonexistent/cbench", "/input"}};
  try {
    Box box(GetParam(), spec);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.code(), "box_mount");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BoxTest,
                         ::testing::Values(BoxKind::kBwrap, BoxKind::kDirect, BoxKind::kDocker),
                         [](const auto& kind) { return std::string(box_kind_name(kind.param)); });

/// bwrap has a user namespace of its own; docker gives root another user and leaves the others be.
std::string own_uid(BoxKind kind) {
  const bool mapped = kind == BoxKind::kBwrap || ::geteuid() == 0;
  return (mapped ? "65534" : std::to_string(::geteuid())) + "\n";
}

/// What only a kind that isolates can promise.
class SealedBoxTest : public BoxTest {};

TEST_P(SealedBoxTest, IsolationBatteryPasses) {
  const std::vector<IsolationCheck> checks = isolation_report(GetParam());
  EXPECT_GE(checks.size(), 12u);
  for (const IsolationCheck& check : checks) {
    EXPECT_TRUE(check.isolated) << check.name << ": " << check.detail;
  }
}

TEST(IsolationTest, DirectBoxIsReportedAsOpen) {
  for (const IsolationCheck& check : isolation_report(BoxKind::kDirect)) {
    EXPECT_FALSE(check.isolated) << check.name;
  }
}

TEST_P(SealedBoxTest, MountsAreReadOnlyOrWritable) {
  const TempDir in, out;
  ASSERT_EQ(::chmod(in.path().c_str(), 0755), 0);  // docker's user is not root
  write_file_atomic(in.path() + "/a", "text");
  BoxSpec spec = shell("cat /in/a && ! touch /in/b 2>/dev/null && id -u > /out/uid");
  spec.mounts = {{in.path(), "/in"}, {out.path(), "/out", true}};
  const RunResult result = run(spec);
  EXPECT_TRUE(result.status.ok()) << result.err;
  EXPECT_EQ(result.out, "text");
  EXPECT_EQ(read_file(out.path() + "/uid"), own_uid(GetParam()));
}

TEST_P(SealedBoxTest, TemporarySpaceIsBounded) {
  for (const char* where : {"/tmp", "/dev/shm"}) {
    BoxSpec spec = shell(std::string("head -c 100000000 /dev/zero > ") + where + "/fill");
    EXPECT_FALSE(run(spec).status.ok()) << where;
  }
  for (const char* where : {"/", "/dev", "/etc", "/var/tmp", "/run"}) {
    BoxSpec spec = shell(std::string("echo x > ") + where + "/fill");
    EXPECT_FALSE(run(spec).status.ok()) << where;
  }
}

TEST_P(SealedBoxTest, ForkBombIsBounded) {
  BoxSpec spec = shell("bomb() { bomb | bomb & }; bomb; while :; do :; done");
  spec.own_user = true;
  spec.limits.processes = 40;
  auto [read_end, write_end] = make_pipe();
  spec.stdout_fd = write_end.get();
  Box box(GetParam(), spec);
  write_end.reset();
  EXPECT_TRUE(box.limits().processes) << box.limits().text;
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  struct stat space {};
  ASSERT_EQ(::stat(("/proc/" + std::to_string(box.inner()) + "/ns/pid").c_str(), &space), 0);
  int inside = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    struct stat theirs {};
    if (::stat((entry.path() / "ns/pid").c_str(), &theirs) == 0) {
      inside += theirs.st_ino == space.st_ino;
    }
  }
  EXPECT_LE(inside, 45);
  box.kill();
}

TEST_P(SealedBoxTest, DangerousCallsAreDenied) {
  BoxSpec spec = shell(
      "python3 - <<'END'\n"
      "import ctypes, socket\n"
      "libc = ctypes.CDLL(None, use_errno=True)\n"
      "for name, number in dict(ptrace=101, mount=165, unshare=272, bpf=321, "
      "perf=298, userfaultfd=323, keyctl=250, io_uring=425).items():\n"
      "    ctypes.set_errno(0)\n"
      "    result = libc.syscall(number, 0x10000000 if name == 'unshare' else 0, 0, 0, 0, 0)\n"
      "    assert result == -1 and ctypes.get_errno() in (1, 38), (name, result)\n"
      "try:\n"
      "    socket.create_connection(('1.1.1.1', 53), 1)\n"
      "    raise SystemExit('connected')\n"
      "except OSError:\n"
      "    print('sealed')\n"
      "END\n");
  const RunResult result = run(spec);
  EXPECT_EQ(result.out, "sealed\n") << result.err;
}

TEST_P(SealedBoxTest, MemoryIsBounded) {
  BoxSpec spec = shell("python3 -c 'x = b\"x\" * (600 << 20); print(len(x))'");
  spec.limits.memory = 300u << 20;
  const RunResult result = run(spec);
  EXPECT_FALSE(result.status.ok());
  EXPECT_EQ(result.out, "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, SealedBoxTest, ::testing::Values(BoxKind::kBwrap, BoxKind::kDocker),
                         [](const auto& kind) { return std::string(box_kind_name(kind.param)); });

TEST(BoxKindTest, Names) {
  EXPECT_EQ(parse_box_kind("bwrap"), BoxKind::kBwrap);
  EXPECT_THROW(parse_box_kind("chroot"), UsageError);
}

}  // namespace
}  // namespace cbench
