#include "preflight/check.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/process.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr size_t kMaxReport = 4u << 20;

std::string encoded(const CheckLine& line) {
  return dump_json(Json::array({line.name, static_cast<int>(line.level), line.seen, line.todo})) +
         "\n";
}

CheckLine decoded(std::string_view text) {
  const Json parts = parse_json(text, "a check's report");
  return {parts.at(0), static_cast<CheckLevel>(parts.at(1).get<int>()), parts.at(2), parts.at(3)};
}

/// The child's side; never returns.
[[noreturn]] void report(const Check& check, const Fd& out) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  CheckLines lines;
  std::string trouble, todo = "see the message";
  try {
    check.run(lines);
  } catch (const std::exception& error) {
    trouble = error.what();
  } catch (...) {
    trouble = "an unknown exception";
  }
  if (!trouble.empty()) lines.fail(check.name, trouble, todo);
  try {
    for (const CheckLine& line : lines.lines()) write_all(out, encoded(line), "report");
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);
}

/// What arrives until the other end closes or `deadline` passes; true if it closed.
bool read_until(const Fd& in, double deadline, std::string& text) {
  for (;;) {
    const double left = deadline - boot_seconds();
    pollfd wait{in.get(), POLLIN, 0};
    const int ready = left > 0 ? ::poll(&wait, 1, static_cast<int>(left * 1000) + 1) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    char buffer[4096];
    const size_t n = read_some(in, buffer, sizeof buffer, "a check's report");
    if (n == 0) return true;
    if (text.size() < kMaxReport) text.append(buffer, n);
  }
}

/// SIGKILL for the check and what it started in its group.
std::string reap(pid_t pid, bool ended) {
  if (!ended) {
    ::kill(-pid, SIGKILL);
    ::kill(pid, SIGKILL);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  ::kill(-pid, SIGKILL);
  if (!ended) return "no result within its time";
  if (WIFSIGNALED(status))
    return std::string("it ended by signal ") + std::to_string(WTERMSIG(status));
  return status == 0 ? "" : "it ended without a report";
}

}  // namespace

const char* check_level_name(CheckLevel level) {
  switch (level) {
    case CheckLevel::kOk:
      return "ok";
    case CheckLevel::kWarn:
      return "warn";
    case CheckLevel::kFail:
      break;
  }
  return "fail";
}

std::vector<CheckLine> run_check(const Check& check) {
  auto [in, out] = make_pipe();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("fork", "a check");
  if (pid == 0) {
    ::setpgid(0, 0);
    in.reset();
    report(check, out);
  }
  ::setpgid(pid, pid);
  out.reset();
  std::string text;
  const bool closed = read_until(in, boot_seconds() + check.seconds, text);
  const std::string trouble = reap(pid, closed);
  std::vector<CheckLine> lines;
  for (size_t start = 0, end; (end = text.find('\n', start)) != std::string::npos;
       start = end + 1) {
    lines.push_back(decoded(std::string_view(text).substr(start, end - start)));
  }
  if (!trouble.empty()) {
    lines.push_back({check.name, CheckLevel::kFail,
                     "the check did not complete: " + trouble + " (" +
                         format_duration(check.seconds) + " allowed)",
                     "try again; if it stays, look at what the check asks for by hand"});
  }
  return lines;
}

}  // namespace cbench
