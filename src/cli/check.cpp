// cbench check: the public Checker: likelihood on search data, storage, decode speed. Feedback, no
// verdict.
#include "cli/commands.h"
#include "cli/evaluation.h"

namespace cbench {

void add_check(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<EvaluationArguments>();
  CLI::App* command = app.add_subcommand(
      "check",
      "Measure a package on the search data: 10 F, bytes, decode speed (feedback, no verdict)");
  arguments->declare(*command);
  command->callback(
      [arguments, &exit_code] { exit_code = run_evaluation(Mode::kCheck, *arguments); });
}

}  // namespace cbench
