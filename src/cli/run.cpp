// cbench run: lets an agent work on a task in a box, then verifies what it saved.
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <fcntl.h>
#include <unistd.h>

#include "cli/commands.h"
#include "run/budget.h"
#include "run/lifecycle.h"
#include "util/error.h"
#include "util/json.h"
#include "util/log.h"

namespace cbench {
namespace {

struct Arguments {
  std::string task, agent, hours, runs_dir = "runs", box = "bwrap", resume;
  bool json = false, quiet = false, relaunch = false;
};

/// Ctrl-C, SIGTERM and SIGHUP make a descriptor readable; the second signal of a kind kills.
class StopSignals {
 public:
  StopSignals() {
    auto [read, write] = make_pipe();
    read_ = std::move(read);
    write_ = std::move(write);
    ::fcntl(write_.get(), F_SETFL, O_NONBLOCK);
    target_ = write_.get();
    struct sigaction action {};
    action.sa_handler = [](int) { [[maybe_unused]] const auto n = ::write(target_, "x", 1); };
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  }
  int fd() const { return read_.get(); }

 private:
  inline static volatile int target_ = -1;
  Fd read_, write_;
};

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

RunDir start_or_open(const Arguments& arguments) {
  if (!arguments.resume.empty()) {
    if (!arguments.task.empty() || !arguments.agent.empty() || !arguments.hours.empty()) {
      throw UsageError("resume", "--resume takes task, agent and hours from the run itself");
    }
    return open_run_dir(arguments.resume);
  }
  if (arguments.task.empty()) {
    throw UsageError("no_task", "which task? give its name (cbench task list shows them)");
  }
  if (arguments.agent.empty()) {
    throw UsageError("agent", "which agent? give --agent baseline or --agent command:<command>");
  }
  NewRun run;
  run.agent = parse_agent(arguments.agent);
  run.box = parse_box_kind(arguments.box);
  if (!arguments.hours.empty()) run.budget_seconds = parse_hours(arguments.hours);
  run.contract = find_task(arguments.task);
  set_box_image(run.contract.image);
  if (arguments.hours.empty()) run.budget_seconds = run.contract.budget;
  run.runs_dir = arguments.runs_dir;
  run.relaunch = arguments.relaunch;
  return create_run(run);
}

void print_outcome(const Arguments& arguments, const RunDir& run, const RunOutcome& outcome) {
  if (arguments.json) {
    const Json json = {
        {"schema", "cbench.run.v1"},
        {"run", run.path},
        {"run_id", run.id()},
        {"state", outcome.state},
        {"status", outcome.status.empty() ? Json() : Json(outcome.status)},
        {"reward", outcome.reward ? Json(*outcome.reward) : Json()},
        {"best_version", outcome.best_version.empty() ? Json() : Json(outcome.best_version)},
        {"exit", outcome.exit_code}};
    std::printf("%s\n", dump_json(json).c_str());
    return;
  }
  if (outcome.state == "interrupted") {
    std::fprintf(stderr,
                 "interrupted; nothing saved is lost. Continue with:\n  cbench run --resume %s\n",
                 run.path.c_str());
  } else {
    std::printf("%s%s%s\n", outcome.status.c_str(), outcome.reward ? ", reward " : "",
                outcome.reward ? std::to_string(*outcome.reward).c_str() : "");
  }
  std::printf("%s\n", run.path.c_str());
}

int run_run(const Arguments& arguments) {
  const StopSignals signals;
  const RunDir run = start_or_open(arguments);
  if (!arguments.quiet) std::fprintf(stderr, "run %s\n", run.path.c_str());
  DriveOptions options;
  options.program = own_program();
  options.interrupt_fd = signals.fd();
  options.quiet = arguments.quiet;
  RunOutcome outcome;
  try {
    outcome = drive_run(run, options);
  } catch (const Error&) {
    std::fprintf(stderr, "the run stopped; continue with: cbench run --resume %s\n",
                 run.path.c_str());
    throw;
  }
  print_outcome(arguments, run, outcome);
  return outcome.exit_code;
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "run", "Let an agent compress a task's model in a box, then verify every saved version");
  command->add_option("task", arguments->task, "Task name, directory or contract.yaml");
  command->add_option("--agent", arguments->agent, "baseline, or command:<shell command>");
  command->add_option("--hours", arguments->hours, "The agent's time (default: the contract's)");
  command->add_option("--runs-dir", arguments->runs_dir, "Where runs are kept")
      ->capture_default_str();
  command->add_option("--box", arguments->box, "bwrap, docker, or direct (no isolation)")
      ->capture_default_str();
  command->add_option("--resume", arguments->resume, "Continue this run directory");
  command->add_flag("--relaunch", arguments->relaunch,
                    "Start the agent again until the deadline, even when it ends well");
  command->add_flag("--json", arguments->json, "Print the outcome as JSON");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->footer(
      "Exit codes: as the final verdict (0 scored, 1 a gate failed, 4 invalid), 2 usage, "
      "3 environment, 130 interrupted");
  command->callback([arguments, &exit_code] { exit_code = run_run(*arguments); });
}

}  // namespace cbench
