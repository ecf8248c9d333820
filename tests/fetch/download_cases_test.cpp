// Cases of the download itself: ranges, resume, wrong content, disk space.
#include <fstream>

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fetch/rig.h"

namespace cbench {
namespace {

constexpr int64_t kPart = 4096;

FakeReply usual() { return {0, {}, ""}; }

bool is_file_request(const FakeRequest& request) {
  return request.path.find("/resolve/") != std::string::npos;
}

/// A rig with one LFS file of `parts` parts, whose first fetch breaks after some bytes.
struct BrokenRig : Rig {
  std::string content;
  explicit BrokenRig(int64_t parts = 4) : content(pattern(0, parts * kPart + 100)) {
    hub.add("big.bin", content, true);
    options.download.part_size = kPart;
    options.download.connections = 1;
    options.download.follow_size = 1;
    options.http.retry_waits = {};
  }
  /// Fetches with a server that cuts every body after `bytes`, `answers` answers in.
  void break_after(int64_t bytes, int answers = 0) {
    int seen = 0;
    hub.before = [=, this](const FakeRequest& request) mutable {
      if (!is_file_request(request) || seen++ < answers) return usual();
      FakeReply reply = ranged(request, content);
      reply.cut_after = bytes;
      return reply;
    };
    EXPECT_EQ(code_of([&] { fetch(); }), "network");
    hub.before = nullptr;
    hub.server.forget_requests();
  }
  int64_t body_bytes_requested() const {
    int64_t sum = 0;
    for (const FakeRequest& request : hub.server.requests()) {
      if (is_file_request(request))
        sum += static_cast<int64_t>(ranged(request, content).body.size());
    }
    return sum;
  }
  std::string first_range() const {
    for (const FakeRequest& request : hub.server.requests()) {
      if (is_file_request(request)) return request.header("range");
    }
    return "none";
  }
};

}  // namespace

FETCH_CASE(resume_200) {
  BrokenRig rig;
  rig.break_after(1000, 2);
  rig.hub.before = [&](const FakeRequest& request) {
    if (!is_file_request(request)) return usual();
    EXPECT_NE(request.header("range"), "");
    return FakeReply{200, {}, rig.content};
  };
  rig.fetch();
  EXPECT_EQ(rig.content, read_file(rig.root() + "/big.bin"));
}

FETCH_CASE(resume_416_stale) {
  // An unpinned file that became shorter: the part is longer than the file.
  Rig rig;
  FakeServer server;
  rig.options.http.retry_waits = {};
  server.handle([&](const FakeRequest&) {
    FakeReply reply{200, {{"ETag", "\"v1\""}}, pattern(0, 9000)};
    reply.cut_after = 5000;
    return reply;
  });
  EXPECT_EQ(code_of([&] { fetch_all(rig.url_plan(server.url() + "/f"), rig.options); }), "network");
  const std::string now = pattern(5, 2307);
  server.handle([&](const FakeRequest& request) { return ranged(request, now); });
  fetch_all(rig.url_plan(server.url() + "/f"), rig.options);
  EXPECT_EQ(rig.content("file"), now);
  EXPECT_EQ(server.requests().size(), 3u) << "broken, 416, whole";
  EXPECT_EQ(server.requests()[1].header("range"), "bytes=5000-");
}

FETCH_CASE(resume_etag_changed) {
  Rig rig;  // without a hash the validator decides
  FakeServer server;
  rig.options.http.retry_waits = {};
  server.handle([&](const FakeRequest&) {
    FakeReply reply{200, {{"ETag", "\"v1\""}}, pattern(0, 9000)};
    reply.cut_after = 5000;
    return reply;
  });
  EXPECT_EQ(code_of([&] { fetch_all(rig.url_plan(server.url() + "/f"), rig.options); }), "network");
  const std::string now = pattern(77, 9000);
  server.handle([&](const FakeRequest& request) {
    EXPECT_EQ(request.header("if-range"), "\"v1\"");
    return FakeReply{200, {{"ETag", "\"v2\""}}, now};
  });
  fetch_all(rig.url_plan(server.url() + "/f"), rig.options);
  EXPECT_EQ(rig.content("file"), now);

  BrokenRig hub;  // with a hash, another content is another part
  hub.break_after(1000, 2);
  hub.content = pattern(9, static_cast<int64_t>(hub.content.size()));
  hub.hub.add("big.bin", hub.content, true);
  hub.fetch();
  EXPECT_EQ(hub.content, read_file(hub.root() + "/big.bin"));
  EXPECT_EQ(hub.first_range(), "bytes=0-4095");
}

FETCH_CASE(hash_mismatch_same_size) {
  Rig rig;
  rig.hub.add("a.bin", "hello", true);
  int served = 0;
  rig.hub.before = [&](const FakeRequest& request) {
    return is_file_request(request) && served++ < 1 ? FakeReply{200, {}, "HELLO"} : usual();
  };
  rig.fetch();
  EXPECT_EQ(rig.content("a.bin"), "hello") << "one wrong answer is retried";
  EXPECT_EQ(served, 2);
  std::filesystem::remove_all(rig.root());
  rig.hub.before = [&](const FakeRequest& request) {
    return is_file_request(request) ? FakeReply{200, {}, "HELLO"} : usual();
  };
  rig.hub.server.forget_requests();
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "wrong_hash");
  EXPECT_EQ(rig.hub.server.count("/resolve/"), 2u);
  EXPECT_FALSE(rig.exists("a.bin"));
}

FETCH_CASE(too_large_plain) {
  BrokenRig rig;
  rig.hub.before = [&](const FakeRequest& request) {
    return is_file_request(request) && request.header("range").empty() ? FakeReply{400, {}, ""}
                                                                       : usual();
  };
  rig.fetch();
  EXPECT_EQ(rig.content, read_file(rig.root() + "/big.bin"));
}

namespace {

/// Runs `body` in a child whose `folder` is a small file system of its own; the child's exit code.
int on_small_disk(const std::string& folder, const std::function<int()>& body) {
  make_directories(folder);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS | (::geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=256k") != 0) {
      ::_exit(77);
    }
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

}  // namespace

FETCH_CASE(disk_full) {
  std::string message;
  EXPECT_EQ(code_of([] { check_free_space("/tmp/not/yet/there", INT64_MAX / 2); }, &message),
            "no_space");
  EXPECT_NE(message.find("free"), std::string::npos);

  Rig rig;
  const std::string content =
      pattern(0, 400 << 10);  // more than the disk, and the size is a surprise
  FakeServer server;
  server.handle([&](const FakeRequest& request) {
    FakeReply reply = ranged(request, content);
    reply.headers.emplace_back("ETag", "\"v1\"");
    return reply;
  });
  const int code = on_small_disk(rig.root(), [&] {
    const auto plan = rig.url_plan(server.url() + "/f", sha256_hex(content));
    if (code_of([&] { fetch_all(plan, rig.options); }) != "disk_full") return 1;
    if (rig.exists("file")) return 2;
    // More space, and the fetch goes on where it stopped.
    if (::mount("tmpfs", rig.root().c_str(), "tmpfs", MS_REMOUNT, "size=2m") != 0) return 77;
    const FetchReport report = fetch_all(plan, rig.options);
    if (report.items[0].resumed != 1) return 3;
    return rig.content("file") == content ? 0 : 4;
  });
  if (code == 77) GTEST_SKIP() << "no private mounts here";
  EXPECT_EQ(code, 0);
}

FETCH_CASE(lfs_pointer) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') +
      "\nsize 12345\n";
  Rig rig;
  FakeServer server;
  server.handle([&](const FakeRequest&) { return FakeReply{200, {}, pointer}; });
  EXPECT_EQ(code_of([&] { fetch_all(rig.url_plan(server.url() + "/f"), rig.options); }),
            "lfs_pointer");
  EXPECT_EQ(code_of([&] {
              fetch_all(rig.url_plan(server.url() + "/f", std::string(64, '0')), rig.options);
            }),
            "lfs_pointer");
  rig.hub.add("a.bin", pattern(0, 5000), true);
  rig.hub.before = [&](const FakeRequest& request) {
    return is_file_request(request) ? FakeReply{200, {}, pointer} : usual();
  };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "lfs_pointer");
}

// ---- beyond the list -------------------------------------------------------------------------

TEST(Download, ResumesAcrossRunsFromTheOffset) {
  BrokenRig rig;
  rig.break_after(1000, 2);
  const FetchReport report = rig.fetch();
  EXPECT_EQ(rig.content, read_file(rig.root() + "/big.bin"));
  EXPECT_EQ(report.items[0].resumed, 1);
  EXPECT_EQ(rig.body_bytes_requested(),
            static_cast<int64_t>(rig.content.size()) - 2 * kPart - 1000);
  EXPECT_FALSE(rig.exists(".cbench-fetch")) << "nothing is left behind";
}

TEST(Download, ResumesWithinOneRunWhenTheConnectionBreaks) {
  BrokenRig rig;
  rig.options.http.retry_waits = {1, 1, 1};
  int cuts = 0;
  rig.hub.before = [&](const FakeRequest& request) {
    if (!is_file_request(request) || cuts++ % 2 == 1) return usual();
    FakeReply reply = ranged(request, rig.content);
    reply.cut_after = 1500;
    return reply;
  };
  rig.fetch();
  EXPECT_EQ(rig.content, read_file(rig.root() + "/big.bin"));
}

TEST(Download, TakesOverThePartOfADeadProcess) {
  TempDir dir;
  const PartIdentity identity{"sha256:" + std::string(64, 'a'), "", 100, "name"};
  const pid_t child = ::fork();
  if (child == 0) {
    PartFile part(dir.path(), identity);
    part.write(10, "0123456789");
    part.save(true);
    ::_exit(0);  // without the destructor: as killed
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  {
    PartFile part(dir.path(), identity);
    EXPECT_EQ(part.total(), 10);
    PartFile second(dir.path(), identity);
    EXPECT_EQ(second.total(), 0) << "a part in use is not taken";
  }
  PartIdentity other = identity;
  other.size = 99;
  PartFile part(dir.path(), other);
  EXPECT_EQ(part.total(), 0) << "another size does not continue it";
}

TEST(Download, PartsOfOneFileInParallel) {
  BrokenRig rig(50);
  rig.options.download.connections = 4;
  const FetchReport report = rig.fetch();
  EXPECT_EQ(rig.content, read_file(rig.root() + "/big.bin"));
  EXPECT_EQ(report.items[0].received, static_cast<int64_t>(rig.content.size()));
  EXPECT_EQ(rig.hub.server.count("/resolve/"), 51u);
}

TEST(Download, ServerStopsServingRanges) {
  BrokenRig rig(20);
  rig.options.download.connections = 3;
  std::atomic<int> answers{0};
  rig.hub.before = [&](const FakeRequest& request) {
    return is_file_request(request) && ++answers > 5 ? FakeReply{200, {}, rig.content} : usual();
  };
  rig.fetch();
  EXPECT_EQ(rig.content, read_file(rig.root() + "/big.bin"));
}

TEST(Download, WrongRangeIsNotBelieved) {
  BrokenRig rig;
  rig.hub.before = [&](const FakeRequest& request) {
    if (!is_file_request(request) || request.header("range").empty()) return usual();
    FakeReply reply = ranged(request, rig.content);
    reply.headers = {{"Content-Range", "bytes 7-4102/" + std::to_string(rig.content.size())}};
    return reply;
  };
  rig.fetch();
  EXPECT_EQ(rig.content, read_file(rig.root() + "/big.bin"));
}

TEST(Download, SignedAddressThatRanOutIsRenewed) {
  BrokenRig rig(6);
  FakeServer cdn;
  std::atomic<int> signature{0}, served{0};
  rig.hub.before = [&](const FakeRequest& request) {
    if (!is_file_request(request)) return usual();
    return FakeReply{302, {{"Location", cdn.url() + "/f?sig=" + std::to_string(++signature)}}, ""};
  };
  cdn.handle([&](const FakeRequest& request) {
    EXPECT_EQ(request.header("authorization"), "");
    const bool fresh = request.query == "sig=" + std::to_string(signature);
    if (!fresh || ++served == 3) {
      ++signature;
      return FakeReply{403, {}, "Request has expired"};
    }
    return ranged(request, rig.content);
  });
  rig.options.hub.token = "secret";
  rig.fetch();
  EXPECT_EQ(rig.content, read_file(rig.root() + "/big.bin"));
  EXPECT_LE(rig.hub.server.count("/resolve/"), 3u) << "the signed address is reused";
}

TEST(Download, WrongSizes) {
  for (const std::string body : {"hell", "hello!"}) {
    Rig rig;
    rig.hub.add("a.bin", "hello", true);
    rig.hub.before = [&](const FakeRequest& request) {
      return is_file_request(request) ? FakeReply{200, {}, body} : usual();
    };
    EXPECT_EQ(code_of([&] { rig.fetch(); }), "wrong_size") << body;
    rig.hub.before = [&](const FakeRequest& request) {  // the same without a length
      return is_file_request(request) ? FakeReply{200, {}, body, -2} : usual();
    };
    EXPECT_NE(code_of([&] { rig.fetch(); }), "") << body;
    EXPECT_FALSE(rig.exists("a.bin"));
  }
}

TEST(Download, EndlessAndSlowBodiesEnd) {
  Rig rig;
  rig.hub.add("a.bin", "hello", true);
  rig.options.http.stall_seconds = 0.3;
  rig.options.http.retry_waits = {1};
  rig.hub.before = [&](const FakeRequest& request) {
    if (!is_file_request(request)) return usual();
    FakeReply reply{200, {}, std::string(1000, 'x'), -2};
    reply.generated = int64_t{1} << 40;
    return reply;
  };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "wrong_size");
  rig.hub.before = [&](const FakeRequest& request) {
    if (!is_file_request(request)) return usual();
    FakeReply reply{200, {}, "hello"};
    reply.drip_seconds = 0.15;
    return reply;
  };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "stalled");
  rig.hub.before = [&](const FakeRequest& request) {
    FakeReply reply = usual();
    if (is_file_request(request)) {
      reply.status = 200;
      reply.body = "hello";
      reply.stall = true;
    }
    return reply;
  };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "stalled");
}

TEST(Download, InterruptKeepsWhatArrived) {
  BrokenRig rig;
  std::atomic<bool> interrupt{false};
  rig.options.interrupt = &interrupt;
  int answers = 0;
  rig.hub.before = [&](const FakeRequest& request) {
    if (is_file_request(request) && ++answers == 3) interrupt = true;
    return usual();
  };
  EXPECT_EQ(code_of([&] { rig.fetch(); }), "interrupted");
  interrupt = false;
  rig.hub.before = nullptr;
  rig.hub.server.forget_requests();
  EXPECT_EQ(rig.fetch().items[0].resumed, 1);
  EXPECT_LT(rig.body_bytes_requested(), static_cast<int64_t>(rig.content.size()));
}

TEST(Download, ContentRangeParser) {
  ByteRange range;
  int64_t total = 0;
  EXPECT_TRUE(parse_content_range("bytes 0-9/10", range, total));
  EXPECT_EQ(range, (ByteRange{0, 10}));
  EXPECT_EQ(total, 10);
  EXPECT_TRUE(parse_content_range("bytes 5-9/*", range, total));
  EXPECT_EQ(total, -1);
  for (const char* bad :
       {"", "bytes", "bytes */10", "bytes 9-5/10", "bytes 0-10/10", "items 0-9/10", "bytes 0-9",
        "bytes 0-99999999999999999999/*", "bytes -1-3/9", "bytes 0-9/x"}) {
    EXPECT_FALSE(parse_content_range(bad, range, total)) << bad;
  }
}

TEST(Download, RangeSet) {
  RangeSet set;
  set.add({10, 20});
  set.add({30, 40});
  EXPECT_EQ(set.prefix(), 0);
  set.add({0, 10});
  EXPECT_EQ(set.prefix(), 20);
  set.add({15, 35});
  EXPECT_EQ(set.ranges(), (std::vector<ByteRange>{{0, 40}}));
  EXPECT_EQ(set.missing(100, 25), (std::vector<ByteRange>{{40, 65}, {65, 90}, {90, 100}}));
  EXPECT_EQ(set.total(), 40);
}

}  // namespace cbench
