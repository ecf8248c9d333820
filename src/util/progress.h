// Progress for people: one redrawn line on a terminal, a plain line now and then elsewhere.
#pragma once

#include <string>

namespace cbench {

/// Reports to standard error. update() is cheap: it draws at most a few times a second.
class Progress {
 public:
  /// `total` in `unit`s; 0 when unknown. `quiet` draws nothing.
  Progress(std::string label, double total, std::string unit, bool quiet = false);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(double done, const std::string& note = {});
  void finish(const std::string& note = {});

 private:
  void draw(const std::string& note, bool last);

  std::string label_;
  double total_;
  std::string unit_;
  bool quiet_;
  bool terminal_;
  double done_ = 0;
  double started_;
  double last_drawn_ = 0;
  bool finished_ = false;
};

}  // namespace cbench
