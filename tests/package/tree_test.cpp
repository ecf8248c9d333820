// The safe walk, the accountant and Package on trees that an adversary would build.
#include "package/tree.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "package/accountant.h"
#include "package/helpers.h"
#include "package/package.h"
#include "util/hash.h"

namespace cbench {
namespace {

using testing::code_of;
using testing::put;
using testing::tiny_tensors;

std::string walk_code(const std::string& dir, const TreeLimits& limits = {}) {
  return code_of([&] { PackageTree::walk(dir, limits); });
}

TEST(Tree, ListsSortedWithSizesAndHashes) {
  const TempDir dir;
  put(dir.path() + "/b.txt", "bb");
  put(dir.path() + "/a/z", "z");
  put(dir.path() + "/a.c", "");
  PackageTree tree = PackageTree::walk(dir.path() + "/");
  ASSERT_EQ(tree.files().size(), 3u);
  EXPECT_EQ(tree.files()[0].path, "a.c");
  EXPECT_EQ(tree.files()[1].path, "a/z");
  EXPECT_EQ(tree.bytes(), 3u);
  EXPECT_EQ(tree.find("a"), nullptr);
  tree.hash_files();
  EXPECT_EQ(tree.hash_manifest(), "a.c\t0\t" + sha256_hex("") + "\na/z\t1\t" + sha256_hex("z") +
                                      "\nb.txt\t2\t" + sha256_hex("bb") + "\n");
  EXPECT_EQ(tree.hash(), sha256_hex(tree.hash_manifest()));
  EXPECT_EQ(tree.read(*tree.find("a/z"), 10), "z");
  EXPECT_EQ(code_of([&] { tree.read(*tree.find("b.txt"), 1); }), "too_large");
}

TEST(Tree, RefusesWhatIsNotAFile) {
  {
    const TempDir dir;
    ASSERT_EQ(::symlink("/etc/passwd", (dir.path() + "/weights.safetensors").c_str()), 0);
    EXPECT_EQ(walk_code(dir.path()), "symlink");
  }
  {
    const TempDir dir;
    ASSERT_EQ(::symlink("/", (dir.path() + "/sub").c_str()), 0);
    EXPECT_EQ(walk_code(dir.path()), "symlink");
    EXPECT_EQ(walk_code(dir.path() + "/sub"), "symlink");
    EXPECT_EQ(walk_code(dir.path() + "/sub/"), "symlink");
  }
  {
    const TempDir dir;
    ASSERT_EQ(::mkfifo((dir.path() + "/cbench.json").c_str(), 0600), 0);
    EXPECT_EQ(walk_code(dir.path()), "fifo");
    EXPECT_EQ(walk_code(dir.path() + "/cbench.json"), "fifo");
  }
  {
    const TempDir dir;
    const Fd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, (dir.path() + "/s").c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(walk_code(dir.path()), "socket");
  }
  const TempDir dir;
  if (::mknod((dir.path() + "/null").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0) {
    EXPECT_EQ(walk_code(dir.path()), "device");
  } else {
    GTEST_SKIP() << "SKIPPED the device case: mknod needs root";
  }
}

TEST(Tree, RefusesBadNames) {
  for (const char* name : {" a", "a ", "a\nb", "a\x1b[31m", "a\\b", "\xff\xfe",
                           "\xe2\x80\xae"
                           "a"}) {
    const TempDir dir;
    put(dir.path() + "/" + name, "x");
    EXPECT_EQ(walk_code(dir.path()), "bad_name") << name;
  }
}

TEST(Tree, BoundsEntriesDepthPathsAndBytes) {
  const TempDir dir;
  for (int i = 0; i < 20; ++i) put(dir.path() + "/f" + std::to_string(i), "xx");
  EXPECT_EQ(walk_code(dir.path(), {.max_entries = 20}), "");
  EXPECT_EQ(walk_code(dir.path(), {.max_entries = 19}), "too_many_entries");
  EXPECT_EQ(walk_code(dir.path(), {.max_path_bytes = 49}), "path_bytes");
  EXPECT_EQ(walk_code(dir.path(), {.max_path_bytes = 50}), "");
  EXPECT_EQ(walk_code(dir.path(), {.max_bytes = 39}), "too_large");
  std::string deep = dir.path();
  for (int i = 0; i < 16; ++i) deep += "/d";
  put(deep + "/f", "x");
  EXPECT_EQ(walk_code(dir.path()), "");
  put(deep + "/d/f", "x");
  EXPECT_EQ(walk_code(dir.path()), "too_deep");
}

TEST(Tree, AHundredThousandEmptyFiles) {
  const TempDir dir;
  const Fd fd(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY));
  for (int i = 0; i < 100'000; ++i) {
    const Fd file(::openat(fd.get(), std::to_string(i).c_str(), O_CREAT | O_WRONLY, 0600));
    ASSERT_TRUE(file.valid());
  }
  EXPECT_EQ(walk_code(dir.path()), "too_many_entries");
}

TEST(Tree, SparseAndHardLinkedFilesCountInFull) {
  const TempDir dir;
  put(dir.path() + "/a.bin", "12345");
  ASSERT_EQ(::link((dir.path() + "/a.bin").c_str(), (dir.path() + "/b.bin").c_str()), 0);
  put(dir.path() + "/sparse.bin", "");
  const off_t ten_gib = off_t{10} << 30;
  ASSERT_EQ(::truncate((dir.path() + "/sparse.bin").c_str(), ten_gib), 0);
  const PackageTree tree = PackageTree::walk(dir.path());
  EXPECT_EQ(tree.bytes(), static_cast<uint64_t>(ten_gib) + 10);
  EXPECT_LT(tree.allocated(), 1u << 20);
  const DiskReport report = account_disk(tree, 3u << 20);
  EXPECT_TRUE(report.over);
  EXPECT_EQ(report.bytes, tree.bytes());
  EXPECT_NE(report.explanation.find("over; largest: sparse.bin 10.00 GiB"), std::string::npos)
      << report.explanation;
}

TEST(Tree, DetectsChanges) {
  const TempDir dir;
  put(dir.path() + "/a", "1");
  put(dir.path() + "/b", "1");
  PackageTree tree = PackageTree::walk(dir.path());
  EXPECT_EQ(code_of([&] { tree.check_unchanged(); }), "");
  put(dir.path() + "/a", "12");
  EXPECT_EQ(code_of([&] { tree.open(*tree.find("a")); }), "changed");
  EXPECT_EQ(code_of([&] { tree.check_unchanged(); }), "changed");
  EXPECT_EQ(code_of([&] { tree.hash_files(); }), "changed");
  ASSERT_EQ(::unlink((dir.path() + "/b").c_str()), 0);
  ASSERT_EQ(::symlink("/etc/passwd", (dir.path() + "/b").c_str()), 0);
  EXPECT_EQ(code_of([&] { tree.open(*tree.find("b")); }), "changed");
}

TEST(Tree, ADirectoryTurnedLinkIsNotFollowed) {
  const TempDir dir;
  const TempDir outside;
  put(dir.path() + "/sub/f", "inside");
  put(outside.path() + "/f", "secret");
  const PackageTree tree = PackageTree::walk(dir.path());
  ASSERT_EQ(::rename((dir.path() + "/sub").c_str(), (dir.path() + "/old").c_str()), 0);
  ASSERT_EQ(::symlink(outside.path().c_str(), (dir.path() + "/sub").c_str()), 0);
  EXPECT_EQ(code_of([&] { tree.open(*tree.find("sub/f")); }), "changed");
}

TEST(Tree, MissingAndWrongRoots) {
  const TempDir dir;
  put(dir.path() + "/f", "x");
  EXPECT_EQ(walk_code(dir.path() + "/none"), "not_found");
  EXPECT_EQ(walk_code(dir.path() + "/f"), "not_directory");
}

TEST(Accountant, Classes) {
  EXPECT_EQ(classify_file("weights-1.safetensors"), FileClass::kWeights);
  EXPECT_EQ(classify_file("src/plugin.cpp"), FileClass::kCode);
  EXPECT_EQ(classify_file("lib/plugin.so"), FileClass::kCode);
  EXPECT_EQ(classify_file("tokenizer.json"), FileClass::kTokenizer);
  EXPECT_EQ(classify_file("cbench.json"), FileClass::kManifest);
  EXPECT_EQ(classify_file("notes.md"), FileClass::kOther);
}

TEST(Accountant, ExactlyAtTheLimitIsNotOver) {
  const TempDir dir;
  put(dir.path() + "/f", std::string(1000, 'x'));
  const PackageTree tree = PackageTree::walk(dir.path());
  EXPECT_FALSE(account_disk(tree, 1000).over);
  EXPECT_TRUE(account_disk(tree, 999).over);
}

/// A small valid package.
void make_package(const std::string& dir) {
  put(dir + "/cbench.json", R"({"format":1,"plugin":{"sources":["src/plugin.cpp"]}})");
  put(dir + "/src/plugin.cpp", "int x;\n");
  put(dir + "/weights.safetensors", tiny_tensors({"a", "b"}));
}

TEST(Package, OpensAndHashes) {
  const TempDir dir;
  make_package(dir.path());
  Package package = Package::open(dir.path());
  EXPECT_FALSE(package.plain_checkpoint());
  EXPECT_NE(package.tensors().find("b"), nullptr);
  EXPECT_TRUE(package.warnings().empty());
  const std::string hash = package.hash();
  EXPECT_EQ(hash.size(), 64u);
  put(dir.path() + "/src/plugin.cpp", "int y;\n");
  EXPECT_NE(Package::open(dir.path()).hash(), hash);
}

TEST(Package, RefusesWhatIsMissingOrUnofficial) {
  const TempDir dir;
  make_package(dir.path());
  ASSERT_EQ(::unlink((dir.path() + "/src/plugin.cpp").c_str()), 0);
  EXPECT_EQ(code_of([&] { Package::open(dir.path()); }), "plugin_file_missing");
  make_package(dir.path());
  put(dir.path() + "/tokenizer.json", "{}");
  PackageOptions options;
  options.official_sha256 = {{"tokenizer.json", sha256_hex("{}")}};
  EXPECT_EQ(code_of([&] { Package::open(dir.path(), options); }), "");
  options.official_sha256 = {{"tokenizer.json", sha256_hex("{ }")}};
  EXPECT_EQ(code_of([&] { Package::open(dir.path(), options); }), "unofficial_file");
  ASSERT_EQ(::unlink((dir.path() + "/weights.safetensors").c_str()), 0);
  EXPECT_EQ(code_of([&] { Package::open(dir.path()); }), "no_weights");
}

TEST(Package, SaysWhatIsOdd) {
  const TempDir dir;
  make_package(dir.path());
  put(dir.path() + "/extra.safetensors", "anything");
  const Package package = Package::open(dir.path());
  ASSERT_EQ(package.warnings().size(), 1u);
  EXPECT_NE(package.warnings()[0].find("extra.safetensors is not read"), std::string::npos);
}

TEST(Package, APlainCheckpointIsAPackage) {
  const Package package = Package::open(std::string(CBENCH_FIXTURES) + "/stories260k");
  EXPECT_TRUE(package.plain_checkpoint());
  EXPECT_FALSE(package.manifest().plugin.present());
  EXPECT_FALSE(package.tensors().tensors().empty());
  const auto official = official_hashes(std::string(CBENCH_FIXTURES) + "/stories260k");
  EXPECT_EQ(official.count("tokenizer.json"), 1u);
}

}  // namespace
}  // namespace cbench
