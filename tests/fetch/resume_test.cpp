// Rows and documents go on where a killed fetch stood, and end with the same bytes.
#include <atomic>
#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>

#include "fetch/batch_file.h"
#include "fetch/rig.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

constexpr int kRows = 470;  // five pages

int64_t query_number(const FakeRequest& request, const std::string& key) {
  const size_t at = request.query.find(key + "=");
  return at == std::string::npos ? 0 : std::stoll(request.query.substr(at + key.size() + 1));
}

FakeReply rows_page(const FakeRequest& request, char revision = 'c') {
  const int64_t offset = query_number(request, "offset");
  const int64_t end = std::min<int64_t>(kRows, offset + query_number(request, "length"));
  std::string rows;
  for (int64_t i = offset; i < end; ++i) {
    rows += (rows.empty() ? "" : ",") + std::string("{\"row_idx\":") + std::to_string(i) +
            ",\"row\":{\"n\":" + std::to_string(i) + "},\"truncated_cells\":[]}";
  }
  return {200,
          {{"Content-Type", "application/json"}, {"X-Revision", std::string(40, revision)}},
          "{\"rows\":[" + rows + "],\"num_rows_total\":" + std::to_string(kRows) + "}"};
}

std::string shard_of(const std::string& name) {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    // Every shard of a family also holds the documents of the first: ids must not come twice.
    const std::string id = i % 3 == 0 ? "shared-" + std::to_string(i) : name + std::to_string(i);
    text += "{\"id\":\"" + id + "\",\"text\":\"text of " + id + "\",\"source\":\"s\"}\n";
  }
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

/// A hub with rows and shards, and a fetch of either that can be killed.
struct ResumeRig : Rig {
  ResumeRig() {
    hub.type = "datasets";
    for (const char* family : {"web", "math"}) {
      for (int i = 0; i < 4; ++i) {
        const std::string name = std::string(family) + "-" + std::to_string(i);
        hub.add("data/" + name + ".jsonl.zst", shard_of(name), true);
      }
    }
    hub.before = [this](const FakeRequest& request) {
      if (request.target.find(counted) != std::string::npos && ++seen == kill_at) {
        while (child == 0) std::this_thread::yield();
        ::kill(child, SIGKILL);
      }
      return request.path == "/rows" ? rows_page(request, revision) : FakeReply{0, {}, ""};
    };
  }
  FetchPlan plan(bool rows) const {
    FetchPlan out;
    out.root = root();
    if (rows) {
      out.items.push_back({"made", RowsItem{"org/set", "main", "train", 0, 0, 0}});
      return out;
    }
    DolmaItem item;
    item.repo.id = hub.repo;
    item.families = {{"web", {"*web*"}, 11}, {"math", {"*math*"}, 11}};
    item.seed = 5;
    item.per_shard = 3;
    item.window = 4;
    out.items.push_back({"made", item});
    return out;
  }
  /// A fetch in a process of its own, killed at the n-th request whose target holds `part`, or
  /// after `microseconds`. True if it was killed.
  bool killed(const FetchPlan& plan, const std::string& part, int n, int microseconds = 0) {
    counted = part;
    seen = 0;
    kill_at = n;
    child = 0;
    const pid_t pid = ::fork();
    if (pid == 0) {
      try {
        fetch_all(plan, options);
      } catch (const std::exception&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    child = pid;
    if (microseconds > 0) {
      ::usleep(static_cast<useconds_t>(microseconds));
      ::kill(pid, SIGKILL);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    kill_at = 0;
    return WIFSIGNALED(status);
  }
  /// The bytes of an uninterrupted fetch, and a clean root.
  std::string whole(bool rows) {
    kill_at = 0;
    fetch_all(plan(rows), options);
    const std::string bytes = content("made");
    fs::remove_all(root());
    hub.server.forget_requests();
    return bytes;
  }

  std::string counted;
  char revision = 'c';
  std::atomic<int> seen{0}, kill_at{0};
  std::atomic<pid_t> child{0};
};

TEST(Resume, RowsLoseAtMostOnePage) {
  ResumeRig rig;
  const std::string expected = rig.whole(true);
  for (int page = 0; page < 5; ++page) {
    ASSERT_TRUE(rig.killed(rig.plan(true), "/rows", page + 2)) << "the first request asks the size";
    rig.hub.server.forget_requests();
    fetch_all(rig.plan(true), rig.options);
    EXPECT_EQ(rig.hub.server.count("/rows"), static_cast<size_t>(1 + 5 - page));
    EXPECT_EQ(rig.content("made"), expected) << "killed at page " << page;
    fs::remove_all(rig.root());
  }
}

TEST(Resume, DocumentsLoseAtMostOneShard) {
  ResumeRig rig;
  const std::string expected = rig.whole(false);
  EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'), 22);
  std::set<std::string> ids, shards;
  for (size_t at = 0; at < expected.size(); at = expected.find('\n', at) + 1) {
    const Json line = parse_json(expected.substr(at, expected.find('\n', at) - at), "line");
    EXPECT_TRUE(ids.insert(line["id"]).second) << line["id"];
    shards.insert(line["shard"]);
  }
  EXPECT_EQ(shards.size(), 8u) << "three of a shard, while shards are left";
  for (int shard = 0; shard < 8; ++shard) {
    ASSERT_TRUE(rig.killed(rig.plan(false), "/resolve/", shard + 1));
    rig.hub.server.forget_requests();
    fetch_all(rig.plan(false), rig.options);
    EXPECT_EQ(rig.hub.server.count("/resolve/"), static_cast<size_t>(8 - shard));
    EXPECT_EQ(rig.content("made"), expected) << "killed at shard " << shard;
    fs::remove_all(rig.root());
  }
}

TEST(Resume, KilledAtAnyMomentAgainAndAgain) {
  for (const bool rows : {true, false}) {
    ResumeRig rig;
    const std::string expected = rig.whole(rows);
    for (int microseconds = 500; microseconds < 40'000; microseconds += microseconds / 4) {
      if (rig.killed(rig.plan(rows), "never", 0, microseconds)) continue;
      EXPECT_EQ(rig.content("made"), expected) << "it came to its end";
      fs::remove_all(rig.root());
    }
    fetch_all(rig.plan(rows), rig.options);
    EXPECT_EQ(rig.content("made"), expected);
    EXPECT_FALSE(rig.exists(".cbench-fetch"));
  }
}

TEST(Resume, WhatDoesNotFitStartsAgain) {
  ResumeRig rig;
  const std::string expected = rig.whole(true);
  ASSERT_TRUE(rig.killed(rig.plan(true), "/rows", 4));
  rig.revision = 'd';
  rig.hub.server.forget_requests();
  fetch_all(rig.plan(true), rig.options);
  EXPECT_EQ(rig.hub.server.count("/rows"), 6u) << "another revision of the data set";
  EXPECT_EQ(rig.content("made"), expected);
  fs::remove_all(rig.root());

  ASSERT_TRUE(rig.killed(rig.plan(true), "/rows", 4));
  for (const fs::directory_entry& part : fs::directory_iterator(rig.root() + "/.cbench-fetch")) {
    std::string bytes = read_file(part.path() / "data");
    bytes[10] ^= 1;
    write_file_atomic(part.path() / "data", bytes);
  }
  rig.hub.server.forget_requests();
  fetch_all(rig.plan(true), rig.options);
  EXPECT_EQ(rig.hub.server.count("/rows"), 6u) << "damaged on the disk";
  EXPECT_EQ(rig.content("made"), expected);
}

TEST(Resume, ABatchIsThereAsAWholeOrNotAtAll) {
  TempDir dir;
  const auto open = [&](const std::string& source) {
    return std::make_unique<BatchFile>(dir.path(), "rows", "key", "name", source);
  };
  auto file = open("one");
  EXPECT_EQ(file->note(), "");
  file->append("first\n", "1");
  file->append("", "2");
  file.reset();
  file = open("one");
  EXPECT_EQ(file->note(), "2");
  EXPECT_EQ(file->size(), 6);
  file->append("second\n", "3");
  std::string text;
  file->read([&](std::string_view block) { text += block; });
  EXPECT_EQ(text, "first\nsecond\n");
  file.reset();
  EXPECT_EQ(open("two")->size(), 0) << "made from something else";
}

}  // namespace
}  // namespace cbench
