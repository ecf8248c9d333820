// cbench.json: what is accepted, and the named refusal of everything else.
#include "package/manifest.h"

#include "package/helpers.h"
#include "package/path_rules.h"

namespace cbench {
namespace {

using testing::code_of;

TEST(Manifest, ReadsEveryField) {
  const Manifest m = parse_manifest(R"({
    "format": 1, "task": "tiny_3m_standard_cpu",
    "plugin": {"sources": ["src/plugin.cpp", "src/fast.cu"]},
    "formats": {"q4": {"bits": 4, "group": 64}, "raw": {}},
    "matrices": {"model.layers.0.mlp.gate_proj.weight": "q4",
                 "model.layers.0.mlp.up_proj.weight.A": "raw"},
    "graph": {"layers": [0, 1, 2, 4], "mlp_width": {"2": 384}, "experts": {"4": [0, 2, 5]},
              "low_rank": {"model.layers.0.mlp.up_proj.weight": 16}}})",
                                    "cbench.json");
  EXPECT_EQ(m.task, "tiny_3m_standard_cpu");
  EXPECT_EQ(m.plugin.sources, (std::vector<std::string>{"src/plugin.cpp", "src/fast.cu"}));
  EXPECT_TRUE(m.plugin.present());
  const std::string* parameters = m.parameters_of("model.layers.0.mlp.gate_proj.weight");
  ASSERT_NE(parameters, nullptr);
  EXPECT_EQ(*parameters, R"({"bits":4,"group":64})");
  EXPECT_EQ(m.parameters_of("lm_head.weight"), nullptr);
  EXPECT_EQ(*m.graph.layers, (std::vector<int>{0, 1, 2, 4}));
  EXPECT_EQ(m.graph.mlp_width.at(2), 384);
  EXPECT_EQ(m.graph.experts.at(4), (std::vector<int>{0, 2, 5}));
  EXPECT_EQ(m.graph.low_rank.at("model.layers.0.mlp.up_proj.weight"), 16);
}

TEST(Manifest, TheSmallestOne) {
  const Manifest m = parse_manifest(R"({"format":1})", "m");
  EXPECT_FALSE(m.plugin.present());
  EXPECT_TRUE(m.graph.empty());
}

struct Case {
  const char* text;
  const char* code;
};

TEST(Manifest, RefusesByName) {
  const Case cases[] = {
      {"", "json"},
      {"[]", "json_type"},
      {"{}", "json_missing"},
      {R"({"format":2})", "format_version"},
      {R"({"format":1.0})", "format_version"},
      {R"({"format":"1"})", "format_version"},
      {R"({"format":true})", "format_version"},
      {R"({"format":1,"format":1})", "duplicate_key"},
      {R"({"format":1,"tasks":"x"})", "unknown_key"},
      {R"({"format":1,"task":7})", "json_type"},
      {R"({"format":1,"task":"a b"})", "out_of_range"},
      {R"({"format":1,"task":""})", "out_of_range"},
      {R"({"format":1,"plugin":{}})", "conflict"},
      {R"({"format":1,"plugin":[]})", "json_type"},
      {R"({"format":1,"plugin":{"sources":["a.cpp"],"library":"a.so"}})", "conflict"},
      {R"({"format":1,"plugin":{"sources":[]}})", "json_type"},
      {R"({"format":1,"plugin":{"sources":["../a.cpp"]}})", "bad_path"},
      {R"({"format":1,"plugin":{"sources":["/etc/a.cpp"]}})", "bad_path"},
      {R"({"format":1,"plugin":{"sources":["a//b.cpp"]}})", "bad_path"},
      {R"({"format":1,"plugin":{"sources":["./b.cpp"]}})", "bad_path"},
      {R"({"format":1,"plugin":{"sources":["a\u0000b.cpp"]}})", "bad_path"},
      {R"({"format":1,"plugin":{"sources":["b.h"]}})", "bad_path"},
      {R"({"format":1,"plugin":{"sources":["b.cpp","b.cpp"]}})", "conflict"},
      {R"({"format":1,"plugin":{"library":"b.dll"}})", "bad_path"},
      {R"({"format":1,"formats":{"q 4":{}}})", "out_of_range"},
      {R"({"format":1,"formats":{"q4":4}})", "json_type"},
      {R"({"format":1,"matrices":{"w":"q4"}})", "unknown_format"},
      {R"({"format":1,"formats":{"q4":{}},"matrices":{"w":"q4"}})", "plugin_missing"},
      {R"({"format":1,"matrices":{"w":4}})", "json_type"},
      {R"({"format":1,"graph":{"layers":[]}})", "out_of_range"},
      {R"({"format":1,"graph":{"layers":[1,1]}})", "not_increasing"},
      {R"({"format":1,"graph":{"layers":[2,1]}})", "not_increasing"},
      {R"({"format":1,"graph":{"layers":[-1]}})", "out_of_range"},
      {R"({"format":1,"graph":{"layers":[4096]}})", "out_of_range"},
      {R"({"format":1,"graph":{"layers":[18446744073709551615]}})", "out_of_range"},
      {R"({"format":1,"graph":{"layers":[1.5]}})", "json_type"},
      {R"({"format":1,"graph":{"mlp_width":{"02":8}}})", "out_of_range"},
      {R"({"format":1,"graph":{"mlp_width":{"x":8}}})", "out_of_range"},
      {R"({"format":1,"graph":{"mlp_width":{"2":0}}})", "out_of_range"},
      {R"({"format":1,"graph":{"layers":[0],"mlp_width":{"2":8}}})", "conflict"},
      {R"({"format":1,"graph":{"experts":{"2":[]}}})", "out_of_range"},
      {R"({"format":1,"graph":{"low_rank":{"w":0}}})", "out_of_range"},
      {R"({"format":1,"graph":{"low_rank":{"":1}}})", "out_of_range"},
      {R"({"format":1,"graph":{"low_rank":[]}})", "json_type"},
      {R"({"format":1,"plugin":{"library":"a.so"},"formats":{"q":{}},"matrices":{"w":"q"},)"
       R"("graph":{"low_rank":{"w":1}}})",
       "conflict"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(code_of([&] { parse_manifest(c.text, "cbench.json"); }), c.code) << c.text;
  }
}

TEST(Manifest, BoundsDepthAndSize) {
  const std::string brackets(100'000, '[');
  const std::string deep = R"({"format":1,"formats":{"q":{"a":)" + brackets;
  EXPECT_EQ(code_of([&] { parse_manifest(brackets, "m"); }), "too_deep");
  EXPECT_EQ(code_of([&] { parse_manifest(deep, "m"); }), "too_deep");
  EXPECT_EQ(code_of([&] { parse_manifest(std::string(kMaxManifestBytes + 1, ' '), "m"); }),
            "too_large");
}

TEST(Manifest, ManyMatricesAreNotQuadratic) {
  std::string text = R"({"format":1,"plugin":{"library":"a.so"},"formats":{"q":{}},"matrices":{)";
  for (int i = 0; i < 300'000; ++i) {
    text += (i == 0 ? "\"m" : ",\"m") + std::to_string(i) + "\":\"q\"";
  }
  EXPECT_EQ(parse_manifest(text + "}}", "m").matrices.size(), 300'000u);
}

TEST(Manifest, SuggestsTheNearKey) {
  try {
    parse_manifest(R"({"format":1,"matrixes":{}})", "cbench.json");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("matrices"), std::string::npos) << error.what();
  }
}

TEST(PlainPath, StaysInside) {
  for (const char* good : {"a", "a/b.cpp", "..a", "a..", "\xc3\xa9/x", ".hidden"}) {
    EXPECT_TRUE(is_plain_path(good)) << good;
  }
  for (const char* bad :
       {"", ".", "..", "/a", "a/", "a//b", "a/../b", "a\\b", " a", "a ", "a/ b", "a\nb", "\xff",
        "a\xe2\x80\xae"
        "b",
        "\xc2\x85"}) {
    EXPECT_FALSE(is_plain_path(bad)) << bad;
  }
  EXPECT_FALSE(is_plain_path(std::string(256, 'a')));
}

}  // namespace
}  // namespace cbench
