#include "text/jsonl.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "text/decompress.h"
#include "util/error.h"
#include "util/file.h"

namespace cbench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class Jsonl : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = dir_.path() + "/" + name;
    write_file_atomic(path, bytes);
    return path;
  }
  static std::vector<std::string> lines(const std::string& path, uint64_t max_line = 1 << 20) {
    JsonlReader reader(path, max_line);
    std::vector<std::string> all;
    for (std::string_view line; reader.next(line);) all.emplace_back(line);
    return all;
  }
  static Error error_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error;
    }
    return UsageError("none", "no error");
  }
  static Error read_error(const std::string& path, uint64_t max_line = 1 << 20) {
    return error_of([&] { lines(path, max_line); });
  }

  TempDir dir_;
};

TEST_F(Jsonl, ReadsPlainGzipAndZstd) {
  const std::string text = "{\"a\":1}\n\n  \r\n{\"b\":2}\r\n[3]";
  for (const auto& [name, bytes] : std::vector<std::pair<std::string, std::string>>{
           {"x.jsonl", text}, {"x.jsonl.gz", gzip(text)}, {"x.jsonl.zst", zstd(text)}}) {
    EXPECT_THAT(lines(write(name, bytes)), ElementsAre("{\"a\":1}", "{\"b\":2}", "[3]")) << name;
  }
  EXPECT_THAT(lines(write("empty.jsonl", "")), ElementsAre());
}

TEST_F(Jsonl, ReadsSeveralFramesAndMembers) {
  EXPECT_THAT(lines(write("x.zst", zstd("1\n2") + zstd("") + zstd("3\n"))), ElementsAre("1", "23"));
  EXPECT_THAT(lines(write("x.gz", gzip("1\n2") + gzip("") + gzip("3\n"))), ElementsAre("1", "23"));
}

TEST_F(Jsonl, ReadsLinesLongerThanItsBlocks) {
  std::string text;
  for (int i = 0; i < 5; ++i) text += std::string(700000 + static_cast<size_t>(i), 'x') + "\n";
  for (const auto& [name, bytes] : std::vector<std::pair<std::string, std::string>>{
           {"x.jsonl", text}, {"x.jsonl.gz", gzip(text)}, {"x.jsonl.zst", zstd(text)}}) {
    const auto all = lines(write(name, bytes));
    ASSERT_EQ(all.size(), 5u) << name;
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(all[i].size(), 700000 + i) << name;
  }
}

TEST_F(Jsonl, NamesLineOfBadUtf8) {
  const Error error = read_error(write("x.jsonl", "1\n\n\"\xC3\"\n"));
  EXPECT_EQ(error.code(), "utf8");
  EXPECT_THAT(error.what(), HasSubstr("x.jsonl:3"));
}

TEST_F(Jsonl, BoundsLines) {
  EXPECT_THAT(lines(write("x.jsonl", "12345\n6"), 5), ElementsAre("12345", "6"));
  const Error error = read_error(write("x.jsonl", "1\n123456\n"), 5);
  EXPECT_EQ(error.code(), "line_too_long");
  EXPECT_THAT(error.what(), HasSubstr("x.jsonl:2"));
  // A bomb: a gigabyte in a hundred kilobytes stops at the bound.
  std::string frames;
  const std::string frame = zstd(std::string(8 << 20, ' '));
  for (int i = 0; i < 128; ++i) frames += frame;
  EXPECT_EQ(read_error(write("bomb.jsonl.zst", frames)).code(), "line_too_long");
}

TEST_F(Jsonl, ReportsDamage) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::to_string(i * 7919) + "\n";
  const std::string good_zstd = zstd(text);
  const std::string good_gzip = gzip(text);
  const auto expect_damage = [&](const std::string& name, const std::string& bytes,
                                 const char* message) {
    const Error error = read_error(write(name, bytes));
    EXPECT_EQ(error.code(), "compressed") << name << ": " << error.what();
    EXPECT_THAT(error.what(), HasSubstr(message));
  };
  expect_damage("half.zst", good_zstd.substr(0, good_zstd.size() / 2), "truncated");
  expect_damage("half.gz", good_gzip.substr(0, good_gzip.size() / 2), "truncated");
  expect_damage("no_footer.gz", good_gzip.substr(0, good_gzip.size() - 4), "truncated");
  expect_damage("tail.zst", good_zstd + "garbage!", "trailing");
  expect_damage("tail.gz", good_gzip + "garbage!", "trailing");
  expect_damage("plain.zst", text, "bad zstd");
  expect_damage("plain.gz", text, "bad gzip");
  expect_damage("empty.zst", "", "empty");
  expect_damage("empty.gz", "", "early");
  std::string flipped = good_gzip;
  flipped[flipped.size() / 2] ^= 0x55;
  expect_damage("flipped.gz", flipped, "bad gzip");
}

TEST_F(Jsonl, ReportsMissingFile) {
  EXPECT_EQ(read_error(dir_.path() + "/none.jsonl").code(), "not_found");
  EXPECT_EQ(read_error(dir_.path()).code(), "not_regular");
}

TEST(ZstdDecompress, IsBoundedAndStrict) {
  const std::string text(100000, 'x');
  const auto code = [](const std::string& bytes, uint64_t max) -> std::string {
    try {
      zstd_decompress(bytes, max, "x");
      return "ok";
    } catch (const Error& error) {
      return error.code();
    }
  };
  EXPECT_EQ(zstd_decompress(zstd(text) + zstd("y"), 1 << 20, "x"), text + "y");
  EXPECT_EQ(code(zstd(text), text.size()), "ok");
  EXPECT_EQ(code(zstd(text), text.size() - 1), "too_large");
  EXPECT_EQ(code(zstd(text).substr(0, 10), 1 << 20), "compressed");
  EXPECT_EQ(code(zstd(text) + "tail", 1 << 20), "compressed");
  EXPECT_EQ(code("", 1 << 20), "compressed");
}

}  // namespace
}  // namespace cbench
