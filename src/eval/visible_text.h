// The text that a task shows its agent, as one stream: what hidden items must not occur in.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "task/contract.h"

namespace cbench {

/// What was looked at.
struct VisibleFiles {
  int64_t read = 0;          ///< files whose text was given
  int64_t pdfs_by_text = 0;  ///< PDFs that stand for the text beside them
};

/// Calls `use` with every text of the visible data: the strings of JSON and JSON-lines files (also
/// compressed), other UTF-8 files in pieces that overlap, those with words divided at line ends
/// also with the words joined. A PDF in a folder `pdf` counts as its `text/<name>.txt`, which
/// cbench fetch wrote. Links are passed over: an agent's box does not follow them out.
///
/// Throws UsageError "visible_data" for a file that cannot be read as text (Parquet, archives,
/// other binary files, a PDF without text): that no hidden item stands in it could not be shown.
VisibleFiles each_visible_text(const Contract& contract,
                               const std::function<void(std::string_view)>& use);

}  // namespace cbench
