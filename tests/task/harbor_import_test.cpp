// Reading Harbor tasks: both spellings, unknown keys, our own export, and files that are none.
#include "task/harbor_import.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "task/harbor.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

using testing::Contains;
using testing::HasSubstr;

struct HarborTask {
  TempDir dir{"cbench-harbor"};
  explicit HarborTask(const std::string& toml) {
    make_directories(dir.path() + "/tests");
    write_file_atomic(dir.path() + "/task.toml", toml);
    write_file_atomic(dir.path() + "/instruction.md", "Do it.\n");
    write_file_atomic(dir.path() + "/tests/test.sh", "#!/bin/sh\n");
  }
};

TEST(HarborImport, ReadsOldAndNewSpellings) {
  const HarborTask old(
      "version = \"1.0\"\n[environment]\nmemory = \"2G\"\nstorage = \"10240M\"\nallow_internet = "
      "false\n");
  const HarborTask modern(
      "schema_version = \"1.4\"\n[environment]\nmemory_mb = 2048\nstorage_mb = 10240\n"
      "network_mode = \"no-network\"\n");
  const HarborMetadata one = import_harbor(old.dir.path()), two = import_harbor(modern.dir.path());
  const Json left = parse_json(one.json, "old"), right = parse_json(two.json, "new");
  EXPECT_EQ(left["schema_version"], "1.0");
  for (const char* key : {"memory_mb", "storage_mb", "network_mode"}) {
    EXPECT_EQ(left["environment"][key], right["environment"][key]) << key;
  }
  EXPECT_EQ(one.warnings.size(), 4u);
  EXPECT_TRUE(two.warnings.empty());
}

TEST(HarborImport, KeepsWhatItDoesNotKnow) {
  const HarborTask task(
      "schema_version = \"1.3\"\nfuture = 1\n[agent]\nmood = \"good\"\n[novel]\na = [1, 2]\n"
      "[metadata]\nanything = 1979-05-27\n");
  const HarborMetadata metadata = import_harbor(task.dir.path());
  const Json json = parse_json(metadata.json, "import");
  EXPECT_EQ(json["x_harbor"]["future"], 1);
  EXPECT_EQ(json["x_harbor"]["agent.mood"], "good");
  EXPECT_EQ(json["x_harbor"]["novel"]["a"], Json::array({1, 2}));
  EXPECT_EQ(json["metadata"]["anything"], "1979-05-27");
  EXPECT_EQ(metadata.warnings.size(), 3u);
  EXPECT_THAT(metadata.warnings, Contains(HasSubstr("agent.mood")));
}

TEST(HarborImport, ReadsOurOwnExport) {
  const std::string tasks = std::string(CBENCH_SOURCE_DIR) + "/tasks";
  for (const std::string& name : list_tasks(tasks)) {
    const TempDir dir;
    const Contract contract = find_task(name, tasks);
    export_harbor(contract, dir.path() + "/out");
    const HarborMetadata metadata = import_harbor(dir.path() + "/out");
    EXPECT_TRUE(metadata.warnings.empty()) << name << ": " << metadata.warnings.front();
    const Json json = parse_json(metadata.json, "import");
    EXPECT_EQ(json["metadata"]["contract_sha256"], contract.sha256);
    EXPECT_EQ(json["agent"]["timeout_sec"], contract.budget);
  }
}

TEST(HarborImport, RefusesWhatIsNoTask) {
  const std::string start = "schema_version = \"1.4\"\n";
  for (const std::string& bad :
       {std::string(),
        std::string("[task]\nname = \"a/b\"\n"),
        std::string("schema_version = 1.4\n"),
        std::string("schema_version = \"2.0\"\n"),
        std::string("a = \n"),
        start + "a = 1\na = 2\n",
        start + "\xff",
        start + "task = 5\n",
        start + "[task]\nname = \"../x\"\n",
        start + "[task]\nname = \"plain\"\n",
        start + "[task]\nname = \"a/..\"\n",
        start + "[environment]\nmemory = 5\n",
        start + "[environment]\nmemory = \"much\"\n",
        start + "[environment]\ncpus = \"two\"\n",
        start + "[environment]\ngpus = -1\n",
        start + "[agent]\ntimeout_sec = nan\n",
        start + "[agent]\ntimeout_sec = inf\n",
        start + "[agent]\nnetwork_mode = \"maybe\"\n",
        start + "[agent]\nnetwork_mode = \"public\"\nallowed_hosts = [\"a\"]\n",
        start + "a = " + std::string(100000, '[') + "\n"}) {
    const HarborTask task(bad);
    EXPECT_THROW(import_harbor(task.dir.path()), UsageError) << bad.substr(0, 80);
  }
  const HarborTask incomplete(start);
  EXPECT_NO_THROW(import_harbor(incomplete.dir.path()));
  std::filesystem::remove(incomplete.dir.path() + "/tests/test.sh");
  EXPECT_THROW(import_harbor(incomplete.dir.path()), UsageError);
  EXPECT_THROW(import_harbor("/no/such/directory"), UsageError);
}

}  // namespace
}  // namespace cbench
