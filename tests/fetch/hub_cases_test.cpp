// Cases of the Hub protocol: revisions, metadata, redirects, errors, environment, cache.
#include "fetch/rig.h"

namespace cbench {
namespace {

FakeReply usual() { return {0, {}, ""}; }
FakeReply json(std::string body) {
  return {200, {{"Content-Type", "application/json"}}, std::move(body)};
}
FakeReply redirect(int status, const std::string& to) { return {status, {{"Location", to}}, ""}; }

Environment env_of(std::map<std::string, std::string> values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace

FETCH_CASE(resolve_rev) {
  Rig rig;
  rig.hub.add("a.txt", "hello", false);
  const FetchReport report = rig.fetch();
  EXPECT_EQ(report.items[0].revision, rig.hub.sha);
  EXPECT_EQ(rig.hub.server.count("/revision/main"), 1u);
  EXPECT_EQ(rig.hub.server.count("/resolve/" + rig.hub.sha + "/a.txt"), 1u);
  EXPECT_EQ(rig.hub.server.count("main"), 1u) << "the branch is named once only";
  const Json lock = read_json(rig.root() + "/lock.json");
  EXPECT_EQ(lock["items"][0]["revision"], rig.hub.sha);
}

FETCH_CASE(next_link_foreign) {
  Rig rig;
  FakeServer other;
  rig.options.hub.token = "secret";
  rig.hub.add("a.txt", "hello", false);
  rig.hub.before = [&](const FakeRequest& request) {
    if (request.path.find("/tree/") == std::string::npos) return usual();
    FakeReply reply = json("[]");
    reply.headers.emplace_back("Link", "<" + other.url() + "/next>; rel=\"next\"");
    return reply;
  };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "foreign_link");
  EXPECT_TRUE(other.requests().empty());
}

FETCH_CASE(head_small) {
  ClientRig rig;
  rig.hub.add("a.txt", "hello", false);
  const HubMetadata meta = rig.protocol().metadata(rig.repo, rig.hub.sha, "a.txt");
  EXPECT_EQ(meta.etag, git_sha1("hello"));
  EXPECT_EQ(meta.size, 5);
  EXPECT_EQ(meta.commit, rig.hub.sha);
  rig.fetch();  // verified as a git blob
  rig.hub.files["a.txt"].content = "hellO";
  const std::string wrong = git_sha1("hello");
  rig.hub.before = [&](const FakeRequest& request) {
    if (request.path.find("/tree/") == std::string::npos) return usual();
    return json("[{\"type\":\"file\",\"path\":\"a.txt\",\"size\":5,\"oid\":\"" + wrong + "\"}]");
  };
  std::filesystem::remove_all(rig.root());
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "wrong_hash");
}

FETCH_CASE(head_gzip) {
  Rig rig;
  // 20 bytes of gzip around "hello" + 25 bytes of the file's claim: the plain size is 5.
  const std::string gzip(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48\xcd\xc9\xc9\x07\x00\x86\xa6"
      "\x10\x36\x05\x00\x00\x00",
      25);
  rig.hub.add("config.json", "hello", false);
  rig.hub.before = [&](const FakeRequest& request) {
    if (request.path.find("/resolve/") == std::string::npos) return usual();
    return FakeReply{200, {{"Content-Encoding", "gzip"}}, gzip, -2};
  };
  rig.fetch();
  EXPECT_EQ(rig.content("config.json"), "hello");
  for (const FakeRequest& request : rig.hub.server.requests()) {
    EXPECT_EQ(request.header("accept-encoding"), "identity");
  }
}

FETCH_CASE(redirect_relative) {
  Rig rig;
  rig.options.hub.token = "secret";
  rig.hub.add("a.txt", "hello", false);
  rig.hub.before = [&](const FakeRequest& request) {
    if (request.path.starts_with("/org/name/resolve/")) {
      return redirect(307, "/api/resolve-cache/a.txt?etag=%22abc%22&x=1");
    }
    if (request.path.starts_with("/api/resolve-cache")) {
      EXPECT_EQ(request.query, "etag=%22abc%22&x=1");
      EXPECT_EQ(request.header("authorization"), "Bearer secret");
      return FakeReply{200, {}, "hello"};
    }
    return usual();
  };
  rig.fetch();
  EXPECT_EQ(rig.content("a.txt"), "hello");
}

FETCH_CASE(redirect_cross_host) {
  Rig rig;
  FakeServer cdn;
  rig.options.hub.token = "secret";
  rig.hub.add("a.bin", "hello", true);
  // The CDN sends the client back to the Hub once more: the token must not come back.
  rig.hub.before = [&](const FakeRequest& request) {
    if (request.path == "/second") return FakeReply{200, {}, "hello"};
    return request.path.find("/resolve/") == std::string::npos
               ? usual()
               : redirect(302, cdn.url() + "/signed?X-Sig=1");
  };
  cdn.handle([&](const FakeRequest&) { return redirect(302, rig.hub.url() + "/second"); });
  rig.fetch();
  EXPECT_EQ(rig.content("a.bin"), "hello");
  ASSERT_EQ(cdn.requests().size(), 1u);
  EXPECT_EQ(cdn.requests()[0].header("authorization"), "");
  for (const FakeRequest& request : rig.hub.server.requests()) {
    EXPECT_EQ(request.header("authorization"), request.path == "/second" ? "" : "Bearer secret");
  }
}

FETCH_CASE(redirect_loop) {
  Rig rig;
  rig.hub.add("a.txt", "hello", false);
  rig.hub.before = [&](const FakeRequest& request) {
    if (request.path.find("/resolve/") == std::string::npos && request.path != "/b") return usual();
    return redirect(302, request.path == "/b" ? "/org/name/resolve/x" : "/b");
  };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "redirect_loop");
  EXPECT_LE(rig.hub.server.requests().size(), 2u + 11u);
}

FETCH_CASE(mirror_308) {
  ClientRig rig;
  FakeServer mirror;
  mirror.handle(
      [&](const FakeRequest& request) { return redirect(308, rig.hub.url() + request.target); });
  rig.options.hub.endpoint = mirror.url();
  rig.hub.add("a.txt", "hello", false);
  EXPECT_EQ(rig.protocol().metadata(rig.repo, rig.hub.sha, "a.txt").etag, git_sha1("hello"));
  rig.fetch();
  EXPECT_EQ(rig.content("a.txt"), "hello");
  mirror.handle([&](const FakeRequest&) { return FakeReply{200, {}, "{\"ok\":true}"}; });
  std::string message;
  EXPECT_EQ(code_of([&] { rig.protocol().metadata(rig.repo, rig.hub.sha, "a.txt"); }, &message),
            "not_hub");
  EXPECT_NE(message.find("X-Repo-Commit"), std::string::npos);
  EXPECT_EQ(message.find("connection"), std::string::npos);
  EXPECT_EQ(code_of([&] { rig.protocol().resolve_revision(rig.repo, "main"); }, &message),
            "not_hub");
  EXPECT_NE(message.find(mirror.url()), std::string::npos) << "names the endpoint";
}

FETCH_CASE(endpoint_blank) {
  EXPECT_EQ(hub_options_from(env_of({{"HF_ENDPOINT", ""}})).endpoint, HubOptions{}.endpoint);
  EXPECT_EQ(hub_options_from(env_of({{"HF_ENDPOINT", "http://127.0.0.1:1//"}})).endpoint,
            "http://127.0.0.1:1");
  EXPECT_EQ(code_of([] {
              hub_options_from(env_of({{"HF_ENDPOINT", "not a url"}}));
            }),
            "bad_endpoint");
  EXPECT_EQ(code_of([] {
              hub_options_from(env_of({{"HF_ENDPOINT", "file:///etc"}}));
            }),
            "bad_endpoint");
}

FETCH_CASE(offline_truthy) {
  for (const char* yes : {"1", "ON", "on", "Yes", "true", "TRUE"}) {
    EXPECT_TRUE(hub_options_from(env_of({{"HF_HUB_OFFLINE", yes}})).offline) << yes;
    EXPECT_TRUE(hub_options_from(env_of({{"TRANSFORMERS_OFFLINE", yes}})).offline) << yes;
  }
  for (const char* no : {"0", "", "false", "off", "no", "2", "enabled"}) {
    EXPECT_FALSE(hub_options_from(env_of({{"HF_HUB_OFFLINE", no}})).offline) << no;
  }
}

namespace {

/// The error of a fetch whose revision request is answered with `reply`.
std::string error_of(const FakeReply& reply, const std::string& token, std::string* message) {
  Rig rig;
  rig.options.hub.token = token;
  rig.hub.before = [&](const FakeRequest&) { return reply; };
  const std::string code = code_of([&] { rig.fetch(); }, message);
  EXPECT_EQ(rig.hub.server.requests().size(), 1u) << "no retry";
  return code;
}

}  // namespace

FETCH_CASE(401_gated_no_token) {
  std::string message;
  for (const int status : {401, 403}) {
    EXPECT_EQ(error_of({status, {{"X-Error-Code", "GatedRepo"}}, ""}, "", &message), "gated");
    EXPECT_NE(message.find("accept the licence at"), std::string::npos);
    EXPECT_NE(message.find("set HF_TOKEN"), std::string::npos);
  }
  EXPECT_EQ(error_of({403, {{"X-Error-Code", "GatedRepo"}}, ""}, "t", &message), "gated");
  EXPECT_NE(message.find("has no access"), std::string::npos);
}

FETCH_CASE(401_repo_not_found) {
  std::string message;
  EXPECT_EQ(error_of({401, {}, ""}, "", &message), "repo_not_found");
  for (const char* word : {"missing", "private", "gated", "HF_TOKEN"}) {
    EXPECT_NE(message.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(
      error_of({401, {{"X-Error-Message", "Invalid credentials in Authorization header"}}, ""},
               "bad", &message),
      "bad_token");
  EXPECT_NE(message.find("settings/tokens"), std::string::npos);
  EXPECT_EQ(error_of({404, {{"X-Error-Code", "RevisionNotFound"}}, ""}, "", &message),
            "revision_not_found");
}

FETCH_CASE(403_fine_grained) {
  std::string message;
  EXPECT_EQ(
      error_of({403, {{"X-Error-Message", "token lacks the permission: repo.content.read"}}, ""},
               "t", &message),
      "forbidden");
  EXPECT_NE(message.find("token lacks the permission: repo.content.read"), std::string::npos);
}

FETCH_CASE(429_retry_after) {
  const auto wait = [](std::vector<std::pair<std::string, std::string>> fields) {
    HttpResponse response;
    for (auto& [name, value] : fields) response.headers.add(name, value);
    return server_wait(response);
  };
  EXPECT_EQ(wait({{"Retry-After", "120"}, {"RateLimit", "\"resolvers\";r=7;t=55"}}), 120);
  EXPECT_EQ(wait({{"Retry-After", "120"}, {"RateLimit", "\"resolvers\";r=0;t=55"}}), 56);
  EXPECT_EQ(wait({{"RateLimit", "\"api\";r=3;t=9, \"resolvers\";r=0;t=2"}}), 3);
  EXPECT_EQ(wait({{"Retry-After", "soon"}, {"RateLimit", "nonsense"}}), std::nullopt);
  EXPECT_EQ(wait({{"Retry-After", "Thu, 01 Jan 1970 00:00:00 GMT"}}), 0);

  Rig rig;  // a 429 does not kill the run
  rig.hub.add("a.txt", "hello", false);
  int refused = 0;
  rig.hub.before = [&](const FakeRequest& request) {
    if (request.path.find("/resolve/") == std::string::npos || refused++ >= 2) return usual();
    return FakeReply{429, {{"RateLimit", "\"resolvers\";r=0;t=4"}}, ""};
  };
  rig.fetch();
  EXPECT_EQ(rig.content("a.txt"), "hello");
  rig.hub.before = [&](const FakeRequest&) {
    return FakeReply{429, {{"Retry-After", "99999"}}, ""};
  };
  std::filesystem::remove_all(rig.root());
  std::string message;
  EXPECT_EQ(code_of([&] { rig.fetch(); }, &message), "rate_limited");
  EXPECT_NE(message.find("99999 s"), std::string::npos);
}

FETCH_CASE(503) {
  for (const int status : {500, 502, 503, 504}) {
    Rig rig;
    rig.hub.add("a.txt", "hello", false);
    int failed = 0;
    rig.hub.before = [&](const FakeRequest& request) {
      const bool bad = request.path.find("/resolve/") != std::string::npos && failed++ < 5;
      return bad ? FakeReply{status, {}, "oops"} : usual();
    };
    rig.fetch();
    EXPECT_EQ(rig.content("a.txt"), "hello") << status;
  }
  Rig rig;
  rig.hub.before = [&](const FakeRequest&) { return FakeReply{503, {}, ""}; };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "server_error");
  EXPECT_EQ(rig.hub.server.requests().size(), 6u) << "once, and five more tries";
}

FETCH_CASE(xet_headers) {
  ClientRig rig;
  FakeServer bridge;
  rig.hub.add("a.bin", "hello", true);
  bridge.handle([&](const FakeRequest& request) { return ranged(request, "hello"); });
  rig.hub.before = [&](const FakeRequest& request) {
    if (request.path.find("/resolve/") == std::string::npos) return usual();
    FakeReply reply = redirect(302, bridge.url() + "/xet-bridge?sig=1");
    reply.headers.emplace_back("X-Xet-Hash", std::string(64, 'e'));
    reply.headers.emplace_back("Link", "<" + rig.hub.url() + "/xet-read-token>; rel=\"xet-auth\"");
    reply.headers.emplace_back("X-Repo-Commit", rig.hub.sha);
    reply.headers.emplace_back("X-Linked-Etag", "\"" + sha256_hex("hello") + "\"");
    reply.headers.emplace_back("X-Linked-Size", "5");
    return reply;
  };
  const HubMetadata meta = rig.protocol().metadata(rig.repo, rig.hub.sha, "a.bin");
  EXPECT_EQ(meta.xet_hash, std::string(64, 'e'));
  EXPECT_EQ(meta.location, bridge.url() + "/xet-bridge?sig=1");
  EXPECT_EQ(meta.etag, sha256_hex("hello"));
  EXPECT_EQ(meta.size, 5);
  EXPECT_TRUE(bridge.requests().empty()) << "metadata does not follow to the CDN";
  rig.fetch();
  EXPECT_EQ(rig.content("a.bin"), "hello");
}

namespace {

/// A Python client's cache with one blob; links or plain files.
void fill_cache(const Rig& rig, const std::string& content, const std::string& hash, bool links) {
  const std::string base = rig.options.hub.cache + "/models--org--name";
  make_directories(base + "/blobs");
  make_directories(base + "/snapshots/" + rig.hub.sha + "/sub");
  make_directories(base + "/refs");
  write_file_atomic(base + "/refs/main", rig.hub.sha);
  const std::string name = base + "/snapshots/" + rig.hub.sha + "/sub/a.bin";
  if (!links) return write_file_atomic(name, content);
  write_file_atomic(base + "/blobs/" + hash, content);
  std::filesystem::create_symlink("../../../blobs/" + hash, name);
}

void expect_from_cache(bool links) {
  Rig rig;
  rig.options.hub.cache = rig.dir.path() + "/hub";
  rig.hub.add("sub/a.bin", "hello", true);
  fill_cache(rig, "hello", sha256_hex("hello"), links);
  const FetchReport report = rig.fetch();
  EXPECT_EQ(report.items[0].copied, 1);
  EXPECT_EQ(rig.hub.server.count("/resolve/"), 0u);
  EXPECT_EQ(rig.content("sub/a.bin"), "hello");
  EXPECT_TRUE(
      std::filesystem::is_regular_file(std::filesystem::symlink_status(rig.root() + "/sub/a.bin")));
}

}  // namespace

FETCH_CASE(cache_layout) {
  expect_from_cache(true);
  using Env = std::map<std::string, std::string>;
  const auto cache = [](const Env& env) { return hub_options_from(env_of(env)).cache; };
  EXPECT_EQ(cache({{"HOME", "/h"}}), "/h/.cache/huggingface/hub");
  EXPECT_EQ(cache({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}), "/x/huggingface/hub");
  EXPECT_EQ(cache({{"HF_HOME", "/f"}, {"XDG_CACHE_HOME", "/x"}}), "/f/hub");
  EXPECT_EQ(cache({{"HF_HUB_CACHE", "/c"}, {"HF_HOME", "/f"}}), "/c");
}

FETCH_CASE(no_symlinks) { expect_from_cache(false); }

FETCH_CASE(cached_blob_rewritten) {
  Rig rig;
  rig.options.hub.cache = rig.dir.path() + "/hub";
  rig.hub.add("sub/a.bin", "hello", true);
  fill_cache(rig, "HELLO", sha256_hex("hello"), true);
  const FetchReport report = rig.fetch();
  EXPECT_EQ(report.items[0].copied, 0);
  EXPECT_EQ(rig.content("sub/a.bin"), "hello");
  const std::string blob =
      rig.options.hub.cache + "/models--org--name/blobs/" + sha256_hex("hello");
  EXPECT_EQ(read_file(blob), "HELLO") << "the user's cache is never written";
  const auto mode = std::filesystem::status(rig.root() + "/sub/a.bin").permissions();
  EXPECT_EQ(mode & std::filesystem::perms::owner_write, std::filesystem::perms::none);
}

}  // namespace cbench
