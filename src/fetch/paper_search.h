// Offline search in the papers that `cbench fetch` turned into text: papers.jsonl and text/*.txt.
// Everything is read and ranked in memory: some dozens of papers take milliseconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cbench {

struct PaperEntry {
  std::string title;
  std::string file;  ///< path of its text, relative to the folder
  int64_t words = 0;
};

struct PaperHit {
  PaperEntry paper;
  double score = 0;
  int64_t line = 0;     ///< of the snippet in the text, from 1
  std::string snippet;  ///< one printable line, UTF-8
};

class PaperIndex {
 public:
  /// Reads the list of a papers folder; without papers.jsonl, the .txt files below it. Bounded:
  /// 2,000 papers, 32 MiB a text, 512 MiB in all; what is beyond, unreadable, or leads out of the
  /// folder is left out and named in skipped(). Throws EnvironmentError ("no_papers").
  explicit PaperIndex(const std::string& folder);

  const std::vector<PaperEntry>& papers() const { return papers_; }
  const std::vector<std::string>& skipped() const { return skipped_; }

  /// Papers that hold at least one word of the query, best first: BM25 (k1 1.2, b 0.75; Robertson
  /// and Zaragoza 2009), words of the title count three times. Words are compared without case; a
  /// query's first 32 distinct words count. Throws UsageError ("query") when it holds none.
  std::vector<PaperHit> search(const std::string& query, size_t limit) const;

 private:
  void add(PaperEntry entry);

  std::string folder_;
  std::vector<PaperEntry> papers_;
  std::vector<std::string> texts_;  ///< of the same number
  std::vector<std::string> skipped_;
  uint64_t bytes_ = 0;
};

}  // namespace cbench
