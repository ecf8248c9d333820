// Parsing of requests, of chunks and of answers' usage: tables, every cut, and random damage.
#include "relay/request.h"

#include <random>

#include <gtest/gtest.h>

#include "relay/policy.h"
#include "relay/route.h"
#include "relay/usage.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench::relay {
namespace {

using State = HeadResult::State;

TEST(RequestHead, Good) {
  RequestHead head;
  const std::string text =
      "POST /v1/messages?beta=true HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n"
      "X-Empty:\r\nExpect: 100-Continue\r\n\r\nbody";
  const HeadResult result = parse_head(text, head);
  ASSERT_EQ(result.state, State::kDone) << result.reason;
  EXPECT_EQ(text.substr(result.used), "body");
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/v1/messages");
  EXPECT_EQ(head.query, "beta=true");
  EXPECT_EQ(head.length, 12u);
  EXPECT_TRUE(head.keep_alive);
  EXPECT_TRUE(head.expects_continue);
  EXPECT_EQ(*head.find("x-empty"), "");
  for (size_t n = 0; n + 4 < text.size(); ++n) {
    EXPECT_EQ(parse_head(std::string_view(text).substr(0, n), head).state, State::kMore) << n;
  }
}

TEST(RequestHead, Bad) {
  const std::string line = "POST /v1/messages HTTP/1.1\r\n";
  struct Case {
    const char* name;
    std::string text;
    int status;
  };
  const Case cases[] = {
      {"no version", "POST /\r\n\r\n", 400},
      {"two spaces", "POST  / HTTP/1.1\r\n\r\n", 400},
      {"version 2", "POST / HTTP/2.0\r\n\r\n", 400},
      {"absolute form", "POST http://a/ HTTP/1.1\r\n\r\n", 400},
      {"fragment", "POST /a#b HTTP/1.1\r\n\r\n", 400},
      {"control in target", "POST /a\x01 HTTP/1.1\r\n\r\n", 400},
      {"long target", "POST /" + std::string(kMaxTarget, 'a') + " HTTP/1.1\r\n\r\n", 400},
      {"space before colon", line + "Host : x\r\n\r\n", 400},
      {"folded field", line + "A: b\r\n c\r\n\r\n", 400},
      {"no colon", line + "Host\r\n\r\n", 400},
      {"bare line feed", line + "A: b\nContent-Length: 3\r\n\r\n", 400},
      {"NUL", line + std::string("A: b\0c", 6) + "\r\n\r\n", 400},
      {"two lengths", line + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
      {"length list", line + "Content-Length: 1, 1\r\n\r\n", 400},
      {"signed length", line + "Content-Length: +1\r\n\r\n", 400},
      {"huge length", line + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {"length and chunks", line + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"gzip coding", line + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"chunked twice", line + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
       501},
      {"upgrade", line + "Upgrade: websocket\r\n\r\n", 400},
      {"endless", line + "A: " + std::string(kMaxHead, 'x'), 431},
  };
  for (const Case& c : cases) {
    RequestHead head;
    const HeadResult result = parse_head(c.text, head);
    EXPECT_EQ(result.state, State::kBad) << c.name;
    EXPECT_EQ(result.status, c.status) << c.name;
  }
  std::string many = line;
  for (size_t i = 0; i <= kMaxFields; ++i) many += "a: b\r\n";
  RequestHead head;
  EXPECT_EQ(parse_head(many + "\r\n", head).status, 431);
}

TEST(Chunks, GoodAndBad) {
  const std::string text = "5;x=y\r\nhello\r\nA\r\n, wonderful\r\n0\r\nTrailer: x\r\n\r\nnext";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    ChunkedBody chunks(100);
    std::string out;
    size_t at = 0;
    while (at < text.size() && !chunks.done() && !chunks.bad()) {
      at += chunks.take(std::string_view(text).substr(at, piece), out);
    }
    // "A" is ten bytes: ", wonderfu"; the "l" after it is no line's end.
    EXPECT_TRUE(chunks.bad());
    EXPECT_EQ(out, "hello, wonderfu");
  }
  ChunkedBody good(100);
  std::string out;
  EXPECT_EQ(good.take("3\r\nabc\r\n0\r\n\r\nnext", out), 13u);
  EXPECT_TRUE(good.done());
  EXPECT_EQ(out, "abc");
  for (const char* bad : {"\r\n", "-1\r\n", "0x1\r\n", "g\r\n", "11111111111111111\r\n", "1\nab"}) {
    ChunkedBody chunks(100);
    chunks.take(bad + std::string(300, 'z'), out);
    EXPECT_TRUE(chunks.bad()) << bad;
  }
  ChunkedBody large(100);
  large.take("65\r\n", out);
  EXPECT_TRUE(large.bad() && large.too_large());
  ChunkedBody endless(100);
  endless.take("0\r\n", out);
  for (int i = 0; i < 10000; ++i) endless.take("a: b\r\n", out);
  EXPECT_TRUE(endless.bad());
}

/// The same checks as fuzz/relay_request_fuzz.cpp, on damaged copies of good requests.
TEST(Fuzz, DamagedRequestsAreReadTheSameHoweverTheyAreCut) {
  std::mt19937 random(20261);
  const std::string seeds[] = {
      "POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
      "5\r\nhello\r\n0\r\nA: b\r\n\r\n", "ffff\r\n",
      "POST / HTTP/1.1\r\nContent-Length: 7\r\n\r\n"};
  for (int round = 0; round < 20000; ++round) {
    std::string text = seeds[random() % 4];
    for (unsigned n = random() % 4; n > 0; --n) {
      const size_t at = random() % text.size();
      if (random() % 2) text[at] = static_cast<char>(random());
      if (random() % 4 == 0) text.erase(at, random() % 5);
      if (random() % 4 == 0) text.insert(at, text.substr(0, random() % 20));
      if (text.empty()) text = "\r";
    }
    RequestHead head;
    const HeadResult result = parse_head(text, head);
    if (result.state == State::kDone) {
      ASSERT_LE(result.used, text.size());
    }
    std::string whole, pieces;
    ChunkedBody one(1 << 16), many(1 << 16);
    const size_t used = one.take(text, whole);
    size_t at = 0;
    while (at < text.size() && !many.done() && !many.bad()) {
      at += many.take(std::string_view(text).substr(at, 1), pieces);
    }
    ASSERT_EQ(used, at);
    ASSERT_EQ(whole, pieces);
  }
}

std::string code_of(Api api, const std::string& request) {
  RequestHead head;
  EXPECT_EQ(parse_head(request, head).state, State::kDone) << request;
  const auto refusal = refuse_head(api, head, 1000);
  return refusal ? refusal->code : "";
}

TEST(Policy, Heads) {
  const auto request = [](const std::string& line,
                          const std::string& fields = "Content-Length: 1\r\n") {
    return line + " HTTP/1.1\r\n" + fields + "\r\n";
  };
  EXPECT_EQ(code_of(Api::kAnthropic, request("POST /v1/messages?beta=true")), "");
  EXPECT_EQ(code_of(Api::kAnthropic, request("POST /v1/messages/count_tokens")), "");
  EXPECT_EQ(code_of(Api::kOpenai, request("POST /v1/responses")), "");
  EXPECT_EQ(code_of(Api::kOpenai, request("POST /v1/messages")), "path");
  for (const char* path : {"/v1/files", "/v1/messages/../files", "/v1/messages/", "//v1/messages",
                           "/v1/messages%2e", "/v1/messages?x=/y", "/v1/messages?x=%00", "/"}) {
    EXPECT_EQ(code_of(Api::kAnthropic, request(std::string("POST ") + path)), "path") << path;
  }
  EXPECT_EQ(code_of(Api::kAnthropic, request("GET /v1/messages")), "method");
  EXPECT_EQ(code_of(Api::kAnthropic, request("POST /v1/messages", "")), "length");
  EXPECT_EQ(code_of(Api::kAnthropic, request("POST /v1/messages", "Content-Length: 1001\r\n")),
            "too_large");
  EXPECT_EQ(code_of(Api::kAnthropic, request("POST /v1/messages",
                                             "Content-Length: 1\r\nContent-Encoding: gzip\r\n")),
            "encoding");
}

TEST(Policy, Bodies) {
  struct Case {
    const char* body;
    const char* code;
  };
  const Case cases[] = {
      {R"({"model":"m","tools":[{"name":"Bash"},{"type":"custom","name":"x"}]})", ""},
      {R"({"model":"m","tools":[{"type":"bash_20250124"},{"type":"function","name":"mcp"}]})", ""},
      {R"({"tools":[{"type":"web_search_20250305","name":"web_search"}]})", "hosted_tool"},
      {R"({"tools":[{"type":"web_search"}]})", "hosted_tool"},
      {R"({"tools":[{"type":"web_fetch_20250910"}]})", "hosted_tool"},
      {R"({"tools":[{"type":"mcp","server_url":"https://x"}]})", "hosted_tool"},
      {R"({"tools":[{"type":"shell","environment":{"type":"container_auto"}}]})", "hosted_tool"},
      {R"({"tools":[{"type":"namespace","tools":[{"type":"web_search"}]}]})", "hosted_tool"},
      {R"({"input":[{"type":"additional_tools","tools":[{"type":"web_search"}]}]})", "hosted_tool"},
      {R"({"mcp_servers":[{"url":"https://x"}]})", "hosted_tool"},
      {R"({"mcp_servers":[]})", ""},
      {R"({"prompt":{"id":"pmpt_1"},"input":"hello"})", "hosted_tool"},
      {R"({"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}]})",
       "fetched_content"},
      {R"({"messages":[{"content":[{"type":"tool_result","content":[{"type":"document",
           "source":{"type":"url","url":"https://x"}}]}]}]})",
       "fetched_content"},
      {R"({"messages":[{"content":[{"type":"document","source":{"type":"content","content":[
           {"type":"image","source":{"type":"url","url":"https://x"}}]}}]}]})",
       "fetched_content"},
      {R"({"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"aa"}}]}]})",
       ""},
      {R"({"messages":[{"content":[{"type":"tool_use","input":{"image_url":"https://x",
           "source":{"url":"https://x"}}}]}]})",
       ""},
      {R"({"input":[{"content":[{"type":"input_image","image_url":"https://x"}]}]})",
       "fetched_content"},
      {R"({"input":[{"content":[{"type":"input_image","image_url":{"url":"http://x"}}]}]})",
       "fetched_content"},
      {R"({"input":[{"content":[{"type":"input_image","image_url":"data:image/png;base64,aa"}]}]})",
       ""},
      {R"({"input":[{"content":[{"type":"input_file","file_url":"https://x"}]}]})",
       "fetched_content"},
      {R"({"input":[{"type":"computer_call_output","output":{"image_url":"https://x"}}]})",
       "fetched_content"},
      {R"({"tools":"x","input":"hello"})", ""},
      {"[]", "json"},
      {"", "json"},
      {R"({"a":1,"a":2})", "json"},
  };
  for (const Case& c : cases) {
    std::string model;
    const auto refusal = refuse_body(c.body, model);
    EXPECT_EQ(refusal ? refusal->code : "", c.code) << c.body;
  }
}

TEST(Policy, CredentialsDoNotPass) {
  for (const char* name :
       {"authorization", "x-api-key", "cookie", "host", "proxy-authorization", "content-length",
        "transfer-encoding", "accept-encoding", "x-forwarded-for"}) {
    EXPECT_FALSE(passes_up(name)) << name;
  }
  for (const char* name :
       {"set-cookie", "location", "content-length", "transfer-encoding", "server",
        "anthropic-organization-id", "openai-organization", "openai-project"}) {
    EXPECT_FALSE(passes_down(name)) << name;
  }
  EXPECT_TRUE(passes_up("anthropic-version"));
  EXPECT_TRUE(passes_down("anthropic-ratelimit-requests-remaining"));
}

TEST(Usage, AsTheAnswerStates) {
  const std::string anthropic =
      "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m-1\","
      "\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\nevent: message_delta\r\n"
      "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":50}}\r\n\r\n";
  for (size_t piece : {size_t{1}, size_t{7}, anthropic.size()}) {
    UsageWatch watch(true);
    for (size_t at = 0; at < anthropic.size(); at += piece) watch.take(anthropic.substr(at, piece));
    watch.finish();
    EXPECT_EQ(watch.model(), "m-1");
    EXPECT_EQ(watch.usage(), "{\"input_tokens\":10,\"output_tokens\":50}");
    EXPECT_EQ(watch.error(), "");
  }
  UsageWatch openai(true);
  openai.take(
      "data: {\"type\":\"response.completed\",\"response\":{\"model\":\"g\",\"usage\":{\"a\":1}}}");
  openai.finish();
  EXPECT_EQ(openai.usage(), "{\"a\":1}");
  UsageWatch plain(false);
  plain.take("{\"model\":\"m\",");
  plain.take("\"usage\":{\"input_tokens\":3}}");
  plain.finish();
  EXPECT_EQ(plain.usage(), "{\"input_tokens\":3}");
  UsageWatch error(true);
  error.take("data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n");
  EXPECT_EQ(error.error(), "overloaded_error");
  for (const char* junk : {"data: {\"usage\"", "data: \"usage\"", "data: {\"usage\":[1]}",
                           "data: {\"usage\":{\"a\":", "\n\n:", "data"}) {
    UsageWatch watch(true);
    watch.take(junk);
    watch.finish();
    EXPECT_EQ(watch.usage(), "") << junk;
  }
}

TEST(Route, BaseUrls) {
  EXPECT_EQ(checked_base_url("https://api.example.com/v1/"), "https://api.example.com");
  EXPECT_EQ(checked_base_url("http://127.0.0.1:8080"), "http://127.0.0.1:8080");
  for (const char* bad : {"", "api.example.com", "http://api.example.com", "ftp://127.0.0.1",
                          "https://", "https://u:p@h", "https://h?x", "https://h/#", "https://h h",
                          "http://127.0.0.1.example.com", "http://localhost.example.com"}) {
    EXPECT_THROW(checked_base_url(bad), UsageError) << bad;
  }
}

class RouteFile : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("CBENCH_ROUTES", path_.c_str(), 1);
    for (const char* name : {"CBENCH_ROUTE_URL", "CBENCH_ROUTE_MODEL", "CBENCH_ROUTE_KEY_ENV"}) {
      ::unsetenv(name);
    }
  }
  TempDir dir_;
  std::string path_ = dir_.path() + "/routes.yaml";
};

TEST_F(RouteFile, DefaultsFileAndEnvironment) {
  EXPECT_FALSE(find_route("baseline"));
  EXPECT_FALSE(find_route("command"));
  EXPECT_EQ(find_route("claude")->key_env, "ANTHROPIC_API_KEY");
  EXPECT_FALSE(find_route("claude")->bearer);
  EXPECT_TRUE(find_route("codex")->bearer);
  write_file_atomic(path_,
                    "routes:\n  claude:\n    base_url: https://gateway.example.com/anthropic\n"
                    "    key_env: GATEWAY_KEY\n    auth: bearer\n    model: some-model\n"
                    "  command:\n    api: openai\n    base_url: http://localhost:9000/v1\n"
                    "    key_env: LOCAL_KEY\n");
  EXPECT_EQ(find_route("claude")->base_url, "https://gateway.example.com/anthropic");
  EXPECT_TRUE(find_route("claude")->bearer);
  EXPECT_EQ(find_route("command")->base_url, "http://localhost:9000");
  ::setenv("CBENCH_ROUTE_URL", "https://other.example.com", 1);
  EXPECT_EQ(find_route("claude")->base_url, "https://other.example.com");
  EXPECT_EQ(find_route("claude")->model, "some-model");
}

TEST_F(RouteFile, MistakesAreNamed) {
  for (const char* bad :
       {"routes:\n  claude:\n    key: sk-123\n", "routes:\n  cloude:\n    model: x\n",
        "routes:\n  claude:\n    auth: basic\n", "routes:\n  claude:\n    key_env: A B\n",
        "routes:\n  claude: x\n", "other: x\n", "routes:\n  command:\n    model: x\n"}) {
    write_file_atomic(path_, bad);
    const std::string agent =
        std::string(bad).find("command") != std::string::npos ? "command" : "claude";
    EXPECT_THROW(find_route(agent), UsageError) << bad;
  }
}

TEST_F(RouteFile, KeysAreCheckedAndNeverShown) {
  Route route = *find_route("claude");
  route.key_env = "CBENCH_TEST_KEY";
  ::unsetenv("CBENCH_TEST_KEY");
  EXPECT_THROW(key_field(route), EnvironmentError);
  ::setenv("CBENCH_TEST_KEY", "sk secret\n", 1);
  try {
    key_field(route);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.code(), "bad_key");
    EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos);
  }
  ::setenv("CBENCH_TEST_KEY", "sk-good", 1);
  EXPECT_EQ(key_field(route), "x-api-key: sk-good");
}

}  // namespace
}  // namespace cbench::relay
