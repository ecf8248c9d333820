// The agent's side of saving a version: one question over the control socket, one answer.
//
// Protocol, one connection per question: a line of JSON each way, at most kMaxControlBytes.
//   -> {"command": "version", "note": "4-bit, groups of 64"}
//   <- {"ok": true, "number": 3, "bytes": 3147001, "package_hash": "...", "seconds_left": 512.3}
//   <- {"ok": false, "code": "symlink", "message": "..."}
#pragma once

#include <cstdint>
#include <string>

#include <sys/un.h>

#include "util/file.h"

namespace cbench {

inline constexpr size_t kMaxControlBytes = 4096;

struct SavedVersion {
  int64_t number = 0;
  int64_t bytes = 0;
  std::string package_hash;
  double seconds_left = 0;
};

/// Asks for a version. Waits for the answer up to `timeout` seconds: large packages take long to
/// copy. Throws UsageError with the code and message of a refusal, EnvironmentError ("no_run") when
/// nobody answers.
SavedVersion request_version(const std::string& socket, const std::string& note, double timeout);

/// The address of a socket path of any length. The kernel takes 107 bytes, so the path goes through
/// /proc and `directory`, which must stay open while the address is used.
sockaddr_un socket_address(const std::string& path, Fd& directory);

}  // namespace cbench
