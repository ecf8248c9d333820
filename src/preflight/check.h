// One check of the preflight: what it says, and a runner that no check can hang or take down.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace cbench {

enum class CheckLevel { kOk, kWarn, kFail };
const char* check_level_name(CheckLevel level);  ///< "ok", "warn", "fail"

struct CheckLine {
  std::string name;  ///< stable word, "gpu.memory"
  CheckLevel level = CheckLevel::kOk;
  std::string seen;  ///< what was found
  std::string todo;  ///< what to do about it; "" when all is well
};

class CheckLines {
 public:
  void ok(std::string name, std::string seen) { add(name, CheckLevel::kOk, seen, ""); }
  void warn(std::string name, std::string seen, std::string todo) {
    add(name, CheckLevel::kWarn, seen, todo);
  }
  void fail(std::string name, std::string seen, std::string todo) {
    add(name, CheckLevel::kFail, seen, todo);
  }
  const std::vector<CheckLine>& lines() const { return lines_; }

 private:
  void add(std::string& name, CheckLevel level, std::string& seen, std::string todo) {
    lines_.push_back({std::move(name), level, std::move(seen), std::move(todo)});
  }
  std::vector<CheckLine> lines_;
};

struct Check {
  std::string name;     ///< of the line when the check itself fails
  double seconds = 30;  ///< it is ended then
  std::function<void(CheckLines&)> run;
};

/// Runs it in a process of its own. What throws, crashes, or does not end becomes one line that
/// fails, after the lines that were reported until then.
std::vector<CheckLine> run_check(const Check& check);

}  // namespace cbench
