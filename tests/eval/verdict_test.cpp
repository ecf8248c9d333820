// The verdict's forms: JSON against docs/verdict.md, the table, JUnit.
#include "eval/verdict.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "engine/support.h"

namespace cbench::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Verdict full_verdict() {
  Verdict v;
  v.status = Status::kScored;
  v.reward = 9.5;
  v.task = "t";
  v.parameters = 1000;
  v.stages = {{"package", "ok", 0.1, ""}, {"load", "failed", 0.2, "a < b & \"c\" \x01"}};
  v.disk.emplace();
  v.likelihood.emplace();
  v.likelihood->blocks = {{1, 2}};
  v.audit.emplace();
  v.accuracy.emplace();
  v.accuracy->benchmarks = {{"gsm8k", 1, 2, 2, 2, 0}};
  v.decode.emplace();
  v.decode->round_seconds = {1};
  return v;
}

/// Every `path` in the first column of the tables of docs/verdict.md.
std::vector<std::string> documented_fields() {
  std::vector<std::string> out;
  const std::string text = read_file(CBENCH_SOURCE_DIR "/docs/verdict.md");
  const size_t fields = text.find("## Fields of the JSON");
  for (size_t at = text.find("\n| `", fields); at != std::string::npos;
       at = text.find("\n| `", at + 1)) {
    out.push_back(text.substr(at + 4, text.find('`', at + 4) - at - 4));
  }
  return out;
}

TEST(VerdictJson, HasEveryDocumentedField) {
  const Json json = parse_json(verdict_json(full_verdict()), "verdict");
  const auto fields = documented_fields();
  EXPECT_GT(fields.size(), 40u);
  for (const std::string& field : fields) {
    if (field.starts_with("energy")) continue;  // GPU only
    const Json* at = &json;
    size_t begin = 0;
    while (at != nullptr && begin <= field.size()) {
      const size_t dot = std::min(field.find('.', begin), field.size());
      const std::string key = field.substr(begin, dot - begin);
      begin = dot + 1;
      if (key == "[]") {
        at = at->is_array() && !at->empty() ? &(*at)[0] : nullptr;
      } else if (key == "*") {
        at = at->is_object() && !at->empty() ? &at->front() : nullptr;
      } else {
        at = at->is_object() && at->contains(key) ? &(*at)[key] : nullptr;
      }
    }
    if (field == "reasons.[].code" || field == "reasons.[].message") continue;  // none here
    EXPECT_NE(at, nullptr) << field;
  }
}

TEST(VerdictJson, NeverHoldsWhatIsNoNumber) {
  Verdict v = full_verdict();
  v.reward = std::numeric_limits<double>::quiet_NaN();
  v.likelihood->f = std::numeric_limits<double>::infinity();
  v.likelihood->interval.low = -std::numeric_limits<double>::infinity();
  v.decode->tokens_per_second = std::numeric_limits<double>::quiet_NaN();
  const Json json = parse_json(verdict_json(v), "verdict");
  EXPECT_TRUE(json["reward"].is_null());
  EXPECT_TRUE(json["likelihood"]["f"].is_null());
  EXPECT_TRUE(json["likelihood"]["interval"][0].is_null());
  EXPECT_TRUE(json["decode"]["tokens_per_second"].is_null());
}

TEST(Verdict, ExitCodes) {
  Verdict v;
  for (const auto& [status, exit] : {std::pair{Status::kScored, Exit::kOk},
                                     {Status::kGateFailed, Exit::kGateFailed},
                                     {Status::kInvalid, Exit::kInvalid}}) {
    v.status = status;
    EXPECT_EQ(v.exit_code(), exit);
  }
}

TEST(VerdictText, JUnitEscapesAndCounts) {
  Verdict v = full_verdict();
  v.status = Status::kGateFailed;
  v.reasons = {{"engine_crashed", "<boom> & \"x\""}};
  v.stages.push_back({"decode", "not_run", 0, "why"});
  const std::string xml = verdict_junit(v);
  EXPECT_THAT(xml, HasSubstr("tests=\"4\" failures=\"2\" skipped=\"1\""));
  EXPECT_THAT(xml, HasSubstr("&lt;boom&gt; &amp; &quot;x&quot;"));
  EXPECT_THAT(xml, Not(HasSubstr("\x01")));
  EXPECT_THAT(verdict_table(v), HasSubstr("engine_crashed"));
}

}  // namespace
}  // namespace cbench::testing
