// Inside the selection: documents of the two sides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/ngrams.h"
#include "task/contract.h"

namespace cbench {

struct RawDocument {
  std::string id, source, text;  ///< the text's beginning, longer than any context
};

/// The documents that `cbench fetch` brought, those of the contract's sources, in the file's order.
std::vector<RawDocument> read_raw_documents(const std::string& path,
                                            const LikelihoodProtocol& protocol);

struct DocumentSplit {
  std::vector<const RawDocument*> search, verification;
  int64_t passed_over_visible = 0;  ///< their context stands in the visible data
  int64_t passed_over_overlap = 0;  ///< they share text with both sides
};

/// Half of every source for each side, so that no run of 13 words within the first window_words()
/// stands on both. Throws UsageError ("documents") when a source does not suffice.
DocumentSplit split_documents(const std::vector<RawDocument>& documents, const NgramFinder& visible,
                              const LikelihoodProtocol& protocol);

/// As many words as a block has tokens: the model may recite how a document goes on.
size_t window_words(const LikelihoodProtocol& protocol);

}  // namespace cbench
