// The strict safetensors reader against the vectors, hostile headers, and its own writer.
#include "package/safetensors.h"

#include <fstream>

#include <openssl/evp.h>

#include "package/helpers.h"
#include "package/tree.h"
#include "util/json.h"

namespace cbench {
namespace {

using testing::code_of;
using testing::image;
using testing::put;
using testing::tiny_tensors;

std::vector<Json> read_vectors(const std::string& name) {
  std::ifstream in(std::string(CBENCH_FIXTURES) + "/package/" + name);
  std::vector<Json> out;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) out.push_back(parse_json(line, name));
  }
  return out;
}

std::string from_base64(const std::string& text) {
  std::string out(text.size(), '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  EXPECT_GE(size, 0);
  size_t padding = 0;
  while (padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  out.resize(static_cast<size_t>(size) - padding);
  return out;
}

std::string parse_code(const std::string& file) {
  return code_of([&] { parse_safetensors(file, "test"); });
}

TEST(Safetensors, AcceptsAndRefusesTheVectors) {
  const auto vectors = read_vectors("safetensors_vectors.jsonl");
  ASSERT_GE(vectors.size(), 28u);
  const TempDir dir;
  for (const Json& vector : vectors) {
    SCOPED_TRACE(vector["id"].get<std::string>());
    const std::string bytes = from_base64(vector["b64"].get<std::string>());
    const std::string expected =
        vector["accept"].get<bool>() ? "" : vector["reason"].get<std::string>();
    EXPECT_EQ(parse_code(bytes), expected);
    put(dir.path() + "/file.safetensors", bytes);
    EXPECT_EQ(code_of([&] { TensorFile file(dir.path() + "/file.safetensors"); }), expected);
  }
}

TEST(Safetensors, RefusesLfsPointersByName) {
  try {
    parse_safetensors("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "w");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("LFS pointer"), std::string::npos) << error.what();
  }
}

struct HeaderCase {
  const char* name;
  std::string header;
  size_t data;
  const char* code;
};

class SafetensorsHeader : public ::testing::TestWithParam<HeaderCase> {};

TEST_P(SafetensorsHeader, IsJudged) {
  const HeaderCase& c = GetParam();
  EXPECT_EQ(parse_code(image(c.header, std::string(c.data, '\0'))), c.code);
}

std::string entry(const std::string& body) { return "{\"a\":{" + body + "}}"; }

INSTANTIATE_TEST_SUITE_P(
    Hostile, SafetensorsHeader,
    ::testing::Values(
        HeaderCase{"Empty", "", 0, "header_start"}, HeaderCase{"Array", "[]", 0, "header_start"},
        HeaderCase{"ByteOrderMark", "\xef\xbb\xbf{}", 0, "header_start"},
        HeaderCase{"BadUtf8", "{\"\xff\":1}", 0, "utf8"},
        HeaderCase{"TwoObjects", "{}{}", 0, "header_padding"},
        HeaderCase{"NewlinePadding", "{}\n", 0, "header_padding"},
        HeaderCase{"NulThenBrace", std::string("{}\0}", 4), 0, "header_padding"},
        HeaderCase{"NulInside", std::string("{\"a\0\":1}", 8), 0, "json"},
        HeaderCase{"SpacePadding", "{}     ", 0, ""},
        HeaderCase{"MetadataEmpty", "{\"__metadata__\":{}}", 0, ""},
        HeaderCase{"MetadataText", R"({"__metadata__":{"format":"pt"}})", 0, ""},
        HeaderCase{"MetadataNumber", R"({"__metadata__":{"a":1}})", 0, "metadata"},
        HeaderCase{"MetadataNested", R"({"__metadata__":{"a":{"b":"c"}}})", 0, "metadata"},
        HeaderCase{"MetadataList", R"({"__metadata__":[]})", 0, "metadata"},
        HeaderCase{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "duplicate_key"},
        HeaderCase{"MetadataKeyTwice", R"({"__metadata__":{"a":"b","a":"b"}})", 0, "duplicate_key"},
        HeaderCase{"EntryIsNumber", R"({"a":1})", 0, "entry_fields"},
        HeaderCase{"EntryIsNull", R"({"a":null})", 0, "entry_fields"},
        HeaderCase{"ExtraField", entry(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0)"), 1,
                   "entry_fields"},
        HeaderCase{"EscapedDuplicate",
                   entry(R"("dtype":"U8","\u0064type":"U8","shape":[1],"data_offsets":[0,1])"), 1,
                   "duplicate_key"},
        HeaderCase{"UnknownTwice", entry(R"("x":1,"x":1)"), 0, "duplicate_key"},
        HeaderCase{"DtypeNumber", entry(R"("dtype":1,"shape":[1],"data_offsets":[0,1])"), 1,
                   "dtype"},
        HeaderCase{"DtypeLower", entry(R"("dtype":"u8","shape":[1],"data_offsets":[0,1])"), 1,
                   "dtype"},
        HeaderCase{"ShapeNegative", entry(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1,
                   "shape"},
        HeaderCase{"ShapeMinusZero", entry(R"("dtype":"U8","shape":[-0],"data_offsets":[0,0])"), 0,
                   "shape"},
        HeaderCase{"ShapeFloat", entry(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1,
                   "shape"},
        HeaderCase{"ShapeNested", entry(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), 1,
                   "shape"},
        HeaderCase{"ShapeText", entry(R"("dtype":"U8","shape":"1","data_offsets":[0,1])"), 1,
                   "shape"},
        HeaderCase{"ShapeBeyondU64",
                   entry(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1])"), 1,
                   "overflow"},
        HeaderCase{"ShapeBitsOverflow",
                   entry(R"("dtype":"U8","shape":[4294967296,536870912],"data_offsets":[0,1])"), 1,
                   "overflow"},
        HeaderCase{"Scalar", entry(R"("dtype":"U8","shape":[],"data_offsets":[0,1])"), 1, ""},
        HeaderCase{"SixBits", entry(R"("dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3])"), 3,
                   ""},
        HeaderCase{"SixBitsRagged", entry(R"("dtype":"F6_E3M2","shape":[3],"data_offsets":[0,3])"),
                   3, "misaligned_subbyte"},
        HeaderCase{"OffsetNegative", entry(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])"), 1,
                   "offsets"},
        HeaderCase{"OffsetOne", entry(R"("dtype":"U8","shape":[1],"data_offsets":[1])"), 1,
                   "offsets"},
        HeaderCase{"OffsetObject", entry(R"("dtype":"U8","shape":[1],"data_offsets":{})"), 1,
                   "offsets"},
        HeaderCase{"HoleInside",
                   R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                   3, "hole"},
        HeaderCase{"EmptyInsideOther",
                   R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                   R"("b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
                   2, "overlap"},
        HeaderCase{"UnsortedHeader",
                   R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                   R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                   2, ""},
        HeaderCase{
            "DeepMetadata",
            "{\"__metadata__\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0,
            "json_depth"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, BoundsTheHeaderBeforeReadingIt) {
  std::string huge(8, '\xff');
  EXPECT_EQ(parse_code(huge + "{}"), "header_too_large");
  std::string at_limit(8, '\0');
  const uint64_t size = kMaxSafetensorsHeader;
  std::memcpy(at_limit.data(), &size, 8);
  EXPECT_EQ(parse_code(at_limit + "{}"), "header_past_eof");
  std::string spaces = at_limit + "{}";
  spaces.resize(8 + size, ' ');
  EXPECT_EQ(parse_code(spaces), "");
}

TEST(Safetensors, ReadsManyTensors) {
  std::vector<std::string> names;
  for (int i = 0; i < 100'000; ++i) names.push_back("t" + std::to_string(i));
  const std::string file = tiny_tensors(names);
  const ParsedTensors parsed = parse_safetensors(file, "many");
  ASSERT_EQ(parsed.tensors.size(), names.size());
  EXPECT_EQ(parsed.tensors[77'777].name, "t77777");
  names.push_back("t5");
  EXPECT_EQ(parse_code(tiny_tensors(names)), "duplicate_key");
}

TEST(Safetensors, WritesWhatItReads) {
  const TempDir dir;
  const std::string path = dir.path() + "/w.safetensors";
  const std::string bytes = "0123456789abcdef";
  const std::vector<Tensor> tensors = {
      {"byte", DType::kU8, {3}, std::string_view(bytes).substr(0, 3)},
      {"b \"q\" \xc3\xa9", DType::kF32, {2, 1}, std::string_view(bytes).substr(0, 8)},
      {"a", DType::kF32, {}, std::string_view(bytes).substr(4, 4)},
      {"empty", DType::kBF16, {0, 7}, {}},
  };
  write_safetensors(path, tensors, {{"format", "pt"}});
  const TensorFile file(path);
  ASSERT_EQ(file.tensors().size(), 4u);
  ASSERT_EQ(file.metadata().size(), 1u);
  EXPECT_EQ(file.metadata()[0].second, "pt");
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, tensors[1].name);
  EXPECT_EQ(file.tensors()[1].bytes, tensors[1].bytes);
  EXPECT_EQ(file.tensors()[1].shape, tensors[1].shape);
  EXPECT_EQ(file.tensors()[3].name, "byte");
  const std::string image_bytes = read_file(path);
  uint64_t header = 0;
  std::memcpy(&header, image_bytes.data(), 8);
  EXPECT_EQ(header % 8, 0u);
}

TEST(Safetensors, CountsNonFiniteValues) {
  const auto count = [](DType dtype, std::string_view bytes) {
    return count_non_finite({"t", dtype, {}, bytes});
  };
  EXPECT_EQ(count(DType::kBF16, {"\x80\x7f\xc0\xff\x7f\x7f\x00\x3f", 8}), 2u);
  EXPECT_EQ(count(DType::kF16, {"\x00\x7c\x01\xfc\xff\x7b", 6}), 2u);
  EXPECT_EQ(count(DType::kF32, {"\x00\x00\x80\xff\xff\xff\x7f\x7f", 8}), 1u);
  EXPECT_EQ(count(DType::kF64, {"\x00\x00\x00\x00\x00\x00\xf8\x7f", 8}), 1u);
  EXPECT_EQ(count(DType::kU8, "\xff\xff"), 0u);
}

TEST(Safetensors, RefusesToWriteNonsense) {
  const TempDir dir;
  const std::string path = dir.path() + "/w.safetensors";
  const auto write = [&](const std::vector<Tensor>& tensors) {
    return code_of([&] { write_safetensors(path, tensors); });
  };
  EXPECT_EQ(write({{"a", DType::kF32, {2}, "1234"}}), "size_mismatch");
  EXPECT_EQ(write({{"a", DType::kU8, {1}, "1"}, {"a", DType::kU8, {1}, "1"}}), "duplicate_tensor");
  EXPECT_EQ(write({{"\xff", DType::kU8, {1}, "1"}}), "utf8");
  EXPECT_EQ(write({{"__metadata__", DType::kU8, {1}, "1"}}), "metadata");
  EXPECT_EQ(write({{"a", DType::kU8, {-1}, "1"}}), "overflow");
  EXPECT_EQ(code_of([&] { TensorFile file(path); }), "not_found");
}

TEST(TensorStore, JudgesTheIndexVectors) {
  for (const Json& vector : read_vectors("safetensors_index_vectors.jsonl")) {
    SCOPED_TRACE(vector["id"].get<std::string>());
    const TempDir dir;
    put(dir.path() + "/model.safetensors.index.json", vector["index"].dump());
    for (const auto& [shard, names] : vector["shards"].items()) {
      put(dir.path() + "/" + shard, tiny_tensors(names.get<std::vector<std::string>>()));
    }
    const bool accept = !vector["accept"].is_boolean() || vector["accept"].get<bool>();
    size_t warnings = 0;
    const std::string code =
        code_of([&] { warnings = TensorStore::open_checkpoint(dir.path()).warnings().size(); });
    EXPECT_EQ(code.empty(), accept) << code;
    EXPECT_EQ(warnings != 0, vector["accept"] == "warn");
    const auto in_tree = [&] { TensorStore::open_checkpoint(PackageTree::walk(dir.path())); };
    EXPECT_EQ(code_of(in_tree), code);
  }
}

TEST(TensorStore, LoadsOnlyWhatTheIndexNames) {
  const TempDir dir;
  put(dir.path() + "/model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors"}})");
  put(dir.path() + "/one.safetensors", tiny_tensors({"a"}));
  put(dir.path() + "/model.safetensors", tiny_tensors({"stray"}));
  const TensorStore store = TensorStore::open_checkpoint(dir.path());
  EXPECT_NE(store.find("a"), nullptr);
  EXPECT_EQ(store.find("stray"), nullptr);
  put(dir.path() + "/one.safetensors", tiny_tensors({"a", "extra"}));
  EXPECT_EQ(code_of([&] { TensorStore::open_checkpoint(dir.path()); }), "index_tensor_unlisted");
}

TEST(TensorStore, ReadsARealCheckpoint) {
  const TensorStore store =
      TensorStore::open_checkpoint(std::string(CBENCH_FIXTURES) + "/stories260k");
  ASSERT_FALSE(store.tensors().empty());
  for (const Tensor& tensor : store.tensors()) EXPECT_EQ(store.find(tensor.name), &tensor);
  EXPECT_EQ(store.find("no.such.tensor"), nullptr);
}

TEST(TensorStore, NamesAreUniqueAcrossWeightFiles) {
  const TempDir dir;
  put(dir.path() + "/weights-1.safetensors", tiny_tensors({"a", "b"}));
  put(dir.path() + "/weights-2.safetensors", tiny_tensors({"c"}));
  put(dir.path() + "/other.safetensors", "not read");
  EXPECT_EQ(TensorStore::open_package(PackageTree::walk(dir.path())).tensors().size(), 3u);
  put(dir.path() + "/weights-2.safetensors", tiny_tensors({"b"}));
  EXPECT_EQ(code_of([&] { TensorStore::open_package(PackageTree::walk(dir.path())); }),
            "duplicate_tensor");
}

TEST(TensorStore, MissingCheckpoint) {
  const TempDir dir;
  EXPECT_EQ(code_of([&] { TensorStore::open_checkpoint(dir.path()); }), "no_weights");
}

}  // namespace
}  // namespace cbench
