// The tokenizer's promises beyond equality with the reference: errors, bounds, threads, streaming.
#include "text/tokenizer.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "util/error.h"
#include "util/json.h"
#include "util/random.h"
#include "util/text.h"

namespace cbench {
namespace {

using testing::HasSubstr;
const std::string kFolder = std::string(CBENCH_FIXTURES) + "/tokenizers/";

Json small_file() {
  return Json::parse(R"({
    "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "unk_token": null, "vocab": {"a": 0, "b": 1, "ab": 2},
              "merges": ["a b"]}})");
}

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return UsageError("none", "no error");
}

Error load_error(const std::string& text) {
  return error_of([&] { Tokenizer::load_bytes(text, "bad.json"); });
}

struct BadFile {
  const char* name;
  const char* patch;  ///< JSON merge patch onto small_file()
  const char* code;
  const char* message;
};

class Refused : public testing::TestWithParam<BadFile> {};

TEST_P(Refused, WithClearError) {
  Json file = small_file();
  file.merge_patch(Json::parse(GetParam().patch));
  const Error error = load_error(file.dump());
  EXPECT_EQ(error.exit(), Exit::kUsage);
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("bad.json"));
  EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizer, Refused,
    testing::Values(
        BadFile{"version", R"({"version": "2.0"})", "version", "1.0"},
        BadFile{"model", R"({"model": {"type": "Unigram"}})", "model",
                "\"Unigram\" is not supported"},
        BadFile{"normalizer", R"({"normalizer": {"type": "Nmt"}})", "normalizer", "supported: NFC"},
        BadFile{"pre_tokenizer", R"({"pre_tokenizer": {"type": "BertPreTokenizer"}})",
                "pre_tokenizer", "BertPreTokenizer"},
        BadFile{"decoder", R"({"decoder": {"type": "CTC"}})", "decoder", "CTC"},
        BadFile{"post", R"({"post_processor": {"type": "BertProcessing"}})", "post_processor",
                "BertProcessing"},
        BadFile{"merge_part", R"({"model": {"merges": ["a c"]}})", "merges", "\"c\""},
        BadFile{"merge_result", R"({"model": {"merges": [["b", "a"]]}})", "merges", "\"ba\""},
        BadFile{"merge_shape", R"({"model": {"merges": ["a b c"]}})", "merges", "merge 1"},
        BadFile{"merge_blank", R"({"model": {"merges": ["ab"]}})", "merges", "merge 1"},
        BadFile{"merge_triple", R"({"model": {"merges": [["a", "b", "c"]]}})", "merges", "merge 1"},
        BadFile{"merge_number", R"({"model": {"merges": [[1, 2]]}})", "merges", "merge"},
        BadFile{"merge_empty", R"({"model": {"vocab": {"": 7}, "merges": [["", "a"]]}})", "merges",
                "merge 1"},
        BadFile{"merge_object", R"({"model": {"merges": [{"a": 1}]}})", "merges", "merge"},
        BadFile{"same_id", R"({"model": {"vocab": {"c": 1}}})", "vocab", "share id 1"},
        BadFile{"negative_id", R"({"model": {"vocab": {"c": -1}}})", "vocab", "\"c\""},
        BadFile{"float_id", R"({"model": {"vocab": {"c": 1.5}}})", "vocab", "\"c\""},
        BadFile{"string_id", R"({"model": {"vocab": {"c": "3"}}})", "vocab", "\"c\""},
        BadFile{"object_id", R"({"model": {"vocab": {"c": {}}}})", "vocab", "\"c\""},
        BadFile{"huge_id", R"({"model": {"vocab": {"c": 4294967297}}})", "vocab", "2^31"},
        BadFile{"huge_gap", R"({"model": {"vocab": {"c": 2147483647}}})", "vocab", "gaps"},
        BadFile{"no_vocab", R"({"model": {"vocab": null}})", "vocab", "vocab"},
        BadFile{"no_merges", R"({"model": {"merges": null}})", "merges", "merges"},
        BadFile{"unk", R"({"model": {"unk_token": "<unk>"}})", "vocab", "<unk>"},
        BadFile{"dropout", R"({"model": {"dropout": 0.1}})", "dropout", "random"},
        BadFile{"added_taken", R"({"added_tokens": [{"id": 1, "content": "x"}]})", "added_tokens",
                "another token"},
        BadFile{"added_other", R"({"added_tokens": [{"id": 9, "content": "a"}]})", "added_tokens",
                "another id"},
        BadFile{"added_negative", R"({"added_tokens": [{"id": -4, "content": "x"}]})",
                "added_tokens", "ids"},
        BadFile{"added_type", R"({"added_tokens": {"id": 4}})", "json_type", "array"},
        BadFile{"added_no_id", R"({"added_tokens": [{"content": "x"}]})", "json_missing", "id"},
        BadFile{"regex", R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("},
                "behavior": "Isolated", "invert": false}})",
                "regex", "does not compile"},
        BadFile{"behavior", R"({"pre_tokenizer": {"type": "Split", "pattern": {"String": "x"},
                "behavior": "Sideways", "invert": false}})",
                "pre_tokenizer", "Sideways"},
        BadFile{"pattern", R"({"pre_tokenizer": {"type": "Split", "pattern": "x",
                "behavior": "Isolated", "invert": false}})",
                "pattern", "Regex"},
        BadFile{"template_id", R"({"post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}],
                "special_tokens": {"x": {"ids": [77]}}}})",
                "post_processor", "77"},
        BadFile{"template_twice", R"({"post_processor": {"type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}],
                "special_tokens": {}}})",
                "post_processor", "exactly once"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(TokenizerLoad, RefusesHostileJson) {
  EXPECT_EQ(load_error("").code(), "json");
  EXPECT_EQ(load_error("[]").code(), "json_type");
  EXPECT_EQ(load_error("7").code(), "json_type");
  EXPECT_EQ(load_error("{\"model\"").code(), "json");
  EXPECT_EQ(load_error("{\"a\":\"\xFF\"}").code(), "json");
  EXPECT_EQ(load_error(std::string(100000, '[')).code(), "too_deep");
  EXPECT_EQ(load_error("{\"model\":{\"merges\":" + std::string(100000, '[')).code(), "merges");
  EXPECT_EQ(load_error(R"({"a":1,"a":2})").code(), "duplicate_key");
  EXPECT_EQ(load_error(R"({"model":{"vocab":{"a":0,"a":1},"merges":[]}})").code(), "duplicate_key");
  std::string wide = "{";
  for (int i = 0; i < 2000; ++i) wide += "\"" + std::to_string(i) + "\":0,";
  EXPECT_EQ(load_error(wide + "\"x\":0}").code(), "too_large");
  EXPECT_EQ(error_of([] { Tokenizer::load("/nonexistent/tokenizer.json"); }).code(), "not_found");
}

TEST(TokenizerEncode, StopsExplodingRegex) {
  Json file = small_file();
  file["pre_tokenizer"] = Json::parse(
      R"({"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false})");
  const Tokenizer tokenizer = Tokenizer::load_bytes(file.dump(), "slow.json");
  const std::string text = std::string(64, 'a') + "b";
  EXPECT_EQ(error_of([&] { tokenizer.encode(text); }).code(), "regex_limit");
}

TEST(TokenizerEncode, BoundsReplacementBlowUp) {
  Json file = small_file();
  Json steps = Json::array();
  for (int i = 0; i < 60; ++i) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaa"}});
  }
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const Tokenizer tokenizer = Tokenizer::load_bytes(file.dump(), "bomb.json");
  EXPECT_EQ(error_of([&] { tokenizer.encode("a"); }).code(), "too_large");
}

TEST(TokenizerEncode, RefusesBadUtf8) {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "qwen_like.json");
  for (const char* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80"}) {
    EXPECT_EQ(error_of([&] { tokenizer.encode(text); }).code(), "utf8") << printable(text);
  }
}

TEST(TokenizerDecode, RefusesUnknownIds) {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "qwen_like.json");
  const auto size = static_cast<int32_t>(tokenizer.vocab_size());
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{size - 1}, false), "</think>");
  for (const int32_t id : {-1, size, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(error_of([&] { tokenizer.decode(std::vector{id}); }).code(), "token_id");
    EXPECT_EQ(error_of([&] { StreamDecoder(tokenizer).push(id); }).code(), "token_id");
    EXPECT_FALSE(tokenizer.token(id).has_value());
    EXPECT_FALSE(tokenizer.is_special(id));
  }
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "qwen_like.json");
  const auto end = tokenizer.token_id("<|endoftext|>");
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(tokenizer.is_special(*end));
  EXPECT_EQ(tokenizer.token(*end), "<|endoftext|>");
  EXPECT_FALSE(tokenizer.is_special(tokenizer.token_id("<think>").value()));
  EXPECT_FALSE(tokenizer.token_id("no such token").has_value());
}

TEST(StreamDecoder, HoldsHalfCharacters) {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "qwen_like.json");
  const std::vector<int32_t> ids =
      tokenizer.encode("\u5BE7\U0001F9FF!");  // not in the training text
  ASSERT_GT(ids.size(), 5u);
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");  // cut by a token limit: shown, not an error
}

/// BPE must not be quadratic: these would take minutes if it were. The results must also be right,
/// which the decoded text shows.
TEST(TokenizerEncode, StaysNearLinear) {
  for (const char* name : {"qwen_like", "gemma_like", "llama3_like"}) {
    const Tokenizer tokenizer = Tokenizer::load(kFolder + name + ".json");
    for (const char* unit : {"a", " ", "\n", "<", "the", "\u4F60", "e\n"}) {
      std::string text;
      while (text.size() < 400000) text += unit;
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << name << " " << printable(unit);
    }
  }
}

/// The heap on a whole text, and short scans on the words it is cut into, must agree.
TEST(TokenizerEncode, LongAndShortMergesAgree) {
  Json file = read_json(kFolder + "gemma_like.json");
  const Tokenizer cut = Tokenizer::load_bytes(file.dump(), "cut");
  file["model"]["ignore_merges"] = true;  // keeps pieces from being cut into words
  const Tokenizer whole = Tokenizer::load_bytes(file.dump(), "whole");
  Random random(7);
  const std::vector<std::string> parts = {"the", " ",   "dog", "quick",  "\u4F60", ", ", "o",
                                          "n",   "th ", "er",  "\uAE70", "in",     "g",  "   "};
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int k = 0; k < 60; ++k) text += parts[random.below(parts.size())];
    EXPECT_EQ(cut.encode(text), whole.encode(text)) << text;
  }
}

TEST(Tokenizer, ServesThreads) {
  const Tokenizer tokenizer = Tokenizer::load(kFolder + "qwen_like.json");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "word" + std::to_string(i * 7919) + " and  more\n";
  const auto want = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4);
  for (size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) equal[t] += tokenizer.encode(text) == want;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 5));
}

}  // namespace
}  // namespace cbench
