// Tokenizer throughput: bytes of text per second on one core, from a warm word cache. Runs on the
// fixtures; files given as CBENCH_TOKENIZER_DATA at configure time are measured too.
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <unistd.h>

#include "text/tokenizer.h"
#include "util/file.h"

namespace cbench {
namespace {

/// English prose and code of this repository, about a megabyte.
const std::string& sample_text() {
  static const std::string text = [] {
    std::string once;
    for (const char* name : {"LICENSE", "src/text/bpe.cpp", "src/text/decoder.cpp",
                             "tests/fixtures/tokenizers/make.py"}) {
      once += read_file(std::string(CBENCH_SOURCE_DIR) + "/" + name);
    }
    std::string all;
    while (all.size() < (1u << 20)) all += once;
    return all;
  }();
  return text;
}

void encode(benchmark::State& state, const std::string& path, const std::string& text) {
  const Tokenizer tokenizer = Tokenizer::load(path);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(text));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void decode(benchmark::State& state, const std::string& path) {
  const Tokenizer tokenizer = Tokenizer::load(path);
  const std::vector<int32_t> ids = tokenizer.encode(sample_text());
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(sample_text().size()));
}

void load(benchmark::State& state, const std::string& path) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(path).vocab_size());
}

void add(const std::string& name, const std::string& path) {
  using benchmark::RegisterBenchmark;
  const auto unit = benchmark::kMillisecond;
  RegisterBenchmark(("load/" + name).c_str(), [path](auto& state) {
    load(state, path);
  })->Unit(unit);
  RegisterBenchmark(("encode/" + name).c_str(), [path](auto& state) {
    encode(state, path, sample_text());
  })->Unit(unit);
  RegisterBenchmark(("encode_one_word/" + name).c_str(), [path](auto& state) {
    encode(state, path, std::string(1 << 20, 'a'));
  })->Unit(unit);
  RegisterBenchmark(("decode/" + name).c_str(), [path](auto& state) {
    decode(state, path);
  })->Unit(unit);
}

}  // namespace
}  // namespace cbench

int main(int argc, char** argv) {
  const std::string fixtures = std::string(CBENCH_SOURCE_DIR) + "/tests/fixtures/tokenizers/";
  for (const char* name : {"qwen_like", "llama3_like", "gemma_like"}) {
    cbench::add(name, fixtures + name + ".json");
  }
  for (const char* name : {"qwen3", "llama3", "gemma3"}) {
    const std::string path = std::string(CBENCH_TOKENIZER_DATA) + "/" + name + ".tokenizer.json";
    for (const char* suffix : {"", ".zst"}) {
      if (access((path + suffix).c_str(), R_OK) == 0) cbench::add(name, path + suffix);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
