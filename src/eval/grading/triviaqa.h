// TriviaQA: the official normalization, equality with any alias, and no match for nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "eval/grading/grade.h"

namespace cbench {

Grade grade_triviaqa(std::string_view text, const std::vector<std::string>& aliases);

/// The official normalize_answer (mandarjoshi90/triviaqa, evaluation script), as Python 3 runs it.
std::string triviaqa_normalize(std::string_view text);

}  // namespace cbench
