// cbench engine: the process in the box; started by the evaluator, not by people.
#include "cli/commands.h"
#include "engine/server.h"

namespace cbench {

void add_engine(CLI::App& app, int& exit_code) {
  struct Options {
    int socket = 3;
    EngineServerOptions server;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("engine", "Run a package for an evaluator (started by check and verify)");
  command->add_option("--socket-fd", options->socket, "Inherited socket of the evaluator")
      ->required();
  command->add_option("--package", options->server.package, "Package directory")->required();
  command->add_flag("--synthetic", options->server.synthetic)->group("");
  command->add_option("--stream-budget", options->server.stream_budget)->group("");
  command->add_option("--plugin", options->server.plugin, "Compiled plugin");
  command->add_option("--device", options->server.device, "cpu or cuda")
      ->default_val("cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->callback(
      [options, &exit_code] { exit_code = serve_engine(Fd(options->socket), options->server); });
}

}  // namespace cbench
