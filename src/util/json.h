// JSON from untrusted bytes: bounded depth and size, no duplicate keys, no silent conversions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace cbench {

/// Keys keep their order, so that what we write is stable and readable.
using Json = nlohmann::ordered_json;

/// For objects of many members: Json finds (and inserts) a key in linear time, this one does not.
using SortedJson = nlohmann::json;

struct JsonLimits {
  uint64_t max_bytes = 64u << 20;
  int max_depth = 64;
};

/// Parses one JSON value. Rejects: bad UTF-8, trailing bytes, duplicate keys, nesting deeper than
/// max_depth, numbers that do not fit. Throws UsageError with code "json", "duplicate_key",
/// "too_deep" or "too_large"; `source` names the input in the message.
Json parse_json(std::string_view text, std::string_view source, const JsonLimits& limits = {});

/// The same rules for documents whose objects may be large, where Json would take quadratic time.
SortedJson parse_sorted_json(std::string_view text, std::string_view source,
                             const JsonLimits& limits = {});

/// Python writes infinity as a bare word, which JSON lacks; outside of strings it becomes the
/// string "Infinity".
std::string quote_infinity(std::string_view json);

/// Reads and parses a file.
Json read_json(const std::string& path, const JsonLimits& limits = {});

/// One line (indent < 0) or pretty text; invalid UTF-8 becomes U+FFFD, non-finite numbers null.
std::string dump_json(const Json& value, int indent = -1);

/// Typed member access for strict readers. Throw UsageError ("json_type", "json_missing") that
/// names `source` and the key.
const Json& json_member(const Json& object, std::string_view key, std::string_view source);
std::string json_string(const Json& object, std::string_view key, std::string_view source);
int64_t json_int(const Json& object, std::string_view key, std::string_view source);
double json_number(const Json& object, std::string_view key, std::string_view source);
bool json_bool(const Json& object, std::string_view key, std::string_view source);

}  // namespace cbench
