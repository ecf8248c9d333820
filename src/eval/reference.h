// Making a task's reference: the BF16 model samples the likelihood blocks, and its own figures on
// them and on the questions are taken with the evaluator that will measure the candidates.
#pragma once

#include <string>

#include "box/box.h"
#include "task/contract.h"

namespace cbench {

struct ReferenceOptions {
  BoxKind box = BoxKind::kBwrap;
  std::string device;  ///< "" = the contract's
  bool quiet = false;
  std::string program;       ///< the cbench binary to run as the engine; "" = this program itself
  bool keep_blocks = false;  ///< measure again on the blocks that are there
  bool select =
      false;  ///< choose items, shots and documents anew (done anyway when one is missing)
};

/// Writes data/<reference>/{public,hidden}/, after choosing items, shots and documents from what
/// was fetched when they are not there (eval/selection.h). Sampling continues where an interrupted
/// call stopped.
void make_reference(const Contract& contract, const ReferenceOptions& options);

}  // namespace cbench
