#include "relay/endpoint.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"

namespace cbench::relay {
namespace {

namespace fs = std::filesystem;

/// Waits for a file with something in it.
std::string appears(const std::string& path) {
  for (int i = 0; i < 600; ++i) {
    std::error_code error;
    if (fs::exists(path, error) && fs::file_size(path, error) > 0) return read_file(path);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw std::runtime_error(path + " does not appear");
}

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> out;
  std::error_code error;
  if (!fs::exists(path, error)) return out;
  const std::string text = read_file(path);
  for (size_t start = 0, end; (end = text.find('\n', start)) != text.npos; start = end + 1) {
    out.push_back(parse_json(std::string_view(text).substr(start, end - start), path));
  }
  return out;
}

}  // namespace

Endpoint::Endpoint(Api api, std::vector<std::string> arguments) : dir_("cbench-endpoint") {
  ProcessOptions options;
  options.argv = {"python3",
                  std::string(CBENCH_FIXTURES "/agent_endpoints/") + std::string(api_name(api)) +
                      "_endpoint.py",
                  "--portfile",
                  dir_.path() + "/port",
                  "--log",
                  dir_.path() + "/log"};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.inherit_env = true;
  process_ = std::make_unique<Process>(options);
  port_ = appears(dir_.path() + "/port");
}

std::vector<Json> Endpoint::requests() const { return lines_of(dir_.path() + "/log"); }

RelayProcess::RelayProcess(Api api, const std::string& url, std::vector<std::string> arguments)
    : dir_("cbench-relay"), socket_(dir_.path() + "/api.sock") {
  const Fd out(
      ::open((dir_.path() + "/out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  ProcessOptions options;
  options.argv = {CBENCH_BINARY_DIR "/cbench",
                  "relay",
                  "--agent",
                  api == Api::kAnthropic ? "claude" : "codex",
                  "--socket",
                  socket_,
                  "--log",
                  dir_.path() + "/log"};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.inherit_env = true;
  options.env = {{"CBENCH_ROUTES", dir_.path() + "/none"},
                 {"CBENCH_ROUTE_URL", url},
                 {"CBENCH_ROUTE_KEY_ENV", "CBENCH_TEST_KEY"},
                 {"CBENCH_TEST_KEY", kKey}};
  options.stdout_fd = out.get();
  options.stderr_fd = out.get();
  process_ = std::make_unique<Process>(options);
  appears(dir_.path() + "/out");
}

std::string RelayProcess::command_line() const {
  return read_file("/proc/" + std::to_string(process_->pid()) + "/cmdline", 1 << 20);
}

std::string RelayProcess::said() const { return read_file(dir_.path() + "/out"); }
std::string RelayProcess::log_text() const {
  std::error_code error;
  const std::string path = dir_.path() + "/log";
  return fs::exists(path, error) ? read_file(path) : "";
}
std::vector<Json> RelayProcess::log() const { return lines_of(dir_.path() + "/log"); }

Client::Client(const std::string& socket) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket.data(), socket.size());
  if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("no relay at " + socket);
  }
}

void Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // refused before all of it was read
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

const std::string& Client::read_until(std::string_view text, double seconds) {
  const double deadline = boot_seconds() + seconds;
  while (!ended_ && got_.find(text) == got_.npos) {
    const double left = deadline - boot_seconds();
    pollfd poller{fd_.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&poller, 1, static_cast<int>(left * 1000) + 1) <= 0) break;
    char buffer[65536];
    const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
    ended_ = n <= 0;
    if (n > 0) got_.append(buffer, static_cast<size_t>(n));
  }
  return got_;
}

std::string post(std::string_view path, std::string_view body, std::string_view fields, bool keep) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nhost: box\r\ncontent-type: application/json\r\n" + std::string(fields) +
         (keep ? "" : "connection: close\r\n") + "content-length: " + std::to_string(body.size()) +
         "\r\n\r\n" + std::string(body);
}

std::string question(Api api, bool stream) {
  Json body = {{"model", "test-model"}, {"stream", stream}};
  if (api == Api::kAnthropic) {
    body["max_tokens"] = 16;
    body["messages"] = Json::array({{{"role", "user"}, {"content", "hello"}}});
    body["tools"] = Json::array({{{"name", "Bash"}}});
  } else {
    body["input"] = Json::array({{{"type", "message"}, {"role", "user"}, {"content", "hello"}}});
    body["tools"] = Json::array({{{"type", "function"}, {"name", "exec_command"}}});
  }
  return dump_json(body);
}

}  // namespace cbench::relay
