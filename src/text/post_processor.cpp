#include "text/post_processor.h"

#include "text/normalizer.h"
#include "util/error.h"

namespace cbench {
namespace {

[[noreturn]] void bad_template(std::string_view source, const char* what) {
  throw UsageError("post_processor", std::string(source) + ": TemplateProcessing: " + what);
}

std::vector<int32_t> special_ids(const Json& config, const Json& item, std::string_view source) {
  const std::string name = json_string(item, "id", source);
  const Json& entry = json_member(json_member(config, "special_tokens", source), name, source);
  std::vector<int32_t> ids;
  const Json& list = json_member(entry, "ids", source);
  if (!list.is_array()) bad_template(source, "\"ids\" must be an array");
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      bad_template(source, "ids must be integers from 0 to 2^31-1");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

PostProcessor make_template(const Json& config, std::string_view source) {
  PostProcessor result;
  bool seen = false;
  const Json& single = json_member(config, "single", source);
  if (!single.is_array()) bad_template(source, "\"single\" must be an array");
  for (const Json& item : single) {
    if (item.is_object() && item.contains("SpecialToken")) {
      const auto ids = special_ids(config, item["SpecialToken"], source);
      std::vector<int32_t>& side = seen ? result.after : result.before;
      side.insert(side.end(), ids.begin(), ids.end());
    } else if (item.is_object() && item.contains("Sequence")) {
      if (seen || json_string(item["Sequence"], "id", source) != "A") {
        bad_template(source, "\"single\" must hold the sequence A exactly once");
      }
      seen = true;
    } else {
      bad_template(source, "\"single\" may hold SpecialToken and Sequence only");
    }
  }
  if (!seen) bad_template(source, "\"single\" must hold the sequence A exactly once");
  return result;
}

}  // namespace

PostProcessor make_post_processor(const Json& config, std::string_view source) {
  if (config.is_null()) return {};
  const std::string type = json_string(config, "type", source);
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return make_template(config, source);
  if (type != "Sequence") {
    unsupported_component("post_processor", type, "ByteLevel, TemplateProcessing, Sequence",
                          source);
  }
  PostProcessor result;
  const Json& steps = json_member(config, "processors", source);
  if (!steps.is_array()) {
    throw UsageError("json_type", std::string(source) + ": \"processors\" must be an array");
  }
  for (const Json& step : steps) {  // each works on the outcome of the one before
    const PostProcessor outer = make_post_processor(step, source);
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
  }
  return result;
}

}  // namespace cbench
