// Causality audit: do the logits that were scored depend on tokens that come after them?
//
// It compares with the very scores that the likelihood was made of, not with a repetition, and runs
// in a fresh engine: an engine that knew later tokens while it was scored cannot behave now, and
// cannot remember what it saw.
//
// Teacher-forced scoring hands the engine tokens whose probabilities it is asked for. Two checks:
// stepwise - a random subset is fed again one token at a time, token t+1 only after the logits for
// t are here; cheating shows as a likelihood that is better teacher-forced than stepwise. suffix
// swap - the same prefix with another continuation must give the same logits up to the swap.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/client.h"
#include "eval/blocks.h"
#include "eval/likelihood.h"
#include "task/contract.h"

namespace cbench {

struct AuditResult {
  uint64_t seed = 0;  ///< of the choice of blocks
  int64_t stepwise_tokens = 0;
  /// Mean of (stepwise NLL - teacher-forced NLL) in nats per token: positive when teacher forcing
  /// knew more than it should.
  double stepwise_excess = 0;
  double stepwise_max = 0;  ///< largest absolute difference of one token
  int64_t suffix_tokens = 0;
  double suffix_max = 0;  ///< largest absolute change of a log-probability before the swap
  bool passed = false;
  std::string reason;
};

/// `engine` has seen none of the blocks; `scored[b]` are the scores of block b that count.
AuditResult audit_causality(Engine& engine, const Blocks& blocks,
                            std::span<const std::vector<RowScore>> scored,
                            const AuditProtocol& protocol, uint64_t seed);

}  // namespace cbench
