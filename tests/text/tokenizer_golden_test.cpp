// Ids and texts equal to the reference implementation's on the fixtures, and on the published
// files where they are at hand (-DCBENCH_TOKENIZER_DATA=DIR).
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "text/jsonl.h"
#include "text/tokenizer.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

const std::string kFolder = std::string(CBENCH_FIXTURES) + "/tokenizers/";

std::vector<Json> read_lines(const std::string& path) {
  std::vector<Json> lines;
  JsonlReader reader(path);
  for (std::string_view line; reader.next(line);) {
    lines.push_back(parse_json(line, reader.where()));
  }
  return lines;
}

/// Streams `ids` and checks every promise of StreamDecoder on the way.
std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip) {
  StreamDecoder decoder(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = decoder.push(id);
    EXPECT_TRUE(is_utf8(part)) << "half a character from id " << id;
    text += part;
  }
  return text + decoder.finish();
}

void check_decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const Json& line) {
  for (const bool skip : {false, true}) {
    const std::string want = line[skip ? "skipped" : "decoded"];
    EXPECT_EQ(tokenizer.decode(ids, skip), want) << line.dump();
    EXPECT_EQ(stream(tokenizer, ids, skip), want) << line.dump();
  }
}

class Fixture : public testing::TestWithParam<const char*> {};

TEST_P(Fixture, EqualsReference) {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + GetParam() + ".json");
  int texts = 0;
  for (const Json& line : read_lines(kFolder + GetParam() + ".golden.jsonl")) {
    if (line.contains("decode")) {
      check_decode(tokenizer, line["decode"], line);
      continue;
    }
    ++texts;
    const std::string text = line["text"];
    const std::vector<int32_t> ids = line["ids"];
    const std::vector<int32_t> plain = line["plain"];
    EXPECT_EQ(tokenizer.encode(text), ids) << line.dump();
    EXPECT_EQ(tokenizer.encode(text, false), plain) << line.dump();
    check_decode(tokenizer, ids, line);
  }
  EXPECT_GT(texts, 40);
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Fixture,
                         testing::Values("qwen_like", "llama3_like", "tekken_like", "gpt2_like",
                                         "gemma_like", "llama2_like", "flags_like"));

TEST(TokenizerComponents, EqualReference) {
  const Json base = read_json(kFolder + "base.json");
  int cases = 0;
  for (const Json& line : read_lines(kFolder + "components.jsonl")) {
    SCOPED_TRACE(line["name"].get<std::string>());
    Json file = base;
    for (const auto& [key, value] : line["set"].items()) {
      if (key == "model") {
        file["model"].update(value);
      } else {
        file[key] = value;
      }
    }
    const Tokenizer tokenizer = Tokenizer::load_bytes(file.dump(), "components.jsonl");
    for (const Json& example : line["cases"]) {
      const std::vector<int32_t> ids = example[1];
      EXPECT_EQ(tokenizer.encode(example[0].get<std::string>()), ids) << example.dump();
      if (example[2].is_string()) {
        EXPECT_EQ(tokenizer.decode(ids), example[2].get<std::string>()) << example.dump();
        EXPECT_EQ(stream(tokenizer, ids, true), example[2].get<std::string>()) << example.dump();
      }
      ++cases;
    }
  }
  EXPECT_GT(cases, 2000);
}

/// The first of DIR/NAME.tokenizer.json and the same with .zst that exists, else "".
std::string published_file(const std::string& name) {
  const std::string path = std::string(CBENCH_TOKENIZER_DATA) + "/" + name + ".tokenizer.json";
  for (const char* suffix : {"", ".zst"}) {
    if (access((path + suffix).c_str(), R_OK) == 0) return path + suffix;
  }
  return "";
}

class Published : public testing::TestWithParam<const char*> {};

TEST_P(Published, EqualsGoldenIds) {
  const std::string path = published_file(GetParam());
  if (path.empty()) {
    GTEST_SKIP() << "NOT CHECKED: the published " << GetParam()
                 << " tokenizer; configure with -DCBENCH_TOKENIZER_DATA=DIR";
  }
  const Tokenizer tokenizer = Tokenizer::load(path);
  int vectors = 0;
  for (const Json& line : read_lines(kFolder + "real_golden.jsonl")) {
    if (line["tok"] != GetParam()) continue;
    ++vectors;
    const std::string text = line["text"];
    const std::vector<int32_t> ids = line["ids"];
    EXPECT_EQ(tokenizer.encode(text, false), ids) << line.dump();
    const std::string decoded =
        line["decoded_equal"].get<bool>() ? text : line["decoded"].get<std::string>();
    EXPECT_EQ(tokenizer.decode(ids, false), decoded) << line.dump();
    EXPECT_EQ(stream(tokenizer, ids, false), decoded) << line.dump();
  }
  EXPECT_GE(vectors, 30);
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Published, testing::Values("qwen3", "llama3", "gemma3"));

}  // namespace
}  // namespace cbench
