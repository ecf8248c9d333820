// How an agent's model is reached: ~/.config/cbench/routes.yaml and the environment
// (docs/agents.md).
#pragma once

#include <optional>
#include <string>

#include "relay/policy.h"

namespace cbench::relay {

struct Route {
  std::string agent;  ///< "claude", "codex", "command"
  Api api = Api::kAnthropic;
  std::string base_url;  ///< without a final slash and without "/v1"
  std::string key_env;   ///< the variable that holds the key
  bool bearer = false;   ///< Authorization: Bearer instead of x-api-key
  std::string model;     ///< "" = not named
  std::string cli;       ///< the agent's program, "" = from PATH
  std::string source;    ///< where it was configured, for messages
};

/// "claude", "codex", "command:..." or "baseline" -> "claude", "codex", "command", "baseline".
/// Throws UsageError ("agent").
std::string agent_kind(const std::string& agent);

/// The file: $CBENCH_ROUTES, else $XDG_CONFIG_HOME/cbench/routes.yaml, else ~/.config/cbench/...
std::string routes_path();

/// The agent's route; nothing for an agent that needs none. claude and codex have defaults, a
/// command has a route only if one is configured. CBENCH_ROUTE_URL, CBENCH_ROUTE_MODEL and
/// CBENCH_ROUTE_KEY_ENV replace what the file says. Throws UsageError ("route", "contract_syntax").
std::optional<Route> find_route(const std::string& agent_kind);

/// The header line with the key. Throws EnvironmentError ("no_key", "bad_key") naming the variable,
/// never the key.
std::string key_field(const Route& route);

/// Throws UsageError ("route") unless https, or http to this machine.
std::string checked_base_url(std::string url);

}  // namespace cbench::relay
