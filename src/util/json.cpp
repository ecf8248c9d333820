#include "util/json.h"

#include <set>
#include <vector>

#include "util/error.h"
#include "util/file.h"
#include "util/text.h"

namespace cbench {
namespace {

/// Receives parse events before any value is stored: the place to refuse depth and duplicates.
template <typename Value>
class Guard {
 public:
  Guard(std::string_view source, int max_depth) : source_(source), max_depth_(max_depth) {}

  bool operator()(int depth, typename Value::parse_event_t event, Value& parsed) {
    using Event = typename Value::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= max_depth_) {
        throw UsageError("too_deep", source_ + ": JSON nested deeper than " +
                                         std::to_string(max_depth_) + " levels");
      }
      if (event == Event::object_start) keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const std::string& key = parsed.template get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        throw UsageError("duplicate_key", source_ + ": duplicate key \"" + printable(key) + "\"");
      }
    }
    return true;
  }

 private:
  std::string source_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;
};

[[noreturn]] void wrong_type(std::string_view key, std::string_view source, const char* expected) {
  throw UsageError("json_type",
                   std::string(source) + ": \"" + std::string(key) + "\" must be " + expected);
}

template <typename Value>
Value parse(std::string_view text, std::string_view source, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw UsageError("too_large", std::string(source) + ": JSON of " + std::to_string(text.size()) +
                                      " bytes; at most " + std::to_string(limits.max_bytes) +
                                      " are allowed");
  }
  if (text.find('\0') != std::string_view::npos) {  // the parser would take it for the end
    throw UsageError("json", std::string(source) + ": not valid JSON: it holds a zero byte");
  }
  try {
    return Value::parse(text.begin(), text.end(), Guard<Value>(source, limits.max_depth));
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("json", std::string(source) + ": not valid JSON: " + error.what());
  }
}

}  // namespace

Json parse_json(std::string_view text, std::string_view source, const JsonLimits& limits) {
  return parse<Json>(text, source, limits);
}

SortedJson parse_sorted_json(std::string_view text, std::string_view source,
                             const JsonLimits& limits) {
  return parse<SortedJson>(text, source, limits);
}

std::string quote_infinity(std::string_view json) {
  constexpr std::string_view kWord = "Infinity";
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (!quoted && json.substr(i).starts_with(kWord)) {
      out.append("\"").append(kWord).append("\"");
      i += kWord.size() - 1;
      continue;
    }
    if (quoted && json[i] == '\\' && i + 1 < json.size()) {
      out += json[i++];
    } else if (json[i] == '"') {
      quoted = !quoted;
    }
    out += json[i];
  }
  return out;
}

Json read_json(const std::string& path, const JsonLimits& limits) {
  return parse_json(read_file(path, limits.max_bytes), path, limits);
}

std::string dump_json(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

const Json& json_member(const Json& object, std::string_view key, std::string_view source) {
  if (!object.is_object()) {
    throw UsageError("json_type", std::string(source) + ": expected an object");
  }
  const auto found = object.find(std::string(key));
  if (found == object.end()) {
    throw UsageError("json_missing",
                     std::string(source) + ": missing key \"" + std::string(key) + "\"");
  }
  return *found;
}

std::string json_string(const Json& object, std::string_view key, std::string_view source) {
  const Json& value = json_member(object, key, source);
  if (!value.is_string()) wrong_type(key, source, "a string");
  return value.get<std::string>();
}

int64_t json_int(const Json& object, std::string_view key, std::string_view source) {
  const Json& value = json_member(object, key, source);
  if (!value.is_number_integer()) wrong_type(key, source, "an integer");
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    wrong_type(key, source, "an integer of at most 63 bits");
  }
  return value.get<int64_t>();
}

double json_number(const Json& object, std::string_view key, std::string_view source) {
  const Json& value = json_member(object, key, source);
  if (!value.is_number()) wrong_type(key, source, "a number");
  return value.get<double>();
}

bool json_bool(const Json& object, std::string_view key, std::string_view source) {
  const Json& value = json_member(object, key, source);
  if (!value.is_boolean()) wrong_type(key, source, "true or false");
  return value.get<bool>();
}

}  // namespace cbench
