// What a person names on the command line: a package directory, a saved version, or a run.
#pragma once

#include <memory>
#include <string>

#include "util/file.h"

namespace cbench {

struct Target {
  std::string package;            ///< directory to evaluate
  std::string task;               ///< name of the run's task; "" for a bare package
  std::string run;                ///< run directory; "" for a bare package
  int version = 0;                ///< number of the saved version, 0 = not a version
  std::shared_ptr<TempDir> copy;  ///< holds a version's files while it is evaluated
};

/// `path` is a package directory, RUN/versions/v3 (with or without .json), or a run directory (its
/// frozen submission). Throws UsageError ("no_package") that says what was looked for.
Target resolve_target(const std::string& path);

/// Name of the task of a run directory, from its frozen contract.
std::string task_of_run(const std::string& run_dir);

}  // namespace cbench
