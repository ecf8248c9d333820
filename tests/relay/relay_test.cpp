// The relay as a process between a scripted endpoint and a client on its socket.
#include "relay/relay.h"

#include <chrono>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "box/box.h"
#include "relay/endpoint.h"
#include "util/clock.h"
#include "util/error.h"

namespace cbench::relay {
namespace {

struct Dialect {
  Api api;
  const char* path;
  const char* credential;  // header name, as the endpoint logs it
  const char* value;
};

void PrintTo(const Dialect& dialect, std::ostream* out) { *out << api_name(dialect.api); }

class Relayed : public ::testing::TestWithParam<Dialect> {
 protected:
  Api api() const { return GetParam().api; }
  std::string ask(bool keep = false) const {
    return post(GetParam().path, question(api()),
                "authorization: Bearer from-the-box\r\n"
                "x-api-key: from-the-box\r\ncookie: a=b\r\n"
                "anthropic-version: 2023-06-01\r\n",
                keep);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Apis, Relayed,
    ::testing::Values(Dialect{Api::kAnthropic, "/v1/messages", "x-api-key", "sk-test-1234567890"},
                      Dialect{Api::kOpenai, "/v1/responses", "authorization",
                              "Bearer sk-test-1234567890"}),
    [](const auto& dialect) { return std::string(api_name(dialect.param.api)); });

TEST_P(Relayed, StreamsAndRecordsWithTheKeyOnThisSideOnly) {
  Endpoint endpoint(api());
  RelayProcess relay(api(), endpoint.url());
  Client client(relay.socket());
  client.send(ask());
  const std::string answer = client.read_until("never");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("content-type: text/event-stream"), answer.npos);
  EXPECT_NE(answer.find("data: {"), answer.npos);
  if (api() == Api::kAnthropic) {
    EXPECT_NE(answer.find("request-id: req_"), answer.npos);
  }
  const Json seen = endpoint.requests().at(0)["headers"];
  EXPECT_EQ(seen[GetParam().credential], GetParam().value);
  EXPECT_FALSE(seen.contains("cookie"));
  EXPECT_FALSE(seen.contains(api() == Api::kAnthropic ? "authorization" : "x-api-key"));
  EXPECT_EQ(seen["anthropic-version"], "2023-06-01");
  const Json record = relay.log().at(0);
  EXPECT_EQ(record["schema"], "cbench.relay.v1");
  EXPECT_EQ(record["outcome"], "ok");
  EXPECT_EQ(record["status"], 200);
  EXPECT_EQ(record["stream"], true);
  EXPECT_EQ(record["model"], "test-model");
  EXPECT_EQ(record["usage"]["input_tokens"], 1000);
  EXPECT_EQ(record["usage"]["output_tokens"], 50);
  for (const std::string& place : {answer, relay.command_line(), relay.log_text(), relay.said()}) {
    EXPECT_EQ(place.find("sk-test"), place.npos) << place;
  }
}

TEST_P(Relayed, TheFirstEventComesBeforeTheLast) {
  // The stream stops in its middle for ever: what came before must be here all the same.
  Endpoint endpoint(api(),
                    {"--fault", "midstall:0:1", "--script", R"([{"text":"one","say":"one"}])"});
  RelayProcess relay(api(), endpoint.url());
  Client client(relay.socket());
  client.send(ask());
  const std::string mark = api() == Api::kAnthropic ? "message_start" : "response.created";
  EXPECT_NE(client.read_until(mark).find(mark), std::string::npos);
  EXPECT_FALSE(client.ended());
  // And the end is at once, with a record of what was under way.
  const double before = boot_seconds();
  ::kill(relay.process().pid(), SIGTERM);
  EXPECT_TRUE(relay.process().wait(5));
  EXPECT_LT(boot_seconds() - before, 5);
  client.read_until("never");
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(relay.log().at(0)["outcome"], "stopped");
  EXPECT_FALSE(std::filesystem::exists(relay.socket()));
}

TEST_P(Relayed, ErrorsPassThroughUntouched) {
  for (const char* status : {"401", "403", "404", "429", "500", "503"}) {
    SCOPED_TRACE(status);
    Endpoint endpoint(api(), {"--fault", std::string(status) + ":0:1:7"});
    RelayProcess relay(api(), endpoint.url());
    Client client(relay.socket());
    client.send(ask());
    const std::string answer = client.read_until("never");
    EXPECT_TRUE(answer.starts_with(std::string("HTTP/1.1 ") + status)) << answer;
    EXPECT_NE(answer.find("retry-after: 7"), answer.npos);
    EXPECT_NE(answer.find("\"error\""), answer.npos);
    EXPECT_EQ(endpoint.requests().size(), 1u);  // nothing is tried again
    const Json record = relay.log().at(0);
    EXPECT_EQ(record["outcome"], "upstream_error");
    EXPECT_EQ(std::to_string(record["status"].get<int>()), status);
    EXPECT_EQ(record["retry_after"], "7");
  }
}

TEST_P(Relayed, ACutStreamIsCutForTheBoxToo) {
  Endpoint endpoint(api(),
                    {"--fault", "truncate:0:1", "--script", R"([{"text":"one","say":"one"}])"});
  RelayProcess relay(api(), endpoint.url());
  Client client(relay.socket());
  client.send(ask(true));
  const std::string answer = client.read_until("never");
  EXPECT_TRUE(client.ended());
  EXPECT_NE(answer.find("transfer-encoding: chunked"), answer.npos);
  EXPECT_FALSE(answer.ends_with("0\r\n\r\n"));
  EXPECT_EQ(relay.log().at(0)["outcome"], "upstream_cut");
}

TEST_P(Relayed, AClientThatLeavesEndsTheCall) {
  Endpoint endpoint(api(), {"--fault", "hang:0:1"});
  RelayProcess relay(api(), endpoint.url());
  Client client(relay.socket());
  client.send(ask());
  for (int i = 0; i < 100 && endpoint.requests().empty(); ++i) ::usleep(50'000);
  client.hang_up();
  for (int i = 0; i < 100 && relay.log().empty(); ++i) ::usleep(50'000);
  EXPECT_EQ(relay.log().at(0)["outcome"], "client_left");
}

TEST_P(Relayed, NobodyThere) {
  RelayProcess relay(api(), "http://127.0.0.1:1");
  Client client(relay.socket());
  client.send(ask());
  EXPECT_TRUE(client.read_until("never").starts_with("HTTP/1.1 502"));
  EXPECT_EQ(relay.log().at(0)["outcome"], "upstream_unreachable");
}

TEST_P(Relayed, OneConnectionServesManyCallsAndManyConnectionsAtOnce) {
  Endpoint endpoint(api());
  RelayProcess relay(api(), endpoint.url());
  const auto answers = [](const std::string& text) {
    size_t count = 0;
    for (size_t at = 0; (at = text.find("\r\n0\r\n\r\n", at)) != text.npos; ++at) ++count;
    return count;
  };
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(std::make_unique<Client>(relay.socket()));
  for (auto& client : clients) client->send(ask(true) + ask(true) + ask(false));
  for (auto& client : clients) {
    const std::string text = client->read_until("never");
    EXPECT_EQ(answers(text), 2u);
    EXPECT_NE(text.find("connection: close"), text.npos);
  }
  EXPECT_EQ(relay.log().size(), 24u);
}

TEST(Relay, NonStreamingAnswersAndChunkedRequests) {
  Endpoint endpoint(Api::kAnthropic);
  RelayProcess relay(Api::kAnthropic, endpoint.url());
  Client client(relay.socket());
  const std::string body = question(Api::kAnthropic, false);
  client.send(
      "POST /v1/messages HTTP/1.1\r\nconnection: close\r\nexpect: 100-continue\r\n"
      "transfer-encoding: chunked\r\n\r\n");
  EXPECT_NE(client.read_until("100 Continue").find("100 Continue"), std::string::npos);
  for (const char c : body) client.send(std::string("1\r\n") + c + "\r\n");
  client.send("0\r\n\r\n");
  const std::string answer = client.read_until("never");
  EXPECT_NE(answer.find("HTTP/1.1 200 OK"), answer.npos) << answer;
  EXPECT_EQ(relay.log().at(0)["stream"], false);
  EXPECT_EQ(relay.log().at(0)["usage"]["output_tokens"], 50);
}

TEST(Relay, RefusalsNeverReachTheUpstream) {
  Endpoint endpoint(Api::kAnthropic);
  RelayProcess relay(Api::kAnthropic, endpoint.url());
  struct Case {
    std::string request, status;
  };
  const Case cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", "404"},
      {"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n", "400"},
      {"GET /v1/messages HTTP/1.1\r\n\r\n", "405"},
      {post("/v1/files", "{}"), "404"},
      {post("/v1/messages", "nonsense"), "400"},
      {post("/v1/messages", R"({"tools":[{"type":"web_search_20250305"}]})"), "400"},
      {"POST /v1/messages HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", "413"},
      {"\x16\x03\x01 TLS?\r\n\r\n", "400"},
      {std::string(70000, 'a'), "431"},
  };
  for (const Case& c : cases) {
    Client client(relay.socket());
    client.send(c.request);
    EXPECT_EQ(client.read_until("never").substr(9, 3), c.status) << c.request.substr(0, 60);
    EXPECT_TRUE(client.ended());
  }
  EXPECT_TRUE(endpoint.requests().empty());
  EXPECT_EQ(relay.log().size(), std::size(cases));
  for (const Json& record : relay.log()) EXPECT_EQ(record["outcome"], "refused");
}

TEST(Relay, TooManyConnectionsAreToldSo) {
  Endpoint endpoint(Api::kAnthropic);
  RelayProcess relay(Api::kAnthropic, endpoint.url());
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 32; ++i) {
    idle.push_back(std::make_unique<Client>(relay.socket()));
    idle.back()->send("P");
  }
  Client late(relay.socket());
  const std::string answer = late.read_until("never");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503")) << answer;
  EXPECT_NE(answer.find("retry-after"), answer.npos);
}

TEST(Relay, WillNotReplaceWhatIsNotADeadSocket) {
  const TempDir dir;
  write_file_atomic(dir.path() + "/file", "mine");
  EXPECT_THROW(listen_at(dir.path() + "/file"), EnvironmentError);
  EXPECT_EQ(read_file(dir.path() + "/file"), "mine");
  { const Fd first = listen_at(dir.path() + "/socket"); }
  const Fd again = listen_at(dir.path() + "/socket");
  EXPECT_THROW(listen_at(dir.path() + "/socket"), EnvironmentError);
  EXPECT_THROW(listen_at(dir.path() + "/" + std::string(200, 'x')), EnvironmentError);
}

/// From a box without network: over the mounted socket, and over a port of its own loopback.
TEST(Relay, FromInsideABox) {
  try {
    require_box(BoxKind::kBwrap);
  } catch (const EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  Endpoint endpoint(Api::kAnthropic);
  const TempDir dir;
  BoxSpec spec;
  spec.argv = {"/usr/bin/python3", "-c",
               "import http.client, sys\n"
               "sys.stdin.readline()\n"
               "c = http.client.HTTPConnection('127.0.0.1', 8080, timeout=20)\n"
               "c.request('POST', '/v1/messages', open('/question').read())\n"
               "r = c.getresponse()\n"
               "print(r.status, b'message_stop' in r.read())\n"};
  write_file_atomic(dir.path() + "/question", question(Api::kAnthropic));
  spec.mounts = {{dir.path() + "/question", "/question"}};
  auto [in_read, in_write] = make_pipe();
  auto [out_read, out_write] = make_pipe();
  spec.stdin_fd = in_read.get();
  spec.stdout_fd = out_write.get();
  Box box(BoxKind::kBwrap, spec);
  out_write.reset();
  RelayProcess relay(Api::kAnthropic, endpoint.url(),
                     {"--namespace-of", std::to_string(box.inner())});
  ASSERT_EQ(relay.said(), "listening\n");
  write_all(in_write, "go\n", "box");
  char buffer[100];
  const size_t n = read_some(out_read, buffer, sizeof buffer, "box");
  EXPECT_EQ(std::string(buffer, n), "200 True\n");
  EXPECT_EQ(relay.log().size(), 1u);
}

}  // namespace
}  // namespace cbench::relay
