// Every line of fixtures/fetch/cases.jsonl is a test by its id; a line without one fails.
#include <sstream>

#include "fetch/rig.h"

namespace cbench {
namespace {

std::vector<std::string> case_ids() {
  std::vector<std::string> ids;
  std::istringstream lines(read_file(std::string(CBENCH_FIXTURES) + "/fetch/cases.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty())
      ids.push_back(json_string(parse_json(line, "cases.jsonl"), "id", "cases.jsonl"));
  }
  return ids;
}

class FetchCase : public ::testing::TestWithParam<std::string> {};

TEST_P(FetchCase, Holds) {
  const auto found = case_table().find(GetParam());
  ASSERT_NE(found, case_table().end()) << "no test for this case";
  found->second();
}

INSTANTIATE_TEST_SUITE_P(Cases, FetchCase, ::testing::ValuesIn(case_ids()),
                         [](const auto& test) { return "case_" + test.param; });

}  // namespace
}  // namespace cbench
