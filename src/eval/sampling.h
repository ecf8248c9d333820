// Likelihood blocks sampled by a model: contexts from documents, continuations at a temperature.
#pragma once

#include <string>
#include <vector>

#include "engine/client.h"
#include "eval/blocks.h"
#include "eval/likelihood.h"
#include "task/contract.h"
#include "text/tokenizer.h"

namespace cbench {

/// `protocol.blocks` contexts from a documents file ({"id","source","text"} per line): strata in
/// turn, the first context_tokens tokens of documents long enough, in an order drawn from the seed.
/// Throws UsageError
/// ("documents") when there are too few.
Blocks choose_contexts(const std::string& documents, const LikelihoodProtocol& protocol,
                       const Tokenizer& tokenizer, uint64_t seed);

/// Appends continuation_tokens sampled tokens to each context, without truncation. Block b draws
/// from its own stream of the seed, so the result does not depend on how blocks are batched.
/// `checkpoint` is a file that keeps finished blocks between calls; "" = none.
void sample_continuations(Engine& engine, Blocks& blocks, double temperature, uint64_t seed,
                          const std::string& checkpoint, const OnProgress& progress = {});

}  // namespace cbench
