// One program: two boxes, a connection between them, a verdict pipe, a clock. Many: a small pool.
#include "eval/grading/program.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "eval/grading/program_drivers.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/file.h"
#include "util/hash.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

/// JSON in a memory file: the driver's standard input, read to its end before anything else runs.
Fd input_file(const Json& value) {
  Fd file(::memfd_create("input", MFD_CLOEXEC));
  if (!file.valid()) throw_errno("memfd_create", "input");
  write_all(file, dump_json(value), "input");
  if (::lseek(file.get(), 0, SEEK_SET) != 0) throw_errno("lseek", "input");
  return file;
}

std::string random_nonce() {
  const Fd source(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  std::array<char, 32> bytes;
  if (!source.valid() || read_some(source, bytes.data(), bytes.size(), "urandom") != bytes.size()) {
    throw EnvironmentError("io", "/dev/urandom cannot be read");
  }
  return sha256_hex({bytes.data(), bytes.size()});
}

BoxSpec driver_box(const ProgramOptions& options, const std::string& driver) {
  BoxSpec spec;
  // Isolated as with -I (the environment is ours alone, -s and -S leave only the standard library,
  // the driver removes the working directory), but with a fixed hash seed, so that a program whose
  // answer depends on the order of a set gets the same verdict every time.
  spec.argv = {options.python, "-s", "-S", "-B", "-c", driver};
  spec.env = {{"PYTHONHASHSEED", "0"}, {"LANG", "C.UTF-8"}, {"PATH", "/usr/bin:/bin"}};
  spec.own_user = true;
  spec.tmp_bytes = options.tmp_bytes;
  spec.limits.address_space = options.address_space;
  spec.limits.processes = options.processes;
  spec.limits.file_size = options.file_size;
  spec.limits.open_files = 256;
  // Only the program's own processor time; waiting is bounded by the wall clock.
  spec.limits.cpu_seconds = static_cast<uint64_t>(std::ceil(options.seconds)) + 1;
  return spec;
}

/// Seconds that the programs inside have been runnable without getting a core: the second number of
/// /proc/PID/schedstat, for the children of the box's first process.
double starved_seconds(const Box& box) {
  const std::string root = "/proc/" + std::to_string(box.inner());
  std::ifstream children(root + "/task/" + std::to_string(box.inner()) + "/children");
  std::vector<std::string> pids = {std::to_string(box.inner())};
  for (std::string pid; children >> pid && pids.size() < 64;) pids.push_back(pid);
  double total = 0;
  for (const std::string& pid : pids) {
    std::ifstream stat("/proc/" + pid + "/schedstat");
    double ran = 0, waited = 0;
    if (stat >> ran >> waited) total += waited * 1e-9;
  }
  return total;
}

/// What stands on the verdict pipe, or "" at the deadline.
class VerdictPipe {
 public:
  explicit VerdictPipe(Fd fd) : fd_(std::move(fd)) {}
  /// True when a line or the end has arrived by then.
  bool wait_until(double deadline) {
    while (!done_) {
      const double left = deadline - boot_seconds();
      if (left <= 0) return false;
      pollfd poller{fd_.get(), POLLIN, 0};
      const int ready = ::poll(&poller, 1, static_cast<int>(std::min(left, 60.0) * 1000) + 1);
      if (ready < 0 && errno != EINTR) throw_errno("poll", "verdict");
      if (ready <= 0) continue;
      std::array<char, 256> buffer;
      const size_t n = read_some(fd_, buffer.data(), buffer.size(), "verdict");
      text_.append(buffer.data(), n);
      done_ = n == 0 || text_.find('\n') != std::string::npos || text_.size() > 1024;
    }
    return true;
  }
  const std::string& text() const { return text_; }

 private:
  Fd fd_;
  std::string text_;
  bool done_ = false;
};

std::string read_verdict(const std::string& line, const std::string& nonce) {
  if (!line.starts_with(nonce + " ") || !line.ends_with('\n')) return "protocol";
  return printable(line.substr(nonce.size() + 1, line.size() - nonce.size() - 2));
}

ProgramResult run_one(const Program& program, const ProgramOptions& options) {
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw_errno("socketpair", program.id);
  }
  Fd candidate_end(ends[0]), judge_end(ends[1]);
  auto [verdict_read, verdict_write] = make_pipe();
  const std::string nonce = random_nonce();
  static const std::string kCandidate = candidate_driver(), kJudge = judge_driver();

  const Fd candidate_input = input_file({{"source", program.prompt + program.completion + "\n"},
                                         {"entry_point", program.entry_point}});
  const Fd judge_input = input_file({{"prompt", program.prompt},
                                     {"test", program.test},
                                     {"entry_point", program.entry_point},
                                     {"nonce", nonce}});
  BoxSpec candidate_spec = driver_box(options, kCandidate);
  candidate_spec.stdin_fd = candidate_input.get();
  candidate_spec.fds = {{candidate_end.get(), 3}};
  BoxSpec judge_spec = driver_box(options, kJudge);
  judge_spec.stdin_fd = judge_input.get();
  judge_spec.fds = {{judge_end.get(), 3}, {verdict_write.get(), 4}};

  const double started = boot_seconds();
  Box candidate(options.box, candidate_spec);
  Box judge(options.box, judge_spec);
  candidate_end.reset();
  judge_end.reset();
  verdict_write.reset();

  VerdictPipe verdict(std::move(verdict_read));
  bool answered = verdict.wait_until(started + options.seconds);
  if (!answered) {
    // A loaded machine must not turn a pass into a time-out: give back what was spent waiting.
    const double owed = starved_seconds(candidate) + starved_seconds(judge);
    answered = verdict.wait_until(started + options.seconds + std::min(owed, 3 * options.seconds));
  }
  ProgramResult result{program.id, false, "time_out", boot_seconds() - started, 1};
  candidate.kill();
  judge.kill();
  if (answered) result.reason = read_verdict(verdict.text(), nonce);
  result.passed = result.reason == "passed";
  return result;
}

/// A right program must pass here before a fail means anything.
void self_test(const ProgramOptions& options) {
  const Program right{"self-test", "def one():\n    \"\"\"1\"\"\"\n", "    return 1\n",
                      "def check(candidate):\n    assert candidate() == 1\n", "one"};
  ProgramOptions patient = options;
  patient.seconds = 20;
  const ProgramResult result = run_one(right, patient);
  if (result.passed) return;
  throw EnvironmentError("python", "a program that is right does not pass in a " +
                                       std::string(box_kind_name(options.box)) + " box here (" +
                                       result.reason + "): is " + options.python +
                                       " (3.8 or later) installed under /usr?");
}

void self_test_once(const ProgramOptions& options) {
  static std::mutex mutex;
  static std::vector<std::pair<BoxKind, std::string>> tested;
  const std::scoped_lock lock(mutex);
  const std::pair key(options.box, options.python);
  if (std::ranges::find(tested, key) != tested.end()) return;
  self_test(options);
  tested.push_back(key);
}

}  // namespace

std::vector<ProgramResult> run_programs(const std::vector<Program>& programs,
                                        const ProgramOptions& options) {
  require_box(options.box);
  if (programs.empty()) return {};
  self_test_once(options);
  std::vector<ProgramResult> results(programs.size());
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    for (size_t i; (i = next++) < programs.size();) {
      try {
        results[i] = run_one(programs[i], options);
      } catch (...) {
        const std::scoped_lock lock(failure_mutex);
        failure = std::current_exception();
        next = programs.size();
      }
    }
  };
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const size_t wanted = options.parallel > 0 ? static_cast<size_t>(options.parallel) : cores;
  {
    std::vector<std::jthread> pool;
    for (size_t i = 0; i < std::min(wanted, programs.size()); ++i) pool.emplace_back(work);
  }
  if (failure) std::rethrow_exception(failure);
  for (size_t i = 0; options.retry_timeouts && i < programs.size(); ++i) {
    if (results[i].reason != "time_out") continue;
    results[i] = run_one(programs[i], options);
    results[i].attempts = 2;
  }
  return results;
}

}  // namespace cbench
