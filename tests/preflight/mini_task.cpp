#include "preflight/mini_task.h"

#include <filesystem>

#include "util/json.h"
#include "util/random.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

const std::string kFixtures = std::string(CBENCH_FIXTURES) + "/grading/";
const std::string kModel = std::string(CBENCH_SOURCE_DIR) + "/tasks/models/tiny-hybrid-6m";

constexpr const char* kContract = R"(schema: 1
title: A task of the suite in miniature
limit: 16 MiB
budget: 10m
model: {name: mini, repository: org/name, revision: main, architecture: qwen3_5, parameters: 6333216}
hardware: {device: cpu}
likelihood:
  blocks: 8
  context_tokens: 32
  continuation_tokens: 32
  temperature: 1
  seed: 7
  sources: [alpha, beta]
accuracy:
  retain: 0.8
  benchmarks:
    - {name: gsm8k, items: 6, shots: 4, max_tokens: 16}
    - {name: humaneval, items: 4, shots: 0, max_tokens: 16}
    - {name: triviaqa, items: 5, shots: 5, max_tokens: 8}
decode: {prompt_tokens: 32, new_tokens: 16, warmup_requests: 1, rounds: 3, requests_per_round: 1}
audit: {stepwise_blocks: 1, stepwise_tokens: 8, suffix_blocks: 1, tolerance: 0.02}
timeouts: {verification: 5m, check: 2m, build: 60s, load: 30s, reply: 30s}
data:
  root: data/mini
  items: items
  shots: shots
  documents: documents
  reference: reference
  visible: visible
fetch:
)";

/// Lines `from` to `to` of a fixture.
std::string lines_of(const std::string& name, size_t from, size_t to) {
  const std::string text = read_file(kFixtures + name);
  std::string out;
  size_t number = 0;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    if (number >= from && number < to) out += text.substr(at, end + 1 - at);
    ++number;
  }
  return out;
}

std::string first_question(const std::string& lines) {
  return json_string(parse_json(lines.substr(0, lines.find('\n')), "fixture"), "question",
                     "fixture");
}

std::string documents_of(const std::string& source, uint64_t seed) {
  std::string lines;
  const std::string shared = random_text(99, 40);  // two of each source begin alike
  for (int i = 0; i < 24; ++i) {
    std::string text = random_text(seed + static_cast<uint64_t>(i), 900);
    if (i < 2) text = shared + " " + text;
    lines +=
        dump_json({{"id", source + "-" + std::to_string(i)}, {"text", text}, {"source", source}}) +
        "\n";
  }
  return lines;
}

const char* kPdf =
    "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count "
    "1>>endobj\n3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 300]/Contents 4 0 "
    "R/Resources<</Font"
    "<</F 5 0 R>>>>>>endobj\n4 0 obj<</Length 56>>stream\nBT /F 12 Tf 20 200 Td (Quantization of "
    "small "
    "models) Tj ET\nendstream endobj\n5 0 "
    "obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\n"
    "trailer<</Root 1 0 R>>\n%%EOF\n";

}  // namespace

std::string random_text(uint64_t seed, int words) {
  Random random(seed);
  std::string text;
  for (int i = 0; i < words; ++i) {
    if (i > 0) text += ' ';
    for (uint64_t n = 2 + random.below(6); n > 0; --n)
      text += static_cast<char>('a' + random.below(26));
  }
  return text;
}

MiniTask::MiniTask() {
  files_["raw/gsm8k/test.jsonl"] = lines_of("gsm8k_sample.jsonl", 0, 12);
  files_["raw/gsm8k/train.jsonl"] = lines_of("gsm8k_sample.jsonl", 12, 20);
  files_["raw/humaneval/HumanEval.jsonl"] = lines_of("humaneval_sample.jsonl", 0, 10);
  files_["raw/triviaqa/validation.jsonl"] = lines_of("triviaqa_sample.jsonl", 0, 8);
  files_["raw/triviaqa/train.jsonl"] = lines_of("triviaqa_sample.jsonl", 8, 15);
  files_["visible/text.jsonl"] =
      dump_json({{"text", "Repeated: " + first_question(files_["raw/gsm8k/test.jsonl"])}}) + "\n" +
      dump_json({{"messages", {random_text(1003, 60)}}}) + "\n";
  documents_.type = "datasets";
  documents_.repo = "org/docs";
  documents_.add("data/alpha-x/shard.jsonl", documents_of("alpha", 1000), true);
  documents_.add("data/beta-x/shard.jsonl", documents_of("beta", 2000), true);
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors",
                           "tokenizer.json", "tokenizer_config.json"}) {
    hub_.add(name, read_file(kModel + "/" + name), std::string(name).ends_with("safetensors"));
  }
  hub_.before = [this](const FakeRequest& request) -> FakeReply {
    if (request.path.starts_with("/api/datasets/") || request.path.starts_with("/datasets/")) {
      return documents_.answer(request);
    }
    if (request.path == "/paper.pdf") return {200, {}, kPdf};
    if (!request.path.starts_with("/files/")) return {0, {}, ""};
    const auto found = files_.find(request.path.substr(7));
    return found == files_.end() ? FakeReply{404, {}, ""} : ranged(request, found->second);
  };
  write_contract();
}

void MiniTask::write_contract() const {
  std::string text = kContract;
  for (const auto& [path, content] : files_) {
    text += "  - {kind: url, name: " + path + ", url: \"" + hub_.url() + "/files/" + path + "\"" +
            (path.starts_with("visible") ? ", visible: true" : "") + "}\n";
  }
  text +=
      "  - {kind: dolma, name: raw/documents.jsonl, repository: org/docs, count: 48, seed: 5}\n";
  text += "  - {kind: paper, name: visible/papers/small, title: \"On small models\", url: \"" +
          hub_.url() + "/paper.pdf\", visible: true}\n";
  make_directories(tasks() + "/" + kMiniTask);
  write_file_atomic(tasks() + "/" + kMiniTask + "/contract.yaml", text);
}

void MiniTask::overwrite(const std::string& path, const std::string& content) const {
  const std::string full = data() + "/" + path;
  make_directories(fs::path(full).parent_path().string());
  write_file_atomic(full, content);
}

void MiniTask::place_raw() {
  for (const auto& [path, content] : files_) overwrite(path, content);
  overwrite("raw/documents.jsonl", documents_of("alpha", 1000) + documents_of("beta", 2000));
}

RunResult MiniTask::cbench(const std::vector<std::string>& arguments, double seconds) const {
  ProcessOptions process;
  process.argv = {CBENCH_BINARY_DIR "/cbench", "--tasks", tasks()};
  process.argv.insert(process.argv.end(), arguments.begin(), arguments.end());
  process.env = {{"PATH", "/usr/bin:/bin"}, {"HOME", dir_.path()}, {"HF_ENDPOINT", hub_.url()}};
  process.cwd = dir_.path();
  return run_process(process, seconds);
}

}  // namespace cbench
