// The scripted agent: tries a few bit widths and groups by round-to-nearest, lets the Checker judge
// each, saves what improves as a version and leaves the best as the submission. It sees what every
// agent sees: `cbench check`, `./version`, two directories.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "package/pack.h"

namespace cbench {

struct BaselineOptions {
  std::string model;       ///< checkpoint
  std::string submission;  ///< directory to fill
  std::string work;        ///< scratch; holds ./version
  std::string task;
  std::string program;  ///< cbench
  int64_t limit = 0;    ///< bytes
  size_t most = 3;      ///< candidates to measure
};

/// Choices that fit the limit, smallest first: the largest, and others of clearly fewer bytes.
std::vector<PackChoice> baseline_choices(const std::string& model, int64_t limit, size_t most);

/// Returns the exit code: 0 when a submission is in place. Prints what it does.
int run_baseline(const BaselineOptions& options);

}  // namespace cbench
