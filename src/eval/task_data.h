// The files of a task that an evaluation needs: checkpoint facts, blocks, reference figures,
// questions.
//
// data/<reference>/public/  reference.json, search.safetensors        (the agent may see it)
// data/<reference>/hidden/  reference.json, verification.safetensors  (stays on the host)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "eval/blocks.h"
#include "eval/verdict.h"
#include "task/contract.h"

namespace cbench {

/// The BF16 model's figures on one side of the data.
struct ReferenceFigures {
  std::vector<BlockNll> blocks;
  double tokens_per_second = 0;           ///< decode speed of the BF16 model, by the same protocol
  std::vector<BenchmarkResult> accuracy;  ///< hidden side only; right/total are the reference's
  std::string blocks_sha256;
  std::string device;
  // Hidden side only, empty in references made before they were recorded.
  std::map<std::string, std::string> inputs;  ///< SHA-256 of items, shots, documents by path
  std::string prompts_sha256;
};

std::string reference_dir(const Contract& contract, Mode mode);
std::string blocks_path(const Contract& contract, Mode mode);

/// Throws EnvironmentError ("no_reference") when it has not been made, UsageError ("reference")
/// when the file was edited or does not belong to the blocks beside it, or to the items and shots
/// that are there.
ReferenceFigures read_reference(const Contract& contract, Mode mode, const Blocks& blocks);
void write_reference(const Contract& contract, Mode mode, const ReferenceFigures& figures);

/// Text of the checkpoint's config.json.
std::string read_config(const Contract& contract);

}  // namespace cbench
