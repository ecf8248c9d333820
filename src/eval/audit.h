// Causality audit: do the logits that were scored depend on tokens that come after them?
//
// Teacher-forced scoring hands the engine tokens whose probabilities it is asked for. Two checks:
// stepwise - a random subset is fed again one token at a time, token t+1 only after the logits for
// t are here; cheating shows as a likelihood that is better teacher-forced than stepwise. suffix
// swap - the same prefix with another continuation must give the same logits up to the swap.
#pragma once

#include <cstdint>
#include <string>

#include "engine/client.h"
#include "eval/blocks.h"
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

AuditResult audit_causality(Engine& engine, const Blocks& blocks, const AuditProtocol& protocol,
                            uint64_t seed);

}  // namespace cbench
