// The directory of a run: names of its parts, creation, and the lock that only one process holds.
// docs/run-directory.md describes every file.
#pragma once

#include <string>

#include "util/file.h"

namespace cbench {

struct RunDir {
  std::string path;  ///< absolute

  std::string file(const std::string& name) const { return path + "/" + name; }
  std::string journal() const { return file("journal.jsonl"); }
  std::string contract() const { return file("contract.yaml"); }
  std::string instruction() const { return file("instruction.md"); }
  std::string workspace() const { return file("workspace"); }
  std::string submission() const { return file("submission"); }
  std::string manifest() const { return file("submission.manifest"); }
  std::string versions() const { return file("versions"); }
  std::string agent() const { return file("agent"); }
  std::string input() const { return file("input"); }
  std::string verdicts() const { return file("verdicts"); }
  std::string heartbeat() const { return file("heartbeat.json"); }
  std::string socket() const { return file("agent/control.sock"); }
  std::string id() const;  ///< last component
};

/// A new directory `runs_dir`/<task>/<utc stamp>-<random>, with its sub-directories.
RunDir create_run_dir(const std::string& runs_dir, const std::string& task);

/// An existing run. Throws UsageError ("no_run").
RunDir open_run_dir(const std::string& path);

/// Takes the run's lock until the descriptor closes (the kernel lets go when the process dies).
/// Throws UsageError ("run_busy") when another process drives the run.
Fd lock_run(const RunDir& run);

/// Whether some process holds the lock.
bool run_is_driven(const RunDir& run);

}  // namespace cbench
