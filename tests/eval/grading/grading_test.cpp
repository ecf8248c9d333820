// The graders on the committed vectors, on samples of real data, on hostile answers, and (where
// CBENCH_SHARED_DATA points to it) on the whole of the real data.
#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "eval/grading/gsm8k.h"
#include "eval/grading/items.h"
#include "eval/grading/math500.h"
#include "eval/grading/prompts.h"
#include "eval/grading/records.h"
#include "eval/grading/stops.h"
#include "eval/grading/triviaqa.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

const std::string kFixtures = std::string(CBENCH_FIXTURES) + "/grading/";

bool bwrap_works() {
  try {
    require_box(BoxKind::kBwrap);
    return true;
  } catch (const EnvironmentError&) {
    return false;
  }
}

/// A known limit of number rules (docs/grading.md); the vector itself is marked as contested.
bool known_limit(const std::string& id) { return id == "gsm8k-039"; }

TEST(GradingVectors, AllAsTheySay) {
  if (!bwrap_works()) GTEST_SKIP() << "the exec vectors need bubblewrap";
  std::vector<Json> lines;
  grade_file(kFixtures + "grading_vectors.jsonl", "", {},
             [&](const std::string& line) { lines.push_back(parse_json(line, "output")); });
  const std::string text = read_file(kFixtures + "grading_vectors.jsonl", 1u << 20);
  size_t at = 0, number = 0;
  while (at < text.size()) {
    const size_t end = text.find('\n', at);
    const Json vector = parse_json(text.substr(at, end - at), "vectors");
    at = end == std::string::npos ? text.size() : end + 1;
    ASSERT_LT(number, lines.size());
    const Json& got = lines[number++];
    const std::string id = vector["id"];
    EXPECT_EQ(got["id"], vector["id"]);
    if (known_limit(id)) continue;
    if (vector["right"].is_number()) {
      EXPECT_DOUBLE_EQ(got["right"].get<double>(), vector["right"].get<double>()) << id;
    } else {
      EXPECT_EQ(got["right"], vector["right"]) << id << ": " << got.dump();
    }
  }
  EXPECT_EQ(number, lines.size());
  EXPECT_GE(number, 80u);
}

TEST(Gsm8k, Numbers) {
  struct Case {
    const char *text, *gold;
    bool right;
  };
  const Case cases[] = {
      {"#### 18", "18", true},
      {"#### 18\n\nTom has 3 hats.\n#### 3", "18", true},  // a blank line ends the answer
      {"#### -3", "-3", true},
      {"10-3", "-3", false},
      {"-$5", "-5", true},
      {"It is 1,45", "145", false},  // cut inside a group
      {"It is 1,2,3", "3", false},
      {"\\boxed{\\frac{1}{2}}", "2", false},
      {"The answer is 72,", "72", true},
      {"1\u00a0450\u00a0000", "1450000", true},
      {"She has 5\u00a0apples", "5", true},
      {"1e5", "5", false},
      {"0.50", "0.5", true},
      {"NaN", "18", false},
      {"", "18", false},
      {"<think>Question: what? It is 4.</think>#### 5", "5", true},
      {"<think>#### 5", "5", false},
  };
  for (const Case& c : cases) EXPECT_EQ(grade_gsm8k(c.text, c.gold).right, c.right) << c.text;
  EXPECT_THROW(grade_gsm8k("1", "one"), UsageError);
  EXPECT_THROW(gsm8k_gold("no anchor"), UsageError);
}

TEST(TriviaQa, Normalization) {
  EXPECT_EQ(triviaqa_normalize("\u0130stanbul"), "i\u0307stanbul");
  EXPECT_EQ(triviaqa_normalize("\u1f48\u0394\u03a5\u03a3\u03a3\u0395\u038e\u03a3"),
            "\u1f40\u03b4\u03c5\u03c3\u03c3\u03b5\u03cd\u03c2");  // the final sigma
  EXPECT_EQ(triviaqa_normalize("The\u00a0Beatles"), "beatles");
  EXPECT_EQ(triviaqa_normalize("Horse\u017f"), "horse\u017f");
  EXPECT_EQ(triviaqa_normalize("An a-ha Theme, the_end"), "ha theme end");
  EXPECT_TRUE(grade_triviaqa(" (a", {"(a"}).right);  // a real gold: as written, or not at all
  EXPECT_FALSE(grade_triviaqa(" .a", {"(a"}).right);
  EXPECT_TRUE(grade_triviaqa(" Paris<|im_end|>", {"Paris"}).right);
  EXPECT_FALSE(grade_triviaqa("\xff\xfe", {"Paris"}).right);
}

TEST(Math500, Equality) {
  struct Case {
    const char *answer, *gold;
    bool same;
  };
  const Case cases[] = {
      {"\\frac{\\pi}{2}", "\\pi/2", true},
      {"2\\sqrt{3}+1", "1+2\\sqrt{3}", true},
      {"\\sqrt{12}", "2\\sqrt3", true},
      {"\\sqrt[3]{8}x", "2x", true},
      {"4/2", "2", false},  // a whole gold wants a number
      {"\\frac{2}{4}", "\\frac{1}{2}", false},
      {"2.0", "2", true},
      {"1\\frac{4}{5}", "\\frac95", true},
      {"1+\\sqrt{19}, 1-\\sqrt{19}", "1 \\pm \\sqrt{19}", true},
      {"(1,2]", "(1,2)", false},
      {"(2,1)", "(1,2)", false},
      {"(-\\infty,2)\\cup(3,\\infty)", "(-\\infty, 2) \\cup (3, \\infty)", true},
      {"y=2x+3", "y = 3 + 2x", true},
      {"5", "x=5", true},
      {"2516_8", "2516_{8}", true},
      {"3\\text{ cm}^2", "3", true},
      {"2^{4000}", "2^{4001}", false},
      {"1/2004!", "1/2006!", false},
      {"", "", false},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(math_equal(c.answer, c.gold), c.same) << c.answer << " against " << c.gold;
  }
  EXPECT_FALSE(grade_math500("\\boxed{4} and \\boxed{5", "4").right);  // the last box has no end
  EXPECT_EQ(grade_math500("4", "4").reason, "no_box");
}

TEST(Hostile, AnswersAreBounded) {
  std::string deep(50'000, '{');
  const std::string texts[] = {std::string(100'000'000, '9'),
                               std::string(900'000, '9'),
                               "\\boxed{" + deep,
                               "\\boxed{" + std::string(1900, '(') + "}",
                               "\\boxed{" + std::string(1900, '{') + std::string(1900, '}') + "}",
                               std::string(100'000, '\0'),
                               "\x01\x02\x7f\xff",
                               std::string(900'000, '#'),
                               std::string(900'000, ',')};
  for (const std::string& text : texts) {
    EXPECT_FALSE(grade_gsm8k(text, "7").right);
    EXPECT_FALSE(grade_math500(text, "7").right);
    EXPECT_FALSE(grade_triviaqa(text, {"seven"}).right);
  }
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "\\boxed{";
  EXPECT_FALSE(grade_gsm8k(many, "7").right);
  EXPECT_FALSE(grade_math500(many, "7").right);
}

TEST(Stops, StreamedEqualsCut) {
  const std::vector<std::string> stops = {"\nclass", "\ndef", "\n#", "\nif", "\nprint"};
  const std::string text = "  a\n\nde\ndel\nprint(1)\ndef";
  for (size_t size = 1; size <= text.size(); ++size) {
    StopMatcher matcher(stops);
    std::string out;
    for (size_t at = 0; at < text.size(); at += size) out += matcher.append(text.substr(at, size));
    out += matcher.finish();
    EXPECT_EQ(out, cut_at_stop(text, stops)) << size;
    EXPECT_TRUE(matcher.hit());
  }
}

TEST(Gate, Integers) {
  EXPECT_TRUE(passes_gate(60, 100, 75, 100));
  EXPECT_FALSE(passes_gate(97, 150, 122, 150));
  EXPECT_FALSE(passes_gate(1, 0, 0, 1));
  EXPECT_FALSE(passes_gate(101, 100, 75, 100));
  EXPECT_TRUE(passes_gate(INT64_MAX / 8, INT64_MAX / 8, 1, 1));
  EXPECT_DOUBLE_EQ(pass_at_k(5, 2, 1), 0.4);
  EXPECT_DOUBLE_EQ(pass_at_k(5, 5, 1), 1.0);
  EXPECT_DOUBLE_EQ(pass_at_k(5, 0, 5), 0.0);
  EXPECT_THROW(pass_at_k(5, 6, 1), UsageError);
}

TEST(Prompts, Rendering) {
  const std::vector<Gsm8kItem> items = read_gsm8k(kFixtures + "gsm8k_sample.jsonl");
  ASSERT_EQ(items.size(), 20u);
  const std::string prompt = gsm8k_prompt({items[1]}, items[0]);
  EXPECT_EQ(prompt.find("<<"), std::string::npos);
  EXPECT_TRUE(prompt.starts_with("Question: A robe takes 2 bolts"));
  EXPECT_NE(prompt.find("2/2=1 bolt"), std::string::npos);
  EXPECT_NE(prompt.find("#### 3\n\nQuestion: Janet"), std::string::npos);
  EXPECT_TRUE(prompt.ends_with("\nAnswer:"));
  EXPECT_EQ(prompts_sha256({"a", "b"}).size(), 64u);
  EXPECT_NE(prompts_sha256({"ab"}), prompts_sha256({"a", "b"}));
  const std::vector<TriviaQaItem> trivia = read_triviaqa(kFixtures + "triviaqa_sample.jsonl");
  EXPECT_EQ(triviaqa_prompt({trivia[1]}, trivia[0]),
            "Question: What type of animal is a dik-dik?\nAnswer: Antelope\n\nQuestion: Brunswick, "
            "Lancastrian and Pearl Pickler are types of which vegetable?\nAnswer:");
}

TEST(Items, BadFilesNameTheLine) {
  const TempDir directory;
  const std::string path = directory.path() + "/items.jsonl";
  const auto code = [&](const std::string& text) {
    write_file_atomic(path, text);
    try {
      read_humaneval(path);
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("items.jsonl"), std::string::npos);
      return error.code();
    }
    return std::string("accepted");
  };
  const std::string good =
      R"({"task_id":"a","prompt":"","entry_point":"f","canonical_solution":"","test":""})";
  EXPECT_EQ(code(good + "\n"), "accepted");
  EXPECT_EQ(code(good + "\n" + good + "\n"), "duplicate_id");
  EXPECT_EQ(code(R"({"task_id":1})"), "json_type");
  EXPECT_EQ(code(R"({"task_id":"a"})"), "json_missing");
  EXPECT_EQ(code("{"), "json");
  EXPECT_EQ(code(""), "no_items");
}

TEST(Samples, GoldsAreAccepted) {
  for (const Gsm8kItem& item : read_gsm8k(kFixtures + "gsm8k_sample.jsonl")) {
    EXPECT_TRUE(grade_gsm8k(item.answer, item.gold).right) << item.id;
  }
  for (const TriviaQaItem& item : read_triviaqa(kFixtures + "triviaqa_sample.jsonl")) {
    EXPECT_TRUE(grade_triviaqa(" " + item.answer + "\n", item.aliases).right) << item.id;
  }
}

/// The directory with the whole real data, or "" (then a loud skip).
std::string real_data() {
#ifdef CBENCH_SHARED_DATA
  return CBENCH_SHARED_DATA;
#else
  const char* given = std::getenv("CBENCH_SHARED_DATA");
  return given != nullptr ? given : "";
#endif
}

#define REQUIRE_REAL_DATA(root)                                                                   \
  if (root.empty()) {                                                                             \
    GTEST_SKIP() << "THE WHOLE REAL DATA IS NOT TESTED: configure with -DCBENCH_SHARED_DATA=DIR"; \
  }

TEST(RealData, CanonicalSolutionsPassAndEmptyOnesFail) {
  const std::string root = real_data();
  REQUIRE_REAL_DATA(root)
  if (!bwrap_works()) GTEST_SKIP() << "programs need bubblewrap";
  std::vector<Program> programs;
  for (const HumanEvalItem& item : read_humaneval(root + "/humaneval/HumanEval.jsonl.gz")) {
    programs.push_back(humaneval_program(item, item.canonical_solution));
    programs.push_back(humaneval_program(item, ""));
  }
  ASSERT_EQ(programs.size(), 328u);
  const std::vector<ProgramResult> results = run_programs(programs);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].passed, i % 2 == 0) << results[i].id << ": " << results[i].reason;
  }
}

TEST(RealData, EveryGoldIsAccepted) {
  const std::string root = real_data();
  REQUIRE_REAL_DATA(root)
  size_t gsm8k = 0;
  for (const char* name : {"/gsm8k/train.jsonl", "/gsm8k/test.jsonl"}) {
    for (const Gsm8kItem& item : read_gsm8k(root + name)) {
      EXPECT_TRUE(grade_gsm8k(item.answer, item.gold).right) << item.id;
      EXPECT_TRUE(grade_gsm8k(" The answer is " + item.gold + ".", item.gold).right) << item.id;
      ++gsm8k;
    }
  }
  EXPECT_EQ(gsm8k, 8792u);
  const auto trivia = read_triviaqa(root + "/triviaqa/triviaqa_sm_sub.jsonl");
  EXPECT_EQ(trivia.size(), 3000u);
  for (const TriviaQaItem& item : trivia) {
    EXPECT_TRUE(grade_triviaqa(" " + item.answer + "\n", item.aliases).right) << item.answer;
  }
  const auto math = read_math500(root + "/math500/math500_test.json");
  EXPECT_EQ(math.size(), 500u);
  for (const Math500Item& item : math) {
    EXPECT_TRUE(grade_math500("So \\boxed{" + item.answer + "}.", item.answer).right)
        << item.answer;
  }
}

}  // namespace
}  // namespace cbench
