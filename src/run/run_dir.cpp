#include "run/run_dir.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "package/atomic_file.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace fs = std::filesystem;
namespace {

/// "20260131T123456Z-1f2e3d": sorts by time, two in one second differ.
std::string new_run_id() {
  std::string id;
  for (const char c : utc_now().substr(0, 19)) {
    if (c != '-' && c != ':') id += c;
  }
  uint32_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) throw_errno("getrandom", "run id");
  id += "Z-";
  for (int i = 0; i < 6; ++i, random >>= 4) id += "0123456789abcdef"[random & 15];
  return id;
}

Fd open_lock(const RunDir& run) {
  const std::string path = run.file("lock");
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) throw_errno("open", path);
  return fd;
}

}  // namespace

std::string RunDir::id() const { return fs::path(path).filename().string(); }

RunDir create_run_dir(const std::string& runs_dir, const std::string& task) {
  const std::string parent = fs::absolute(runs_dir).lexically_normal().string() + "/" + task;
  make_directories(parent);
  for (int attempt = 0; attempt < 16; ++attempt) {
    RunDir run{fs::path(parent + "/" + new_run_id()).lexically_normal().string()};
    if (::mkdir(run.path.c_str(), 0755) != 0) {
      if (errno == EEXIST) continue;
      throw_errno("mkdir", run.path);
    }
    for (const std::string& part : {run.workspace(), run.submission(), run.versions(), run.agent(),
                                    run.input(), run.verdicts()}) {
      make_directories(part);
    }
    sync_directory(parent);
    return run;
  }
  throw EnvironmentError("io", parent + ": no free run id");
}

RunDir open_run_dir(const std::string& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  if (!fs::is_regular_file(whole / "journal.jsonl", error)) {
    throw UsageError("no_run", printable(path) +
                                   " is no run: it has no journal.jsonl; give a "
                                   "directory that cbench run printed");
  }
  return {whole.string()};
}

Fd lock_run(const RunDir& run) {
  Fd fd = open_lock(run);
  // A driver that was just killed may have left a child between fork and exec, which still holds
  // it.
  for (int attempt = 0; attempt < 10; ++attempt) {
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
    if (errno != EWOULDBLOCK) throw_errno("lock", run.path);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  throw UsageError("run_busy", run.path + " is driven by another process; cbench status shows it");
}

bool run_is_driven(const RunDir& run) {
  const Fd fd(::open(run.file("lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return false;
  return ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace cbench
