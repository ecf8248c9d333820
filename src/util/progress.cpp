#include "util/progress.h"

#include <array>
#include <cstdio>

#include <unistd.h>

#include "util/clock.h"
#include "util/units.h"

namespace cbench {
namespace {
constexpr double kTerminalInterval = 0.2;  // seconds between redraws
constexpr double kLineInterval = 10;       // seconds between lines in a log
}  // namespace

Progress::Progress(std::string label, double total, std::string unit, bool quiet)
    : label_(std::move(label)),
      total_(total),
      unit_(std::move(unit)),
      quiet_(quiet),
      terminal_(::isatty(STDERR_FILENO) == 1),
      started_(boot_seconds()) {}

Progress::~Progress() {
  if (!finished_ && terminal_ && !quiet_ && last_drawn_ > 0) std::fputc('\n', stderr);
}

void Progress::update(double done, const std::string& note) {
  done_ = done;
  const double now = boot_seconds();
  const double since = now - (last_drawn_ > 0 ? last_drawn_ : started_);
  if (quiet_ || since < (terminal_ ? kTerminalInterval : kLineInterval)) return;
  last_drawn_ = now;
  draw(note, false);
}

void Progress::finish(const std::string& note) {
  if (finished_) return;
  finished_ = true;
  if (total_ > 0) done_ = total_;
  if (!quiet_) draw(note, true);
}

void Progress::draw(const std::string& note, bool last) {
  const double elapsed = boot_seconds() - started_;
  std::string line = label_;
  std::array<char, 128> figures;
  if (total_ > 0) {
    const double share = done_ / total_;
    if (terminal_) {
      const int filled = static_cast<int>(share * 24);
      line += " [" + std::string(static_cast<size_t>(filled), '#') +
              std::string(static_cast<size_t>(24 - filled), '.') + "]";
    }
    std::snprintf(figures.data(), figures.size(), " %.0f/%.0f %s", done_, total_, unit_.c_str());
    line += figures.data();
    if (!last && share > 0.02) line += ", " + format_duration(elapsed / share - elapsed) + " left";
  } else {
    std::snprintf(figures.data(), figures.size(), " %.0f %s", done_, unit_.c_str());
    line += figures.data();
  }
  if (last) line += " in " + format_duration(elapsed);
  if (!note.empty()) line += "  " + note;
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s%s", line.c_str(), last ? "\n" : "");
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
}

}  // namespace cbench
