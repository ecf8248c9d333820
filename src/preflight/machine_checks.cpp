// The machine: processor against build, compilers, clock, disk.
#include <chrono>
#include <filesystem>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "preflight/checks.h"
#include "runtime/cpu/kernels.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/file.h"
#include "util/process.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGiB = int64_t{1} << 30, kMiB = int64_t{1} << 20;
constexpr double kProbeSeconds = 4;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// "x.y" after `word` in `text`, as {x, y}; {0, 0} if there is none.
std::pair<int, int> version_after(const std::string& text, const std::string& word) {
  size_t at = text.find(word);
  if (at == std::string::npos) return {0, 0};
  at += word.size();
  int numbers[2] = {0, 0};
  for (int part = 0; part < 2; ++part) {
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9' && numbers[part] < 100000; ++at) {
      numbers[part] = numbers[part] * 10 + (text[at] - '0');
    }
    if (at < text.size() && text[at] == '.') ++at;
  }
  return {numbers[0], numbers[1]};
}

/// The directory itself or the nearest one above it that exists.
std::string existing_parent(const std::string& path) {
  fs::path at = fs::absolute(path).lexically_normal();
  std::error_code error;
  while (!fs::is_directory(at, error) && at.has_relative_path()) at = at.parent_path();
  return at.string();
}

/// Megabytes a second that reach the disk.
double write_speed(const std::string& directory, int64_t bytes) {
  const std::string path = directory + "/.cbench-preflight-" + std::to_string(::getpid());
  const Fd file(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!file.valid()) throw_errno("write", directory);
  ::unlink(path.c_str());
  std::string block(static_cast<size_t>(4 * kMiB), '\0');
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>(i * 2654435761u >> 13);
  const double start = boot_seconds();
  int64_t written = 0;
  while (written < bytes && boot_seconds() - start < kProbeSeconds) {
    write_all(file, block, path);
    ::fdatasync(file.get());
    written += static_cast<int64_t>(block.size());
  }
  return static_cast<double>(written) / 1e6 / std::max(1e-6, boot_seconds() - start);
}

}  // namespace

void check_build(const Contract& contract, const PreflightOptions& options, CheckLines& lines) {
#ifdef CBENCH_HAVE_CUDA
  const bool cuda = true;
#else
  const bool cuda = false;
#endif
  const std::string kernel = cpu::kernels().name;
  const std::string seen = std::string("cbench " CBENCH_VERSION ", CUDA ") + (cuda ? "yes" : "no") +
                           ", CPU kernels " + kernel;
  if (needs_cuda(contract, options) && !cuda) {
    return lines.fail("build", seen + "; the task runs on a GPU",
                      "build where the CUDA toolkit is, with -DCBENCH_CUDA=ON");
  }
  if (kernel == "generic") {
    return lines.warn("build", seen, "this processor has no AVX2: CPU tasks run many times slower");
  }
  lines.ok("build", seen);
}

void check_compilers(const Contract& contract, const PreflightOptions& options, CheckLines& lines) {
  const auto ask = [](const std::string& program) {
    ProcessOptions process;
    process.argv = {program, "--version"};
    process.inherit_env = true;
    return run_process(process, 10);
  };
  const char* todo = "install it (scripts/setup.sh): packages with sources are compiled with it";
  if (find_program(options.compiler).empty()) {
    lines.fail("compiler", options.compiler + " is not in PATH", todo);
  } else {
    const RunResult result = ask(options.compiler);
    if (result.status.ok()) lines.ok("compiler", printable(first_line(result.out)));
    if (!result.status.ok())
      lines.fail("compiler", options.compiler + ": " + result.status.text(), todo);
  }
  if (!needs_cuda(contract, options)) return;
  const char* toolkit = "install the CUDA toolkit 12.4 or later and put nvcc in PATH";
  if (find_program(options.nvcc).empty()) {
    return lines.fail("toolkit", options.nvcc + " is not in PATH", toolkit);
  }
  const RunResult result = ask(options.nvcc);
  const auto version = version_after(result.out, "release ");
  const std::string seen =
      "CUDA toolkit " + std::to_string(version.first) + "." + std::to_string(version.second);
  if (!result.status.ok() || version < std::pair(12, 4))
    return lines.fail("toolkit", seen, toolkit);
  lines.ok("toolkit", seen);
}

void check_clock(const Contract& contract, CheckLines& lines) {
  const std::string now = utc_now();
  const auto newest = fs::last_write_time(contract.path);
  const auto ahead =
      std::chrono::duration<double>(newest - fs::file_time_type::clock::now()).count();
  const char* todo =
      "set the clock (timedatectl set-ntp true); certificates and records depend on it";
  if (now < "2025") return lines.fail("clock", "it says " + now, todo);
  if (ahead > 60) {
    return lines.fail(
        "clock",
        "it says " + now + ", but " + contract.path + " is " + format_duration(ahead) + " newer",
        todo);
  }
  timex state{};
  const int result = ::adjtimex(&state);
  if (result == TIME_ERROR || (state.status & STA_UNSYNC) != 0) {
    return lines.warn("clock", now + ", not synchronized", todo);
  }
  lines.ok("clock", now + (result < 0 ? "" : ", synchronized"));
}

int64_t free_bytes(const std::string& path) {
  const std::string at = existing_parent(path);
  struct statvfs info {};
  if (::statvfs(at.c_str(), &info) != 0) throw_errno("statvfs", at);
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

void check_disk(const Contract& contract, const PreflightOptions& options, CheckLines& lines) {
  const bool big = needs_cuda(contract, options);
  const int64_t needed = big ? 100 * kGiB : std::max<int64_t>(512 * kMiB, 20 * contract.limit);
  const std::string at = existing_parent(options.runs_dir);
  const int64_t free = free_bytes(at);
  const std::string seen = format_size(free) + " free for runs in " + at;
  if (free < needed) {
    lines.fail(
        "disk.runs", seen,
        "make room: " + format_size(needed) + " are needed there, or choose another --runs-dir");
  } else {
    lines.ok("disk.runs", seen + " (" + format_size(needed) + " needed)");
  }
  if (free < kGiB) return;
  const double speed = write_speed(at, big ? 512 * kMiB : 64 * kMiB);
  const std::string text = std::to_string(static_cast<int64_t>(speed)) + " MB/s written to " + at;
  const double slow = big ? 200 : 20;
  if (speed < slow) {
    return lines.warn("disk.speed", text,
                      "a faster disk for --runs-dir; saving versions will be slow");
  }
  lines.ok("disk.speed", text);
}

}  // namespace cbench
