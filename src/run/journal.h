// journal.jsonl: what happened in a run, the only truth about its state. One JSON object a line:
//   {"seq": 7, "prev": "<sha256 of line 6>", "utc": "...", "boot": 123.4, "event": "version", ...}
// A line is on disk before append() returns, and before what it announces is done. The chain of
// hashes shows every later change.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "util/file.h"

namespace cbench {

struct JournalEvent {
  int64_t seq = 0;
  std::string name;
  std::string utc;
  std::string line;  ///< the whole JSON object
};

class Journal {
 public:
  /// Opens for appending, creating it when missing. A last line that was torn by a crash or a full
  /// disk is cut off and an event "repaired" says so. Throws InvalidError ("journal_corrupt") when
  /// the chain does not hold.
  explicit Journal(const std::string& path);

  /// Appends and syncs. `fields` is a JSON object, its members follow the event's name. Safe from
  /// several threads. On a full disk the reserve is given up once; then EnvironmentError
  /// ("disk_full"), and the file is as it was before.
  void append(std::string_view event, std::string_view fields = "{}");

  /// All events so far.
  std::vector<JournalEvent> events() const;

 private:
  void write_line(const std::string& line);

  std::string path_;
  Fd fd_;
  uint64_t size_ = 0;
  std::string last_hash_;
  std::vector<JournalEvent> events_;
  mutable std::mutex mutex_;
};

/// Reads without changing anything: an unfinished last line is left out. Throws InvalidError
/// ("journal_corrupt"), EnvironmentError ("not_found").
std::vector<JournalEvent> read_journal(const std::string& path);

}  // namespace cbench
