#include "eval/accuracy.h"

#include <algorithm>

#include "eval/generation.h"
#include "eval/grading/gsm8k.h"
#include "eval/grading/items.h"
#include "eval/grading/program.h"
#include "eval/grading/prompts.h"
#include "eval/grading/triviaqa.h"
#include "util/error.h"

namespace cbench {
namespace {

/// One benchmark ready to ask: prompts in item order, and a way to grade all answers at once.
struct Questions {
  BenchmarkProtocol protocol;
  Benchmark benchmark = Benchmark::kGsm8k;
  std::vector<std::string> ids;
  std::vector<std::string> prompts;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Gsm8kItem> gsm8k;
  std::vector<HumanEvalItem> humaneval;
  std::vector<TriviaQaItem> triviaqa;
};

template <typename Item>
std::vector<Item> exactly(std::vector<Item> items, int64_t count, const std::string& path) {
  if (static_cast<int64_t>(items.size()) < count) {
    throw UsageError("items", path + " holds " + std::to_string(items.size()) +
                                  " records; the protocol wants " + std::to_string(count));
  }
  items.resize(static_cast<size_t>(count));
  return items;
}

Questions load_questions(const Contract& contract, const BenchmarkProtocol& protocol) {
  Questions q;
  q.protocol = protocol;
  q.benchmark = parse_benchmark(protocol.name);
  const std::string file = "/" + protocol.name + ".jsonl";
  const std::string items = contract.data_path(contract.data.items) + file;
  const std::string shots = contract.data_path(contract.data.shots) + file;
  const auto add = [&](const std::string& id, std::string prompt) {
    q.ids.push_back(id);
    q.prompts.push_back(std::move(prompt));
  };
  switch (q.benchmark) {
    case Benchmark::kGsm8k: {
      q.gsm8k = exactly(read_gsm8k(items), protocol.items, items);
      const auto examples = exactly(read_gsm8k(shots), protocol.shots, shots);
      for (const Gsm8kItem& item : q.gsm8k) add(item.id, gsm8k_prompt(examples, item));
      break;
    }
    case Benchmark::kHumanEval:
      q.humaneval = exactly(read_humaneval(items), protocol.items, items);
      for (const HumanEvalItem& item : q.humaneval) add(item.id, humaneval_prompt(item));
      break;
    case Benchmark::kTriviaQa: {
      q.triviaqa = exactly(read_triviaqa(items), protocol.items, items);
      const auto examples = exactly(read_triviaqa(shots), protocol.shots, shots);
      for (const TriviaQaItem& item : q.triviaqa) add(item.id, triviaqa_prompt(examples, item));
      break;
    }
    case Benchmark::kMath500:
      throw UsageError("benchmark",
                       "math500 is for practice; a contract scores gsm8k, humaneval, triviaqa");
  }
  return q;
}

void grade_programs(const Questions& q, std::span<const Generation> answers, BoxKind box,
                    std::span<ItemRecord> records) {
  std::vector<Program> programs;
  for (size_t i = 0; i < answers.size(); ++i) {
    programs.push_back(humaneval_program(q.humaneval[i], answers[i].text));
  }
  ProgramOptions options;
  options.box = box;
  const std::vector<ProgramResult> results = run_programs(programs, options);
  for (size_t i = 0; i < results.size(); ++i) {
    records[i].right = results[i].passed;
    records[i].reason = results[i].reason;
  }
}

/// Grades one benchmark's answers into its records.
void grade(const Questions& q, std::span<const Generation> answers, BoxKind box,
           std::span<ItemRecord> records) {
  if (q.benchmark == Benchmark::kHumanEval) return grade_programs(q, answers, box, records);
  for (size_t i = 0; i < answers.size(); ++i) {
    const Grade g = q.benchmark == Benchmark::kGsm8k
                        ? grade_gsm8k(answers[i].text, q.gsm8k[i].gold)
                        : grade_triviaqa(answers[i].text, q.triviaqa[i].aliases);
    records[i].right = g.right;
    records[i].extracted = g.extracted;
    records[i].reason = g.reason;
  }
}

}  // namespace

struct AccuracySuite::Impl {
  const Tokenizer& tokenizer;
  std::vector<Questions> questions;
};

AccuracySuite::AccuracySuite(const Contract& contract, const Tokenizer& tokenizer)
    : impl_(new Impl{tokenizer, {}}) {
  for (const BenchmarkProtocol& protocol : contract.accuracy.benchmarks) {
    impl_->questions.push_back(load_questions(contract, protocol));
    for (const std::string& prompt : impl_->questions.back().prompts) {
      impl_->questions.back().tokens.push_back(tokenizer.encode(prompt));
    }
  }
}

AccuracySuite::~AccuracySuite() = default;
AccuracySuite::AccuracySuite(AccuracySuite&&) noexcept = default;

int64_t AccuracySuite::longest() const {
  int64_t longest = 0;
  for (const Questions& q : impl_->questions) {
    for (const auto& ids : q.tokens) {
      longest = std::max(longest, static_cast<int64_t>(ids.size()) + q.protocol.max_tokens);
    }
  }
  return longest;
}

int64_t AccuracySuite::items() const {
  int64_t items = 0;
  for (const Questions& q : impl_->questions) items += static_cast<int64_t>(q.prompts.size());
  return items;
}

std::string AccuracySuite::prompts_sha256() const {
  std::vector<std::string> all;
  for (const Questions& q : impl_->questions)
    all.insert(all.end(), q.prompts.begin(), q.prompts.end());
  return cbench::prompts_sha256(all);
}

std::vector<BenchmarkResult> AccuracySuite::run(Engine& engine, const std::vector<int32_t>& eos,
                                                BoxKind box, std::vector<ItemRecord>* records,
                                                const OnProgress& progress) const {
  // All questions of all benchmarks are in flight together; each answer stops on its own.
  std::vector<GenerationRequest> requests;
  for (const Questions& q : impl_->questions) {
    for (const auto& ids : q.tokens) {
      requests.push_back({ids, q.protocol.max_tokens, benchmark_stops(q.benchmark)});
    }
  }
  const std::vector<Generation> answers =
      generate_all(engine, impl_->tokenizer, eos, requests, progress);
  std::vector<BenchmarkResult> results;
  size_t offset = 0;
  for (const Questions& q : impl_->questions) {
    const auto own = std::span(answers).subspan(offset, q.ids.size());
    std::vector<ItemRecord> graded(q.ids.size());
    grade(q, own, box, graded);
    BenchmarkResult result;
    result.name = q.protocol.name;
    result.total = static_cast<int64_t>(q.ids.size());
    for (size_t i = 0; i < graded.size(); ++i) {
      graded[i].benchmark = q.protocol.name;
      graded[i].id = q.ids[i];
      graded[i].answer = own[i].text;
      graded[i].end = own[i].end;
      result.right += graded[i].right ? 1 : 0;
      // Blanks are no answer either.
      const bool blank = own[i].text.find_first_not_of(" \t\r\n") == std::string::npos;
      result.errors += blank ? 1 : 0;
      if (records != nullptr) records->push_back(graded[i]);
    }
    results.push_back(result);
    offset += q.ids.size();
  }
  return results;
}

}  // namespace cbench
