#include "run/launch.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"

namespace cbench {
namespace {

constexpr double kTick = 1;         // seconds
constexpr double kDrainTime = 0.5;  // seconds for what is still in the pipes after the end

/// A stream of the agent on its way into a file. A full disk or the bound end the file, not the
/// agent.
class Stream {
 public:
  Stream(const std::string& path, uint64_t most) : path_(path), most_(most) {
    auto [read, write] = make_pipe();
    read_ = std::move(read);
    write_ = std::move(write);
    file_ = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!file_.valid()) throw_errno("create", path);
  }

  int child_end() const { return write_.get(); }
  void started() { write_.reset(); }
  int fd() const { return read_.valid() ? read_.get() : -1; }
  bool open() const { return read_.valid(); }
  uint64_t bytes() const { return bytes_; }
  bool cut() const { return cut_; }

  void take() {
    std::array<char, 65536> buffer;
    const size_t n = read_some(read_, buffer.data(), buffer.size(), path_);
    if (n == 0) return read_.reset();
    const uint64_t room = most_ - std::min(most_, bytes_);
    bytes_ += n;
    if (n > room) cut_ = true;
    if (!file_.valid() || room == 0) return;
    try {
      write_all(file_, {buffer.data(), static_cast<size_t>(std::min<uint64_t>(n, room))}, path_);
    } catch (const Error& error) {
      spdlog::warn("the agent's output is no longer kept: {}", error.what());
      file_.reset();
      cut_ = true;
    }
  }

 private:
  std::string path_;
  uint64_t most_;
  Fd read_, write_, file_;
  uint64_t bytes_ = 0;
  bool cut_ = false;
};

/// Waits for an event of the streams or of `others`, at most `seconds`; true for each other.
template <size_t N>
std::array<bool, N> wait_for(std::array<Stream*, 2> streams, const std::array<int, N>& others,
                             double seconds) {
  std::array<pollfd, N + 2> polls{};
  for (size_t i = 0; i < 2; ++i) polls[i] = {streams[i]->fd(), POLLIN, 0};
  for (size_t i = 0; i < N; ++i) polls[i + 2] = {others[i], POLLIN, 0};
  const int timeout = static_cast<int>(std::clamp(seconds, 0.0, kTick) * 1000) + 1;
  if (::poll(polls.data(), polls.size(), timeout) < 0) {
    if (errno != EINTR) throw_errno("poll", "agent");
    for (pollfd& poll : polls) poll.revents = 0;
  }
  for (size_t i = 0; i < 2; ++i) {
    if (polls[i].revents != 0) streams[i]->take();
  }
  std::array<bool, N> ready{};
  for (size_t i = 0; i < N; ++i) ready[i] = polls[i + 2].revents != 0;
  return ready;
}

}  // namespace

LaunchEnd run_launch(const LaunchSpec& spec) {
  Stream out(spec.out_path, spec.max_output), err(spec.err_path, spec.max_output);
  BoxSpec box_spec = spec.box;
  box_spec.stdout_fd = out.child_end();
  box_spec.stderr_fd = err.child_end();
  const double started = boot_seconds();
  Box box(spec.kind, box_spec);
  out.started();
  err.started();
  LaunchEnd end;
  end.limits = box.limits().text;
  const std::array<Stream*, 2> streams = {&out, &err};
  while (end.why.empty()) {
    const double left = spec.deadline - boot_seconds();
    const auto ready = wait_for<2>(streams, {box.pidfd(), spec.interrupt_fd}, left);
    if (ready[0]) {
      end.why = "exited";
    } else if (ready[1]) {
      end.why = "interrupted";
    } else if (boot_seconds() >= spec.deadline) {
      end.why = "deadline";
    }
    if (spec.tick) spec.tick();
  }
  const std::optional<ExitStatus> own = end.why == "exited" ? box.wait(5) : std::nullopt;
  const ExitStatus killed = box.kill();
  end.status = own.value_or(killed);
  if (end.why == "exited" && !end.status.exited) end.why = "signalled";
  end.seconds = boot_seconds() - started;
  const double drained = boot_seconds() + kDrainTime;
  while ((out.open() || err.open()) && boot_seconds() < drained) {
    wait_for<0>(streams, {}, drained - boot_seconds());
  }
  end.out_bytes = out.bytes();
  end.err_bytes = err.bytes();
  end.output_cut = out.cut() || err.cut() || out.open() || err.open();
  return end;
}

}  // namespace cbench
