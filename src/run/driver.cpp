// The stages of a run up to the freeze; driver_verify.cpp has those after it.
#include "run/driver.h"

#include <algorithm>
#include <filesystem>

#include <poll.h>
#include <sys/stat.h>

#include "run/control.h"
#include "run/freeze.h"
#include "run/instruction.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/file.h"
#include "util/hash.h"
#include "util/json.h"
#include "util/log.h"
#include "util/units.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxIdleLaunches = 3;
constexpr double kMaxBackoff = 60;
constexpr double kLongLaunch = 10;  // seconds: an agent that worked this long may start at once
constexpr size_t kMaxEntries = 20'000;

/// Path, size and time of everything below `root`, as one hash; bounded.
void add_tree(Hasher& hasher, const std::string& root) {
  size_t entries = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator
           at(root, fs::directory_options::skip_permission_denied, error),
       end;
       !error && at != end && entries < kMaxEntries; at.increment(error), ++entries) {
    struct stat status {};
    if (::lstat(at->path().c_str(), &status) != 0) continue;
    hasher.update(at->path().native());
    hasher.update({reinterpret_cast<const char*>(&status.st_size), sizeof status.st_size});
    hasher.update({reinterpret_cast<const char*>(&status.st_mtim), sizeof status.st_mtim});
  }
}

}  // namespace

Driver::Driver(const RunDir& run, const Contract& contract, const DriveOptions& options,
               Journal& journal)
    : run_(run),
      contract_(contract),
      options_(options),
      journal_(journal),
      state_(fold_journal(journal.events())),
      box_(parse_box_kind(state_.box)),
      agent_(parse_agent(state_.agent)),
      budget_(run.heartbeat(), state_.budget_seconds, state_.used_seconds),
      desk_(run, contract.limit, journal, budget_) {}

void Driver::note(const std::string& event, const std::string& fields) {
  journal_.append(event, fields);
  state_ = fold_journal(journal_.events());
}

RunOutcome Driver::drive() {
  if (journal_.events().size() > 1) resume();
  if (state_.stage == "created") prepare();
  if (!state_.search_ended) search();
  if (!interrupted_ && !state_.frozen) freeze();
  if (!interrupted_) verify();
  return interrupted_ ? interrupted_outcome() : finish();
}

void Driver::resume() {
  // Boxes die with the process that started them; without a box some may have stayed.
  const int stale = end_marked_processes(run_.id());
  if (state_.stage == "done") return;
  note("resumed", dump_json({{"stage", state_.stage}, {"stale_processes", stale}}));
  if (state_.launch_open()) {
    note("launch_ended", dump_json({{"launch", state_.launches.back().number},
                                    {"why", "lost"},
                                    {"status", "the run's process died"},
                                    {"progress", true},
                                    {"used_seconds", budget_.used()}}));
  }
  desk_.recover(state_.versions);
  state_ = fold_journal(journal_.events());
}

void Driver::prepare() {
  const AgentPlaces places = agent_places(box_, run_, contract_);
  write_file_atomic(run_.instruction(),
                    render_instruction(contract_, places, state_.budget_seconds), 0644);
  note("prepared");
}

void Driver::search() {
  ControlServer control(run_.socket(),
                        [this](std::string_view request) { return desk_.answer(request); });
  progress_ = std::make_unique<Progress>("searching", 0, "s", options_.quiet);
  while (!interrupted_ && !state_.search_ended) search_once();
  control.stop();  // the box is gone; a version whose saving had begun is finished first
  budget_.stop();
  state_ = fold_journal(journal_.events());
  if (progress_) progress_->finish(state_.search_ended.value_or("interrupted"));
  progress_.reset();
}

void Driver::search_once() {
  if (budget_.left() <= 0) return end_search("deadline");
  if (state_.idle_launches >= kMaxIdleLaunches) return end_search("agent_inert");
  launch();
}

void Driver::end_search(const std::string& why) {
  note("search_ended", dump_json({{"why", why}, {"used_seconds", budget_.used()}}));
}

LaunchSpec Driver::launch_spec(int number) {
  LaunchSpec spec;
  spec.kind = box_;
  spec.box = agent_box(box_, run_, contract_, options_.program);
  spec.box.argv =
      agent_argv(agent_, agent_places(box_, run_, contract_), contract_.name, contract_.limit);
  const std::string base = run_.agent() + "/launch-" + std::to_string(number);
  spec.out_path = base + ".out";
  spec.err_path = base + ".err";
  spec.max_output = options_.max_output;
  spec.interrupt_fd = options_.interrupt_fd;
  spec.tick = [this] { show_search(); };
  return spec;
}

void Driver::launch() {
  const int number = static_cast<int>(state_.launches.size()) + 1;
  note("launch", dump_json({{"launch", number}}));
  LaunchSpec spec = launch_spec(number);
  const std::string before = fingerprint();
  const int versions = desk_.saved();
  budget_.start();
  spec.deadline = budget_.deadline();
  const LaunchEnd end = run_launch(spec);
  const int left = end_marked_processes(run_.id());
  const bool progress = desk_.saved() > versions || fingerprint() != before;
  note("launch_ended", dump_json({{"launch", number},
                                  {"why", end.why},
                                  {"status", end.status.text()},
                                  {"seconds", end.seconds},
                                  {"progress", progress},
                                  {"used_seconds", budget_.used()},
                                  {"stdout_bytes", end.out_bytes},
                                  {"stderr_bytes", end.err_bytes},
                                  {"output_cut", end.output_cut},
                                  {"limits", end.limits},
                                  {"left_alive", left},
                                  {"alive", marked_processes(run_.id()).size()}}));
  after_launch(end, progress);
}

void Driver::after_launch(const LaunchEnd& end, bool progress) {
  if (end.why == "interrupted") {
    interrupted_ = true;
  } else if (end.why == "deadline") {
    end_search("deadline");
  } else if (end.status.ok() && !state_.relaunch && has_result()) {
    end_search("finished");
  } else {
    wait_before_relaunch(end, progress);
  }
}

/// Twice as long each time; the agent's clock goes on.
void Driver::wait_before_relaunch(const LaunchEnd& end, bool progress) {
  unlucky_ = progress && end.seconds >= kLongLaunch ? 0 : unlucky_ + 1;
  if (unlucky_ == 0 || state_.idle_launches >= kMaxIdleLaunches) return;
  double seconds = options_.backoff;
  for (int i = 1; i < unlucky_ && seconds < kMaxBackoff; ++i) seconds *= 2;
  seconds = std::min({seconds, kMaxBackoff, budget_.left()});
  pollfd interrupt{options_.interrupt_fd, POLLIN, 0};
  interrupted_ = ::poll(&interrupt, 1, static_cast<int>(seconds * 1000)) > 0;
}

bool Driver::has_result() const {
  std::error_code error;
  return !state_.versions.empty() || !fs::is_empty(run_.submission(), error);
}

std::string Driver::fingerprint() const {
  Hasher hasher;
  add_tree(hasher, run_.workspace());
  add_tree(hasher, run_.submission());
  return hasher.hex();
}

void Driver::freeze() {
  const Frozen frozen = freeze_submission(run_, submission_limits(contract_.limit));
  Json fields = {
      {"package_hash", frozen.package_hash}, {"bytes", frozen.bytes}, {"files", frozen.files}};
  if (frozen.refused()) {
    fields["code"] = frozen.code;
    fields["message"] = frozen.message;
  }
  note("frozen", dump_json(fields));
}

void Driver::show_search() {
  budget_.tick();
  if (!progress_) return;
  const std::string latest = desk_.latest();
  progress_->update(budget_.used(), "launch " + std::to_string(state_.launches.size()) + ", " +
                                        format_duration(budget_.left()) + " left" +
                                        (latest.empty() ? ", no version yet" : ", " + latest));
}

RunOutcome Driver::interrupted_outcome() {
  note("interrupted", dump_json({{"stage", state_.stage}, {"used_seconds", budget_.used()}}));
  RunOutcome outcome;
  outcome.state = "interrupted";
  outcome.exit_code = kInterruptedExit;
  return outcome;
}

}  // namespace cbench
