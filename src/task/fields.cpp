#include "task/fields.h"

#include <algorithm>
#include <array>
#include <set>

#include "util/units.h"

namespace cbench {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 46;  // 64 TiB
constexpr double kDay = 86400;

template <size_t N>
bool among(std::string_view text, const std::array<std::string_view, N>& choices) {
  return std::find(choices.begin(), choices.end(), text) != choices.end();
}

bool only(std::string_view text, std::string_view set) {
  return text.find_first_not_of(set) == std::string_view::npos;
}

constexpr std::string_view kWordChars =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

bool is_word(std::string_view text) {
  return !text.empty() && text.size() <= 128 && text[0] != '.' && text[0] != '-' &&
         only(text, kWordChars);
}

/// Relative, no empty, "." or ".." component: stays inside the directory it is joined to.
bool is_inner_path(std::string_view text) {
  if (text.empty() || text.size() > 512) return false;
  while (true) {
    const size_t slash = text.find('/');
    if (!is_word(text.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    text.remove_prefix(slash + 1);
  }
}

bool is_title(std::string_view text) { return !text.empty() && text.size() <= 300; }
bool is_device(std::string_view text) {
  return among(text, std::array<std::string_view, 2>{"cpu", "cuda"});
}
bool is_benchmark(std::string_view text) {
  return among(text, std::array<std::string_view, 3>{"gsm8k", "humaneval", "triviaqa"});
}
bool is_fetch_kind(std::string_view text) {
  return among(text, std::array<std::string_view, 5>{"hub", "url", "rows", "dolma", "paper"});
}
bool is_repository_type(std::string_view text) {
  return among(text, std::array<std::string_view, 2>{"model", "dataset"});
}
bool is_url(std::string_view text) {
  return text.size() <= 2048 && (text.starts_with("https://") || text.starts_with("http://")) &&
         text.size() > 8 && text.find_first_of(" \n\r\"<>") == std::string_view::npos;
}
bool is_sha256(std::string_view text) {
  return text.size() == 64 && only(text, "0123456789abcdef");
}
bool is_pattern(std::string_view text) {
  return !text.empty() && text.size() <= 256 && text[0] != '/' &&
         text.find("..") == std::string_view::npos;
}

constexpr TextRule kTitle{"a line of text of at most 300 bytes", is_title};
constexpr TextRule kWord{"a name of letters, digits, '.', '_' and '-'", is_word};
constexpr TextRule kPath{"a relative path without '..'", is_inner_path};
constexpr TextRule kRepository{"a repository (owner/name) or a relative path", is_inner_path};
constexpr TextRule kRevision{"a branch, tag or commit", is_inner_path};
constexpr TextRule kDevice{"cpu or cuda", is_device};
constexpr TextRule kBenchmark{"gsm8k, humaneval or triviaqa", is_benchmark};
constexpr TextRule kFetchKind{"hub, url, rows, dolma or paper", is_fetch_kind};
constexpr TextRule kType{"model or dataset", is_repository_type};
constexpr TextRule kUrl{"an http or https address", is_url};
constexpr TextRule kSha256{"64 lower-case hexadecimal digits", is_sha256};
constexpr TextRule kPattern{"a file name pattern, for example *.safetensors", is_pattern};

void visit_model(FieldVisitor& v, ModelSpec& model) {
  v.begin("model");
  v.text("name", model.name, kWord);
  v.text("repository", model.repository, kRepository);
  v.text("revision", model.revision, kRevision, Need::kOptional);
  v.text("architecture", model.architecture, kWord);
  v.integer("parameters", model.parameters, 1, 100'000'000'000'000);
  v.flag("shipped", model.shipped);
  v.end();
}

void visit_hardware(FieldVisitor& v, HardwareSpec& hardware) {
  v.begin("hardware");
  v.text("device", hardware.device, kDevice);
  v.text("gpu", hardware.gpu, kTitle, Need::kOptional);
  v.integer("gpus", hardware.gpus, 1, 1024, Need::kOptional);
  v.size("gpu_memory", hardware.gpu_memory, kMaxBytes, Need::kOptional);
  v.end();
}

void visit_likelihood(FieldVisitor& v, LikelihoodProtocol& likelihood) {
  v.begin("likelihood");
  v.integer("blocks", likelihood.blocks, 1, 65536);
  v.integer("context_tokens", likelihood.context_tokens, 1, 1 << 20);
  v.integer("continuation_tokens", likelihood.continuation_tokens, 1, 1 << 20);
  v.number("temperature", likelihood.temperature, 0.01, 100);
  auto seed = static_cast<int64_t>(likelihood.seed);
  v.integer("seed", seed, 0, INT64_MAX);
  likelihood.seed = static_cast<uint64_t>(seed);
  v.words("sources", likelihood.sources, kWord, 256);
  v.end();
}

void visit_accuracy(FieldVisitor& v, AccuracyProtocol& accuracy) {
  v.begin("accuracy");
  v.fraction("retain", accuracy.retain_numerator, accuracy.retain_denominator);
  accuracy.benchmarks.resize(
      v.begin_list("benchmarks", accuracy.benchmarks.size(), 16, Need::kRequired));
  for (size_t i = 0; i < accuracy.benchmarks.size(); ++i) {
    BenchmarkProtocol& benchmark = accuracy.benchmarks[i];
    v.begin_item(i);
    v.text("name", benchmark.name, kBenchmark);
    v.integer("items", benchmark.items, 1, 100000);
    v.integer("shots", benchmark.shots, 0, 100);
    v.integer("max_tokens", benchmark.max_tokens, 1, 1 << 16);
    v.end_item();
  }
  v.end_list();
  v.end();
}

void visit_measurement(FieldVisitor& v, Contract& contract) {
  DecodeProtocol& decode = contract.decode;
  v.begin("decode");
  v.integer("prompt_tokens", decode.prompt_tokens, 1, 1 << 20);
  v.integer("new_tokens", decode.new_tokens, 2, 1 << 16);
  v.integer("warmup_requests", decode.warmup_requests, 0, 100);
  v.integer("rounds", decode.rounds, 1, 100);
  v.integer("requests_per_round", decode.requests_per_round, 1, 100);
  v.end();
  AuditProtocol& audit = contract.audit;
  v.begin("audit");
  v.integer("stepwise_blocks", audit.stepwise_blocks, 1, 65536);
  v.integer("stepwise_tokens", audit.stepwise_tokens, 1, 1 << 20);
  v.integer("suffix_blocks", audit.suffix_blocks, 1, 65536);
  v.number("tolerance", audit.tolerance, 1e-9, 10);
  v.end();
  TimeoutSpec& timeouts = contract.timeouts;
  v.begin("timeouts");
  v.duration("verification", timeouts.verification, kDay);
  v.duration("check", timeouts.check, kDay);
  v.duration("build", timeouts.build, kDay);
  v.duration("load", timeouts.load, kDay);
  v.duration("reply", timeouts.reply, kDay);
  v.end();
}

void visit_data(FieldVisitor& v, DataSpec& data) {
  v.begin("data");
  v.text("root", data.root, kPath);
  v.text("items", data.items, kPath);
  v.text("shots", data.shots, kPath);
  v.text("documents", data.documents, kPath);
  v.text("reference", data.reference, kPath);
  v.text("visible", data.visible, kPath);
  v.end();
}

void visit_fetch_item(FieldVisitor& v, FetchItem& item) {
  v.text("kind", item.kind, kFetchKind);
  v.text("name", item.name, kPath);
  v.text("title", item.title, kTitle, Need::kOptional);
  v.text("repository", item.repository, kRepository, Need::kOptional);
  v.text("type", item.type, kType, Need::kOptional);
  v.text("revision", item.revision, kRevision, Need::kOptional);
  v.words("include", item.include, kPattern, 64, Need::kOptional);
  v.text("config", item.config, kWord, Need::kOptional);
  v.text("split", item.split, kWord, Need::kOptional);
  v.text("url", item.url, kUrl, Need::kOptional);
  v.text("sha256", item.sha256, kSha256, Need::kOptional);
  v.integer("count", item.count, 1, 100'000'000, Need::kOptional);
  auto seed = static_cast<int64_t>(item.seed);
  v.integer("seed", seed, 0, INT64_MAX, Need::kOptional);
  item.seed = static_cast<uint64_t>(seed);
  v.flag("visible", item.visible);
}

/// The checkpoint is implied by `model`; only the other items are written down.
void visit_fetch(FieldVisitor& v, Contract& contract) {
  std::vector<FetchItem> listed;
  for (const FetchItem& item : contract.fetch) {
    if (item.name != "checkpoint") listed.push_back(item);
  }
  listed.resize(v.begin_list("fetch", listed.size(), 512, Need::kOptional));
  for (size_t i = 0; i < listed.size(); ++i) {
    v.begin_item(i);
    visit_fetch_item(v, listed[i]);
    v.end_item();
  }
  v.end_list();
  contract.fetch = std::move(listed);
  if (!contract.model.shipped) {
    FetchItem checkpoint;
    checkpoint.kind = "hub";
    checkpoint.name = "checkpoint";
    checkpoint.type = "model";
    checkpoint.repository = contract.model.repository;
    checkpoint.revision = contract.model.revision;
    checkpoint.visible = true;
    contract.fetch.insert(contract.fetch.begin(), std::move(checkpoint));
  }
}

/// What a fetch item of this kind lacks, or "".
std::string lacking(const FetchItem& item) {
  const bool hub = item.kind == "hub" || item.kind == "rows" || item.kind == "dolma";
  if (hub && item.repository.empty()) return "repository";
  if (item.kind == "hub" && item.type.empty()) return "type";
  if (item.kind == "rows" && item.config.empty()) return "config";
  if (item.kind == "rows" && item.split.empty()) return "split";
  if ((item.kind == "rows" || item.kind == "dolma") && item.count == 0) return "count";
  if (!hub && item.url.empty()) return "url";
  if (item.kind == "paper" && item.title.empty()) return "title";
  return "";
}

Conflict find_fetch_conflict(const Contract& contract) {
  std::set<std::string> names;
  const size_t implied = contract.model.shipped ? 0 : 1;
  for (size_t i = 0; i < contract.fetch.size(); ++i) {
    const FetchItem& item = contract.fetch[i];
    const std::string key = "fetch[" + std::to_string(i < implied ? 0 : i - implied) + "]";
    const std::string missing = lacking(item);
    if (!missing.empty()) {
      return {key, "an item of kind " + item.kind + " needs \"" + missing + "\""};
    }
    if (!names.insert(item.name).second) {
      return {key + ".name", "expected a name used once, found \"" + item.name + "\" again"};
    }
  }
  return {};
}

Conflict find_benchmark_conflict(const AccuracyProtocol& accuracy) {
  std::set<std::string> names;
  for (size_t i = 0; i < accuracy.benchmarks.size(); ++i) {
    if (!names.insert(accuracy.benchmarks[i].name).second) {
      return {"accuracy.benchmarks[" + std::to_string(i) + "].name",
              "expected each benchmark once, found \"" + accuracy.benchmarks[i].name + "\" again"};
    }
  }
  if (names.empty()) return {"accuracy.benchmarks", "expected at least one benchmark"};
  return {};
}

Conflict find_hardware_conflict(const Contract& contract) {
  const HardwareSpec& hardware = contract.hardware;
  const bool cuda = hardware.device == "cuda";
  if (cuda && hardware.gpu.empty()) return {"hardware.gpu", "expected the GPU's name for cuda"};
  if (cuda && hardware.gpus < 1) return {"hardware.gpus", "expected 1 or more for cuda"};
  if (cuda && hardware.gpu_memory <= 0) return {"hardware.gpu_memory", "expected a size for cuda"};
  if (!cuda && (hardware.gpus != 0 || !hardware.gpu.empty() || hardware.gpu_memory != 0)) {
    return {"hardware", "expected no gpu, gpus or gpu_memory for cpu"};
  }
  return {};
}

/// The limit that a name of the suite's scheme states ("..._12g_standard_..."), or 0.
int64_t limit_in_name(const std::string& name) {
  const size_t end = name.find("_standard_");
  if (end == std::string::npos) return 0;
  const size_t start = name.rfind('_', end - 1);
  if (start == std::string::npos || end - start < 3) return 0;
  const char unit = name[end - 1];
  const std::string number = name.substr(start + 1, end - start - 2);
  if ((unit != 'g' && unit != 'm') || !only(number, "0123456789.")) return 0;
  double value = 0;
  if (!parse_decimal(number, value) || value > 1e6) return 0;
  return static_cast<int64_t>(value * (unit == 'g' ? 0x1p30 : 0x1p20));
}

}  // namespace

void visit_fields(FieldVisitor& v, Contract& contract) {
  v.integer("schema", contract.schema, 1, 1);
  v.text("name", contract.name, kWord, Need::kOptional);
  v.text("title", contract.title, kTitle);
  v.size("limit", contract.limit, kMaxBytes);
  v.duration("budget", contract.budget, 366 * kDay);
  v.text("image", contract.image, kTitle, Need::kOptional);
  visit_model(v, contract.model);
  visit_hardware(v, contract.hardware);
  visit_likelihood(v, contract.likelihood);
  visit_accuracy(v, contract.accuracy);
  visit_measurement(v, contract);
  visit_data(v, contract.data);
  v.begin("published", Need::kOptional);
  v.number("search_ppl", contract.published.search_ppl, 1, 1e9, Need::kOptional);
  v.number("verification_ppl", contract.published.verification_ppl, 1, 1e9, Need::kOptional);
  v.number("accuracy_percent", contract.published.accuracy_percent, 0, 100, Need::kOptional);
  v.end();
  visit_fetch(v, contract);
}

Conflict find_conflict(const Contract& contract) {
  const int64_t named = limit_in_name(contract.name);
  if (named != 0 && named != contract.limit) {
    return {"limit", "expected " + format_size(named) + " as the task's name says, found " +
                         format_size(contract.limit)};
  }
  if (contract.limit < 1) return {"limit", "expected more than 0 B"};
  if (!contract.model.shipped && contract.model.revision.empty()) {
    return {"model.revision", "expected a branch, tag or commit for a model that is not shipped"};
  }
  const LikelihoodProtocol& likelihood = contract.likelihood;
  if (likelihood.sources.empty()) {
    return {"likelihood.sources", "expected at least one source of documents"};
  }
  const AuditProtocol& audit = contract.audit;
  if (audit.stepwise_blocks > likelihood.blocks || audit.suffix_blocks > likelihood.blocks) {
    return {"audit", "expected at most likelihood.blocks = " + std::to_string(likelihood.blocks) +
                         " blocks"};
  }
  if (audit.stepwise_tokens > likelihood.continuation_tokens) {
    return {"audit.stepwise_tokens", "expected at most likelihood.continuation_tokens = " +
                                         std::to_string(likelihood.continuation_tokens)};
  }
  if (contract.timeouts.check > contract.timeouts.verification) {
    return {"timeouts.check", "expected at most timeouts.verification"};
  }
  Conflict conflict = find_hardware_conflict(contract);
  if (conflict.key.empty()) conflict = find_benchmark_conflict(contract.accuracy);
  if (conflict.key.empty()) conflict = find_fetch_conflict(contract);
  return conflict;
}

}  // namespace cbench
