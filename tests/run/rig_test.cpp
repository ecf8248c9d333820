// The rig, and main(): the test binary also plays the roles that cbench has in a run.
#include "run/rig.h"

#include <cstdio>
#include <filesystem>

#include <gtest/gtest.h>

#include "agent/version_client.h"
#include "package/tree.h"
#include "run/target.h"
#include "run/verify_stage.h"
#include "util/error.h"
#include "util/json.h"

namespace cbench::testing {
namespace fs = std::filesystem;
namespace {

constexpr const char* kContract = R"(schema: 1
title: A stand-in
limit: 1 MiB
budget: 20s
model: {name: fake, repository: models/fake, architecture: qwen3_5, parameters: 1000, shipped: true}
hardware: {device: cpu}
likelihood: {blocks: 4, context_tokens: 4, continuation_tokens: 4, temperature: 1, seed: 1, sources: [prose]}
accuracy:
  retain: 0.8
  benchmarks:
    - {name: gsm8k, items: 2, shots: 0, max_tokens: 8}
decode: {prompt_tokens: 4, new_tokens: 4, warmup_requests: 0, rounds: 1, requests_per_round: 1}
audit: {stepwise_blocks: 1, stepwise_tokens: 2, suffix_blocks: 1, tolerance: 0.02}
timeouts: {verification: 20s, check: 20s, build: 10s, load: 10s, reply: 10s}
data: {root: data, items: items, shots: shots, documents: documents, reference: reference, visible: visible}
)";

void put(const std::string& path, const std::string& text) {
  make_directories(fs::path(path).parent_path().string());
  write_file_atomic(path, text);
}

/// Stands in for `cbench verify`: scores a package by what its file "score" says.
int fake_verify(const std::string& target_path) {
  const Target target = resolve_target(target_path);
  const std::string root = fs::path(target.run).parent_path().parent_path().parent_path().string();
  const Contract contract = load_contract(target.run + "/contract.yaml", root + "/tasks");
  PackageTree tree = PackageTree::walk(target.package);
  tree.hash_files();
  std::ofstream(target.run + "/verified", std::ios::app) << target_path << "\n";
  const TreeFile* score = tree.find("score");
  const std::string text = score != nullptr ? tree.read(*score, 100) : "";
  if (text == "crash") std::abort();
  if (text == "babble") return std::puts("\xff not json {") * 0;
  Json json = parse_json(
      verdict_without_measurement(contract, true, "none", "fake", tree.hash()).verdict, "fake");
  if (!text.empty()) {
    json["status"] = "scored";
    json["reward"] = std::stod(text);
  }
  std::puts(dump_json(json).c_str());
  return 0;
}

int fake_version(int argc, char** argv) {
  std::string socket, note;
  for (int i = 2; i < argc; ++i) {
    if (std::string(argv[i]) == "--socket")
      socket = argv[++i];
    else if (std::string(argv[i]) != "--")
      note = argv[i];
  }
  const SavedVersion saved = request_version(socket, note, 20);
  std::printf("saved v%d\n", static_cast<int>(saved.number));
  return 0;
}

/// `drive RUN`: what `cbench run --resume` does; the crash tests kill it.
int drive(const std::string& run) {
  DriveOptions options;
  options.program = self_program();
  options.verify_command = {self_program(), "verify"};
  options.quiet = true;
  options.backoff = 0.05;
  return drive_run(open_run_dir(run), options).exit_code;
}

}  // namespace

std::string self_program() { return fs::read_symlink("/proc/self/exe").string(); }

Rig::Rig() {
  const std::string root = tasks_root();
  put(root + "/fake_task/contract.yaml", kContract);
  put(root + "/models/fake/config.json", "{}");
  put(root + "/models/fake/weights", "BF16");
  put(root + "/data/reference/public/reference.json", "public-figures");
  put(root + "/data/reference/hidden/reference.json", "SECRET-hidden-figures");
  put(root + "/data/items/gsm8k.jsonl", "SECRET-items");
  put(root + "/data/documents/verification.jsonl", "SECRET-documents");
  put(root + "/data/visible/calibration.jsonl", "visible");
}

NewRun Rig::new_run(const std::string& command, double seconds) const {
  NewRun run;
  run.contract = load_contract(tasks_root() + "/fake_task/contract.yaml");
  run.agent = parse_agent("command:" + command);
  run.budget_seconds = seconds;
  run.runs_dir = temp.path() + "/runs";
  return run;
}

DriveOptions Rig::drive_options() const {
  DriveOptions options;
  options.program = self_program();
  options.verify_command = {self_program(), "verify"};
  options.quiet = true;
  options.backoff = 0.05;
  options.max_output = 1 << 16;
  return options;
}

RunOutcome Rig::run(const std::string& command, double seconds, BoxKind box) {
  NewRun run = new_run(command, seconds);
  run.box = box;
  dir = create_run(run);
  return drive_run(dir, drive_options());
}

std::vector<std::string> Rig::events() const {
  std::vector<std::string> names;
  for (const JournalEvent& event : read_journal(dir.journal())) names.push_back(event.name);
  return names;
}

int play_role(int argc, char** argv) {
  const std::string role = argv[1];
  try {
    if (role == "verify") return fake_verify(argv[2]);
    if (role == "version") return fake_version(argc, argv);
    return drive(argv[2]);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.code().c_str(), error.what());
    return static_cast<int>(error.exit());
  }
}

}  // namespace cbench::testing

int main(int argc, char** argv) {
  // What the `cbench` of a direct box puts in front.
  if (argc > 2 && std::string(argv[1]) == "--tasks") {
    argv += 2;
    argc -= 2;
  }
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "verify" || first == "version" || first == "drive") {
    return cbench::testing::play_role(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
