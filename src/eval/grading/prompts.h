// Prompts, shots and stops of each benchmark, byte for byte (docs/grading.md), and their
// fingerprint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "eval/grading/items.h"
#include "eval/grading/program.h"

namespace cbench {

enum class Benchmark { kGsm8k, kHumanEval, kTriviaQa, kMath500 };

/// "gsm8k", "humaneval", "triviaqa", "math500". parse_benchmark throws UsageError ("benchmark") and
/// suggests the nearest name.
std::string_view benchmark_name(Benchmark benchmark);
Benchmark parse_benchmark(std::string_view name);

/// Where generation ends, and where a finished text is cut.
const std::vector<std::string>& benchmark_stops(Benchmark benchmark);

/// Shots of the protocol: 4, 0, 5, 0. Token budgets: 320, 384, 24, 1024.
int benchmark_shots(Benchmark benchmark);
int benchmark_max_tokens(Benchmark benchmark);

std::string gsm8k_prompt(const std::vector<Gsm8kItem>& shots, const Gsm8kItem& item);
std::string humaneval_prompt(const HumanEvalItem& item);
std::string triviaqa_prompt(const std::vector<TriviaQaItem>& shots, const TriviaQaItem& item);
std::string math500_prompt(const Math500Item& item);

/// A GSM8K solution without its <<...>> calculator notes.
std::string strip_calculator_notes(std::string_view solution);

/// The program that answers `item` with `text`: the completion is cut at the stops, and nothing
/// else is repaired.
Program humaneval_program(const HumanEvalItem& item, std::string_view text);

/// SHA-256 over all prompts in order, each preceded by its length in bytes ("123\n<prompt>"): pins
/// items, shots, their order and every byte of the rendering.
std::string prompts_sha256(const std::vector<std::string>& prompts);

}  // namespace cbench
