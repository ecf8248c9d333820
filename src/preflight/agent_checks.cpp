// The agent: whether its model answers through the relay, and whether its program starts in a box.
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include <curl/curl.h>
#include <fcntl.h>
#include <unistd.h>

#include "preflight/checks.h"
#include "relay/route.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

constexpr double kAnswer = 60, kColdStart = 60, kSlowStart = 10;  // seconds
constexpr const char* kInside = "/opt/agent/";

/// The smallest call that the API knows: one word in, one token out.
std::string smallest_call(const relay::Route& route) {
  if (route.api == relay::Api::kAnthropic) {
    return dump_json({{"model", route.model},
                      {"max_tokens", 1},
                      {"messages", Json::array({{{"role", "user"}, {"content", "ping"}}})}});
  }
  return dump_json({{"model", route.model},
                    {"input", Json::array({{{"role", "user"}, {"content", "ping"}}})},
                    {"max_output_tokens", 16},
                    {"store", false}});
}

struct Answer {
  long status = 0;
  std::string body, trouble;
  double seconds = 0;
  bool timed_out = false;
};

size_t keep(char* data, size_t size, size_t count, void* to) {
  auto& body = *static_cast<std::string*>(to);
  if (body.size() < (64u << 10)) body.append(data, size * count);
  return size * count;
}

/// One POST over the relay's socket, as an agent's would go.
Answer ask(const std::string& socket, const relay::Route& route) {
  const bool anthropic = route.api == relay::Api::kAnthropic;
  const std::string url = anthropic ? "http://relay/v1/messages" : "http://relay/v1/responses";
  const std::string body = smallest_call(route);
  Answer answer;
  CURL* easy = curl_easy_init();
  if (easy == nullptr) throw EnvironmentError("curl", "libcurl could not be started");
  curl_slist* fields = curl_slist_append(nullptr, "Content-Type: application/json");
  if (anthropic) fields = curl_slist_append(fields, "anthropic-version: 2023-06-01");
  char error[CURL_ERROR_SIZE] = {};
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, socket.c_str());
  curl_easy_setopt(easy, CURLOPT_PROXY, "");
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, fields);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(easy, CURLOPT_TIMEOUT, static_cast<long>(kAnswer));
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &keep);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer.body);
  const double started = boot_seconds();
  const CURLcode code = curl_easy_perform(easy);
  answer.seconds = boot_seconds() - started;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &answer.status);
  answer.timed_out = code == CURLE_OPERATION_TIMEDOUT;
  if (code != CURLE_OK) answer.trouble = *error != '\0' ? error : curl_easy_strerror(code);
  curl_slist_free_all(fields);
  curl_easy_cleanup(easy);
  return answer;
}

/// The message of an error answer, for people.
std::string message_of(const std::string& body) {
  try {
    const Json json = parse_json(body, "answer");
    return printable(json.at("error").at("message").get<std::string>(), 200);
  } catch (const std::exception&) {
    return printable(body, 120);
  }
}

/// The relay as runs have it: our own program, which finds the key in its environment.
class Relay {
 public:
  Relay(const std::string& program, const std::string& agent) : dir_("cbench-preflight") {
    auto [read_end, write_end] = make_pipe();
    ProcessOptions options;
    options.argv = {program, "relay", "--agent", agent, "--socket", socket()};
    options.inherit_env = true;
    options.stdout_fd = write_end.get();
    options.stderr_fd = write_end.get();
    process_ = std::make_unique<Process>(options);
    write_end.reset();
    char buffer[2048];
    std::string said;
    while (said.find('\n') == said.npos) {
      const size_t n = read_some(read_end, buffer, sizeof buffer, "relay");
      if (n == 0) break;
      said.append(buffer, n);
    }
    if (said != "listening\n")
      throw EnvironmentError("relay", "the relay: " + printable(said, 300));
  }
  ~Relay() { process_->stop(2); }
  std::string socket() const { return dir_.path() + "/api.sock"; }

 private:
  TempDir dir_;
  std::unique_ptr<Process> process_;
};

void judge(const relay::Route& route, const Answer& answer, CheckLines& lines) {
  const std::string where = route.base_url + " (" + route.model + ")";
  const auto fail = [&](const std::string& seen, const std::string& todo) {
    lines.fail("route", where + ": " + seen, todo);
  };
  const std::string status = std::to_string(answer.status);
  const std::string said = answer.status == 0 ? "" : status + ", " + message_of(answer.body);
  if (answer.status == 200) {
    return lines.ok("route",
                    where + " answers through the relay in " + format_duration(answer.seconds));
  }
  if (answer.timed_out || answer.status == 504) {
    return fail("no answer within " + format_duration(kAnswer),
                "try again; if it stays, look at the provider's status page");
  }
  if (answer.status == 0) return fail(answer.trouble, "see the message");
  if (answer.status == 401) {
    return fail(said, "the key in " + route.key_env + " is not accepted: set a valid one");
  }
  if (answer.status == 403) {
    return fail(said, "the key in " + route.key_env +
                          " may not use this model: ask for access, "
                          "or name another model in the route");
  }
  if (answer.status == 404) {
    return fail(said, "no such model or path: check model and base_url of the route (" +
                          route.source + ")");
  }
  if (answer.status == 429) {
    return fail(said,
                "the rate limit or the quota is used up: wait, or raise it; an agent would "
                "stand still");
  }
  if (answer.status == 502) {
    return fail(said, "check the network, the proxy variables and base_url (" + route.source + ")");
  }
  if (answer.status >= 500) return fail(said, "the provider has trouble: try again later");
  fail(said, "the request was refused: check model and api of the route (" + route.source + ")");
}

/// Out of the page cache, so that what is measured is a cold start.
void drop_cached(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.valid()) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

std::string cli_of(const relay::Route& route) {
  const std::string named = route.cli.empty() ? route.agent : route.cli;
  const std::string found = find_program(named);
  std::error_code error;
  return found.empty() ? "" : fs::canonical(found, error).string();
}

std::string install_hint(const relay::Route& route) {
  const std::string package =
      route.agent == "claude" ? "@anthropic-ai/claude-code-linux-x64" : "@openai/codex";
  return "install it (npm install --prefix DIR " + package +
         ") and name its binary as cli in the route, or put it on the PATH";
}

/// Mounts the program and what must lie beside it; returns how it is called inside.
std::string mount_cli(const relay::Route& route, const std::string& cli, BoxSpec& spec) {
  const std::string name = fs::path(cli).filename().string();
  spec.mounts.push_back({cli, kInside + name});
  if (route.agent == "codex") {
    const std::string host = (fs::path(cli).parent_path() / "codex-code-mode-host").string();
    std::error_code error;
    if (fs::exists(host, error))
      spec.mounts.push_back({host, kInside + std::string("codex-code-mode-host")});
  }
  return kInside + name;
}

}  // namespace

void check_route(const PreflightOptions& options, CheckLines& lines) {
  const std::string agent = relay::agent_kind(options.agent);
  const std::optional<relay::Route> route = relay::find_route(agent);
  if (!route) {
    return lines.ok("route", "not needed: " + agent + " has no route");
  }
  try {
    relay::key_field(*route);
  } catch (const EnvironmentError& error) {
    return lines.fail("route", error.what(), "export " + route->key_env + "=... and try again");
  }
  if (route->model.empty()) {
    return lines.fail("route", route->base_url + ": the route names no model",
                      "set model in " + relay::routes_path() + ", or CBENCH_ROUTE_MODEL");
  }
  const std::string program =
      options.program.empty() ? fs::read_symlink("/proc/self/exe").string() : options.program;
  const Relay relay(program, options.agent);
  judge(*route, ask(relay.socket(), *route), lines);
}

void check_agent_start(const PreflightOptions& options, CheckLines& lines) {
  const std::string agent = relay::agent_kind(options.agent);
  const std::optional<relay::Route> route = relay::find_route(agent);
  if (agent == "baseline" || agent == "command") {
    return lines.ok("agent", "not needed: " + agent + " brings no program of its own");
  }
  const std::string cli = cli_of(*route);
  if (cli.empty()) {
    return lines.fail("agent", (route->cli.empty() ? agent : route->cli) + " is not here",
                      install_hint(*route));
  }
  BoxSpec spec;
  spec.argv = {options.box == BoxKind::kDirect ? cli : mount_cli(*route, cli, spec), "--version"};
  spec.env = {{"HOME", "/tmp"}, {"LANG", "C.UTF-8"}, {"DISABLE_AUTOUPDATER", "1"}};
  spec.limits.processes = 256;
  drop_cached(cli);
  const RunResult result = run_in_box(options.box, spec, kColdStart);
  const std::string box(box_kind_name(options.box));
  if (result.timed_out) {
    return lines.fail("agent", cli + " did not start within " + format_duration(kColdStart),
                      "a slow disk? copy it to a fast one");
  }
  if (!result.status.ok()) {
    return lines.fail("agent",
                      cli + " --version in " + box + ": " + result.status.text() + " " +
                          printable(result.err, 200),
                      "name the platform's own binary, not a script: it must run without node");
  }
  const std::string seen = printable(result.out.substr(0, result.out.find('\n')), 80) +
                           " starts cold in " + box + " in " + format_duration(result.seconds);
  if (agent == "codex" && spec.mounts.size() < 2 && options.box != BoxKind::kDirect) {
    return lines.warn("agent", seen + ", but codex-code-mode-host is not beside it",
                      "newer models lose every tool without it: keep both in one directory");
  }
  if (result.seconds > kSlowStart) {
    return lines.warn("agent", seen, "every launch costs this much: copy it to a faster disk");
  }
  lines.ok("agent", seen);
}

void check_agent_run(const PreflightOptions& options, CheckLines& lines) {
  const std::string agent = relay::agent_kind(options.agent);
  if (agent == "baseline" || agent == "command") {
    return lines.ok("agent.run", "cbench run drives " + agent);
  }
  lines.fail("agent.run", "cbench run does not drive " + agent + " yet",
             "use --agent baseline, or command:... with a program that needs no network");
}

}  // namespace cbench
