// What may pass the relay: paths, header fields and tools of the two APIs that agents speak.
// Sources: the public references of the Anthropic Messages API and the OpenAI Responses API.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "relay/request.h"

namespace cbench::relay {

enum class Api { kAnthropic, kOpenai };

/// "anthropic", "openai". parse_api throws UsageError ("route").
std::string_view api_name(Api api);
Api parse_api(std::string_view name);

/// Why a request does not pass.
struct Refusal {
  int status = 403;
  std::string code;     ///< stable word for the log
  std::string message;  ///< for the agent
};

/// Before the body is read: method, path, query, length.
std::optional<Refusal> refuse_head(Api api, const RequestHead& head, uint64_t max_body);

/// The body: JSON, and nothing that the provider would run or fetch outside the box (a web search,
/// a picture by its address: holes in "no network"). `model` gets the model's name.
std::optional<Refusal> refuse_body(const std::string& body, std::string& model);

/// Fields of the request that go to the upstream; credentials never do.
bool passes_up(std::string_view lower_case_name);
/// Fields of the answer that come back to the box.
bool passes_down(std::string_view lower_case_name);

/// An error in the API's own form.
std::string error_body(Api api, std::string_view type, std::string_view message);

}  // namespace cbench::relay
