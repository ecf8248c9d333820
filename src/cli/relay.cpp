// cbench relay: the process through which an agent in a box reaches its model; started by cbench.
#include "relay/relay.h"

#include <memory>

#include "cli/commands.h"
#include "relay/route.h"
#include "util/error.h"

namespace cbench {
namespace {

struct RelayArguments {
  std::string agent = "claude";
  relay::RelayOptions options;
};

int run_relay(RelayArguments& a) {
  const std::optional<relay::Route> route = relay::find_route(relay::agent_kind(a.agent));
  if (!route) {
    throw UsageError("route", a.agent + " has no route: see " + relay::routes_path());
  }
  a.options.api = route->api;
  a.options.upstream.base_url = route->base_url;
  a.options.upstream.key_field = relay::key_field(*route);
  return relay::serve(a.options);
}

}  // namespace

void add_relay(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<RelayArguments>();
  CLI::App* command = app.add_subcommand(
      "relay", "Forward an agent's model calls from a unix socket to its route until SIGTERM");
  command->add_option("--agent", a->agent, "Whose route: claude, codex or command:...")
      ->capture_default_str();
  command->add_option("--socket", a->options.socket, "Unix socket to listen on")->required();
  command->add_option("--log", a->options.log, "Append one JSON line a call to this file");
  command
      ->add_option("--namespace-of", a->options.namespace_of,
                   "Also listen on 127.0.0.1 in the network of this process")
      ->check(CLI::PositiveNumber);
  command->add_option("--port", a->options.port, "There")
      ->capture_default_str()
      ->check(CLI::Range(1, 65535));
  command->callback([a, &exit_code] { exit_code = run_relay(*a); });
}

}  // namespace cbench
