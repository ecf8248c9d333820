// Answers to benchmark items: prompts, greedy generation, grading. Identical for source and
// candidate.
#pragma once

#include <string>
#include <vector>

#include "box/box.h"
#include "engine/client.h"
#include "eval/likelihood.h"
#include "eval/verdict.h"
#include "task/contract.h"
#include "text/tokenizer.h"

namespace cbench {

/// One graded item, for the record.
struct ItemRecord {
  std::string benchmark, id, answer, extracted, reason, end;
  bool right = false;
};

/// Everything to ask, read and tokenized once.
class AccuracySuite {
 public:
  /// Reads items and shots of every benchmark of the contract. Throws UsageError if a file holds
  /// fewer items than the protocol wants.
  AccuracySuite(const Contract& contract, const Tokenizer& tokenizer);
  ~AccuracySuite();
  AccuracySuite(AccuracySuite&&) noexcept;

  int64_t longest() const;  ///< tokens of the longest prompt plus its answer budget
  int64_t longest_prompt() const;
  int64_t items() const;
  std::string prompts_sha256() const;  ///< over every rendered prompt, for the record

  /// Results in the contract's order; reference counts are left 0. `records` may be null.
  std::vector<BenchmarkResult> run(Engine& engine, const std::vector<int32_t>& eos, BoxKind box,
                                   std::vector<ItemRecord>* records,
                                   const OnProgress& progress = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cbench
