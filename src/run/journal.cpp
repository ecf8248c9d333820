#include "run/journal.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "package/atomic_file.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/json.h"
#include "util/log.h"

namespace cbench {
namespace {

constexpr uint64_t kMaxJournal = 256u << 20;
constexpr size_t kReserve = 64u << 10;  // room for the last words on a full disk
const std::string kNoLine(64, '0');

std::string reserve_path(const std::string& journal) { return journal + ".reserve"; }

[[noreturn]] void corrupt(const std::string& path, int64_t line, const std::string& why) {
  throw InvalidError("journal_corrupt", path + ":" + std::to_string(line) + ": " + why +
                                            "; the run's records were changed or damaged");
}

JournalEvent parse_event(const std::string& path, std::string_view line, int64_t number,
                         const std::string& prev) {
  try {
    const std::string source = path + ":" + std::to_string(number);
    const Json json = parse_json(line, source);
    JournalEvent event;
    event.seq = json_int(json, "seq", source);
    event.name = json_string(json, "event", source);
    event.utc = json_string(json, "utc", source);
    event.line = line;
    if (event.seq != number) corrupt(path, number, "the sequence number does not follow");
    if (json_string(json, "prev", source) != prev) corrupt(path, number, "the hash chain breaks");
    return event;
  } catch (const UsageError& error) {
    corrupt(path, number, error.what());
  }
}

struct Parsed {
  std::vector<JournalEvent> events;
  std::string last_hash = kNoLine;
  size_t good = 0;  ///< bytes up to the end of the last whole line
};

Parsed parse_journal(const std::string& path, std::string_view text) {
  Parsed parsed;
  while (true) {
    const size_t end = text.find('\n', parsed.good);
    if (end == std::string_view::npos) return parsed;
    const std::string_view line = text.substr(parsed.good, end - parsed.good);
    const auto number = static_cast<int64_t>(parsed.events.size()) + 1;
    parsed.events.push_back(parse_event(path, line, number, parsed.last_hash));
    parsed.last_hash = sha256_hex(line);
    parsed.good = end + 1;
  }
}

}  // namespace

Journal::Journal(const std::string& path) : path_(path), last_hash_(kNoLine) {
  fd_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd_.valid()) throw_errno("open", path);
  const std::string text = read_file(path, kMaxJournal);
  Parsed parsed = parse_journal(path, text);
  events_ = std::move(parsed.events);
  last_hash_ = parsed.last_hash;
  size_ = parsed.good;
  if (::access(reserve_path(path).c_str(), F_OK) != 0) {
    try {
      write_file_atomic(reserve_path(path), std::string(kReserve, '\0'));
    } catch (const Error&) {
      spdlog::warn("{}: no room for the journal's reserve", path);
    }
  }
  if (parsed.good == text.size()) return;
  if (::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0) throw_errno("truncate", path);
  append("repaired", dump_json({{"dropped_bytes", text.size() - parsed.good}}));
}

void Journal::write_line(const std::string& line) {
  try {
    write_all(fd_, line, path_);
    if (::fsync(fd_.get()) != 0) throw_errno("fsync", path_);
  } catch (const Error&) {
    if (::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0) {
      spdlog::error("{}", errno_message("truncate", path_));
    }
    throw;
  }
}

void Journal::append(std::string_view event, std::string_view fields) {
  const std::lock_guard lock(mutex_);
  Json json = {{"seq", events_.size() + 1},
               {"prev", last_hash_},
               {"utc", utc_now()},
               {"boot", boot_seconds()},
               {"event", event}};
  json.update(parse_json(fields, "journal fields"));
  const std::string line = dump_json(json);
  try {
    write_line(line + "\n");
  } catch (const EnvironmentError& error) {
    if (error.code() != "disk_full") throw;
    ::unlink(reserve_path(path_).c_str());
    write_line(line + "\n");
  }
  size_ += line.size() + 1;
  last_hash_ = sha256_hex(line);
  events_.push_back({static_cast<int64_t>(events_.size()) + 1, std::string(event),
                     json["utc"].get<std::string>(), line});
}

std::vector<JournalEvent> Journal::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::vector<JournalEvent> read_journal(const std::string& path) {
  return parse_journal(path, read_file(path, kMaxJournal)).events;
}

}  // namespace cbench
