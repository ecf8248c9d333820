// The fetch as a whole: second runs, verification, offline mode, hostile names, many files.
#include "fetch/rig.h"
#include "fetch/task_plan.h"

namespace cbench {
namespace {

FakeReply usual() { return {0, {}, ""}; }

TEST(Fetch, SecondRunDoesNothing) {
  Rig rig;
  rig.hub.add("config.json", "{}", false);
  rig.hub.add("empty", "", false);
  rig.hub.add("sub/w.bin", pattern(0, 1000), true);
  EXPECT_EQ(rig.fetch().items[0].state, "fetched");
  EXPECT_EQ(rig.content("empty"), "");
  rig.hub.server.forget_requests();
  const FetchReport second = rig.fetch();
  EXPECT_TRUE(second.unchanged());
  EXPECT_TRUE(second.complete());
  EXPECT_TRUE(rig.hub.server.requests().empty());
  rig.options.verify = VerifyMode::kFull;
  EXPECT_TRUE(rig.fetch().unchanged());
  EXPECT_TRUE(rig.hub.server.requests().empty());
}

TEST(Fetch, RepairsWhatChanged) {
  Rig rig;
  rig.hub.add("a", "hello", false);
  rig.hub.add("b", "world", true);
  rig.hub.add("c", "third", true);
  rig.fetch();
  write_file_atomic(rig.root() + "/a", "HELLO");
  std::filesystem::remove(rig.root() + "/b");
  std::filesystem::last_write_time(rig.root() + "/c",
                                   std::filesystem::file_time_type::clock::now());
  EXPECT_EQ(verify_lock(rig.root() + "/lock.json", rig.root(), VerifyMode::kFast).problems.size(),
            2u);
  rig.hub.server.forget_requests();
  rig.fetch();
  EXPECT_EQ(rig.content("a"), "hello");
  EXPECT_EQ(rig.content("b"), "world");
  EXPECT_EQ(rig.hub.server.count("/resolve/"), 2u);
  EXPECT_EQ(rig.hub.server.count("/revision/"), 0u) << "the commit stays pinned";
  EXPECT_TRUE(
      verify_lock(rig.root() + "/lock.json", rig.root(), VerifyMode::kFull).problems.empty());
}

TEST(Fetch, ABranchThatMovesIsFollowedOnlyWhenAsked) {
  Rig rig;
  rig.hub.add("a", "old", false);
  rig.fetch();
  rig.hub.sha = std::string(40, 'b');
  rig.hub.add("a", "new", false);
  EXPECT_TRUE(rig.fetch().unchanged());
  rig.options.update = true;
  EXPECT_EQ(rig.fetch().items[0].revision, rig.hub.sha);
  EXPECT_EQ(rig.content("a"), "new");
}

TEST(Fetch, FilesAlreadyThereAreKeptWhenTheyAreRight) {
  Rig rig;
  rig.hub.add("a", "hello", true);
  make_directories(rig.root());
  write_file_atomic(rig.root() + "/a", "hello");
  EXPECT_EQ(rig.fetch().items[0].existing, 1);
  EXPECT_EQ(rig.hub.server.count("/resolve/"), 0u);
}

TEST(Fetch, OfflineIsCompleteOrAnError) {
  Rig rig;
  rig.options.hub.cache = rig.dir.path() + "/hub";
  rig.hub.add("a", "hello", true);
  rig.hub.add("b", "world", false);
  rig.options.hub.offline = true;
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "offline");
  rig.options.hub.offline = false;
  rig.fetch();
  rig.options.hub.offline = true;
  rig.hub.server.forget_requests();
  EXPECT_TRUE(rig.fetch().unchanged());
  std::filesystem::remove(rig.root() + "/b");
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "offline");
  make_directories(rig.options.hub.cache + "/models--org--name/blobs");
  write_file_atomic(rig.options.hub.cache + "/models--org--name/blobs/" + git_sha1("world"),
                    "world");
  EXPECT_TRUE(rig.fetch().complete());
  EXPECT_EQ(rig.content("b"), "world");
  EXPECT_TRUE(rig.hub.server.requests().empty());
}

TEST(Fetch, HostileNamesAreRefused) {
  for (const char* name : {"../x",
                           "/etc/x",
                           "a/../../x",
                           "a\\..\\x",
                           "..",
                           ".",
                           "a//b",
                           "a/",
                           "C:/x",
                           "c:x",
                           "nul",
                           "sub/CON.txt",
                           "com1.bin",
                           "a\x01",
                           "a\x7f",
                           "x/.",
                           "trailing.",
                           "blank ",
                           ".cbench-fetch/x",
                           ".git/config",
                           "\xff"}) {
    EXPECT_EQ(code_of([&] { check_file_name(name); }), "unsafe_name") << name;
  }
  for (const char* name : {"a", "a/b.c", ".gitattributes", "..a", "a..b", "console.txt", "comma",
                           "com10", "\xc3\xa4/\xe6\xa8\xa1.bin", "a b"}) {
    EXPECT_EQ(code_of([&] { check_file_name(name); }), "") << name;
  }
  for (const char* name : {"../evil", "a/../../evil", "/abs"}) {
    Rig rig;
    rig.hub.add(name, "x", false);
    EXPECT_EQ(code_of([&] { rig.fetch(); }), "unsafe_name");
  }
  Rig twice;
  twice.hub.add("a", "x", false);
  twice.hub.add("a/b", "y", false);
  EXPECT_EQ(code_of([&] { twice.fetch(); }), "bad_listing");
}

TEST(Fetch, ALinkOutOfTheFolderIsNotFollowed) {
  Rig rig;
  make_directories(rig.root());
  make_directories(rig.dir.path() + "/elsewhere");
  std::filesystem::create_symlink(rig.dir.path() + "/elsewhere", rig.root() + "/sub");
  rig.hub.add("sub/a", "x", false);
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "unsafe_name");
  EXPECT_TRUE(std::filesystem::is_empty(rig.dir.path() + "/elsewhere"));
}

TEST(Fetch, RepositoryIds) {
  for (const char* good : {"gpt2", "org/name", "Org-1/na_me.v2"}) {
    EXPECT_EQ(code_of([&] { check_repo_id(good); }), "") << good;
  }
  for (const char* bad :
       {"", "/", "a/", "/a", "a/b/c", "../x", "a/..", "a b", "a/b?x", "a%2f", "a--b", ".x"}) {
    EXPECT_EQ(code_of([&] { check_repo_id(bad); }), "bad_repo") << bad;
  }
}

TEST(Fetch, GlobsChooseFiles) {
  EXPECT_TRUE(glob_match("*.safetensors", "sub/a.safetensors"));
  EXPECT_TRUE(glob_match("a?c*", "abc"));
  EXPECT_FALSE(glob_match("*.json", "a.json.bak"));
  EXPECT_TRUE(glob_match(std::string(200, '*') + "b", std::string(5000, 'a') + "b"));
  Rig rig;
  rig.hub.add("a.json", "1", false);
  rig.hub.add("b.bin", "2", false);
  FetchPlan plan = rig.repo_plan();
  std::get<HubRepoItem>(plan.items[0].what).include = {"*.json"};
  fetch_all(plan, rig.options);
  EXPECT_TRUE(rig.exists("a.json"));
  EXPECT_FALSE(rig.exists("b.bin"));
  std::get<HubRepoItem>(plan.items[0].what).include = {"*.nothing"};
  EXPECT_EQ(code_of([&] { fetch_all(plan, rig.options); }), "no_files");
}

TEST(Fetch, TreePagesAreFollowed) {
  ClientRig rig;
  rig.hub.page_size = 700;
  for (int i = 0; i < 3000; ++i) rig.hub.files["d/" + std::to_string(i)] = {"x", false};
  EXPECT_EQ(rig.protocol().list_files(rig.repo, rig.hub.sha).size(), 3000u);
  EXPECT_EQ(rig.hub.server.count("/tree/"), 5u);
}

TEST(Fetch, AHundredThousandFilesAreListed) {
  ClientRig rig;
  rig.hub.page_size = 5000;
  for (int i = 0; i < 100000; ++i) rig.hub.files["d/" + std::to_string(i)] = {"", true};
  EXPECT_EQ(rig.protocol().list_files(rig.repo, rig.hub.sha).size(), 100000u);
}

TEST(Fetch, ListingsThatLie) {
  for (const char* body :
       {"{}", "[{\"type\":\"file\"}]", "[1]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":-1,\"oid\":\"x\"}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":\"short\"}]",
        "[{\"type\":\"file\",\"path\":\"a\",\"size\":1e99,\"oid\":\"x\"}]", "[", "<html>"}) {
    Rig rig;
    rig.hub.before = [&](const FakeRequest& request) {
      return request.path.find("/tree/") == std::string::npos ? usual() : FakeReply{200, {}, body};
    };
    EXPECT_NE(code_of([&] { rig.fetch(); }), "") << body;
  }
  Rig loop;
  loop.hub.before = [&](const FakeRequest& request) {
    if (request.path.find("/tree/") == std::string::npos) return usual();
    return FakeReply{
        200, {{"Link", "<" + loop.hub.url() + request.target + ">; rel=\"next\""}}, "[]"};
  };
  EXPECT_EQ(code_of([&] { loop.fetch(); }), "bad_listing");
}

TEST(Fetch, HtmlInsteadOfJson) {
  Rig rig;
  rig.hub.before = [](const FakeRequest&) {
    return FakeReply{200, {{"Content-Type", "text/html"}}, "<html>Please log in</html>"};
  };
  std::string message;
  EXPECT_EQ(code_of([&] { rig.fetch(); }, &message), "not_json");
  EXPECT_NE(message.find("text/html"), std::string::npos);
}

TEST(Fetch, MetadataThatNeverEnds) {
  Rig rig;
  rig.options.http.retry_waits = {};
  rig.options.http.exchange_seconds = 0.3;
  rig.options.http.stall_bytes = 1;
  rig.hub.before = [](const FakeRequest&) {
    FakeReply reply{200, {}, std::string(100000, '[')};
    reply.drip_seconds = 0.01;
    return reply;
  };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "timeout");
  rig.options.http.exchange_seconds = 5;
  rig.hub.before = [](const FakeRequest&) {
    FakeReply reply{200, {}, "", -2};
    reply.generated = int64_t{1} << 40;
    return reply;
  };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "body_too_large");
}

TEST(Fetch, UnreachableServer) {
  Rig rig;
  rig.options.hub.endpoint = "http://127.0.0.1:1";
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "network");
  rig.options.hub.endpoint = "http://user:secret@127.0.0.1:1";
  std::string message;
  EXPECT_EQ(code_of([&] { rig.fetch(); }, &message), "bad_url");
  EXPECT_EQ(message.find("secret"), std::string::npos);
}

TEST(Fetch, TokensAreCleanedOrRefused) {
  TempDir dir;
  const auto options = [&](std::map<std::string, std::string> values) {
    return hub_options_from([values](const std::string& name) -> std::optional<std::string> {
      const auto found = values.find(name);
      return found == values.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_EQ(options({{"HF_TOKEN", " hf_abc\r\n"}}).token, "hf_abc");
  for (const char* bad : {"hf_a\nX-Evil: 1", "a b", "a\tb", "\xc3\xa4"}) {
    EXPECT_EQ(code_of([&] { options({{"HF_TOKEN", bad}}); }), "bad_token") << bad;
  }
  write_file_atomic(dir.path() + "/token", "from-home\n");
  write_file_atomic(dir.path() + "/other", "from-path\n");
  EXPECT_EQ(options({{"HF_HOME", dir.path()}}).token, "from-home");
  EXPECT_EQ(options({{"HF_HOME", dir.path()}, {"HF_TOKEN_PATH", dir.path() + "/other"}}).token,
            "from-path");
  EXPECT_EQ(options({{"HF_HOME", dir.path()}, {"HF_TOKEN", "env"}}).token, "env");
  EXPECT_EQ(options({{"HF_HOME", dir.path()}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}}).token, "");
  EXPECT_EQ(options({{"HF_HOME", dir.path() + "/none"}}).token, "");
}

TEST(Fetch, UrlsArePinnedByTheFirstFetch) {
  Rig rig;
  FakeServer server;
  server.handle([](const FakeRequest&) { return FakeReply{200, {}, "hello", -2}; });
  const FetchPlan plan = rig.url_plan(server.url() + "/f");
  fetch_all(plan, rig.options);
  std::filesystem::remove(rig.root() + "/file");
  server.handle([](const FakeRequest&) { return FakeReply{200, {}, "other"}; });
  EXPECT_EQ(code_of([&] { fetch_all(plan, rig.options); }), "wrong_hash");
  rig.options.update = true;
  fetch_all(plan, rig.options);
  EXPECT_EQ(rig.content("file"), "other");
}

TEST(Fetch, ALockEditedByHand) {
  Rig rig;
  rig.hub.add("a", "hello", false);
  rig.fetch();
  const std::string path = rig.root() + "/lock.json";
  const std::string good = read_file(path);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"path\": \"a\"", "\"path\": \"../a\""},
           {"\"size\": 5", "\"size\": -5"},
           {"\"files\"", "\"file\""},
           {"\"cbench_lock\": 1", "\"cbench_lock\": 9"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    ASSERT_NE(bad, good);
    write_file_atomic(path, bad);
    EXPECT_EQ(code_of([&] { rig.fetch(); }), "bad_lock") << to;
  }
}

TEST(Fetch, AnotherRevisionInTheSameFolderReplacesTheOld) {
  Rig rig;
  rig.hub.add("a", "old", false);
  rig.fetch();
  rig.hub.sha = std::string(40, 'b');
  rig.hub.add("a", "new", false);
  FetchPlan plan = rig.repo_plan();
  std::get<HubRepoItem>(plan.items[0].what).revision = "v2";
  fetch_all(plan, rig.options);
  EXPECT_EQ(rig.content("a"), "new");
  EXPECT_TRUE(
      verify_lock(rig.root() + "/lock.json", rig.root(), VerifyMode::kFull).problems.empty());
}

TEST(Fetch, ReportIsJson) {
  Rig rig;
  rig.hub.add("a", "hello", false);
  const Json report = parse_json(rig.fetch().json(), "report");
  EXPECT_EQ(report["complete"], true);
  EXPECT_EQ(report["items"][0]["received_bytes"], 5);
}

TEST(Fetch, PlansOfTheShippedTasks) {
  const std::string tasks = std::string(CBENCH_SOURCE_DIR) + "/tasks";
  for (const std::string& name : list_tasks(tasks)) {
    const FetchPlan plan = plan_for(find_task(name, tasks));
    EXPECT_FALSE(plan.root.empty()) << name;
    if (name.find("H200") == std::string::npos) continue;
    EXPECT_GE(plan.items.size(), 10u) << name;
  }
}

TEST(Http, UrlsAndOrigins) {
  EXPECT_EQ(resolve_url("http://a/b/c?x=1", "../d?y=%22"), "http://a/d?y=%22");
  EXPECT_EQ(resolve_url("http://a/b", "//c:9/d"), "http://c:9/d");
  EXPECT_EQ(parse_origin("https://HOST/x"), (Origin{"https", "host", "443"}));
  EXPECT_NE(parse_origin("http://h:81/"), parse_origin("http://h/"));
  EXPECT_TRUE(parse_origin("http://127.0.0.2:5/").loopback());
  EXPECT_FALSE(parse_origin("http://localhost.example.org/").loopback());
  EXPECT_EQ(url_encode("refs/pr/1 \xc3"), "refs%2Fpr%2F1%20%C3");
  for (const char* bad : {"ftp://h/x", "file:///etc/passwd", "", "http://", "nonsense"}) {
    EXPECT_EQ(code_of([&] { parse_origin(bad); }), "bad_url") << bad;
  }
}

}  // namespace
}  // namespace cbench
