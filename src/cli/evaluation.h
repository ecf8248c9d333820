// What check and verify share: arguments, and printing a verdict.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "eval/evaluate.h"

namespace cbench {

struct EvaluationArguments {
  std::string path;
  std::string task;
  std::string box;
  std::string device;
  std::string junit;
  std::string items;
  bool json = false;
  bool quiet = false;

  void declare(CLI::App& command);
};

/// Evaluates and prints; returns the process exit code.
int run_evaluation(Mode mode, const EvaluationArguments& arguments);

}  // namespace cbench
