// The state of a run, folded from its journal: what has been done, and so what comes next.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "run/journal.h"

namespace cbench {

struct LaunchRecord {
  int number = 0;
  std::string started_utc, ended_utc;
  std::string why;  ///< "exited", "signalled", "deadline", "interrupted", "lost"; "" while it runs
  std::string status;  ///< "exit code 0"
  double seconds = 0;
  bool progress = false;  ///< versions were saved or files changed
};

struct VersionRecord {
  int number = 0;
  std::string note, utc, package_hash;
  uint64_t bytes = 0;
  double used_seconds = 0;  ///< of the budget, when it was saved
};

struct VerdictRecord {
  std::string status;      ///< "scored", "gate_failed", "invalid"
  std::string key;         ///< what was measured, by what, against what
  std::string taken_from;  ///< "v3": the same package was measured as that
  std::optional<double> reward;
};

struct FrozenRecord {
  std::string package_hash;
  uint64_t bytes = 0;
  std::string code, message;  ///< why the submission was refused
};

struct RunState {
  std::string run_id, task, tasks_root, agent, box, created_utc, contract_sha256;
  double budget_seconds = 0;
  bool relaunch = false;
  std::string stage;  ///< "created", "prepared", "searching", "frozen", "verifying", "done"
  std::vector<LaunchRecord> launches;
  int idle_launches = 0;                    ///< the last ones in a row that did nothing
  std::optional<std::string> search_ended;  ///< "deadline", "finished", "agent_inert"
  std::map<int, VersionRecord> versions;
  std::optional<FrozenRecord> frozen;
  std::map<std::string, VerdictRecord> verdicts;  ///< "v1", ..., "final"
  double used_seconds = 0;  ///< according to the journal; the heartbeat may know more
  bool interrupted = false;

  bool launch_open() const { return !launches.empty() && launches.back().why.empty(); }
};

/// Throws InvalidError ("journal_corrupt") for events that cannot be.
RunState fold_journal(const std::vector<JournalEvent>& events);

/// "final" first, then v1, v2, ..., v10.
bool verdict_before(const std::string& a, const std::string& b);

}  // namespace cbench
