// Units, UTF-8, JSON bounds, durable files, child processes.
#include <filesystem>

#include <gtest/gtest.h>
#include <signal.h>

#include "util/error.h"
#include "util/file.h"
#include "util/hash.h"
#include "util/json.h"
#include "util/process.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

template <typename F>
std::string error_code(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.code();
  }
  return "";
}

TEST(Units, SizesNeedUnitsAndAreExact) {
  EXPECT_EQ(parse_size("8 GiB"), int64_t{8} << 30);
  EXPECT_EQ(parse_size("3.5MiB"), 3670016);
  EXPECT_EQ(parse_size("10 B"), 10);
  for (const char* bad : {"8", "8 gib", "-1 GiB", "1e3 B", "0x10 B", "012 KiB", "nan B", "0.3 B",
                          "99999999999 TiB", "", " 8 GiB", "8  GiB"}) {
    EXPECT_EQ(error_code([&] { parse_size(bad); }), "size") << bad;
  }
}

TEST(Units, DurationsNeedUnitsAndAreFinite) {
  EXPECT_DOUBLE_EQ(parse_duration("8h"), 28800);
  EXPECT_DOUBLE_EQ(parse_duration("1.5 m"), 90);
  for (const char* bad : {"8", "0h", "-1h", "inf h", "nan", "012h", "1e9d"}) {
    EXPECT_EQ(error_code([&] { parse_duration(bad); }), "duration") << bad;
  }
}

TEST(Utf8, RepairsOncePerMaximalSubpart) {
  EXPECT_TRUE(is_utf8("Việt 😊"));
  EXPECT_FALSE(is_utf8("\xED\xA0\x80"));
  EXPECT_EQ(repair_utf8("a\xE2\x82z"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(repair_utf8("\xFF\xFE"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(complete_utf8_prefix("ab\xF0\x9F\x98"), 2u);
  EXPECT_EQ(complete_utf8_prefix("ab\xF0\x9F\x98\x8A"), 6u);
  EXPECT_EQ(complete_utf8_prefix("ab\xFF"), 3u);
}

TEST(Text, SuggestsNearWordsOnly) {
  EXPECT_EQ(nearest("verfy", {"verify", "run"}), "verify");
  EXPECT_EQ(nearest("xyzzy", {"verify", "run"}), "");
}

TEST(JsonReader, RefusesWhatOthersAcceptSilently) {
  EXPECT_EQ(error_code([] { parse_json(R"({"a":1,"a":2})", "t"); }), "duplicate_key");
  EXPECT_EQ(error_code([] { parse_json(std::string(100000, '['), "t"); }), "too_deep");
  EXPECT_EQ(error_code([] { parse_json("1e999", "t"); }), "json");
  EXPECT_EQ(error_code([] { parse_json("{} x", "t"); }), "json");
  EXPECT_EQ(error_code([] { parse_json("\"\xFF\"", "t"); }), "json");
  EXPECT_EQ(parse_json(R"({"a":{"b":1},"c":{"b":2}})", "t")["c"]["b"], 2);
}

TEST(File, AtomicWriteReplacesAndTempDirVanishes) {
  std::string path;
  {
    TempDir dir;
    path = dir.path();
    write_file_atomic(path + "/x", "one");
    write_file_atomic(path + "/x", "two");
    EXPECT_EQ(read_file(path + "/x"), "two");
    EXPECT_EQ(error_code([&] { read_file(path + "/x", 2); }), "too_large");
    EXPECT_EQ(error_code([&] { read_file(path + "/none"); }), "not_found");
    EXPECT_EQ(error_code([&] { read_file(path); }), "not_regular");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Hash, KnownDigests) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ProcessTest, CapturesFeedsAndBounds) {
  RunResult cat = run_process({.argv = {"cat"}}, 5, 1 << 20, "hello");
  EXPECT_TRUE(cat.status.ok());
  EXPECT_EQ(cat.out, "hello");
  RunResult exit3 = run_process({.argv = {"sh", "-c", "echo no >&2; exit 3"}}, 5);
  EXPECT_EQ(exit3.status.code, 3);
  EXPECT_EQ(exit3.err, "no\n");
  RunResult endless = run_process({.argv = {"yes"}}, 0.3, 1000);
  EXPECT_TRUE(endless.timed_out);
  EXPECT_TRUE(endless.truncated);
  EXPECT_EQ(endless.out.size(), 1000u);
  EXPECT_EQ(error_code([] { run_process({.argv = {"no-such-program"}}, 1); }), "not_found");
}

TEST(ProcessTest, DoesNotWaitForHoldersOfThePipe) {
  RunResult result = run_process({.argv = {"sh", "-c", "sleep 30 & echo done"}}, 10);
  EXPECT_EQ(result.out, "done\n");
  EXPECT_LT(result.seconds, 5);
}

}  // namespace
}  // namespace cbench
