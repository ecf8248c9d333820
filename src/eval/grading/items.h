// Benchmark items in their official record layouts. Records are read strictly: a wrong type, a
// missing field or a duplicate id is an error that names the line. Unknown fields are ignored (data
// sets carry annotations).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cbench {

struct Gsm8kItem {
  std::string id;  ///< the record's "id" if it has one, else its number from 0
  std::string question, answer;
  std::string gold;  ///< the number behind "#### "
};

struct HumanEvalItem {
  std::string id, prompt, entry_point, canonical_solution, test;
};

struct TriviaQaItem {
  std::string id, question;
  std::string answer;                ///< the answer's value
  std::vector<std::string> aliases;  ///< non-empty; includes the value
};

struct Math500Item {
  std::string id, problem, answer;
};

/// {"question", "answer"} (openai/grade-school-math).
std::vector<Gsm8kItem> read_gsm8k(const std::string& path);
/// {"task_id", "prompt", "entry_point", "canonical_solution", "test"} (openai/human-eval).
std::vector<HumanEvalItem> read_humaneval(const std::string& path);
/// {"context": "Question: ...\nAnswer:", "answer", "aliases"} (llm-foundry), {"question", "answer",
/// "aliases"}, the official {"Question", "QuestionId", "Answer": {"Value", "Aliases"}}, or the
/// Hub's
/// {"question", "question_id", "answer": {"value", "aliases"}}.
/// `repeats`: a record that says again what an earlier one said (same id, question, answer) is
/// passed over instead of refused; the Hub's rows hold many questions once per evidence source.
std::vector<TriviaQaItem> read_triviaqa(const std::string& path, bool repeats = false);
/// {"problem", "answer", "unique_id"}: one JSON array, or a record per line.
std::vector<Math500Item> read_math500(const std::string& path);

}  // namespace cbench
