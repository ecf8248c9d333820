// One evaluation of a package: the stages of check and verify, in order, into a verdict.
#pragma once

#include <string>

#include "box/box.h"
#include "eval/accuracy.h"
#include "eval/verdict.h"
#include "task/contract.h"

namespace cbench {

struct EvaluationOptions {
  Mode mode = Mode::kVerify;
  std::string package;  ///< directory
  BoxKind box = BoxKind::kBwrap;
  std::string device;   ///< "" = the contract's
  bool quiet = false;   ///< no progress
  std::string program;  ///< the cbench binary to run as the engine; "" = this program itself
};

/// Runs every stage that can run and never throws for what a submission does: that is the verdict's
/// business. Throws UsageError or EnvironmentError when the evaluation cannot start (no package
/// there, no reference, no box). `records` may be null.
Verdict evaluate(const Contract& contract, const EvaluationOptions& options,
                 std::vector<ItemRecord>* records = nullptr);

/// What an engine must hold for this task's protocol on this device. `longest` is the longest
/// prompt with its answer, 0 for none.
Capacity capacity_for(const Contract& contract, const std::string& device, int64_t vocab,
                      int64_t longest, int64_t items);

/// Slices of the blocks' text at unpredictable places: prompts that were never used before.
std::vector<std::vector<int32_t>> fresh_prompts(const Blocks& blocks, int64_t count, int64_t tokens,
                                                uint64_t seed);

/// A seed from the kernel's random source.
uint64_t random_seed();

}  // namespace cbench
