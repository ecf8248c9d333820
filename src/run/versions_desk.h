// Saves versions for the agent: what the control socket's requests come to.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "package/versions.h"
#include "run/budget.h"
#include "run/journal.h"
#include "run/run_dir.h"
#include "run/state.h"

namespace cbench {

class VersionsDesk {
 public:
  VersionsDesk(const RunDir& run, int64_t limit, Journal& journal, const Budget& budget);

  /// Answers one request of the protocol in agent/version_client.h. Never throws.
  std::string answer(std::string_view request);

  /// For people: "v2 (4 bits, groups of 64)"; "" before the first.
  std::string latest() const;
  int saved() const;  ///< since this object was made

  /// Versions that are in the store and not in the journal (a crash came between): recorded now.
  void recover(const std::map<int, VersionRecord>& recorded);

 private:
  std::string save(const std::string& note);
  Version save_unchanged(const std::string& note);
  void record(const Version& version, bool recovered);

  RunDir run_;
  TreeLimits limits_;
  VersionStore store_;
  Journal& journal_;
  const Budget& budget_;
  mutable std::mutex mutex_;
  std::string latest_;
  int saved_ = 0;
};

}  // namespace cbench
