// From a task's contract to what must be fetched for it.
#pragma once

#include "fetch/plan.h"
#include "task/contract.h"

namespace cbench {

/// Everything the contract names, below its data root; lock.json lies there, too, shared by the
/// tasks that share the root.
FetchPlan plan_for(const Contract& contract);

}  // namespace cbench
