// The version store: deduplication, concurrency, torn saves, damage, quota and a full disk.
#include "package/versions.h"

#include <filesystem>

#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "package/helpers.h"
#include "package/version_manifest.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;
using testing::code_of;
using testing::put;

size_t objects_in(const std::string& dir) {
  size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir + "/objects")) {
    count += entry.is_regular_file() ? 1 : 0;
  }
  return count;
}

class Versions : public ::testing::Test {
 protected:
  void SetUp() override {
    put(tree_path() + "/weights.bin", std::string(100'000, 'w'));
    put(tree_path() + "/src/plugin.cpp", "int x;\n");
    put(tree_path() + "/copy.cpp", "int x;\n");
    ASSERT_EQ(::chmod((tree_path() + "/copy.cpp").c_str(), 0755), 0);
  }
  std::string tree_path() const { return dir_.path() + "/tree"; }
  std::string store_path() const { return dir_.path() + "/store"; }
  PackageTree tree() const { return PackageTree::walk(tree_path()); }

  TempDir dir_;
};

TEST_F(Versions, SaveListMaterialise) {
  VersionStore store(store_path());
  const Version one = store.save(tree(), "first \xc3\xa9");
  EXPECT_EQ(one.number, 1);
  EXPECT_EQ(objects_in(store_path()), 2u);  // the two sources are the same content
  put(tree_path() + "/src/plugin.cpp", "int y;\n");
  const Version two = store.save(tree(), "");
  EXPECT_EQ(two.number, 2);
  EXPECT_EQ(objects_in(store_path()), 3u);
  PackageTree now = tree();
  now.hash_files();
  EXPECT_EQ(two.package_hash, now.hash());
  EXPECT_EQ(two.bytes, now.bytes());

  const std::vector<Version> all = VersionStore(store_path()).list();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].note, "first \xc3\xa9");
  store.verify(1);
  const std::string out = dir_.path() + "/out";
  store.materialise(1, out);
  PackageTree copy = PackageTree::walk(out);
  copy.hash_files();
  EXPECT_EQ(copy.hash(), one.package_hash);
  EXPECT_EQ(copy.find("copy.cpp")->mode, mode_t{0755});
  EXPECT_EQ(code_of([&] { store.materialise(1, out); }), "not_empty");
  EXPECT_EQ(code_of([&] { store.load(9); }), "no_version");
}

TEST_F(Versions, NotesAreBounded) {
  VersionStore store(store_path());
  EXPECT_EQ(code_of([&] { store.save(tree(), std::string(301, 'x')); }), "bad_note");
  EXPECT_EQ(code_of([&] { store.save(tree(), "a\nb"); }), "bad_note");
  EXPECT_EQ(code_of([&] { store.save(tree(), "\xff"); }), "bad_note");
  EXPECT_TRUE(store.list().empty());
}

TEST_F(Versions, AChangedTreeIsNotSaved) {
  VersionStore store(store_path());
  const PackageTree before = tree();
  put(tree_path() + "/weights.bin", std::string(100'000, 'v'));
  EXPECT_EQ(code_of([&] { store.save(before, ""); }), "changed");
  const PackageTree again = tree();
  put(tree_path() + "/new", "x");
  EXPECT_EQ(code_of([&] { store.save(again, ""); }), "changed");
  EXPECT_TRUE(store.list().empty());
  EXPECT_EQ(objects_in(store_path()), 0u);
}

TEST_F(Versions, DamageIsFound) {
  VersionStore store(store_path());
  const Version one = store.save(tree(), "");
  const std::string& sha256 = one.files.back().sha256;
  const std::string object = store_path() + "/objects/" + sha256.substr(0, 2) + "/" + sha256;
  ASSERT_EQ(::chmod(object.c_str(), 0644), 0);
  put(object, std::string(100'000, 'X'));
  EXPECT_EQ(code_of([&] { store.verify(1); }), "version_corrupt");
  const std::string out = dir_.path() + "/out";
  EXPECT_EQ(code_of([&] { store.materialise(1, out); }), "version_corrupt");
  EXPECT_FALSE(fs::exists(out));
  put(object, "short");
  EXPECT_EQ(code_of([&] { store.verify(1); }), "version_corrupt");
  store.save(tree(), "heals a content of a wrong size");
  store.verify(1);
}

TEST_F(Versions, ADamagedManifestHidesNothingElse) {
  VersionStore store(store_path());
  store.save(tree(), "one");
  put(store_path() + "/v2.json", "{\"number\": 2");
  EXPECT_EQ(store.list().size(), 1u);
  EXPECT_EQ(code_of([&] { store.load(2); }), "version_corrupt");
  EXPECT_EQ(store.save(tree(), "three").number, 3);
  store.verify(1);
  Version escape = store.load(1);
  escape.files[0].path = "../../etc/x";
  EXPECT_EQ(code_of([&] { version_from_json(version_to_json(escape), "v"); }), "version_corrupt");
}

TEST_F(Versions, QuotaRefusesAndLeavesNothing) {
  VersionStore store(store_path(), 150'000);
  store.save(tree(), "fits");
  const size_t before = objects_in(store_path());
  put(tree_path() + "/more.bin", std::string(60'000, 'm'));
  EXPECT_EQ(code_of([&] { store.save(tree(), "does not"); }), "quota");
  EXPECT_EQ(objects_in(store_path()), before);
  ASSERT_EQ(::unlink((tree_path() + "/more.bin").c_str()), 0);
  EXPECT_EQ(store.save(tree(), "the same again costs nothing").number, 2);
}

TEST_F(Versions, ConcurrentSavesAreSerialised) {
  const int children = 4;
  const int saves = 5;
  std::vector<pid_t> pids;
  for (int i = 0; i < children; ++i) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      try {
        VersionStore store(store_path());
        for (int n = 0; n < saves; ++n) store.save(tree(), std::to_string(n));
        ::_exit(0);
      } catch (...) {
        ::_exit(1);
      }
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  VersionStore store(store_path());
  const std::vector<Version> all = store.list();
  ASSERT_EQ(all.size(), static_cast<size_t>(children * saves));
  EXPECT_EQ(all.back().number, children * saves);
  store.verify(children * saves);
}

/// Kills saves at many points; whatever is listed afterwards must be whole.
TEST_F(Versions, ATornSaveLeavesNoVersion) {
  for (int i = 0; i < 200; ++i) put(tree_path() + "/f" + std::to_string(i), std::to_string(i));
  for (int round = 0; round < 12; ++round) {
    put(tree_path() + "/round", std::to_string(round));
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      VersionStore(store_path()).save(tree(), "torn");
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(3000 * (1 << (round % 8))));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    VersionStore store(store_path());
    for (const Version& version : store.list()) store.verify(version.number);
  }
  VersionStore store(store_path());
  const Version last = store.save(tree(), "whole");
  store.verify(last.number);
  for (const auto& entry : fs::directory_iterator(store_path() + "/objects")) {
    EXPECT_TRUE(entry.is_directory()) << entry.path();
  }
}

TEST_F(Versions, AFullDiskLosesNothing) {
  const std::string mount_point = dir_.path() + "/small";
  make_directories(mount_point);
  if (::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "SKIPPED, the full disk was not tried: mounting a tmpfs needs root";
  }
  {
    VersionStore store(mount_point + "/store");
    store.save(tree(), "fits");
    put(tree_path() + "/big.bin", std::string(400'000, 'b'));
    EXPECT_EQ(code_of([&] { store.save(tree(), "does not fit"); }), "disk_full");
    EXPECT_EQ(store.list().size(), 1u);
    store.verify(1);
    EXPECT_EQ(objects_in(mount_point + "/store"), 2u);
    ASSERT_EQ(::unlink((tree_path() + "/big.bin").c_str()), 0);
    EXPECT_EQ(store.save(tree(), "room again").number, 2);
  }
  EXPECT_EQ(::umount(mount_point.c_str()), 0);
}

}  // namespace
}  // namespace cbench
