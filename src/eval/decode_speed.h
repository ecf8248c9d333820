// Batch-one decode speed by the contract's protocol. The evaluator holds the clock; the tokens must
// be what the logits say.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/client.h"
#include "eval/energy.h"
#include "task/contract.h"

namespace cbench {

struct DecodeSpeed {
  double tokens_per_second = 0;  ///< (new_tokens - 1) / L, L = median of the rounds' mean seconds
  std::vector<double> round_seconds;  ///< mean seconds of a round's requests, first to last token
  double prefill_seconds = 0;         ///< median time to the first token
  int64_t tokens = 0;                 ///< generated in timed requests
  /// The tokens are judged teacher-forced afterwards: share that is the argmax, and the mean gap in
  /// logits between the argmax and the token that came.
  double agreement = 0;
  double mean_gap = 0;
  bool tokens_plausible = false;
  EnergyUse energy;  ///< of the timed windows; nothing on the CPU
};

/// A model that streams its weights is timed with one request of at most 16 tokens.
/// `prompts` [warmup + rounds * requests] of prompt_tokens ids each, never used before.
DecodeSpeed measure_decode_speed(Engine& engine, const DecodeProtocol& protocol,
                                 std::span<const std::vector<int32_t>> prompts);

/// Number of prompts the protocol needs.
int64_t decode_prompts(const DecodeProtocol& protocol);

}  // namespace cbench
