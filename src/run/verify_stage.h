// Verification of one target by a process of its own: a crash of a measurement touches nothing
// else.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "run/run_dir.h"
#include "task/contract.h"

namespace cbench {

struct VerifyStage {
  std::vector<std::string>
      command;         ///< {cbench, --tasks, DIR, verify}; the target and --json follow
  std::string box;     ///< "" = verify's own default
  double timeout = 0;  ///< seconds
  int interrupt_fd = -1;
  std::function<void()> tick;
};

struct VerifyTarget {
  std::string name;          ///< "v3", "final"
  std::string path;          ///< what to measure
  std::string package_hash;  ///< what it must turn out to be
};

struct VerifyResult {
  std::string verdict;  ///< JSON, schema cbench.verdict.v1; empty when interrupted
  std::string status;
  std::optional<double> reward;
};

/// Runs it to its end. A process that crashes, hangs, or prints something else than this target's
/// verdict gives an "invalid" verdict with the reason. Its log goes to verdicts/<name>.log.
VerifyResult run_verify(const VerifyStage& stage, const VerifyTarget& target, const RunDir& run,
                        const Contract& contract);

/// A verdict that no measurement made: the submission was refused (gate_failed, reward 0), or the
/// infrastructure failed (invalid).
VerifyResult verdict_without_measurement(const Contract& contract, bool refused,
                                         const std::string& code, const std::string& message,
                                         const std::string& package_hash = "");

/// What a verdict depends on: the package, the contract, this version of cbench, the reference.
std::string verdict_key(const Contract& contract, const std::string& package_hash);

}  // namespace cbench
