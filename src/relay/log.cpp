#include "relay/log.h"

#include <fcntl.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench::relay {
namespace {

constexpr uint64_t kMaxLog = 256u << 20;  // a box that floods the relay does not fill the disk

std::string line_of(const CallRecord& r) {
  Json json = {{"schema", "cbench.relay.v1"},
               {"started_utc", r.started_utc},
               {"seconds", boot_seconds() - r.started},
               {"method", printable(r.method, 20)},
               {"path", printable(r.path, 200)},
               {"outcome", r.outcome},
               {"status", r.status},
               {"stream", r.stream},
               {"request_bytes", r.request_bytes},
               {"answer_bytes", r.answer_bytes}};
  if (r.first_byte_seconds >= 0) json["first_byte_seconds"] = r.first_byte_seconds;
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) json[key] = printable(value, 400);
  };
  add("model", r.model);
  add("request_id", r.request_id);
  add("retry_after", r.retry_after);
  add("detail", r.detail);
  if (!r.usage.empty()) json["usage"] = parse_json(r.usage, "usage");
  return dump_json(json) + "\n";
}

}  // namespace

CallLog::CallLog(const std::string& path) : kept_(!path.empty()) {
  if (!kept_) return;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  file_ = Fd(::open(path.c_str(), kFlags, 0600));
  if (!file_.valid()) throw_errno("open", path);
}

bool CallLog::write_locked(const CallRecord& record) {
  if (closed_) return false;
  if (!kept_) return true;
  const std::string line = line_of(record);
  bytes_ += line.size();
  if (bytes_ > kMaxLog) broken_ = true;
  if (broken_) return false;
  try {
    write_all(file_, line, "the relay's record");
  } catch (const Error&) {
    broken_ = true;
  }
  return !broken_;
}

bool CallLog::write(const CallRecord& record) {
  const std::scoped_lock lock(mutex_);
  return write_locked(record);
}

bool CallLog::usable() const {
  const std::scoped_lock lock(mutex_);
  return !broken_ && !closed_;
}

uint64_t CallLog::begin(const CallRecord& record) {
  const std::scoped_lock lock(mutex_);
  active_[++next_] = record;
  return next_;
}

void CallLog::update(uint64_t id, const CallRecord& record) {
  const std::scoped_lock lock(mutex_);
  if (!closed_) active_[id] = record;
}

bool CallLog::end(uint64_t id, const CallRecord& record) {
  const std::scoped_lock lock(mutex_);
  active_.erase(id);
  return write_locked(record);
}

void CallLog::close() {
  const std::scoped_lock lock(mutex_);
  for (auto& [id, record] : active_) {
    record.outcome = "stopped";
    write_locked(record);
  }
  active_.clear();
  closed_ = true;
}

}  // namespace cbench::relay
