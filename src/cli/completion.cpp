// cbench completion: prints a shell completion script.
#include <iostream>

#include "cli/commands.h"
#include "cli/shell_completion.h"

namespace cbench {

void add_completion(CLI::App& app, int& exit_code) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "completion", "Print a completion script, for example: source <(cbench completion bash)");
  command->add_option("shell", *shell, "bash, zsh or fish")->required()->type_name("SHELL");
  command->callback([&app, &exit_code, shell] {
    std::cout << completion_script(app, *shell);
    exit_code = 0;
  });
}

}  // namespace cbench
