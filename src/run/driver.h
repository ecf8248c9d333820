// Inside src/run: drives one run through the stages that are left.
#pragma once

#include <memory>
#include <string>

#include "run/agent_box.h"
#include "run/budget.h"
#include "run/launch.h"
#include "run/lifecycle.h"
#include "run/state.h"
#include "run/verify_stage.h"
#include "run/versions_desk.h"
#include "util/progress.h"

namespace cbench {

class Driver {
 public:
  Driver(const RunDir& run, const Contract& contract, const DriveOptions& options,
         Journal& journal);
  RunOutcome drive();

 private:
  void resume();
  void prepare();
  void search();
  void search_once();
  void launch();
  LaunchSpec launch_spec(int number);
  void after_launch(const LaunchEnd& end, bool progress);
  void end_search(const std::string& why);
  void wait_before_relaunch(const LaunchEnd& end, bool progress);
  bool has_result() const;
  void freeze();
  void verify();
  void verify_one(const VerifyTarget& target);
  bool verified(const std::string& name, const std::string& key) const;
  std::string same_package(const std::string& key) const;
  VerifyStage verify_stage() const;
  void record_verdict(const std::string& name, const std::string& key, const VerifyResult& result,
                      const std::string& taken_from);
  RunOutcome finish();
  RunOutcome interrupted_outcome();
  void note(const std::string& event, const std::string& fields = "{}");
  void show_search();
  void show_verify(size_t done, size_t total);
  std::string fingerprint() const;

  RunDir run_;
  const Contract& contract_;
  const DriveOptions& options_;
  Journal& journal_;
  RunState state_;
  BoxKind box_;
  AgentSpec agent_;
  Budget budget_;
  VersionsDesk desk_;
  std::unique_ptr<Progress> progress_;
  int unlucky_ = 0;  ///< launches in a row that ended early
  bool interrupted_ = false;
};

}  // namespace cbench
