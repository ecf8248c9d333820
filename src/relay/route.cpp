#include "relay/route.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "task/yaml_tree.h"
#include "util/error.h"
#include "util/file.h"
#include "util/text.h"

namespace cbench::relay {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_variable(std::string_view name) {
  return !name.empty() && name.size() <= 100 && std::ranges::all_of(name, [](char c) {
    return c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

[[noreturn]] void wrong(const YamlNode& node, const std::string& what) {
  throw UsageError("route", yaml_place(node) + what);
}

std::string text_of(const YamlNode& node, std::string_view key) {
  if (node.kind != YamlNode::Kind::kScalar || node.value.empty()) {
    wrong(node, std::string(key) + " must be text");
  }
  return node.value;
}

std::optional<Route> default_route(const std::string& agent) {
  Route route;
  route.agent = agent;
  route.source = "the defaults";
  if (agent == "claude") {
    route.base_url = "https://api.anthropic.com";
    route.key_env = "ANTHROPIC_API_KEY";
    return route;
  }
  if (agent == "codex") {
    route.api = Api::kOpenai;
    route.base_url = "https://api.openai.com";
    route.key_env = "OPENAI_API_KEY";
    route.bearer = true;
    return route;
  }
  return std::nullopt;
}

void apply(Route& route, const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kMap) wrong(node, "a route must be a mapping");
  bool bearer_said = false;
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& key = node.keys[i];
    const std::string value = text_of(node.children[i], key);
    if (key == "api") {
      route.api = parse_api(value);
    } else if (key == "base_url") {
      route.base_url = checked_base_url(value);
    } else if (key == "key_env") {
      if (!is_variable(value)) wrong(node.children[i], "key_env names an environment variable");
      route.key_env = value;
    } else if (key == "auth") {
      if (value != "bearer" && value != "x-api-key") {
        wrong(node.children[i], "auth is bearer or x-api-key");
      }
      route.bearer = value == "bearer";
      bearer_said = true;
    } else if (key == "model") {
      route.model = value;
    } else if (key == "cli") {
      route.cli = value;
    } else {
      wrong(node.children[i], "unknown key " + key +
                                  ": api, base_url, key_env, auth, model or cli (a key itself "
                                  "belongs into the environment, never into this file)");
    }
  }
  if (!bearer_said) route.bearer = route.api == Api::kOpenai;
}

/// The entry of this agent, or nothing.
void read_file_route(const std::string& agent, std::optional<Route>& route) {
  const std::string path = routes_path();
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return;
  const YamlNode tree = parse_yaml(read_file(path, kMaxYamlBytes), path);
  for (const std::string& key : tree.keys) {
    if (key != "routes") wrong(*tree.find(key), "unknown key " + key + ": only routes");
  }
  const YamlNode* routes = tree.find("routes");
  if (routes == nullptr || routes->kind != YamlNode::Kind::kMap) return;
  for (const std::string& key : routes->keys) {
    if (key != "claude" && key != "codex" && key != "command") {
      wrong(*routes->find(key), "unknown agent " + key + ": claude, codex or command");
    }
  }
  const YamlNode* mine = routes->find(agent);
  if (mine == nullptr) return;
  if (!route) route.emplace();
  route->agent = agent;
  route->source = path;
  apply(*route, *mine);
}

void read_environment_route(const std::string& agent, std::optional<Route>& route) {
  const std::string url = environment("CBENCH_ROUTE_URL");
  const std::string model = environment("CBENCH_ROUTE_MODEL");
  const std::string key = environment("CBENCH_ROUTE_KEY_ENV");
  if (!route && url.empty()) return;
  if (!route) route.emplace();
  route->agent = agent;
  if (!url.empty()) route->base_url = checked_base_url(url);
  if (!url.empty()) route->source = "CBENCH_ROUTE_URL";
  if (!model.empty()) route->model = model;
  if (!key.empty() && !is_variable(key)) {
    throw UsageError("route", "CBENCH_ROUTE_KEY_ENV names an environment variable");
  }
  if (!key.empty()) route->key_env = key;
}

}  // namespace

std::string agent_kind(const std::string& agent) {
  for (const char* kind : {"claude", "codex", "baseline"}) {
    if (agent == kind) return agent;
  }
  if (agent.starts_with("command:")) return "command";
  throw UsageError("agent", "unknown agent '" + printable(agent) +
                                "': claude, codex, baseline, or command:<shell command>");
}

std::string routes_path() {
  const std::string named = environment("CBENCH_ROUTES");
  if (!named.empty()) return named;
  const std::string config = environment("XDG_CONFIG_HOME"), home = environment("HOME");
  if (config.starts_with('/')) return config + "/cbench/routes.yaml";
  return home.empty() ? "" : home + "/.config/cbench/routes.yaml";
}

std::optional<Route> find_route(const std::string& agent) {
  if (agent == "baseline") return std::nullopt;
  std::optional<Route> route = default_route(agent);
  read_file_route(agent, route);
  read_environment_route(agent, route);
  if (route && route->base_url.empty()) {
    throw UsageError("route", route->source + ": the route of " + agent + " needs a base_url");
  }
  return route;
}

std::string key_field(const Route& route) {
  if (route.key_env.empty()) {
    throw EnvironmentError(
        "no_key", "the route of " + route.agent + " names no variable for its key (key_env)");
  }
  const std::string key = environment(route.key_env.c_str());
  if (key.empty()) {
    throw EnvironmentError(
        "no_key", route.key_env + " is not set: export the key of " + route.base_url + " there");
  }
  const bool clean =
      key.size() <= 4096 && std::ranges::all_of(key, [](char c) { return c > ' ' && c <= '~'; });
  if (!clean) {
    throw EnvironmentError("bad_key", route.key_env +
                                          " holds spaces, line breaks or other characters that no "
                                          "key has: set it again");
  }
  return route.bearer ? "Authorization: Bearer " + key : "x-api-key: " + key;
}

std::string checked_base_url(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  const bool plain = url.size() <= 500 && std::ranges::all_of(url, [](char c) {
                       return c > ' ' && c <= '~' && c != '@' && c != '?' && c != '#' && c != '\\';
                     });
  const bool secure = url.starts_with("https://") && url.size() > 8;
  bool local = false;
  for (const std::string_view host : {"http://127.0.0.1", "http://localhost", "http://[::1]"}) {
    const bool starts = url.starts_with(host);
    local |=
        starts && (url.size() == host.size() || url[host.size()] == ':' || url[host.size()] == '/');
  }
  if (plain && (secure || local)) return url;
  throw UsageError("route", "'" + printable(url) +
                                "' is no usable base URL: https://HOST[:PORT][/PATH], or http to "
                                "this machine; a key is not sent in the clear");
}

}  // namespace cbench::relay
