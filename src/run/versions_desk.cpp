#include "run/versions_desk.h"

#include <thread>

#include "agent/version_client.h"
#include "run/freeze.h"
#include "run/state.h"
#include "util/error.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr int kMaxVersions = 1000;
constexpr int kAttempts = 5;            // when the submission changes while it is copied
constexpr uint64_t kQuotaFactor = 100;  // all versions together, in limits

uint64_t quota_for(int64_t limit) {
  return kQuotaFactor * static_cast<uint64_t>(std::max<int64_t>(limit, 0)) + (uint64_t{256} << 20);
}

std::string refusal(const std::string& code, const std::string& message) {
  return dump_json({{"ok", false}, {"code", code}, {"message", printable(message, 1000)}});
}

}  // namespace

VersionsDesk::VersionsDesk(const RunDir& run, int64_t limit, Journal& journal, const Budget& budget)
    : run_(run),
      limits_(submission_limits(limit)),
      store_(run.versions(), quota_for(limit)),
      journal_(journal),
      budget_(budget) {}

std::string VersionsDesk::answer(std::string_view request) {
  try {
    const Json json = parse_json(request, "the request", {kMaxControlBytes, 4});
    if (json_string(json, "command", "the request") != "version") {
      return refusal("bad_request", "the only command is \"version\"");
    }
    return save(json_string(json, "note", "the request"));
  } catch (const Error& error) {
    return refusal(error.code(), error.what());
  } catch (const std::exception& error) {
    spdlog::warn("saving a version: {}", error.what());
    return refusal("internal", error.what());
  }
}

std::string VersionsDesk::save(const std::string& note) {
  if (budget_.left() <= 0) return refusal("deadline", "the time is up; nothing was saved");
  if (static_cast<int>(store_.list().size()) >= kMaxVersions) {
    return refusal("too_many_versions", "a run keeps at most 1000 versions");
  }
  const Version version = save_unchanged(note);
  record(version, false);
  return dump_json({{"ok", true},
                    {"number", version.number},
                    {"bytes", version.bytes},
                    {"package_hash", version.package_hash},
                    {"seconds_left", budget_.left()}});
}

Version VersionsDesk::save_unchanged(const std::string& note) {
  for (int attempt = 1;; ++attempt) {
    try {
      return store_.save(PackageTree::walk(run_.submission(), limits_), note);
    } catch (const UsageError& error) {
      if (error.code() != "changed" || attempt == kAttempts) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(100 * attempt));
    }
  }
}

void VersionsDesk::record(const Version& version, bool recovered) {
  Json fields = {{"number", version.number},
                 {"note", version.note},
                 {"bytes", version.bytes},
                 {"package_hash", version.package_hash},
                 {"used_seconds", budget_.used()}};
  if (recovered) fields["recovered"] = true;
  journal_.append("version", dump_json(fields));
  const std::lock_guard lock(mutex_);
  latest_ = "v" + std::to_string(version.number);
  if (!version.note.empty()) latest_ += " (" + printable(version.note, 60) + ")";
  ++saved_;
}

std::string VersionsDesk::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

int VersionsDesk::saved() const {
  const std::lock_guard lock(mutex_);
  return saved_;
}

void VersionsDesk::recover(const std::map<int, VersionRecord>& recorded) {
  for (const Version& version : store_.list()) {
    if (!recorded.contains(version.number)) record(version, true);
  }
}

}  // namespace cbench
