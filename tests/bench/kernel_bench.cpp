// The CUDA runtime at a model's true size, with synthetic weights, against ceilings of the same
// run:
//   bench_kernels CONFIG.json [--tokens 8192,16384] [--length 2048] [--steps 128] [--seconds 3]
//                 [--layers N] [--choices N] [--only decode|scoring]
// --choices compares that many of cuBLASLt's proposals per shape, each run long enough for the
// power limit to act. Prints one line per figure: name, median, unit, spread, share of its ceiling.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "ceilings.h"
#include "check.h"
#include "gemm.h"
#include "model/config.h"
#include "nll.h"
#include "nvml.h"
#include "runtime/model.h"
#include "util/error.h"
#include "util/file.h"

namespace cbench {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Options {
  std::string config;
  std::vector<int64_t> tokens = {8192, 16384};
  int64_t length = 2048, steps = 128, layers = 0;
  double seconds = 3;
  std::string only;  ///< "decode" or "scoring": for a profiler, without ceilings
  int choices = 1;
};

/// Random weights made on the device, scaled so that activations keep their size.
class SyntheticSource : public WeightSource {
 public:
  explicit SyntheticSource(Ops& ops) : ops_(ops) {}
  Linear matrix(const std::string& name, int64_t rows, int64_t cols, Category category) override {
    void* data = ops_.arena().allocate(static_cast<size_t>(rows * cols) * 2, category, name);
    const float amplitude = 1.2f / std::sqrt(static_cast<float>(cols));
    cuda::fill_random(data, rows * cols, seed_++, amplitude, stream());
    return {rows, cols, data};
  }
  Projection projection(std::span<const std::string> names, std::span<const int64_t> rows,
                        int64_t cols) override {
    int64_t total = 0;
    for (const int64_t n : rows) total += n;
    return {{matrix(names[0], total, cols, Category::kWeights)}};
  }
  ExpertLinear experts(const std::string& name, std::span<const int64_t> kept, int64_t rows,
                       int64_t cols) override {
    const auto count = static_cast<int64_t>(kept.size());
    return {count, rows, cols, matrix(name, count * rows, cols, Category::kWeights).bf16};
  }
  const float* vector(const std::string& name, std::span<const int64_t> shape, float add) override {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    auto* data = ops_.arena().allocate<float>(static_cast<size_t>(n), Category::kMetadata, name);
    const bool norm = name.find("norm") != std::string::npos && add == 0;
    cuda::fill_random_float(data, n, seed_++, add - 0.3f + (norm ? 1.f : 0.f),
                            add + 0.3f + (norm ? 1.f : 0.f), stream());
    return data;
  }
  std::vector<float> host_vector(const std::string&, std::span<const int64_t> shape) override {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    std::vector<float> out;
    for (int64_t i = 0; i < n; i++) out.push_back(-2.f + 3.f * static_cast<float>(i % 17) / 17.f);
    return out;
  }
  bool has(const std::string&) const override { return false; }

 private:
  cudaStream_t stream() { return static_cast<cudaStream_t>(ops_.stream()); }
  Ops& ops_;
  uint32_t seed_ = 1;
};

struct Bench {
  Options options;
  std::unique_ptr<Ops> ops = make_cuda_ops(0);
  std::optional<cuda::Nvml> nvml;
  ModelConfig config;
  double copy = 0, read = 0, gemm = 0;

  cudaStream_t stream() { return static_cast<cudaStream_t>(ops->stream()); }

  static void line(const std::string& name, double value, const char* unit,
                   const std::string& note = "") {
    std::printf("%-44s %12.2f %-10s %s\n", name.c_str(), value, unit, note.c_str());
    std::fflush(stdout);
  }
  static std::string percent(double part, double whole, const char* of) {
    char text[96];
    std::snprintf(text, sizeof text, "%.1f %% of %s", 100 * part / whole, of);
    return text;
  }

  void bandwidth() {
    const size_t bytes = size_t{4} << 30;
    void* data = nullptr;
    CBENCH_CUDA(cudaMalloc(&data, bytes));
    const cuda::Bandwidth b = cuda::measure_bandwidth(data, bytes, stream());
    copy = b.copy, read = b.read;
    line("copy kernel, read + write", copy / 1e9, "GB/s");
    line("read-only stream", read / 1e9, "GB/s", percent(read, copy, "copy"));
    CBENCH_CUDA(cudaFree(data));
  }

  /// The log-sum-exp kernel on 2048 rows.
  void scores() {
    const int64_t rows = 2048, bytes = rows * config.vocab * 4;
    float* logits = nullptr;
    int32_t* targets = nullptr;
    cuda::RowScore* out = nullptr;
    const auto take = [](auto*& pointer, int64_t size) {
      void* data = nullptr;
      CBENCH_CUDA(cudaMalloc(&data, static_cast<size_t>(size)));
      CBENCH_CUDA(cudaMemset(data, 0, static_cast<size_t>(size)));
      pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(data);
    };
    take(logits, bytes);
    take(targets, rows * 4);
    take(out, rows * static_cast<int64_t>(sizeof *out));
    cuda::fill_random_float(logits, rows * config.vocab, 5, -8, 8, stream());
    const double ms = cuda::median(cuda::time_runs(
        [&] { cuda::score_rows(logits, targets, rows, config.vocab, out, stream()); }, 20, 3,
        stream()));
    line("score_rows, 2048 rows of the vocabulary", ms, "ms",
         percent(static_cast<double>(bytes) / ms * 1e3, read, "read-only stream"));
    cudaFree(logits), cudaFree(targets), cudaFree(out);
  }

  struct Product {
    const char* name;
    int64_t n, k, count;
  };
  std::vector<Product> products() const {
    int64_t attention = 0, delta = 0;
    for (const BlockConfig& b : config.blocks)
      (b.mixer == MixerKind::kAttention ? attention : delta)++;
    const AttentionConfig& a = config.blocks.back().attention;
    const DeltaNetConfig& d = config.blocks.front().delta;
    const int64_t mlp = config.blocks[0].mlp.width, all = attention + delta;
    std::vector<Product> list = {{"qkv", a.in_rows(), config.hidden, attention},
                                 {"attention out", config.hidden, a.queries(), attention},
                                 {"delta in", d.in_rows(), config.hidden, delta},
                                 {"delta out", config.hidden, d.values(), delta},
                                 {"gate and up", 2 * mlp, config.hidden, all},
                                 {"down", config.hidden, mlp, all}};
    std::erase_if(list, [](const Product& p) { return p.count == 0; });
    return list;
  }

  /// Back-to-back products of the model's own shapes in the model's mix, as long as the power limit
  /// needs to settle.
  void sustained_gemm(int64_t rows) {
    const auto list = products();
    int64_t weights = 0, widest = 0, longest = 0;
    for (const Product& p : list) {
      weights = std::max(weights, p.n * p.k);
      widest = std::max(widest, p.k), longest = std::max(longest, p.n);
    }
    void *w = nullptr, *x = nullptr, *y = nullptr, *workspace = nullptr;
    const int64_t copies = 4;  // past the L2
    CBENCH_CUDA(cudaMalloc(&w, static_cast<size_t>(weights * copies) * 2));
    CBENCH_CUDA(cudaMalloc(&x, static_cast<size_t>(rows * widest) * 2));
    CBENCH_CUDA(cudaMalloc(&y, static_cast<size_t>(rows * longest) * 2));
    CBENCH_CUDA(cudaMalloc(&workspace, cuda::Gemm::kWorkspace));
    cuda::fill_random(w, weights * copies, 1, 0.02f, stream());
    cuda::fill_random(x, rows * widest, 2, 1, stream());
    cuda::Gemm gemm_runner(stream());
    gemm_runner.set_workspace(workspace);
    int turn = 0;
    const auto multiply = [&](const Product& p) {
      cuda::GemmArguments a;
      a.x = x, a.y = y, a.rows = rows, a.n = p.n, a.k = p.k, a.y_stride = p.n;
      a.w = static_cast<const char*>(w) + (turn++ % copies) * weights * 2;
      gemm_runner.run(a);
    };
    const double period = options.seconds;
    double flops = 0, time = 0;
    const auto start = Clock::now();
    while (seconds_since(start) < period) {  // one layer group of the model per timing
      double work = 0;
      const double ms = cuda::time_runs(
          [&] {
            for (const Product& p : list)
              for (int64_t i = 0; i < (p.count + 7) / 8; i++) {
                multiply(p);
                work += 2.0 * static_cast<double>(rows * p.n) * static_cast<double>(p.k);
              }
          },
          1, 0, stream())[0];
      if (seconds_since(start) > period / 3) flops += work, time += ms / 1e3;
    }
    gemm = flops / time;
    char note[96];
    std::snprintf(note, sizeof note, "%d MHz, %.0f W", nvml ? nvml->sm_clock() : 0,
                  nvml ? nvml->power() : 0);
    line("sustained GEMM, model's mix, " + std::to_string(rows) + " rows", gemm / 1e12, "TFLOP/s",
         note);
    for (const Product& p : list) {
      for (int choice = 0; options.choices > 1 && choice < options.choices; choice++) {
        gemm_runner.set_choice(choice);
        try {
          const double flops_each =
              2.0 * static_cast<double>(rows * p.n) * static_cast<double>(p.k);
          const int runs = static_cast<int>(0.25 / (flops_each / 700e12));
          const double ms =
              cuda::median(cuda::time_runs([&] { multiply(p); }, runs, runs, stream()));
          line("  " + std::string(p.name) + ", proposal " + std::to_string(choice),
               flops_each / ms / 1e9, "TFLOP/s");
        } catch (const Error&) {
          break;
        }
      }
      gemm_runner.set_choice(0);
    }
    cudaFree(w), cudaFree(x), cudaFree(y), cudaFree(workspace);
  }

  /// Operations of a forward without the LM head: products, attention, delta rule as counted by the
  /// chunked form.
  double forward_flops(int64_t tokens, int64_t length) const {
    double total = 0;
    for (const Product& p : products())
      total += 2.0 * static_cast<double>(p.n * p.k) * static_cast<double>(p.count) *
               static_cast<double>(tokens);
    for (const BlockConfig& b : config.blocks)
      if (b.mixer == MixerKind::kAttention)
        total +=
            2.0 * static_cast<double>(tokens * length) * static_cast<double>(b.attention.queries());
    return total;
  }

  void scoring(Model& model, int64_t tokens, float* logits) {
    std::vector<int32_t> ids, rows;
    std::vector<Span> spans;
    const int64_t length = options.length;
    for (int64_t s = 0; s * length < tokens; s++)
      spans.push_back({static_cast<int32_t>(s), 0, static_cast<int32_t>(s * length),
                       static_cast<int32_t>(std::min(length, tokens - s * length))});
    for (int64_t i = 0; i < tokens; i++)
      ids.push_back(static_cast<int32_t>((i * 7919 + 13) % config.vocab));
    const auto forward = [&] { model.forward({ids, spans}); };
    const auto head = [&] {  // 1,536 of 2,048 rows are scored
      for (int64_t first = 0; first < tokens * 3 / 4; first += model.limits().logits_rows) {
        rows.clear();
        for (int64_t i = first; i < std::min(tokens * 3 / 4, first + model.limits().logits_rows);
             i++)
          rows.push_back(static_cast<int32_t>(i));
        model.logits(rows, logits);
      }
    };
    const int repeats =
        std::max(3, static_cast<int>(options.seconds / (static_cast<double>(tokens) * 1e-4)));
    const double before = nvml ? nvml->energy() : 0;
    const auto start = Clock::now();
    auto times = cuda::time_runs(forward, repeats, 1, stream());
    const double joules = (nvml ? nvml->energy() : 0) - before, wall = seconds_since(start);
    const double ms = cuda::median(times), flops = forward_flops(tokens, length);
    char note[160];
    std::snprintf(note, sizeof note, "%.1f ms (%.1f..%.1f), %d MHz, %.0f W", ms,
                  *std::min_element(times.begin(), times.end()),
                  *std::max_element(times.begin(), times.end()), nvml ? nvml->sm_clock() : 0,
                  joules / wall);
    const std::string name = "scoring " + std::to_string(tokens) + " tokens, ";
    line(name + "blocks", static_cast<double>(tokens) / ms * 1e3, "tok/s", note);
    line(name + "blocks", flops / ms / 1e9, "TFLOP/s",
         percent(flops / ms * 1e3, gemm, "sustained GEMM"));
    line(name + "blocks", joules / (static_cast<double>(tokens) * (repeats + 1)), "J/token");
    const double with_head =
        cuda::median(cuda::time_runs([&] { forward(), head(); }, 3, 1, stream()));
    const double head_flops = 2.0 * 0.75 * static_cast<double>(tokens * config.vocab) *
                              static_cast<double>(config.hidden);
    line(name + "with LM head on 3/4", static_cast<double>(tokens) / with_head * 1e3, "tok/s",
         percent((flops + head_flops) / with_head * 1e3, gemm, "sustained GEMM"));
  }

  /// Weight bytes that a step reads.
  double weight_bytes() const {
    double total = static_cast<double>(config.vocab * config.hidden) * 2;
    for (const Product& p : products())
      total += static_cast<double>(p.n * p.k) * 2 * static_cast<double>(p.count);
    return total;
  }
  double cache_bytes(int64_t length) const {
    double total = 0;
    for (const BlockConfig& b : config.blocks)
      total += b.mixer == MixerKind::kAttention
                   ? 4.0 * static_cast<double>(length * b.attention.keys())
                   : 8.0 * static_cast<double>(b.delta.values() * b.delta.key_dim);
    return total;
  }

  void decode(Model& model) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < options.length; i++)
      ids.push_back(static_cast<int32_t>((i * 104729 + 7) % config.vocab));
    const Span span{0, 0, 0, static_cast<int32_t>(ids.size())};
    std::vector<double> rates;
    std::vector<int32_t> first_run;
    double joules = 0, wall = 0;
    for (int round = 0; round < 4; round++) {
      model.forward({ids, {&span, 1}});
      ops->synchronize();
      std::vector<int32_t> tokens;
      Clock::time_point start;
      const double before = nvml ? nvml->energy() : 0;
      model.generate(0, 17, static_cast<int32_t>(options.length), options.steps, [&](int32_t id) {
        if (tokens.empty()) start = Clock::now();
        tokens.push_back(id);
        return true;
      });
      const double time = seconds_since(start);
      joules += (nvml ? nvml->energy() : 0) - before, wall += time;
      if (round == 0) {
        first_run = tokens;
        joules = wall = 0;  // warm-up
        continue;
      }
      if (tokens != first_run) line("WRONG: greedy ids differ between rounds", round, "");
      rates.push_back(static_cast<double>(options.steps - 1) / time);
    }
    const double rate = cuda::median(rates);
    char note[160];
    std::snprintf(note, sizeof note, "%.2f..%.2f, %d MHz",
                  *std::min_element(rates.begin(), rates.end()),
                  *std::max_element(rates.begin(), rates.end()), nvml ? nvml->sm_clock() : 0);
    const std::string name = "decode after " + std::to_string(options.length);
    line(name, rate, "tok/s", note);
    line(name + ", weights read", weight_bytes() * rate / 1e9, "GB/s",
         percent(weight_bytes() * rate, copy, "copy") + ", " +
             percent(weight_bytes() * rate, read, "read-only stream"));
    line("  weight bytes per token", weight_bytes() / 1e9, "GB");
    line("  cache and state bytes per token", cache_bytes(options.length) / 1e6, "MB");
    line(name, joules / (static_cast<double>(options.steps) * 3), "J/token",
         "energy counter moves every 100 ms");
    unsigned hash = 2166136261u;
    for (const int32_t id : first_run) hash = (hash ^ static_cast<unsigned>(id)) * 16777619u;
    line("  hash of the greedy ids", hash, "");
  }

  void batched(Model& model) {
    const int64_t sequences = std::min<int64_t>(model.limits().sequences, 64);
    std::vector<int32_t> ids(static_cast<size_t>(sequences), 5);
    std::vector<Span> prompt, step;
    std::vector<int32_t> prompt_ids;
    for (int32_t s = 0; s < sequences; s++) {
      prompt.push_back({s, 0, s * 64, 64});
      step.push_back({s, 64, s, 1});
      for (int32_t i = 0; i < 64; i++) prompt_ids.push_back(s * 31 + i);
    }
    model.forward({prompt_ids, prompt});
    std::vector<double> times;
    for (int i = 0; i < 12; i++) {
      for (Span& s : step) s.start = 64 + i;
      times.push_back(cuda::time_runs([&] { model.forward({ids, step}); }, 1, 0, stream())[0]);
    }
    const double ms = cuda::median(times);
    line(
        "step of " + std::to_string(sequences) + " sequences, no head", ms, "ms",
        percent((weight_bytes() - static_cast<double>(config.vocab * config.hidden) * 2) / ms * 1e3,
                copy, "copy over weight bytes"));
  }

  int run() {
    config = parse_model_config(read_file(options.config), options.config);
    if (options.layers) config.blocks.resize(static_cast<size_t>(options.layers));
    try {
      nvml.emplace(0);
    } catch (const Error& error) {
      std::printf("no NVML: %s\n", error.what());
    }
    std::printf("%s, driver %s, %s\n", ops->device_name().c_str(),
                nvml ? nvml->driver().c_str() : "?", options.config.c_str());
    if (nvml) line("idle power", nvml->power(), "W");
    if (options.only.empty()) {
      bandwidth();
      scores();
      sustained_gemm(8192);
    }
    const int64_t most = *std::max_element(options.tokens.begin(), options.tokens.end());
    const int64_t sequences = std::max<int64_t>(64, (most + options.length - 1) / options.length);
    const Capacity capacity{.tokens = most,
                            .sequences = sequences,
                            .slots = sequences,
                            .max_length = options.length + options.steps + 1,
                            .logits_rows = 2048};
    const auto start = Clock::now();
    SyntheticSource source(*ops);
    Model model(*ops, config, source, capacity);
    auto* logits = ops->arena().allocate<float>(
        static_cast<size_t>(capacity.logits_rows * config.vocab), Category::kLogits, "logits");
    ops->synchronize();
    line("synthetic weights", seconds_since(start), "s");
    for (int i = 0; i < kCategories; i++)
      if (const auto bytes = ops->arena().report().live[static_cast<size_t>(i)])
        line(std::string("  ") + category_name(static_cast<Category>(i)),
             static_cast<double>(bytes) / 1e6, "MB");
    if (options.only != "scoring") decode(model);
    if (options.only != "decode")
      for (const int64_t tokens : options.tokens) scoring(model, tokens, logits);
    if (options.only.empty()) batched(model);
    return 0;
  }
};

std::vector<int64_t> numbers(const char* text) {
  std::vector<int64_t> list;
  for (char* end = nullptr; *text; text = *end ? end + 1 : end)
    list.push_back(std::strtoll(text, &end, 10));
  return list;
}

int run_main(int argc, char** argv) {
  Bench bench;
  for (int i = 1; i < argc; i++) {
    const std::string arg = argv[i];
    if (arg[0] != '-') {
      bench.options.config = arg;
    } else if (i + 1 < argc) {
      const char* value = argv[++i];
      if (arg == "--tokens") bench.options.tokens = numbers(value);
      if (arg == "--length") bench.options.length = std::atoll(value);
      if (arg == "--steps") bench.options.steps = std::atoll(value);
      if (arg == "--layers") bench.options.layers = std::atoll(value);
      if (arg == "--seconds") bench.options.seconds = std::atof(value);
      if (arg == "--only") bench.options.only = value;
      if (arg == "--choices") bench.options.choices = std::atoi(value);
    }
  }
  return bench.run();
}

}  // namespace
}  // namespace cbench

int main(int argc, char** argv) {
  try {
    return cbench::run_main(argc, argv);
  } catch (const cbench::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
