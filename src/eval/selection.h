// From what `cbench fetch` brought to what a task measures with: hidden items, their shots, and the
// documents of the two sides. Drawn by the contract's seed, the same everywhere.
//
// Below the data root it reads raw/<benchmark>/ (the file called train* gives the shots, the other
// one the items) and the contract's one `dolma` file, and writes items/, shots/,
// documents/{search,verification}.jsonl and reference/disjoint.json (docs/reference.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "task/contract.h"

namespace cbench {

/// Whether a file is missing that the contract's reference is made from.
bool needs_selection(const Contract& contract);

/// Chooses and writes all of them, or throws before the first is written: EnvironmentError
/// ("not_fetched"), UsageError ("items", "shots", "documents", "duplicate_id", and what the readers
/// of the files throw). Hidden files and folders become private to the user.
void select_data(const Contract& contract);

/// What two document files share; both zero when they are disjoint.
struct Overlap {
  int64_t ids = 0;
  int64_t ngrams = 0;
  int64_t search_ngrams = 0, verification_ngrams = 0;  ///< distinct ones looked at
};
Overlap document_overlap(const std::string& search, const std::string& verification,
                         int64_t window_words);

/// SHA-256 by path below the data root, of every items, shots and documents file.
std::map<std::string, std::string> selection_hashes(const Contract& contract);

/// Takes the rights of group and others from everything below the data root that an agent must not
/// see. Missing files are passed over.
void restrict_hidden(const Contract& contract);

}  // namespace cbench
