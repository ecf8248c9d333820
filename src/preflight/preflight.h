// `cbench preflight`: whether a run of a task would work on this machine. docs/preflight.md lists
// the checks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "box/box.h"
#include "preflight/check.h"
#include "task/contract.h"

namespace cbench {

struct PreflightOptions {
  BoxKind box = BoxKind::kBwrap;
  std::string device;              ///< "" = the contract's
  std::string agent = "baseline";  ///< claude, codex, command:..., baseline
  std::string runs_dir = "runs";
  std::string program;  ///< our binary, for the self-check; "" = this one
  bool full = false;    ///< hash everything that was fetched
  bool self_check = true;
  // For tests: other programs and libraries than the usual ones.
  std::string nvml = "libnvidia-ml.so.1";
  std::string docker = "docker";
  std::string nvcc = "nvcc";
  std::string compiler = "c++";
  std::string python;  ///< "" = the grader's default
};

struct PreflightReport {
  std::string task, box;
  std::vector<CheckLine> lines;
  bool ready() const;  ///< nothing fails
  int count(CheckLevel level) const;
};

/// The checks of a task in the order of the table.
std::vector<Check> preflight_checks(const Contract& contract, const PreflightOptions& options);

/// Runs them one after the other; `on_line` sees each line as it comes.
PreflightReport run_preflight(const std::string& task, const std::string& box,
                              const std::vector<Check>& checks,
                              const std::function<void(const CheckLine&)>& on_line = {});

std::string preflight_json(const PreflightReport& report);  ///< schema cbench.preflight.v1
std::string preflight_row(const CheckLine& line);  ///< one row of the table, with its newline

}  // namespace cbench
