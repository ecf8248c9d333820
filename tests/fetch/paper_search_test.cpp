// Searching papers: ranking, snippets, and folders and queries that mean harm.
#include "fetch/paper_search.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fetch/rig.h"
#include "util/text.h"

namespace cbench {
namespace {

using testing::HasSubstr;

struct Folder {
  TempDir dir{"cbench-papers"};
  Folder() { make_directories(dir.path() + "/text"); }
  void add(const std::string& name, const std::string& title, const std::string& text) {
    write_file_atomic(dir.path() + "/text/" + name + ".txt", text);
    list(title, "text/" + name + ".txt");
  }
  void list(const std::string& title, const std::string& file) {
    lines += dump_json({{"title", title}, {"file", file}}) + "\n";
    write_file_atomic(dir.path() + "/papers.jsonl", lines);
  }
  std::string lines;
};

std::string filler(int words) {
  std::string text;
  for (int i = 0; i < words; ++i)
    text += "filler" + std::to_string(i % 50) + (i % 10 == 9 ? "\n" : " ");
  return text;
}

TEST(Papers, RanksByRareWordsAndLength) {
  Folder folder;
  folder.add("a", "Alpha", filler(500) + "the hessian of the layer\n" + filler(500));
  folder.add("b", "Beta", "the the the the " + filler(100));
  folder.add("c", "Gamma", "hessian hessian hessian Hessian\n" + filler(100) + "the layer");
  folder.add("d", "Delta", filler(100));
  const PaperIndex index(folder.dir.path());
  ASSERT_EQ(index.papers().size(), 4u);
  const auto hits = index.search("the HESSIAN", 10);
  ASSERT_EQ(hits.size(), 3u);
  EXPECT_EQ(hits[0].paper.title, "Gamma");
  EXPECT_EQ(hits[1].paper.title, "Alpha");
  EXPECT_GT(hits[0].score, hits[1].score);
  EXPECT_THAT(hits[1].snippet, HasSubstr("the hessian of the layer"));
  EXPECT_EQ(hits[1].line, 51);
  EXPECT_EQ(index.search("the hessian", 1).size(), 1u);
  EXPECT_TRUE(index.search("absent", 10).empty());
  EXPECT_EQ(index.search("delta", 10).at(0).paper.title, "Delta") << "a word of the title only";
}

TEST(Papers, QueriesAreBounded) {
  Folder folder;
  folder.add("a", "Alpha", "word " + std::string(100000, 'x') + " other");
  const PaperIndex index(folder.dir.path());
  for (const char* nothing : {"", " ", "?!", "\"\"", "\n\t"}) {
    EXPECT_EQ(code_of([&] { index.search(nothing, 5); }), "query") << nothing;
  }
  EXPECT_EQ(index.search(std::string(10 << 20, 'x'), 5).size(), 1u) << "words are cut at 64 bytes";
  std::string many = "word ";
  for (int i = 0; i < 100000; ++i) many += "w" + std::to_string(i) + " ";
  EXPECT_EQ(index.search(many, 5).size(), 1u);
  EXPECT_EQ(index.search("\xff word \x1b[31m", 5).size(), 1u);
}

TEST(Papers, HostileFolders) {
  Folder folder;
  folder.add("good", "Good", "bits and bytes\x1b[31m \xff\xfe end");
  write_file_atomic(folder.dir.path() + "/outside-secret", "secret words");
  TempDir elsewhere;
  write_file_atomic(elsewhere.path() + "/secret.txt", "secret words");
  std::filesystem::create_symlink(elsewhere.path() + "/secret.txt",
                                  folder.dir.path() + "/text/link.txt");
  std::filesystem::create_directory(folder.dir.path() + "/text/folder.txt");
  folder.list("Link", "text/link.txt");
  folder.list("Up",
              "../" + std::filesystem::path(elsewhere.path()).filename().string() + "/secret.txt");
  folder.list("Absolute", elsewhere.path() + "/secret.txt");
  folder.list("Folder", "text/folder.txt");
  folder.list("Gone", "text/gone.txt");
  folder.list("Nothing", "");
  const PaperIndex index(folder.dir.path());
  EXPECT_EQ(index.papers().size(), 1u);
  EXPECT_EQ(index.skipped().size(), 6u);
  EXPECT_TRUE(index.search("secret", 5).empty());
  const std::string snippet = index.search("bytes", 5).at(0).snippet;
  EXPECT_TRUE(is_utf8(snippet));
  EXPECT_EQ(snippet.find('\x1b'), std::string::npos);
  write_file_atomic(folder.dir.path() + "/papers.jsonl", "{\"title\":");
  EXPECT_EQ(code_of([&] { PaperIndex broken(folder.dir.path()); }), "json");
}

TEST(Papers, AFolderOfTextsNeedsNoList) {
  TempDir dir;
  EXPECT_EQ(code_of([&] { PaperIndex none(dir.path()); }), "no_papers");
  write_file_atomic(dir.path() + "/one.txt", "quantization of weights");
  write_file_atomic(dir.path() + "/INDEX.txt", "quantization list");
  const PaperIndex index(dir.path());
  EXPECT_EQ(index.search("Quantization", 5).at(0).paper.file, "one.txt");
}

}  // namespace
}  // namespace cbench
