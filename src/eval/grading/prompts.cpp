// Rendering of prompts.
#include "eval/grading/prompts.h"

#include <array>

#include "eval/grading/stops.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/text.h"

namespace cbench {
namespace {

struct Protocol {
  Benchmark benchmark;
  std::string_view name;
  int shots;
  int max_tokens;
  std::vector<std::string> stops;
};

const std::array<Protocol, 4>& protocols() {
  static const std::array<Protocol, 4> all = {{
      {Benchmark::kGsm8k, "gsm8k", 4, 320, {"\n\nQuestion:", "Question:"}},
      {Benchmark::kHumanEval, "humaneval", 0, 384, {"\nclass", "\ndef", "\n#", "\nif", "\nprint"}},
      {Benchmark::kTriviaQa, "triviaqa", 5, 24, {"\n"}},
      {Benchmark::kMath500, "math500", 0, 1024, {"\n\nProblem:"}},
  }};
  return all;
}

const Protocol& protocol(Benchmark benchmark) {
  for (const Protocol& p : protocols()) {
    if (p.benchmark == benchmark) return p;
  }
  throw UsageError("benchmark", "unknown benchmark");
}

}  // namespace

std::string_view benchmark_name(Benchmark benchmark) { return protocol(benchmark).name; }
int benchmark_shots(Benchmark benchmark) { return protocol(benchmark).shots; }
int benchmark_max_tokens(Benchmark benchmark) { return protocol(benchmark).max_tokens; }
const std::vector<std::string>& benchmark_stops(Benchmark benchmark) {
  return protocol(benchmark).stops;
}

Benchmark parse_benchmark(std::string_view name) {
  std::vector<std::string> names;
  for (const Protocol& p : protocols()) {
    if (p.name == name) return p.benchmark;
    names.emplace_back(p.name);
  }
  const std::string near = nearest(name, names);
  throw UsageError("benchmark", "unknown benchmark '" + printable(name) + "'" +
                                    (near.empty() ? "" : ", did you mean " + near + "?") +
                                    " (gsm8k, humaneval, triviaqa, math500)");
}

std::string strip_calculator_notes(std::string_view solution) {
  std::string out;
  while (true) {
    const size_t open = solution.find("<<");
    const size_t close = solution.find(">>", open);
    if (open == std::string_view::npos || close == std::string_view::npos) {
      return out += solution;
    }
    out += solution.substr(0, open);
    solution.remove_prefix(close + 2);
  }
}

std::string gsm8k_prompt(const std::vector<Gsm8kItem>& shots, const Gsm8kItem& item) {
  std::string out;
  for (const Gsm8kItem& shot : shots) {
    out +=
        "Question: " + shot.question + "\nAnswer: " + strip_calculator_notes(shot.answer) + "\n\n";
  }
  return out + "Question: " + item.question + "\nAnswer:";
}

std::string humaneval_prompt(const HumanEvalItem& item) { return item.prompt; }

std::string triviaqa_prompt(const std::vector<TriviaQaItem>& shots, const TriviaQaItem& item) {
  std::string out;
  for (const TriviaQaItem& shot : shots) {
    out += "Question: " + shot.question + "\nAnswer: " + shot.answer + "\n\n";
  }
  return out + "Question: " + item.question + "\nAnswer:";
}

std::string math500_prompt(const Math500Item& item) {
  return "Problem: " + item.problem +
         "\nSolve the problem and put the final answer in \\boxed{}.\nSolution:";
}

Program humaneval_program(const HumanEvalItem& item, std::string_view text) {
  return {item.id, item.prompt,
          std::string(cut_at_stop(text, benchmark_stops(Benchmark::kHumanEval))), item.test,
          item.entry_point};
}

std::string prompts_sha256(const std::vector<std::string>& prompts) {
  Hasher hasher;
  for (const std::string& prompt : prompts) {
    hasher.update(std::to_string(prompt.size()) + "\n");
    hasher.update(prompt);
  }
  return hasher.hex();
}

}  // namespace cbench
