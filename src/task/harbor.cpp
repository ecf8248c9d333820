#include "task/harbor.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "util/error.h"
#include "util/file.h"
#include "util/units.h"

namespace cbench {
namespace {

namespace fs = std::filesystem;

/// A TOML basic string.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string whole_seconds(double seconds) { return std::to_string(static_cast<int64_t>(seconds)); }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string box_keys(const Contract& contract) {
  std::string keys = "build_timeout_sec = 3600.0\n";
  if (!contract.image.empty()) keys += "docker_image = " + quoted(contract.image) + "\n";
  const bool cuda = contract.hardware.device == "cuda";
  keys += cuda ? "cpus = 16\nmemory_mb = 131072\nstorage_mb = 409600\n"
               : "cpus = 2\nmemory_mb = 4096\nstorage_mb = 10240\n";
  if (cuda) {
    keys += "gpus = " + std::to_string(contract.hardware.gpus) + "\ngpu_types = [" +
            quoted(contract.hardware.gpu) + "]\n";
  }
  return keys;
}

std::string task_toml(const Contract& contract) {
  return "schema_version = \"1.4\"\n"
         "artifacts = [\"/app/submission\", \"/app/versions\"]\n\n"
         "[task]\nname = " +
         quoted("cbench/" + lower(contract.name)) + "\ndescription = " + quoted(contract.title) +
         "\nkeywords = [\"compression\", \"quantization\", \"inference\"]\n\n"
         "[metadata]\ncategory = \"model-compression\"\ncontract_sha256 = " +
         quoted(contract.sha256) + "\nlimit_bytes = " + std::to_string(contract.limit) +
         "\n\n[agent]\ntimeout_sec = " + whole_seconds(contract.budget) +
         ".0\n# The agent CLI runs in the box there, so its model provider must be reachable.\n"
         "network_mode = \"allowlist\"\nallowed_hosts = [\"api.anthropic.com\", "
         "\"api.openai.com\"]\n\n[environment]\n" +
         box_keys(contract) +
         "network_mode = \"no-network\"\n\n[verifier]\nenvironment_mode = \"separate\"\n"
         "timeout_sec = " +
         whole_seconds(contract.timeouts.verification) +
         ".0\nnetwork_mode = \"no-network\"\n\n[verifier.environment]\n" + box_keys(contract) +
         "network_mode = \"no-network\"\n";
}

std::string instruction(const Contract& contract) {
  const std::string limit = format_size(contract.limit);
  return "# " + contract.title + "\n\nThe BF16 checkpoint of " + contract.model.name +
         " is at `/input/model` (read-only). Deliver a package in `/app/submission`: compressed "
         "weights "
         "and the inference code that runs them.\n\n- The package on disk, and what stays resident "
         "while it runs, must each fit in " +
         limit + ".\n- `cbench check /app/submission --task " + contract.name +
         "` measures it on the search text and returns 10 x PPL_bf16 / PPL_package.\n"
         "- You have " +
         format_duration(contract.budget) +
         ". Afterwards the package is measured once on hidden text, hidden questions (the mean "
         "must "
         "keep " +
         std::to_string(contract.accuracy.retain_numerator) + "/" +
         std::to_string(contract.accuracy.retain_denominator) +
         " of the BF16 mean), its bytes and its integrity.\n";
}

/// A missing reward file is an error to Harbor: right for a verdict that is invalid.
std::string test_script(const Contract& contract) {
  return "#!/bin/sh\n"
         "# Verifies the submission and writes its reward to one file; none when there is no "
         "verdict.\n"
         "mkdir -p /logs/verifier\n"
         "cbench --tasks /tests/tasks verify /app/submission --task " +
         contract.name +
         " --json > /logs/verifier/verdict.json\n"
         "python3 - <<'END'\n"
         "import json\n"
         "reward = json.load(open('/logs/verifier/verdict.json')).get('reward')\n"
         "if reward is not None:\n"
         "    open('/logs/verifier/reward.txt', 'w').write(repr(float(reward)))\n"
         "END\n";
}

}  // namespace

void export_harbor(const Contract& contract, const std::string& directory) {
  if (fs::exists(directory)) {
    throw UsageError("exists", directory + " exists already; name a new directory");
  }
  const std::string task = directory + "/tests/tasks/" + contract.name;
  make_directories(task);
  make_directories(directory + "/environment");
  write_file_atomic(directory + "/task.toml", task_toml(contract));
  write_file_atomic(directory + "/instruction.md", instruction(contract));
  write_file_atomic(directory + "/tests/test.sh", test_script(contract), 0755);
  write_file_atomic(task + "/contract.yaml", contract.text);
  write_file_atomic(directory + "/environment/Dockerfile",
                    "# cbench and its dependencies; mount the checkpoint at /input/model.\n"
                    "FROM " +
                        (contract.image.empty() ? std::string("cbench:latest") : contract.image) +
                        "\nWORKDIR /app/work\n");
}

}  // namespace cbench
