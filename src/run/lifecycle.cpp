#include "run/lifecycle.h"

#include <filesystem>

#include "eval/task_data.h"
#include "run/control.h"
#include "run/driver.h"
#include "run/instruction.h"
#include "run/journal.h"
#include "run/state.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

void require(bool there, const char* code, const std::string& message) {
  if (!there) throw EnvironmentError(code, message);
}

/// What would only fail after hours otherwise.
void check_prerequisites(const NewRun& run) {
  const Contract& contract = run.contract;
  std::error_code error;
  require(fs::is_regular_file(contract.checkpoint_dir() + "/config.json", error), "no_checkpoint",
          contract.checkpoint_dir() + " holds no checkpoint; run cbench fetch " + contract.name);
  for (const Mode mode : {Mode::kCheck, Mode::kVerify}) {
    const std::string path = reference_dir(contract, mode) + "/reference.json";
    require(fs::is_regular_file(path, error), "no_reference",
            path + " does not exist; run cbench reference " + contract.name + " first");
  }
  require_box(run.box);
}

Contract frozen_contract(const RunDir& run, const RunState& state) {
  std::error_code error;
  const std::string root =
      fs::is_directory(state.tasks_root, error) ? state.tasks_root : default_tasks_root();
  Contract contract = load_contract(run.contract(), root);
  if (contract.sha256 != state.contract_sha256) {
    throw InvalidError("contract_changed", run.contract() +
                                               " is not the contract that this run "
                                               "was created with");
  }
  return contract;
}

/// Note: the journal's last words must not hide the error itself.
void record_error(Journal& journal, const Error& error) {
  try {
    journal.append("error", dump_json({{"code", error.code()}, {"message", error.what()}}));
  } catch (const std::exception&) {
  }
}

}  // namespace

RunDir create_run(const NewRun& run) {
  check_prerequisites(run);
  const RunDir dir = create_run_dir(run.runs_dir, run.contract.name);
  write_file_atomic(dir.contract(), run.contract.text, 0444);
  Journal journal(dir.journal());
  journal.append("created", dump_json({{"schema", "cbench.journal.v1"},
                                       {"run_id", dir.id()},
                                       {"task", run.contract.name},
                                       {"tasks_root", run.contract.tasks_root},
                                       {"contract_sha256", run.contract.sha256},
                                       {"agent", run.agent.text},
                                       {"box", box_kind_name(run.box)},
                                       {"budget_seconds", run.budget_seconds},
                                       {"relaunch", run.relaunch},
                                       {"cbench_version", CBENCH_VERSION}}));
  return dir;
}

RunOutcome drive_run(const RunDir& run, const DriveOptions& options) {
  const Fd lock = lock_run(run);
  Journal journal(run.journal());
  const RunState state = fold_journal(journal.events());
  if (state.stage.empty()) {
    throw InvalidError("journal_corrupt", run.journal() + " does not begin with \"created\"");
  }
  try {
    const Contract contract = frozen_contract(run, state);
    return Driver(run, contract, options, journal).drive();
  } catch (const Error& error) {
    record_error(journal, error);
    throw;
  }
}

}  // namespace cbench
