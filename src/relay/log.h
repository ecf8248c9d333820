// The relay's record: one JSON line a call (schema cbench.relay.v1, docs/agents.md).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "util/file.h"

namespace cbench::relay {

/// One call, filled in as it proceeds. Holds no bodies and no credentials.
struct CallRecord {
  std::string started_utc;
  double started = 0;  ///< boot_seconds()
  std::string method, path, model;
  std::string outcome = "stopped";  ///< docs/agents.md lists them
  std::string detail;
  int status = 0;       ///< sent to the box; 0 = none
  bool stream = false;  ///< the answer was server-sent events
  uint64_t request_bytes = 0, answer_bytes = 0;
  double first_byte_seconds = -1;
  std::string usage;  ///< JSON object as stated, or ""
  std::string request_id, retry_after;
};

class CallLog {
 public:
  /// Appends to `path` ("" = keeps no record). Throws EnvironmentError.
  explicit CallLog(const std::string& path);
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;
  /// False when the record could not be written: the relay then stops forwarding, as what is not
  /// recorded must not be spent.
  bool write(const CallRecord& record);
  bool usable() const;

  /// Calls under way, so that an end in the middle is recorded too.
  uint64_t begin(const CallRecord& record);
  void update(uint64_t id, const CallRecord& record);
  bool end(uint64_t id, const CallRecord& record);
  /// Records what is under way as stopped, and nothing from then on.
  void close();

 private:
  bool write_locked(const CallRecord& record);

  mutable std::mutex mutex_;
  Fd file_;
  bool kept_ = false, broken_ = false, closed_ = false;
  uint64_t bytes_ = 0, next_ = 0;
  std::map<uint64_t, CallRecord> active_;
};

}  // namespace cbench::relay
