#include "engine/server.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <vector>

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/channel.h"
#include "engine/shared_logits.h"
#include "engine/weights.h"
#include "package/package.h"
#include "runtime/planned_source.h"
#include "runtime/synthetic_source.h"
#include "util/error.h"
#include "util/log.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr double kForEver = -1;

Capacity capacity_of(const Json& head) {
  const Json& c = json_member(head, "capacity", "hello");
  Capacity capacity;
  capacity.tokens = json_int(c, "tokens", "hello");
  capacity.sequences = json_int(c, "sequences", "hello");
  capacity.slots = json_int(c, "slots", "hello");
  capacity.max_length = json_int(c, "max_length", "hello");
  capacity.logits_rows = json_int(c, "logits_rows", "hello");
  return capacity;
}

ModelOverrides overrides_of(const Manifest& manifest) {
  ModelOverrides overrides;
  if (manifest.graph.layers) {
    overrides.layers.assign(manifest.graph.layers->begin(), manifest.graph.layers->end());
  }
  for (const auto& [layer, width] : manifest.graph.mlp_width) overrides.mlp_width[layer] = width;
  for (const auto& [layer, kept] : manifest.graph.experts) {
    overrides.experts[layer].assign(kept.begin(), kept.end());
  }
  return overrides;
}

Json storage_json(const ArenaReport& report, int64_t streamed = 0) {
  Json live = Json::object();
  Json peak = Json::object();
  for (int i = 0; i < kCategories; ++i) {
    const char* name = category_name(static_cast<Category>(i));
    live[name] = report.live[static_cast<size_t>(i)];
    peak[name] = report.peak[static_cast<size_t>(i)];
  }
  return {{"live", live}, {"peak", peak}, {"padding", report.padding}, {"streamed", streamed}};
}

/// Factors only of dense matrices, and no wider than these need: what lies between two factors is
/// workspace, which does not count.
void check_low_rank(const ModelConfig& config, const Manifest& manifest) {
  const std::vector<MatrixShape> matrices = model_matrices(config);
  for (const auto& [name, rank] : manifest.graph.low_rank) {
    const auto found = std::ranges::find(matrices, name, &MatrixShape::name);
    if (found == matrices.end()) {
      throw Error(Exit::kGateFailed, "unknown_matrix",
                  "low_rank names " + name + ", which is no matrix of this model");
    }
    if (found->routed) {
      throw Error(Exit::kGateFailed, "graph",
                  "graph.low_rank names " + name + ": experts' matrices are not factored");
    }
    if (const int64_t most = std::min(found->rows, found->cols); rank > most) {
      throw Error(Exit::kGateFailed, "graph",
                  "graph.low_rank gives " + name + " the rank " + std::to_string(rank) +
                      "; it has no more than " + std::to_string(most));
    }
  }
}

/// Half-open ranges of batch rows whose logits are wanted, as one list of rows.
std::vector<int32_t> wanted_rows(const Json& ranges, int64_t tokens) {
  std::vector<int32_t> rows;
  for (const Json& range : ranges) {
    const int64_t first = range.at(0).get<int64_t>();
    const int64_t count = range.at(1).get<int64_t>();
    if (first < 0 || count < 0 || first > tokens || count > tokens - first) {
      throw UsageError("batch", "wanted rows lie outside the batch");
    }
    for (int64_t i = 0; i < count; ++i) rows.push_back(static_cast<int32_t>(first + i));
  }
  return rows;
}

class Server {
 public:
  Server(Channel& channel, const EngineServerOptions& options)
      : channel_(channel), options_(options) {}

  void run() {
    start(channel_.receive(kForEver));
    while (true) {
      Message message = channel_.receive(kForEver);
      const std::string type = message.type();
      if (type == "bye") return;
      if (type == "forward") {
        forward(message);
      } else if (type == "generate") {
        generate(message.head);
      } else if (type == "trim") {
        ops_->trim();
        ::malloc_trim(0);
        channel_.send({{"type", "storage"}, {"storage", storage()}});
      } else {
        throw UsageError("protocol", "unknown message type " + type);
      }
    }
  }

 private:
  std::unique_ptr<Ops> make_ops() const {
    return options_.device == "cuda" ? make_cuda_ops(0) : make_cpu_ops();
  }

  /// What the model's caches, activations and workspace take: of a model without weights, given
  /// back at once. Nothing of the package but its manifest was read, and no plugin is here yet, so
  /// the evaluator may believe it.
  ArenaReport rehearse(ModelConfig config, const std::string& manifest_text) const {
    std::map<std::string, int64_t> low_rank;
    try {
      const Manifest manifest =
          manifest_text.empty() ? Manifest() : parse_manifest(manifest_text, "");
      config = apply_overrides(config, overrides_of(manifest));
      check_low_rank(config, manifest);
      low_rank.insert(manifest.graph.low_rank.begin(), manifest.graph.low_rank.end());
    } catch (const Error&) {
      // Loading the package will say what is wrong with it.
    }
    const std::unique_ptr<Ops> ops = make_ops();
    PlannedSource weights(std::move(low_rank));
    const Model model(*ops, config, weights, capacity_);
    return ops->arena().report();
  }

  /// hello -> warm (nothing of the package loaded yet: the evaluator takes its baseline) -> load ->
  /// ready.
  void start(Message hello) {
    const Json& head = hello.head;
    const ModelConfig base =
        parse_model_config(json_string(head, "config", "hello"), "config.json of the task");
    capacity_ = capacity_of(head);
    ops_ = make_ops();
    ops_->warm_up();
    planned_ = rehearse(base, hello.payload);
    ::malloc_trim(0);
    vocab_ = base.vocab;
    logits_bytes_ = static_cast<size_t>(capacity_.logits_rows * vocab_) * sizeof(float);
    const std::string kind = open_logits(json_string(head, "logits", "hello"), hello.fd);
    channel_.send({{"type", "warm"},
                   {"device", ops_->device_name()},
                   {"logits", kind},
                   {"planned", storage_json(planned_)}});
    const Message load = channel_.receive(kForEver);
    if (load.type() != "load") throw UsageError("protocol", "expected load");
    if (!logits_) logits_ = SharedLogits::open_host(load.fd, 2 * logits_bytes_);

    if (options_.synthetic) {
      weights_ = std::make_unique<SyntheticSource>(*ops_, place(base));
      model_ = std::make_unique<Model>(*ops_, base, *weights_, capacity_);
    } else {
      load_package(base);
    }
    if (ops_->is_cuda() && !logits_on_device()) {
      staged_ = ops_->arena().allocate<float>(logits_bytes_ / sizeof(float), Category::kLogits,
                                              "logits for the host");
    }
    ops_->synchronize();
    ops_->arena().freeze();
    ::malloc_trim(0);
    channel_.send({{"type", "ready"}, {"vocab", vocab_}, {"storage", storage()}});
  }

  Json storage() const {
    return storage_json(ops_->arena().report(), memory_ ? memory_->streamed() : 0);
  }

  /// Puts the matrices of `config`, all plain, where there is room.
  std::shared_ptr<WeightMemory> place(const ModelConfig& config) {
    const bool staged = ops_->is_cuda() && !logits_on_device();
    const int64_t budget = options_.stream_budget >= 0
                               ? options_.stream_budget
                               : block_budget(*ops_, config, planned_,
                                              staged ? static_cast<int64_t>(logits_bytes_) : 0);
    memory_ = std::make_shared<WeightMemory>(
        *ops_, plan_stream(config, ops_->is_cuda() ? sizeof(uint16_t) : sizeof(float), budget));
    return memory_;
  }

  /// Maps the evaluator's buffer; "host" asks for another one where device memory cannot be mapped.
  std::string open_logits(const std::string& kind, const Fd& fd) {
    if (kind == "host") {
      logits_ = SharedLogits::open_host(fd, 2 * logits_bytes_);
    } else if (kind == "cuda" && ops_->is_cuda()) {
      try {
        logits_ = SharedLogits::open_cuda(0, fd, 2 * logits_bytes_);
      } catch (const EnvironmentError& error) {
        spdlog::warn("the evaluator's logits buffer cannot be mapped: {}", error.what());
        return "host";
      }
    } else {
      throw UsageError("protocol", "a logits buffer of kind " + printable(kind));
    }
    return kind;
  }
  bool logits_on_device() const { return std::string_view(logits_->kind()) == "cuda"; }

  void load_package(const ModelConfig& base) {
    package_ = std::make_unique<Package>(Package::open(options_.package));
    const ModelConfig config = apply_overrides(base, overrides_of(package_->manifest()));
    check_matrices(config);
    if (!options_.plugin.empty()) {
      plugin_ = std::make_unique<Plugin>(options_.plugin, package_->tensors(), *ops_);
    }
    const Manifest& manifest = package_->manifest();
    const bool plain = !plugin_ && manifest.matrices.empty() && manifest.graph.low_rank.empty();
    weights_ = std::make_unique<PackageWeights>(*ops_, package_->tensors(), manifest, plugin_.get(),
                                                plain ? place(config) : nullptr);
    model_ = std::make_unique<Model>(*ops_, config, *weights_, capacity_);
    forget_file_pages();
  }

  /// What was copied needs its file no longer. On a file system in memory the mapped pages would
  /// show as host memory of this process.
  void forget_file_pages() {
    static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    for (const Tensor& tensor : package_->tensors().tensors()) {
      if (tensor.bytes.empty()) continue;
      const auto first = reinterpret_cast<uintptr_t>(tensor.bytes.data()) / page * page;
      const auto end = reinterpret_cast<uintptr_t>(tensor.bytes.data()) + tensor.bytes.size();
      ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
    }
  }

  /// The manifest may name only matrices that the model has.
  void check_matrices(const ModelConfig& config) {
    std::set<std::string> names;
    for (const MatrixShape& shape : model_matrices(config)) names.insert(shape.name);
    const auto has = [&](const std::string& name) { return names.contains(name); };
    const Manifest& manifest = package_->manifest();
    check_low_rank(config, manifest);
    for (const auto& [name, format] : manifest.matrices) {
      std::string base = name;
      const bool factor = base.ends_with(".A") || base.ends_with(".B");
      if (factor) base.resize(base.size() - 2);
      if (!has(name) && !(factor && has(base) && manifest.graph.low_rank.contains(base))) {
        throw Error(Exit::kGateFailed, "unknown_matrix",
                    "the manifest names " + name + ", which is no matrix of this model");
      }
    }
  }

  void forward(const Message& message) {
    const std::vector<int32_t> ids = ids_of(message);
    std::vector<Span> spans;
    int32_t row = 0;
    for (const Json& s : message.head.at("spans")) {
      Span span{s.at(0).get<int32_t>(), s.at(1).get<int32_t>(), row, s.at(2).get<int32_t>()};
      if (span.count <= 0 || span.count > static_cast<int64_t>(ids.size()) - row) {
        throw UsageError("batch", "spans do not cover the ids");
      }
      row += span.count;
      spans.push_back(span);
    }
    model_->forward({ids, spans});
    const std::vector<int32_t> rows =
        wanted_rows(message.head.at("rows"), static_cast<int64_t>(ids.size()));
    send_logits(rows);
  }

  /// Chunk by chunk through the two halves of the buffer: while the evaluator reads one half, the
  /// next chunk is computed into the other.
  void send_logits(std::span<const int32_t> rows) {
    int64_t in_flight = 0;
    size_t done = 0;
    int half = 0;
    while (done < rows.size()) {
      const size_t n =
          std::min<size_t>(rows.size() - done, static_cast<size_t>(capacity_.logits_rows));
      if (in_flight == 2) {
        expect_next();
        --in_flight;
      }
      float* out = logits_->data() + static_cast<size_t>(half) * (logits_bytes_ / sizeof(float));
      model_->logits(rows.subspan(done, n), staged_ != nullptr ? staged_ : out);
      if (staged_ != nullptr) {
        ops_->copy_out(out, staged_, n * static_cast<size_t>(vocab_) * sizeof(float));
      }
      ops_->synchronize();
      channel_.send({{"type", "logits"}, {"half", half}, {"rows", n}});
      ++in_flight;
      done += n;
      half ^= 1;
    }
    while (in_flight-- > 0) expect_next();
    channel_.send({{"type", "done"}});
  }

  void expect_next() {
    if (channel_.receive(kForEver).type() != "next") throw UsageError("protocol", "expected next");
  }

  void generate(const Json& head) {
    model_->generate(static_cast<int32_t>(json_int(head, "slot", "generate")),
                     static_cast<int32_t>(json_int(head, "first", "generate")),
                     static_cast<int32_t>(json_int(head, "start", "generate")),
                     json_int(head, "count", "generate"), [&](int32_t id) {
                       channel_.send({{"type", "token"}, {"id", id}});
                       return true;
                     });
    channel_.send({{"type", "done"}});
  }

  Channel& channel_;
  const EngineServerOptions& options_;
  Capacity capacity_;
  ArenaReport planned_;
  std::unique_ptr<Ops> ops_;
  std::shared_ptr<WeightMemory> memory_;  ///< of a plain package
  std::unique_ptr<Package> package_;
  std::unique_ptr<Plugin> plugin_;
  std::unique_ptr<WeightSource> weights_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<SharedLogits> logits_;
  float* staged_ = nullptr;  ///< on the device, when the buffer is in host memory
  int64_t vocab_ = 0;
  size_t logits_bytes_ = 0;  // of one half
};

}  // namespace

int serve_engine(Fd socket, const EngineServerOptions& options) {
  Channel channel(std::move(socket));
  const auto report = [&](const std::string& code, const std::string& text, Exit exit) {
    spdlog::error("{}", text);
    try {
      channel.send(
          {{"type", "error"}, {"code", code}, {"message", text}, {"exit", static_cast<int>(exit)}});
    } catch (const ChannelError&) {
      // The evaluator is gone: nobody is left to tell.
    }
  };
  try {
    Server(channel, options).run();
    return 0;
  } catch (const ChannelError& error) {
    // Hanging up is how an evaluator that was killed leaves.
    if (error.fault() == ChannelFault::kClosed) return 0;
    report("protocol", error.what(), Exit::kInvalid);
  } catch (const std::bad_alloc&) {
    report("out_of_memory", "the engine ran out of memory", Exit::kEnvironment);
  } catch (const Error& error) {
    report(error.code(), error.what(), error.exit());
    return static_cast<int>(error.exit());
  } catch (const std::exception& error) {
    report("internal", error.what(), Exit::kInvalid);
  } catch (...) {
    report("internal", "something that is no exception was thrown", Exit::kInvalid);
  }
  return static_cast<int>(Exit::kInvalid);
}

}  // namespace cbench
