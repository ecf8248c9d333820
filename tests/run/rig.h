// A tiny task with fake data, and a fake verifier: the whole lifecycle in a second.
//
// The test binary itself plays cbench inside the box and as the verifier (main_test.cpp).
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "run/lifecycle.h"
#include "run/state.h"
#include "util/file.h"

namespace cbench::testing {

/// Tasks root with one task whose checkpoint and reference are stand-ins.
class Rig {
 public:
  Rig();

  NewRun new_run(const std::string& command, double seconds) const;
  DriveOptions drive_options() const;
  /// Creates and drives a run of `command:<command>`.
  RunOutcome run(const std::string& command, double seconds = 20, BoxKind box = BoxKind::kBwrap);

  RunState state() const { return fold_journal(read_journal(dir.journal())); }
  std::string text(const std::string& relative) const { return read_file(dir.file(relative)); }
  /// Names of all events, in order.
  std::vector<std::string> events() const;

  TempDir temp{"cbench-run-test"};
  RunDir dir;
  std::string tasks_root() const { return temp.path() + "/tasks"; }
};

/// Path of this test binary.
std::string self_program();

}  // namespace cbench::testing
