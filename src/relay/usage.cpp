#include "relay/usage.h"

#include <array>

#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench::relay {
namespace {

constexpr size_t kMaxLine = 16u << 20;  // response.completed repeats the whole answer
constexpr size_t kMaxUsage = 4u << 10;  // bytes of JSON
constexpr size_t kMaxName = 100;

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

std::string text_of(const Json* value) {
  return value != nullptr && value->is_string() ? printable(value->get<std::string>(), kMaxName)
                                                : "";
}

}  // namespace

void UsageWatch::take(std::string_view bytes) {
  if (!events_) {
    overlong_ |= pending_.size() + bytes.size() > kMaxLine;
    if (!overlong_) pending_.append(bytes);
    return;
  }
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    overlong_ |= pending_.size() + part.size() > kMaxLine;
    if (!overlong_) pending_.append(part);
    if (end == bytes.npos) return;
    if (!overlong_) take_line(pending_);
    pending_.clear();
    overlong_ = false;
    bytes.remove_prefix(end + 1);
  }
}

void UsageWatch::finish() {
  if (overlong_ || pending_.empty()) return;
  if (events_) {
    take_line(pending_);
  } else {
    take_json(pending_);
  }
  pending_.clear();
}

void UsageWatch::take_line(std::string_view line) {
  if (!line.starts_with("data:")) return;
  line.remove_prefix(5);
  // Most events are a few words of text: only those that can matter are parsed.
  const bool matters = line.find("\"usage\"") != line.npos || line.find("\"error\"") != line.npos;
  if (matters) take_json(line);
}

void UsageWatch::take_json(std::string_view text) {
  Json json;
  try {
    json = parse_json(text, "answer", {.max_bytes = kMaxLine, .max_depth = 128});
  } catch (const Error&) {
    return;  // whatever it is, it states no usage
  }
  const Json* at = &json;
  for (const char* wrapper : {"message", "response"}) {
    const Json* inner = member(json, wrapper);
    if (inner != nullptr && inner->is_object()) at = inner;
  }
  const std::string model = text_of(member(*at, "model"));
  if (!model.empty()) model_ = model;
  for (const Json* place : std::array<const Json*, 2>{&json, at}) {
    const Json* error = member(*place, "error");
    const bool named = error != nullptr && error->is_object();
    if (!named) continue;
    const std::string type = text_of(member(*error, "type"));
    error_ = !type.empty() ? type : text_of(member(*error, "code"));
  }
  const Json* usage = member(*at, "usage");
  if (usage == nullptr || !usage->is_object()) return;
  Json merged = usage_.empty() ? Json::object() : parse_json(usage_, "usage");
  for (const auto& [key, value] : usage->items()) merged[key] = value;
  const std::string said = dump_json(merged);
  if (said.size() <= kMaxUsage) usage_ = said;
}

}  // namespace cbench::relay
