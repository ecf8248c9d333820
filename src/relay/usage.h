// What an answer says about its model and its tokens, found while it streams by.
#pragma once

#include <string>
#include <string_view>

namespace cbench::relay {

/// Watches a body: server-sent events (message_start, message_delta, response.completed,
/// response.incomplete, response.failed, error) or one JSON object. Nothing is changed or held
/// back; lines and bodies beyond the bound are not looked into.
class UsageWatch {
 public:
  explicit UsageWatch(bool events) : events_(events) {}
  void take(std::string_view bytes);
  void finish();  ///< at the body's end

  const std::string& model() const { return model_; }
  /// JSON object as the answer states it (the members of later events replace earlier ones); "" if
  /// it states none.
  const std::string& usage() const { return usage_; }
  const std::string& error() const { return error_; }  ///< type of an error in the stream

 private:
  void take_line(std::string_view line);
  void take_json(std::string_view text);

  bool events_;
  bool overlong_ = false;
  std::string pending_, model_, usage_, error_;
};

}  // namespace cbench::relay
