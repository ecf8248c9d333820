// stories260K repeats, greedily, the texts that llama2.c's run.c printed.
#include <gtest/gtest.h>

#include "runtime/support.h"
#include "text/tokenizer.h"
#include "util/json.h"

namespace cbench::testing {
namespace {

const std::string kDir = CBENCH_FIXTURES "/stories260k";

TEST(Stories, RepeatsTheGoldenTexts) {
  Fixture fixture(kDir,
                  {.tokens = 64, .sequences = 1, .slots = 1, .max_length = 128, .logits_rows = 1});
  const Tokenizer tokenizer = Tokenizer::load(kDir + "/tokenizer.json");
  const Json golden = read_json(kDir + "/golden.json");
  ASSERT_EQ(golden.at("runs").size(), 4u);
  for (const Json& run : golden.at("runs")) {
    std::vector<int32_t> ids = tokenizer.encode(run.at("prompt").get<std::string>());
    const auto steps = run.at("steps").get<size_t>();
    // `steps` counts the tokens after BOS, prompt included.
    const auto prompt = static_cast<int32_t>(ids.size());
    ids.push_back(argmax(run_packed_last(*fixture.model, ids)));
    fixture.model->generate(0, ids.back(), prompt, static_cast<int64_t>(steps + 1 - ids.size()),
                            [&](int32_t id) {
                              ids.push_back(id);
                              return true;
                            });
    EXPECT_EQ(tokenizer.decode(ids) + "\n", run.at("text").get<std::string>());
  }
}

}  // namespace
}  // namespace cbench::testing
