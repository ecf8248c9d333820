// Answers of many requests at once: the same whatever runs side by side; how they end.
#include "eval/generation.h"

#include <gtest/gtest.h>

#include "engine/support.h"

namespace cbench::testing {
namespace {

const std::string kStories = CBENCH_FIXTURES "/stories260k";

std::vector<Generation> answers(int64_t slots, const std::vector<GenerationRequest>& requests,
                                const std::vector<int32_t>& eos = {}) {
  const TestPackage package(kStories);
  const Tokenizer tokenizer = Tokenizer::load(kStories + "/tokenizer.json");
  EngineOptions options = engine_options(package);
  options.capacity.slots = options.capacity.sequences = slots;
  Engine engine(options);
  return generate_all(engine, tokenizer, eos, requests);
}

std::vector<GenerationRequest> some_requests() {
  const Tokenizer tokenizer = Tokenizer::load(kStories + "/tokenizer.json");
  std::vector<GenerationRequest> out;
  const char* prompts[] = {"Once upon a time",
                           "Lily",
                           "The dog was",
                           "One day, a big",
                           "Tom and his mom went to the",
                           "He",
                           "She saw a"};
  for (size_t i = 0; i < std::size(prompts); ++i) {
    out.push_back({tokenizer.encode(prompts[i]), static_cast<int64_t>(10 + 7 * i), {}});
  }
  return out;
}

TEST(Generation, DoesNotDependOnTheNumberOfSlots) {
  const auto requests = some_requests();
  const auto one = answers(1, requests);
  for (const int64_t slots : {2, 3, 8}) {
    const auto many = answers(slots, requests);
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(many[i].text, one[i].text) << slots;
      EXPECT_EQ(many[i].ids, one[i].ids) << slots;
      EXPECT_EQ(many[i].end, "length");
      EXPECT_EQ(static_cast<int64_t>(many[i].ids.size()), requests[i].max_tokens);
    }
  }
}

TEST(Generation, StopsAcrossTokensAndAtTheEndOfText) {
  auto requests = some_requests();
  const auto free = answers(4, requests);
  // Any piece of the free answer is a stop, wherever tokens end.
  const std::string text = free[4].text;
  ASSERT_GT(text.size(), 12u);
  for (size_t at = 3; at < 9; ++at) {
    const std::string stop = text.substr(at, 4);
    requests[4].stops = {"never in this text", stop};
    const auto stopped = answers(4, requests)[4];
    EXPECT_EQ(stopped.text, text.substr(0, text.find(stop)));
    EXPECT_EQ(stopped.end, "stop");
    EXPECT_LT(stopped.ids.size(), free[4].ids.size());
  }
  // The third token of the answer as end of text.
  const int32_t eos = free[4].ids[2];
  requests[4].stops.clear();
  const auto ended = answers(4, requests, {eos})[4];
  EXPECT_EQ(ended.end, "eos");
  EXPECT_LE(ended.ids.size(), 2u);
}

TEST(Generation, ARequestThatDoesNotFitIsRefused) {
  auto requests = some_requests();
  requests[2].max_tokens = 10'000;
  EXPECT_EQ(caught([&] { answers(2, requests); }).code, "prompt_too_long");
  requests = some_requests();
  requests[0].prompt.clear();
  EXPECT_EQ(caught([&] { answers(2, requests); }).code, "prompt_too_long");
}

TEST(Generation, EndTokensAreFoundInEveryLayout) {
  const char* const layouts[] = {R"({"eos_token_id": [7, 9]})",
                                 R"({"text_config": {"eos_token_id": [7, 9]}})",
                                 R"({"llm_config": {"eos_token_id": [7, 9], "x": Infinity}})"};
  for (const char* layout : layouts) {
    const TempDir dir("cbench-test-eos");
    put_file(dir.path() + "/config.json", layout);
    EXPECT_EQ(read_eos_ids(dir.path()), (std::vector<int32_t>{7, 9})) << layout;
  }
}

}  // namespace
}  // namespace cbench::testing
