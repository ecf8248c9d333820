// `cbench grade`: a file of answer records in, one graded record per line out, in order. The
// records are described in docs/grading.md.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "eval/grading/program.h"
#include "eval/grading/prompts.h"

namespace cbench {

struct RecordCounts {
  int64_t total = 0;
  int64_t right = 0;
  int64_t expected = 0;    ///< records that say what the grade should be ("right")
  int64_t unexpected = 0;  ///< of those, graded otherwise
};

/// Grades the records of `benchmark` in `path`; records whose "task" names another benchmark are an
/// error unless `benchmark` is empty (then each record says its own). Every line of output goes to
/// `emit` without its newline. Throws UsageError naming the line of a bad record; all records are
/// read before any is graded.
RecordCounts grade_file(const std::string& path, std::string_view benchmark,
                        const ProgramOptions& options,
                        const std::function<void(const std::string&)>& emit);

}  // namespace cbench
