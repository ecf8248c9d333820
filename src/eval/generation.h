// Greedy generation of many answers at once: the evaluator picks every token from the logits, each
// sequence stops on its own, freed slots are refilled.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/client.h"
#include "eval/likelihood.h"
#include "text/tokenizer.h"

namespace cbench {

struct GenerationRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;
  std::vector<std::string> stops;  ///< text at which the answer ends; not part of it
};

struct Generation {
  std::vector<int32_t> ids;
  std::string text;  ///< cut at the earliest stop
  std::string end;   ///< "stop", "eos", "length"
};

/// Answers in the order of the requests. `eos` ids end a sequence and are not part of it. Throws
/// Error
/// ("non_finite_logits"), UsageError ("prompt_too_long") when a request exceeds the engine's
/// capacity.
std::vector<Generation> generate_all(Engine& engine, const Tokenizer& tokenizer,
                                     std::span<const int32_t> eos,
                                     std::span<const GenerationRequest> requests,
                                     const OnProgress& progress = {});

/// Ids that end a text, from generation_config.json or config.json of a checkpoint directory.
std::vector<int32_t> read_eos_ids(const std::string& checkpoint_dir);

}  // namespace cbench
