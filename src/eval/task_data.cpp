#include "eval/task_data.h"

#include <filesystem>

#include "util/error.h"
#include "util/file.h"
#include "util/hash.h"
#include "util/json.h"

namespace cbench {
namespace {

constexpr const char* kSchema = "cbench.reference.v1";

/// Hash over everything else in the file: a hand edit does not go unnoticed.
std::string seal_of(Json json) {
  json.erase("seal");
  return sha256_hex(dump_json(json));
}

const char* side_name(Mode mode) { return mode == Mode::kCheck ? "search" : "verification"; }

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw UsageError("reference", path + ": " + why + "; make it anew with cbench reference");
}

/// Questions that changed since make the reference's accuracy meaningless.
void read_inputs(const Contract& contract, const Json& json, const std::string& path,
                 ReferenceFigures& figures) {
  if (!json.contains("inputs")) return;
  for (const auto& [file, hash] : json["inputs"].items()) {
    if (!hash.is_string()) refuse(path, "inputs must hold hashes");
    figures.inputs[file] = hash.get<std::string>();
    const bool documents = file.starts_with(contract.data.documents + "/");
    if (!documents && sha256_file(contract.data_path(file)) != figures.inputs[file]) {
      refuse(path, file + " is not the file that it was made with");
    }
  }
  figures.prompts_sha256 = json_string(json, "prompts_sha256", path);
}

}  // namespace

std::string reference_dir(const Contract& contract, Mode mode) {
  return contract.data_path(contract.data.reference) +
         (mode == Mode::kCheck ? "/public" : "/hidden");
}

std::string blocks_path(const Contract& contract, Mode mode) {
  return reference_dir(contract, mode) +
         (mode == Mode::kCheck ? "/search.safetensors" : "/verification.safetensors");
}

ReferenceFigures read_reference(const Contract& contract, Mode mode, const Blocks& blocks) {
  const std::string path = reference_dir(contract, mode) + "/reference.json";
  if (!std::filesystem::exists(path)) {
    throw EnvironmentError(
        "no_reference", path + " does not exist; run cbench reference " + contract.name + " first");
  }
  const Json json = read_json(path);
  if (json_string(json, "schema", path) != kSchema) refuse(path, "unknown schema");
  if (json_string(json, "seal", path) != seal_of(json)) refuse(path, "it was edited by hand");
  if (json_string(json, "model", path) != contract.model.name) {
    refuse(path, "it is about another model");
  }
  if (json_string(json, "side", path) != side_name(mode)) refuse(path, "it is of the other side");
  ReferenceFigures figures;
  figures.blocks_sha256 = json_string(json, "blocks_sha256", path);
  if (figures.blocks_sha256 != sha256_file(blocks_path(contract, mode))) {
    refuse(path, "it belongs to other blocks than those beside it");
  }
  figures.device = json_string(json, "device", path);
  figures.tokens_per_second = json_number(json, "tokens_per_second", path);
  for (const Json& nll : json_member(json, "block_nll", path)) {
    if (!nll.is_number()) refuse(path, "block_nll must hold numbers");
    figures.blocks.push_back({nll.get<double>(), blocks.continuation});
  }
  if (figures.blocks.size() != blocks.ids.size()) refuse(path, "wrong number of blocks");
  if (mode == Mode::kVerify) read_inputs(contract, json, path, figures);
  for (const auto& [name, value] : json_member(json, "accuracy", path).items()) {
    BenchmarkResult benchmark;
    benchmark.name = name;
    benchmark.reference_right = json_int(value, "right", path);
    benchmark.reference_total = json_int(value, "total", path);
    figures.accuracy.push_back(benchmark);
  }
  return figures;
}

void write_reference(const Contract& contract, Mode mode, const ReferenceFigures& figures) {
  Json nll = Json::array();
  for (const BlockNll& block : figures.blocks) nll.push_back(block.sum);
  Json accuracy = Json::object();
  for (const BenchmarkResult& b : figures.accuracy) {
    accuracy[b.name] = {{"right", b.reference_right}, {"total", b.reference_total}};
  }
  Json json = {{"schema", kSchema},
               {"model", contract.model.name},
               {"side", side_name(mode)},
               {"ppl", perplexity(figures.blocks)},
               {"block_nll", nll},
               {"accuracy", accuracy},
               {"tokens_per_second", figures.tokens_per_second},
               {"device", figures.device},
               {"blocks_sha256", figures.blocks_sha256}};
  if (!figures.inputs.empty()) {
    json["inputs"] = figures.inputs;
    json["prompts_sha256"] = figures.prompts_sha256;
  }
  json["seal"] = seal_of(json);
  make_directories(reference_dir(contract, mode));
  write_file_atomic(reference_dir(contract, mode) + "/reference.json", dump_json(json, 2) + "\n",
                    mode == Mode::kCheck ? 0644 : 0600);
}

std::string read_config(const Contract& contract) {
  return read_file(contract.checkpoint_dir() + "/config.json", 1 << 20);
}

}  // namespace cbench
