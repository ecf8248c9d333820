// cbench baseline-agent: the scripted agent of `--agent baseline`, started inside the box.
#include <memory>

#include "agent/baseline.h"
#include "cli/commands.h"

namespace cbench {

void add_baseline_agent(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BaselineOptions>();
  CLI::App* command = app.add_subcommand("baseline-agent", "The scripted agent (inside a box)");
  command->add_option("--model", options->model, "Checkpoint")->required();
  command->add_option("--submission", options->submission, "Directory to fill")->required();
  command->add_option("--work", options->work, "Scratch directory with ./version")->required();
  command->add_option("--task", options->task, "Task name")->required();
  command->add_option("--limit", options->limit, "Bytes")->required();
  command->add_option("--program", options->program, "cbench")->required();
  command->add_option("--most", options->most, "Candidates to measure");
  command->callback([options, &exit_code] { exit_code = run_baseline(*options); });
}

}  // namespace cbench
