#include "relay/policy.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench::relay {
namespace {

constexpr std::array<std::string_view, 2> kAnthropicPaths = {"/v1/messages",
                                                             "/v1/messages/count_tokens"};
constexpr std::array<std::string_view, 1> kOpenaiPaths = {"/v1/responses"};

/// Tools that run at the provider: they reach the network, other machines, or hosted computers.
constexpr std::array<std::string_view, 7> kHostedTools = {
    "web_search",     "web_fetch",       "mcp", "file_search", "code_interpreter",
    "code_execution", "image_generation"};

constexpr std::array<std::string_view, 9> kUp = {"content-type", "accept",          "user-agent",
                                                 "originator",   "session_id",      "session-id",
                                                 "version",      "conversation_id", "x-app"};
constexpr std::array<std::string_view, 5> kUpPrefixes = {
    "anthropic-", "openai-beta", "x-stainless-", "x-codex-", "x-claude-code-"};
constexpr std::array<std::string_view, 6> kDown = {"content-type",   "request-id",
                                                   "x-request-id",   "retry-after",
                                                   "retry-after-ms", "x-should-retry"};
constexpr std::array<std::string_view, 3> kDownPrefixes = {"anthropic-", "openai-", "x-ratelimit-"};
/// Whose account it is, is none of the box's business.
constexpr std::array<std::string_view, 3> kNotDown = {"anthropic-organization-id",
                                                      "openai-organization", "openai-project"};

template <class List>
bool listed(const List& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

template <class List>
bool has_prefix(const List& prefixes, std::string_view name) {
  return std::ranges::any_of(prefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

/// `web_search` itself, or with a version behind it: `web_search_20250305`.
bool is_hosted(std::string_view type) {
  return std::ranges::any_of(kHostedTools, [&](std::string_view tool) {
    return type == tool || (type.starts_with(tool) && type[tool.size()] == '_');
  });
}

std::string hosted_tool(const Json& tools) {
  if (!tools.is_array()) return "";
  for (const Json& tool : tools) {
    if (!tool.is_object() || !tool.contains("type") || !tool["type"].is_string()) continue;
    const std::string type = tool["type"];
    if (is_hosted(type)) return type;
    // A shell may be the agent's own or a hosted container.
    if (dump_json(tool.value("environment", Json())).find("\"container") != std::string::npos) {
      return type + " in a container";
    }
    if (tool.contains("tools")) {
      const std::string inner = hosted_tool(tool["tools"]);
      if (!inner.empty()) return inner;
    }
  }
  return "";
}

std::string hosted_in(const Json& body) {
  for (const char* key : {"mcp_servers", "container", "prompt"}) {  // a stored prompt has tools
    if (body.contains(key) && !body[key].is_null() && !body[key].empty()) return key;
  }
  if (body.contains("tools")) {
    const std::string tool = hosted_tool(body["tools"]);
    if (!tool.empty()) return tool;
  }
  // Newer clients list their tools in the input.
  if (!body.contains("input") || !body["input"].is_array()) return "";
  for (const Json& item : body["input"]) {
    if (!item.is_object() || !item.contains("tools")) continue;
    const std::string tool = hosted_tool(item["tools"]);
    if (!tool.empty()) return tool;
  }
  return "";
}

bool is_address(const Json& value) {
  if (value.is_object()) return value.contains("url") && is_address(value["url"]);
  return value.is_string() && !value.get_ref<const std::string&>().starts_with("data:");
}

/// Whether content holds a picture or a document by its address: the provider would fetch it.
bool is_fetched(const Json& content) {
  if (content.is_array()) return std::ranges::any_of(content, is_fetched);
  if (!content.is_object()) return false;
  for (const char* key : {"image_url", "file_url"}) {
    if (content.contains(key) && is_address(content[key])) return true;
  }
  if (content.contains("source") && content["source"].is_object() &&
      is_address(content["source"])) {
    return true;
  }
  return std::ranges::any_of(std::array{"content", "output", "source"}, [&](const char* key) {
    return content.contains(key) && is_fetched(content[key]);
  });
}

/// A small body can become a large tree: one at a time, or a box that sends many takes the memory.
std::mutex& one_at_a_time() {
  static std::mutex mutex;
  return mutex;
}

bool is_plain_query(std::string_view query) {
  return query.size() <= 256 && std::ranges::all_of(query, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  std::string_view("=&_.~-").find(c) != std::string_view::npos;
         });
}

}  // namespace

std::string_view api_name(Api api) { return api == Api::kAnthropic ? "anthropic" : "openai"; }

Api parse_api(std::string_view name) {
  if (name == "anthropic") return Api::kAnthropic;
  if (name == "openai") return Api::kOpenai;
  throw UsageError("route", "unknown api '" + printable(name) + "': anthropic or openai");
}

std::optional<Refusal> refuse_head(Api api, const RequestHead& head, uint64_t max_body) {
  const bool known =
      api == Api::kAnthropic ? listed(kAnthropicPaths, head.path) : listed(kOpenaiPaths, head.path);
  if (!known || !is_plain_query(head.query)) {
    return Refusal{404, "path", "the relay forwards only the model API, not " + head.path};
  }
  if (head.method != "POST") return Refusal{405, "method", "the relay forwards only POST"};
  if (!head.chunked && head.find("content-length") == nullptr) {
    return Refusal{411, "length", "a request needs a Content-Length"};
  }
  if (head.length > max_body) {
    return Refusal{413, "too_large", "the request is larger than the relay forwards"};
  }
  const std::string* encoding = head.find("content-encoding");
  if (encoding != nullptr && *encoding != "identity") {
    return Refusal{415, "encoding", "the relay reads requests, so they must not be compressed"};
  }
  return std::nullopt;
}

std::optional<Refusal> refuse_body(const std::string& body, std::string& model) {
  const std::scoped_lock lock(one_at_a_time());
  Json json;
  try {
    json = parse_json(body, "request", {.max_bytes = body.size(), .max_depth = 128});
  } catch (const Error& error) {
    return Refusal{400, "json", error.what()};
  }
  if (!json.is_object()) return Refusal{400, "json", "the request is no JSON object"};
  if (json.contains("model") && json["model"].is_string()) {
    model = printable(json["model"].get<std::string>(), 100);
  }
  for (const char* key : {"messages", "input", "system"}) {
    if (json.contains(key) && is_fetched(json[key])) {
      return Refusal{400, "fetched_content",
                     "a picture or document given by its address would be fetched outside the box, "
                     "which has no network: send its bytes"};
    }
  }
  const std::string hosted = hosted_in(json);
  if (hosted.empty()) return std::nullopt;
  return Refusal{400, "hosted_tool",
                 "'" + printable(hosted, 60) +
                     "' would run outside the box, which has no network: turn it off"};
}

bool passes_up(std::string_view name) { return listed(kUp, name) || has_prefix(kUpPrefixes, name); }

bool passes_down(std::string_view name) {
  return !listed(kNotDown, name) && (listed(kDown, name) || has_prefix(kDownPrefixes, name));
}

std::string error_body(Api api, std::string_view type, std::string_view message) {
  const Json error = {{"type", type}, {"message", printable(message, 500)}};
  if (api == Api::kAnthropic) return dump_json({{"type", "error"}, {"error", error}});
  return dump_json({{"error", error}});
}

}  // namespace cbench::relay
