#include "engine/client.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/config.h"
#include "package/manifest.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/log.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr int kEngineSocket = 3;     // descriptor number inside the box
constexpr double kExitGrace = 10;    // seconds for a polite end
constexpr double kLogGrace = 1;      // seconds for the log's last bytes after the end
constexpr size_t kTailBytes = 8192;  // of the engine's log kept for messages

/// The package's cbench.json, "" without one: what it says about the model's graph.
std::string manifest_text(const std::string& package) {
  const std::string path = package + "/" + std::string(kManifestName);
  std::error_code ignored;
  if (package.empty() ||
      !std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored)))
    return "";
  return read_file(path, kMaxManifestBytes);
}

/// A codeword from the other side, made safe to print and to compare.
std::string safe_code(const Json& head) {
  const auto found = head.find("code");
  std::string code = found != head.end() && found->is_string() ? found->get<std::string>() : "";
  const bool plain =
      !code.empty() && code.size() <= 40 && std::all_of(code.begin(), code.end(), [](char c) {
        return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
      });
  return plain ? code : "engine_error";
}

int64_t status_field(std::string_view status, std::string_view key) {
  const size_t at = status.find(key);
  if (at == std::string_view::npos) return 0;
  int64_t kib = 0;
  for (const char c : status.substr(at + key.size())) {
    if (c >= '0' && c <= '9') kib = kib * 10 + (c - '0');
    if (c == '\n') break;
  }
  return kib * 1024;
}

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> out;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  std::error_code code;
  for (const auto& task : std::filesystem::directory_iterator(tasks, code)) {
    std::string list;
    try {
      list = read_file(task.path().string() + "/children", 1 << 16);
    } catch (const Error&) {
      continue;  // the thread ended meanwhile
    }
    pid_t child = 0;
    for (const char c : list) {
      if (c >= '0' && c <= '9') {
        child = child * 10 + (c - '0');
      } else if (child != 0) {
        out.push_back(child);
        child = 0;
      }
    }
  }
  return out;
}

}  // namespace

namespace {

/// Bytes of the memory files (memfd_create) among a process's descriptors: memory that no resident
/// size shows while it is not mapped.
int64_t held_memory(const std::string& process, uint64_t ours) {
  int64_t total = 0;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd", code)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), code).string();
    struct stat info {};
    if (!target.starts_with("/memfd:") || ::stat(entry.path().c_str(), &info) != 0) continue;
    if (info.st_ino != ours) total += int64_t{info.st_blocks} * 512;
  }
  return total;
}

}  // namespace

std::vector<pid_t> process_tree(pid_t root) {
  std::vector<pid_t> tree{root};
  for (size_t i = 0; i < tree.size(); ++i) {
    const std::vector<pid_t> children = children_of(tree[i]);
    tree.insert(tree.end(), children.begin(), children.end());
  }
  return tree;
}

TreeMemory process_tree_memory(pid_t root, uint64_t ours) {
  TreeMemory total;
  for (const pid_t pid : process_tree(root)) {
    try {
      const std::string process = "/proc/" + std::to_string(pid);
      const std::string status = read_file(process + "/status", 1 << 16);
      total.anonymous += status_field(status, "RssAnon:") + status_field(status, "VmSwap:");
      total.shared += status_field(status, "RssShmem:");
      total.held += held_memory(process, ours);
    } catch (const Error&) {
      continue;  // it ended meanwhile
    }
  }
  return total;
}

/// Reads the engine's log to its end on a thread of its own and keeps the tail: a plugin that
/// prints for ever neither blocks nor fills anything.
class Engine::LogTail {
 public:
  explicit LogTail(Fd read_end) : fd_(std::move(read_end)), thread_([this] { pump(); }) {}
  /// A process that outlived its box (possible without isolation) may hold the write end: the
  /// reader does not wait for it.
  ~LogTail() {
    stop_ = true;
    thread_.join();
  }

  /// What was read so far; after the engine's end, everything.
  std::string text(bool ended) {
    std::unique_lock lock(mutex_);
    if (ended) done_.wait_for(lock, std::chrono::duration<double>(kLogGrace), [&] { return eof_; });
    return repair_utf8(tail_);
  }

 private:
  void pump() {
    std::array<char, 16384> buffer;
    while (!stop_) {
      pollfd poller{fd_.get(), POLLIN, 0};
      if (::poll(&poller, 1, 100) <= 0) continue;
      const ssize_t n = ::read(fd_.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      const std::lock_guard lock(mutex_);
      if (n <= 0) {
        eof_ = true;
        done_.notify_all();
        return;
      }
      tail_.append(buffer.data(), static_cast<size_t>(n));
      if (tail_.size() > kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
    }
  }

  Fd fd_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable done_;
  bool eof_ = false;
  std::string tail_;
  std::thread thread_;  // last: it uses all of the above
};

BoxSpec Engine::box_spec(int socket, int log) const {
  const std::string self = options_.program.empty()
                               ? std::filesystem::read_symlink("/proc/self/exe").string()
                               : options_.program;
  const bool direct = options_.box == BoxKind::kDirect;
  BoxSpec spec;
  spec.argv = {direct ? self : "/cbench/cbench",
               "engine",
               "--socket-fd",
               std::to_string(kEngineSocket),
               "--package",
               direct ? options_.package : "/package",
               "--device",
               options_.device};
  spec.env = {{"PATH", "/usr/bin:/bin"}, {"HOME", "/tmp"}, {"LC_ALL", "C.UTF-8"}};
  if (!direct) {
    spec.mounts = {{self, "/cbench/cbench", false}};
    if (!options_.synthetic) spec.mounts.push_back({options_.package, "/package", false});
  }
  if (!options_.plugin.empty()) {
    spec.argv.insert(spec.argv.end(), {"--plugin", direct ? options_.plugin : "/plugin/plugin.so"});
    if (!direct) spec.mounts.push_back({options_.plugin, "/plugin/plugin.so", false});
  }
  if (options_.synthetic) spec.argv.push_back("--synthetic");
  if (options_.stream_budget >= 0) {
    spec.argv.insert(spec.argv.end(), {"--stream-budget", std::to_string(options_.stream_budget)});
  }
  if (gpu_) spec.gpu = gpu_->box_gpu();
  // Where the driver's libraries lie is this machine's business, not the package's.
  const char* libraries = std::getenv("LD_LIBRARY_PATH");
  if (spec.gpu && libraries != nullptr) spec.env["LD_LIBRARY_PATH"] = libraries;
  spec.fds = {{socket, kEngineSocket}};
  spec.stdout_fd = log;
  spec.stderr_fd = log;
  spec.limits.memory = options_.memory;
  spec.limits.processes = 512;
  spec.tmp_bytes = uint64_t{1} << 20;  // /tmp and /dev/shm are memory: no room to hide weights
  spec.hostname = "engine";
  return spec;
}

Engine::Engine(const EngineOptions& options) : options_(options) {
  const double started = boot_seconds();
  if (options_.device == "cuda") gpu_ = make_gpu_meter(0);
  auto [ours, theirs] = Channel::make_pair();
  auto [log_read, log_write] = make_pipe();
  box_ = std::make_unique<Box>(options_.box, box_spec(theirs.descriptor(), log_write.get()));
  log_write.reset();
  { const Channel closed = std::move(theirs); }
  log_ = std::make_unique<LogTail>(std::move(log_read));
  channel_ = std::make_unique<Channel>(std::move(ours));

  const int64_t vocab = parse_model_config(options_.config, "config.json of the task").vocab;
  half_floats_ = static_cast<size_t>(options_.capacity.logits_rows * vocab);
  create_logits();
  const Capacity& c = options_.capacity;
  send({{"type", "hello"},
        {"protocol", 1},
        {"config", options_.config},
        {"logits", logits_->kind()},
        {"capacity",
         {{"tokens", c.tokens},
          {"sequences", c.sequences},
          {"slots", c.slots},
          {"max_length", c.max_length},
          {"logits_rows", c.logits_rows}}}},
       manifest_text(options_.package), buffer_.get());
  const Message warm = receive(options_.load_timeout);
  if (warm.type() != "warm") fail("engine_protocol", "expected warm, got another message");
  device_name_ = printable(json_string(warm.head, "device", "engine"), 100);
  const bool refused = json_string(warm.head, "logits", "engine") != logits_->kind();
  if (refused) {
    if (options_.device != "cuda")
      fail("engine_protocol", "the engine wants another logits buffer");
    spdlog::warn("the engine cannot map device memory of ours; logits go through host memory");
    logits_ = SharedLogits::create_host(2 * half_floats_ * sizeof(float), buffer_);
  }
  reader_ = make_logits_reader(*logits_);
  planned_ = arena_of(json_member(warm.head, "planned", "engine")).live;
  // Rows on their way to a buffer in host memory.
  const bool staged = options_.device == "cuda" && std::string_view(logits_->kind()) == "host";
  planned_[static_cast<size_t>(Category::kLogits)] =
      staged ? static_cast<int64_t>(half_floats_ * sizeof(float)) : 0;
  baseline_ = outside_memory();
  if (gpu_) device_baseline_ = gpu_->use(process_tree(box_->pid()));
  package_touched_ = true;
  send({{"type", "load"}, {"logits", logits_->kind()}}, {}, refused ? buffer_.get() : -1);
  const Message ready = receive(options_.load_timeout);
  if (ready.type() != "ready") fail("engine_protocol", "expected ready, got another message");
  if (ready.head.value("vocab", Json()) != vocab) {
    fail("engine_protocol", "the engine has another vocabulary than the task");
  }
  vocab_ = vocab;
  streamed_ = streamed_of(json_member(ready.head, "storage", "engine"));
  if (streams()) {
    spdlog::warn("the weights do not fit on the device: {} of them stream from host memory",
                 format_size(streamed_));
  }
  load_seconds_ = boot_seconds() - started;
}

/// Device memory where the engine computes on a GPU; host memory otherwise, and where a GPU's
/// memory cannot be shared between processes.
void Engine::create_logits() {
  const size_t bytes = 2 * half_floats_ * sizeof(float);
  if (options_.device == "cuda" && options_.share_device_memory) {
    try {
      logits_ = SharedLogits::create_cuda(0, bytes, buffer_);
      return;
    } catch (const EnvironmentError& error) {
      if (error.code() != "cuda" && error.code() != "logits_buffer") throw;  // no GPU, no memory
      spdlog::warn("no shared device memory ({}); logits go through host memory", error.what());
    }
  }
  logits_ = SharedLogits::create_host(bytes, buffer_);
}

Engine::~Engine() {
  box_->kill();  // closes the log's last writer, so that the reader ends
  channel_.reset();
}

pid_t Engine::pid() const { return box_->pid(); }

void Engine::send(const Json& head, std::string_view payload, int fd) {
  try {
    channel_->send(head, payload, fd, options_.reply_timeout);
  } catch (const ChannelError& error) {
    if (error.fault() != ChannelFault::kClosed) fail(error);
    // What it said before it left tells more than that it left.
    while (true) receive(0);
  }
}

Message Engine::receive(double timeout) {
  try {
    const bool bounded = options_.deadline >= 0;
    if (bounded) timeout = std::min(timeout, std::max(0.0, options_.deadline - boot_seconds()));
    Message message = channel_->receive(timeout);
    if (message.type() == "error") fail_reported(message.head);
    return message;
  } catch (const ChannelError& error) {
    fail(error);
  }
}

void Engine::fail(const ChannelError& error) {
  if (error.fault() == ChannelFault::kTimeout) {
    if (options_.deadline >= 0 && boot_seconds() >= options_.deadline) {
      fail("time_limit", "the evaluation's time limit was reached while the engine was working");
    }
    fail("engine_hung", "the engine did not answer in time and was ended");
  }
  if (error.fault() == ChannelFault::kMalformed) {
    fail("engine_protocol", std::string("the engine sent a malformed reply: ") + error.what());
  }
  const std::optional<ExitStatus> status = box_->wait(2);
  if (!status) fail("engine_protocol", "the engine closed its connection but goes on running");
  const int signal = !status->exited ? status->signal : status->code > 128 ? status->code - 128 : 0;
  if (signal == SIGKILL) {
    fail("engine_out_of_memory", "the engine was killed, most likely for want of memory");
  }
  if (signal != 0) {
    fail("engine_crashed",
         "the engine crashed: signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")");
  }
  fail("engine_exited", "the engine left by itself: " + status->text());
}

void Engine::fail_reported(const Json& head) {
  const std::string code = safe_code(head);
  const auto text = head.find("message");
  const auto exit = head.find("exit");
  const bool blames_package =
      package_touched_ && exit != head.end() &&
      (*exit == static_cast<int>(Exit::kGateFailed) || *exit == static_cast<int>(Exit::kUsage));
  fail(submission_runs() || blames_package ? Exit::kGateFailed : Exit::kInvalid,
       code == "out_of_memory" ? "engine_out_of_memory" : code,
       text != head.end() && text->is_string() ? printable(text->get<std::string>(), 4000)
                                               : "the engine reported an error");
}

void Engine::fail(const std::string& code, const std::string& message) {
  fail(submission_runs() ? Exit::kGateFailed : Exit::kInvalid, code, message);
}

void Engine::fail(Exit exit, const std::string& code, const std::string& message) {
  box_->kill();
  const std::string tail = log_->text(true);
  throw Error(exit, code,
              message + (tail.empty() ? "" : "\nlast lines of the engine's log:\n" + tail));
}

void Engine::forward(std::span<const EngineSequence> sequences, const OnRows& on_rows) {
  Json spans = Json::array();
  Json rows = Json::array();
  std::vector<int32_t> ids;
  int64_t wanted = 0;
  for (const EngineSequence& sequence : sequences) {
    const auto count = static_cast<int64_t>(sequence.ids.size());
    spans.push_back({sequence.slot, sequence.start, count});
    if (sequence.first_wanted < count) {
      rows.push_back({static_cast<int64_t>(ids.size()) + sequence.first_wanted,
                      count - sequence.first_wanted});
      wanted += count - sequence.first_wanted;
    }
    ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
  }
  send({{"type", "forward"}, {"spans", spans}, {"rows", rows}}, ids_payload(ids));
  int64_t first = 0;
  int half = 0;
  while (true) {
    const Message message = receive(options_.reply_timeout);
    if (message.type() == "done") break;
    const Json n_value = message.head.value("rows", Json());
    const int64_t n = n_value.is_number_integer() ? n_value.get<int64_t>() : -1;
    const int64_t expected = std::min(wanted - first, options_.capacity.logits_rows);
    if (message.type() != "logits" || n != expected || n == 0 ||
        message.head.value("half", Json()) != half) {
      fail("engine_protocol", "the engine sent other logits than it was asked for");
    }
    on_rows(logits_->data() + static_cast<size_t>(half) * half_floats_, first, n);
    first += n;
    half ^= 1;
    send({{"type", "next"}});
  }
  if (first != wanted)
    fail("engine_protocol", "the engine sent fewer logits than it was asked for");
}

void Engine::generate(int32_t slot, int32_t first, int32_t start, int64_t count,
                      const std::function<void(int32_t)>& on_token) {
  send(
      {{"type", "generate"}, {"slot", slot}, {"first", first}, {"start", start}, {"count", count}});
  for (int64_t i = 0; i < count; ++i) {
    const Message message = receive(options_.reply_timeout);
    const Json id = message.head.value("id", Json());
    if (message.type() != "token" || !id.is_number_integer() || id < 0 || id >= vocab_) {
      fail("engine_protocol", "the engine sent no valid token");
    }
    on_token(id.get<int32_t>());
  }
  if (receive(options_.reply_timeout).type() != "done") {
    fail("engine_protocol", "the engine sent more tokens than it was asked for");
  }
}

ArenaReport Engine::arena_of(const Json& storage) {
  ArenaReport report;
  for (int i = 0; i < kCategories; ++i) {
    const char* name = category_name(static_cast<Category>(i));
    const auto index = static_cast<size_t>(i);
    for (auto [key, to] : {std::pair{"live", &report.live}, std::pair{"peak", &report.peak}}) {
      const Json* value =
          storage.contains(key) && storage[key].contains(name) ? &storage[key][name] : nullptr;
      const bool sane = value != nullptr && value->is_number_unsigned() &&
                        value->get<uint64_t>() < (uint64_t{1} << 50);
      if (!sane) fail("engine_protocol", "the engine's storage report makes no sense");
      (*to)[index] = value->get<int64_t>();
    }
  }
  const auto padding = storage.find("padding");
  if (padding != storage.end() && padding->is_number_integer()) report.padding = *padding;
  return report;
}

int64_t Engine::streamed_of(const Json& storage) {
  const auto streamed = storage.find("streamed");
  if (!options_.plugin.empty() || streamed == storage.end() || !streamed->is_number_integer()) {
    return 0;
  }
  return std::clamp<int64_t>(*streamed, 0, int64_t{1} << 50);
}

EngineMemory Engine::memory() {
  send({{"type", "trim"}});
  const Message message = receive(options_.reply_timeout);
  if (message.type() != "storage" || !message.head.contains("storage")) {
    fail("engine_protocol", "expected a storage report");
  }
  EngineMemory memory;
  memory.arena = arena_of(message.head["storage"]);
  memory.streamed = streamed_of(message.head["storage"]);
  memory.planned = planned_;
  memory.baseline = baseline_;
  memory.outside = outside_memory();
  if (gpu_) {
    memory.device = gpu_->use(process_tree(box_->pid()));
    memory.device_baseline = device_baseline_;
  }
  return memory;
}

int64_t Engine::outside_memory() const {
  // The logits buffer is ours; its pages show in the engine's shared memory while it maps them.
  struct stat buffer {};
  if (::fstat(buffer_.get(), &buffer) != 0) throw_errno("fstat", "logits buffer");
  const TreeMemory tree = process_tree_memory(box_->pid(), buffer.st_ino);
  return tree.anonymous + tree.held +
         std::max<int64_t>(0, tree.shared - int64_t{buffer.st_blocks} * 512);
}

void Engine::close() {
  send({{"type", "bye"}});
  const std::optional<ExitStatus> status = box_->wait(kExitGrace);
  if (!status) fail("engine_hung", "the engine did not end when it was told to");
  if (!status->ok()) fail("engine_crashed", "the engine ended with " + status->text());
}

}  // namespace cbench
