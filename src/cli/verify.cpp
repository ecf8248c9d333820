// cbench verify: the Verifier: every gate on hidden data, once, into a verdict.
#include "cli/commands.h"
#include "cli/evaluation.h"

namespace cbench {

void add_verify(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<EvaluationArguments>();
  CLI::App* command = app.add_subcommand(
      "verify", "Score a package, a saved version or a run on hidden data: the verdict");
  arguments->declare(*command);
  command->callback(
      [arguments, &exit_code] { exit_code = run_evaluation(Mode::kVerify, *arguments); });
}

}  // namespace cbench
