// Likelihood blocks: token ids of context + continuation, and the reference's figures on them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/statistics.h"

namespace cbench {

struct Blocks {
  int64_t context = 0;                    ///< tokens of each block that are given
  int64_t continuation = 0;               ///< tokens of each block that are scored
  std::vector<std::vector<int32_t>> ids;  ///< [blocks][context + continuation]
  std::vector<std::string> documents;     ///< id of the document each context came from

  int64_t length() const { return context + continuation; }
};

/// Stored as safetensors: "ids" I32 [blocks, length], metadata "context" and "documents" (JSON
/// list).
void write_blocks(const std::string& path, const Blocks& blocks);
/// Throws UsageError ("blocks") if the file is not a set of blocks with ids in [0, vocab).
Blocks read_blocks(const std::string& path, int64_t vocab);

}  // namespace cbench
