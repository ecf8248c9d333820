// Running generated programs against their unit tests. Two boxes per program: the candidate's code
// runs in one, the test in the other, and only plain data crosses. docs/grading.md states what this
// guarantees.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "box/box.h"

namespace cbench {

struct Program {
  std::string id;
  std::string prompt;       ///< the text the model was given; also run on the test's side (helpers)
  std::string completion;   ///< what the model wrote, already cut at its stops
  std::string test;         ///< defines check(candidate)
  std::string entry_point;  ///< the function that check() is given
};

struct ProgramOptions {
  BoxKind box = BoxKind::kBwrap;
  std::string python = "/usr/bin/python3";
  double seconds = 3.0;  ///< wall clock of one program, time spent waiting for a core not counted
  int parallel = 0;      ///< programs at a time; 0 = one per core
  uint64_t address_space = uint64_t{4} << 30;
  uint64_t processes = 32;
  uint64_t file_size = 16u << 20;
  uint64_t tmp_bytes = 64u << 20;
  bool retry_timeouts = true;  ///< once, alone, after all others
};

struct ProgramResult {
  std::string id;
  bool passed = false;
  /// "passed", "assertion", "error: <ExceptionName>", "load: <ExceptionName>", "ended" (the program
  /// left), "protocol", "time_out", "bad_item" (the test itself cannot be set up).
  std::string reason;
  double seconds = 0;  ///< wall clock of the attempt that counted
  int attempts = 1;
};

/// Results in the order of `programs`. Throws EnvironmentError ("box_unavailable", "python") when
/// programs cannot be run here at all: that is never counted as a fail.
std::vector<ProgramResult> run_programs(const std::vector<Program>& programs,
                                        const ProgramOptions& options = {});

}  // namespace cbench
