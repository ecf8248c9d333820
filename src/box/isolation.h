// Proof of isolation: tries to get out of a box from the inside. Used by preflight and by tests.
#pragma once

#include <string>
#include <vector>

#include "box/box.h"

namespace cbench {

struct IsolationCheck {
  std::string name;  ///< stable word, e.g. "network"
  bool isolated = false;
  std::string detail;  ///< what was seen inside
};

/// Starts a box of this kind and runs the escape battery in it. `secret` names a readable host file
/// outside any mount that must not be readable inside ("" = a temporary one is made).
/// For a kDirect box nothing is tried and every check reads "not isolated". Throws
/// EnvironmentError("box_unavailable").
std::vector<IsolationCheck> isolation_report(BoxKind kind, const std::string& secret = "");

}  // namespace cbench
