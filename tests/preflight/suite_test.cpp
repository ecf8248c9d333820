// The way of a maintainer, with the built binary against a server on loopback: fetch, reference,
// preflight, check; and what an agent of such a task would see.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "preflight/mini_task.h"
#include "run/agent_box.h"
#include "util/json.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

bool lies_in(const fs::path& inner, const fs::path& outer) {
  const std::string relative = inner.lexically_relative(outer).string();
  return !relative.empty() && !relative.starts_with("..");
}

TEST(Suite, FetchReferencePreflightCheck) {
  MiniTask task;
  const RunResult early = task.cbench({"reference", kMiniTask, "-q"});
  EXPECT_EQ(early.status.code, 3) << early.err;
  const RunResult fetch = task.cbench({"fetch", kMiniTask, "-q"});
  ASSERT_EQ(fetch.status.code, 0) << fetch.err;
  const RunResult reference = task.cbench({"reference", kMiniTask, "-q"});
  ASSERT_EQ(reference.status.code, 0) << reference.err;
  const Json hidden = read_json(task.data() + "/reference/hidden/reference.json");
  EXPECT_EQ(hidden["inputs"].size(), 7u);
  EXPECT_EQ(hidden["prompts_sha256"].get<std::string>().size(), 64u);
  EXPECT_EQ(hidden["accuracy"]["gsm8k"]["total"], 6);
  for (const char* path : {"", "/reference.json", "/verification.safetensors"}) {
    struct stat info {};
    ASSERT_EQ(::stat((task.data() + "/reference/hidden" + path).c_str(), &info), 0) << path;
    EXPECT_EQ(info.st_mode & 077, 0u) << path;
  }
  const RunResult preflight = task.cbench({"preflight", kMiniTask, "--json", "--full"});
  EXPECT_EQ(preflight.status.code, 0) << preflight.out;
  const Json report = parse_json(preflight.out, "preflight");
  EXPECT_EQ(report["ready"], true) << preflight.out;
  EXPECT_EQ(report["checks"].back()["name"], "self_check");
  const RunResult check =
      task.cbench({"check", task.data() + "/checkpoint", "--task", kMiniTask, "--json", "-q"});
  EXPECT_EQ(check.status.code, 0) << check.out << check.err;
  EXPECT_NEAR(parse_json(check.out, "check")["likelihood"]["f"].get<double>(), 1.0, 1e-6);
  const RunResult papers = task.cbench({"papers", "search", "quantization", "--json"});
  EXPECT_THAT(papers.out, HasSubstr("Quantization of small models"));

  // What changes afterwards is seen.
  const std::string items = task.file("items/gsm8k.jsonl");
  task.overwrite("items/gsm8k.jsonl", items + items.substr(0, 0) + "\n");
  const RunResult after = task.cbench({"preflight", kMiniTask, "--json", "--no-self-check"});
  EXPECT_EQ(after.status.code, 3);
  EXPECT_THAT(after.out, HasSubstr("changed since they were chosen"));
  EXPECT_THAT(after.out, HasSubstr("is not the file that it was made with"));
}

/// For every task here and the miniature one: no mount of an agent's box shows hidden data.
TEST(Suite, NothingHiddenIsMounted) {
  MiniTask mini;
  std::vector<Contract> contracts = {mini.contract()};
  const std::string shipped = std::string(CBENCH_SOURCE_DIR) + "/tasks";
  for (const std::string& name : list_tasks(shipped)) {
    contracts.push_back(find_task(name, shipped));
    contracts.back().tasks_root = mini.tasks();  // where everything exists
  }
  const TempDir run("cbench-run");
  for (const Contract& contract : contracts) {
    SCOPED_TRACE(contract.name);
    const DataSpec& data = contract.data;
    std::vector<std::string> hidden;
    for (const std::string& part :
         {data.items, data.shots, data.documents, std::string("raw"), data.reference + "/hidden",
          data.reference + "/disjoint.json"}) {
      hidden.push_back(contract.data_path(part));
      make_directories(hidden.back());
    }
    for (const std::string& part :
         {data.visible, data.reference + "/public", std::string("checkpoint")}) {
      make_directories(contract.data_path(part));
    }
    for (const FetchItem& item : contract.fetch) make_directories(contract.data_path(item.name));
    int below_data = 0;
    for (const Mount& mount : input_mounts(RunDir{run.path()}, contract, "/bin/true")) {
      below_data += lies_in(mount.host, contract.data_path("")) ? 1 : 0;
      for (const std::string& path : hidden) {
        EXPECT_FALSE(lies_in(path, mount.host)) << mount.host << " shows " << path;
        EXPECT_FALSE(lies_in(mount.host, path)) << mount.host << " is part of " << path;
      }
    }
    EXPECT_GE(below_data, 2);
  }
}

}  // namespace
}  // namespace cbench
