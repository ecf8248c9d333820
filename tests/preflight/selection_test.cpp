// Choosing items, shots and documents: what is chosen, what never, and how bad input ends.
#include "eval/selection.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zstd.h>

#include "eval/grading/items.h"
#include "eval/ngrams.h"
#include "preflight/mini_task.h"
#include "text/jsonl.h"
#include "util/error.h"
#include "util/json.h"

namespace cbench {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string code_of(const std::function<void()>& run, std::string* message = nullptr) {
  try {
    run();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return "";
}

std::set<std::string> ids_of(const std::string& path) {
  std::set<std::string> ids;
  JsonlReader reader(path);
  for (std::string_view line; reader.next(line);) {
    ids.insert(json_string(parse_json(line, path), "id", path));
  }
  return ids;
}

TEST(Ngrams, WordsAndRuns) {
  EXPECT_EQ(word_hashes("The cat, the  CAT."), word_hashes("the cat THE cat"));
  EXPECT_EQ(word_hashes("").size(), 0u);
  EXPECT_EQ(word_hashes("... !?").size(), 0u);
  EXPECT_EQ(word_hashes("\xe6\x97\xa5\xe6\x9c\xac"
                        "a")
                .size(),
            3u)
      << "each ideograph is a word";
  EXPECT_EQ(word_hashes("\xe6").size(), 1u) << "a cut character ends with the text";
  EXPECT_EQ(ngram_hashes(word_hashes(random_text(1, 20))).size(), 8u);
  EXPECT_EQ(ngram_hashes(word_hashes("a b c")).size(), 1u);
}

TEST(Ngrams, FindsARunOfThirteenAndNoTwelve) {
  const std::string text = random_text(5, 40);
  const auto start_of = [&](int word) {
    size_t at = 0;
    for (int i = 0; i < word; ++i) at = text.find(' ', at) + 1;
    return at;
  };
  for (const int words : {12, 13}) {
    NgramFinder finder;
    finder.add(text);
    finder.scan("before " + text.substr(start_of(10), start_of(10 + words) - start_of(10)) +
                " after");
    EXPECT_EQ(finder.found(text), words == 13) << words;
  }
  NgramFinder whole;
  whole.add("What is the capital of Spain?");
  whole.scan("Q: what is the capital of spain A: Madrid");
  EXPECT_TRUE(whole.found("What is the capital of Spain?"));
  EXPECT_FALSE(whole.found("What is the capital of France?"));
}

TEST(Selection, ChoosesWhatTheContractWants) {
  MiniTask task;
  task.place_raw();
  EXPECT_TRUE(needs_selection(task.contract()));
  select_data(task.contract());
  EXPECT_FALSE(needs_selection(task.contract()));
  const auto gsm8k = read_gsm8k(task.data() + "/items/gsm8k.jsonl");
  EXPECT_EQ(gsm8k.size(), 6u);
  EXPECT_EQ(read_gsm8k(task.data() + "/shots/gsm8k.jsonl").size(), 4u);
  EXPECT_EQ(read_humaneval(task.data() + "/items/humaneval.jsonl").size(), 4u);
  EXPECT_EQ(read_triviaqa(task.data() + "/items/triviaqa.jsonl").size(), 5u);
  EXPECT_EQ(read_triviaqa(task.data() + "/shots/triviaqa.jsonl").size(), 5u);
  EXPECT_FALSE(std::filesystem::exists(task.data() + "/shots/humaneval.jsonl"));
}

TEST(Selection, IsTheSameEveryTimeAndFollowsTheSeed) {
  MiniTask one, two;
  one.place_raw();
  two.place_raw();
  select_data(one.contract());
  select_data(two.contract());
  EXPECT_EQ(selection_hashes(one.contract()), selection_hashes(two.contract()));
  Contract other = two.contract();
  other.likelihood.seed = 8;
  select_data(other);
  EXPECT_NE(selection_hashes(one.contract()), selection_hashes(two.contract()));
}

TEST(Selection, WhatTheAgentMaySeeIsNeverHidden) {
  MiniTask task;
  task.place_raw();
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Contract contract = task.contract();
    contract.likelihood.seed = seed;
    select_data(contract);
    for (const Gsm8kItem& item : read_gsm8k(task.data() + "/items/gsm8k.jsonl")) {
      EXPECT_NE(item.id, "0") << "it stands in visible/text.jsonl";
    }
    for (const char* side : {"search", "verification"}) {
      EXPECT_FALSE(
          ids_of(task.data() + "/documents/" + side + ".jsonl").contains(kVisibleDocument));
    }
  }
}

TEST(Selection, SidesAreDisjointByIdAndText) {
  MiniTask task;
  task.place_raw();
  select_data(task.contract());
  const std::string search = task.data() + "/documents/search.jsonl";
  const std::string verification = task.data() + "/documents/verification.jsonl";
  const Overlap overlap = document_overlap(search, verification, 64);
  EXPECT_EQ(overlap.ids, 0);
  EXPECT_EQ(overlap.ngrams, 0);
  EXPECT_GT(overlap.search_ngrams, 100);
  const auto one = ids_of(search), two = ids_of(verification);
  for (const auto& ids : {one, two}) {
    int alpha = 0;
    for (const std::string& id : ids) alpha += id.starts_with("alpha") ? 1 : 0;
    EXPECT_GE(alpha, 4);
    EXPECT_GE(static_cast<int>(ids.size()) - alpha, 4);
  }
  // The four documents that begin alike are not on both sides.
  int here = 0, there = 0;
  for (const char* id : {"alpha-0", "alpha-1", "beta-0", "beta-1"}) {
    here += one.contains(id) ? 1 : 0;
    there += two.contains(id) ? 1 : 0;
  }
  EXPECT_TRUE(here == 0 || there == 0);
  const Overlap planted = document_overlap(search, search, 64);
  EXPECT_EQ(planted.ids, static_cast<int64_t>(one.size()));
  EXPECT_GT(planted.ngrams, 0);
  const Json proof = read_json(task.data() + "/reference/disjoint.json");
  EXPECT_EQ(proof["shared_ngrams"], 0);
  EXPECT_EQ(proof["sha256"].size(), 7u);
}

TEST(Selection, HiddenFilesArePrivate) {
  MiniTask task;
  task.place_raw();
  select_data(task.contract());
  for (const char* path :
       {"items", "shots", "documents", "raw", "items/gsm8k.jsonl", "raw/gsm8k",
        "raw/gsm8k/test.jsonl", "documents/verification.jsonl", "reference/disjoint.json"}) {
    struct stat info {};
    ASSERT_EQ(::stat((task.data() + "/" + path).c_str(), &info), 0) << path;
    EXPECT_EQ(info.st_mode & 077, 0u) << path;
  }
}

struct Bad {
  const char* path;
  std::string content;
  std::string code, says;
};

TEST(Selection, BadInputIsAClearErrorAndWritesNothing) {
  MiniTask good;
  good.place_raw();
  const std::string gsm8k = good.file("raw/gsm8k/test.jsonl");
  const std::string documents = good.file("raw/documents.jsonl");
  const std::string first = documents.substr(0, documents.find('\n') + 1);
  const std::vector<Bad> cases = {
      {"raw/gsm8k/test.jsonl",
       R"({"id":"a","question":"Q one","answer":"#### 1"})"
       "\n"
       R"({"id":"a","question":"Q two","answer":"#### 2"})"
       "\n",
       "duplicate_id", ":2"},
      {"raw/triviaqa/validation.jsonl",
       R"({"question_id":"q","question":"Who?","answer":{"value":"A","aliases":["A"]}})"
       "\n"
       R"({"question_id":"q","question":"Where?","answer":{"value":"B","aliases":["B"]}})"
       "\n",
       "duplicate_id", ":2"},
      {"raw/gsm8k/test.jsonl", "", "no_items", "test.jsonl"},
      {"raw/gsm8k/test.jsonl", gsm8k.substr(0, gsm8k.size() / 2), "json", "test.jsonl"},
      {"raw/gsm8k/test.jsonl", gsm8k.substr(0, gsm8k.find('\n') + 1), "items", "wants 6"},
      {"raw/documents.jsonl", first + first, "duplicate_id", ":2"},
      {"raw/documents.jsonl",
       R"({"id":"x","source":"alpha","text":" \n"})"
       "\n",
       "documents", "no text"},
      {"raw/documents.jsonl",
       R"({"id":"x","source":"alpha"})"
       "\n",
       "json_missing", "text"},
      {"raw/documents.jsonl",
       R"({"id":"x","source":"alpha","text":5})"
       "\n",
       "json_type", "text"},
      {"raw/documents.jsonl", "{\"id\":\"x\",\"source\":\"alpha\",\"text\":\"\xff\"}\n", "utf8",
       ":1"},
      {"raw/documents.jsonl", documents.substr(0, documents.size() / 8), "json", "documents.jsonl"},
      {"raw/documents.jsonl", first, "documents", "alpha"},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(std::string(bad.path) + " " + bad.content.substr(0, 60));
    MiniTask task;
    task.place_raw();
    task.overwrite(bad.path, bad.content);
    std::string message;
    EXPECT_EQ(code_of([&] { select_data(task.contract()); }, &message), bad.code) << message;
    EXPECT_THAT(message, HasSubstr(bad.says));
    EXPECT_FALSE(std::filesystem::exists(task.data() + "/items"));
    EXPECT_FALSE(std::filesystem::exists(task.data() + "/documents"));
  }
}

TEST(Selection, TheSameQuestionFromTwoSourcesCountsOnce) {
  MiniTask task;
  task.place_raw();
  const std::string lines = task.file("raw/triviaqa/validation.jsonl");
  std::string twice;
  for (int i = 0; i < 8; ++i) {
    const Json record = {{"question_id", "q" + std::to_string(i)},
                         {"question", random_text(static_cast<uint64_t>(i) + 1, 8)},
                         {"answer", {{"value", "v"}, {"aliases", {"v"}}}}};
    twice += dump_json(record) + "\n" + dump_json(record) + "\n";
  }
  task.overwrite("raw/triviaqa/validation.jsonl", twice);
  select_data(task.contract());
  EXPECT_EQ(ids_of(task.data() + "/items/triviaqa.jsonl").size(), 5u);
}

TEST(Selection, HalfAZstdFrameAndALineWithoutEnd) {
  MiniTask task;
  task.place_raw();
  Contract contract = task.contract();
  const std::string plain = task.file("raw/documents.jsonl");
  std::string frame(ZSTD_compressBound(plain.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), plain.data(), plain.size(), 1));
  const auto use = [&](const std::string& name, const std::string& content) {
    task.overwrite(name, content);
    for (FetchItem& item : contract.fetch) {
      if (item.kind == "dolma") item.name = name;
    }
    return code_of([&] { select_data(contract); });
  };
  EXPECT_EQ(use("raw/d.jsonl.zst", frame.substr(0, frame.size() / 2)), "compressed");
  // A gigabyte of one line, compressed to nothing: refused at 32 MiB.
  const std::string blanks(1u << 20, 'x');
  std::string bomb;
  std::string piece(ZSTD_compressBound(blanks.size()), '\0');
  piece.resize(ZSTD_compress(piece.data(), piece.size(), blanks.data(), blanks.size(), 1));
  for (int i = 0; i < 1024; ++i) bomb += piece;
  EXPECT_EQ(use("raw/bomb.jsonl.zst", bomb), "line_too_long");
  EXPECT_EQ(use("raw/whole.jsonl.zst", frame), "");
}

/// The text of some gsm8k item that would be chosen, with its id.
std::pair<std::string, std::string> chosen_item(const MiniTask& task) {
  select_data(task.contract());
  const Gsm8kItem item = read_gsm8k(task.data() + "/items/gsm8k.jsonl").front();
  return {item.id, item.question};
}

bool is_chosen(const MiniTask& task, const std::string& id) {
  select_data(task.contract());
  const auto items = read_gsm8k(task.data() + "/items/gsm8k.jsonl");
  return std::ranges::any_of(items, [&](const Gsm8kItem& item) { return item.id == id; });
}

TEST(Selection, TheTextOfPapersIsScanned) {
  MiniTask task;
  task.place_raw();
  const auto [id, question] = chosen_item(task);
  // As a paper sets it: lines end anywhere, a word is divided.
  std::string set = question;
  for (size_t i = 20; i < set.size(); ++i) {
    if (set[i] == ' ' && i % 2 == 0) set[i] = '\n';
  }
  const size_t word = set.find_first_of("abcdefghijklmnopqrstuvwxyz", set.size() / 2);
  set.insert(word + 1, "-\n");
  task.overwrite("visible/papers/pdf/p.pdf", "%PDF-1.4 \xff\x00 binary");
  task.overwrite("visible/papers/text/p.txt", std::string(9 << 20, ' ') + "\xc3\xa9 " + set + "\n");
  EXPECT_FALSE(is_chosen(task, id));
  const Json proof = read_json(task.data() + "/reference/disjoint.json");
  EXPECT_EQ(proof["chosen"]["visible"]["pdfs_by_text"], 1);
  EXPECT_GE(proof["chosen"]["visible"]["files"], 2);
}

TEST(Selection, VisibleDataThatCannotBeScannedIsRefused) {
  const std::vector<std::tuple<const char*, std::string, const char*>> cases = {
      {"visible/train.parquet", std::string("PAR1\0\0data", 10), "Parquet"},
      {"visible/papers/pdf/alone.pdf", "%PDF-1.4", "PDF without its text"},
      {"visible/notes.pdf", "%PDF-1.4", "PDF without its text"},
      {"visible/text.gz", "\x1f\x8b\x08 data", "gzip"},
      {"visible/a.zip", "PK\x03\x04", "zip"},
      {"visible/latin1.txt", "caf\xe9 text", "not UTF-8"},
      {"visible/late.bin", std::string(6 << 20, 'a') + std::string(1, '\0'), "not UTF-8"},
      {"visible/cut.txt", "ends inside \xc3", "not UTF-8"},
      {"visible/no.json", std::string("{\"a\": \0}", 9), "not UTF-8"},
  };
  for (const auto& [path, content, says] : cases) {
    MiniTask task;
    task.place_raw();
    task.overwrite(path, content);
    std::string message;
    EXPECT_EQ(code_of([&] { select_data(task.contract()); }, &message), "visible_data") << path;
    EXPECT_THAT(message, HasSubstr(says));
    EXPECT_THAT(message, HasSubstr(path));
    EXPECT_FALSE(std::filesystem::exists(task.data() + "/items"));
  }
}

TEST(Selection, NothingFetchedSaysWhatToDo) {
  MiniTask task;
  std::string message;
  EXPECT_EQ(code_of([&] { select_data(task.contract()); }, &message), "not_fetched");
  EXPECT_THAT(message, HasSubstr("cbench fetch"));
}

}  // namespace
}  // namespace cbench
