// A task like those of the suite, in miniature, on a fake Hub: the tiny model as the BF16 model,
// real benchmark records, generated documents, one paper, visible text that repeats one hidden
// question.
#pragma once

#include <string>

#include "fetch/fake_hub.h"
#include "task/contract.h"
#include "util/file.h"
#include "util/process.h"

namespace cbench {

inline constexpr const char* kMiniTask = "mini_16m_standard_cpu";
/// The first words of the document that the visible text repeats.
inline constexpr const char* kVisibleDocument = "alpha-3";

/// `words` random words; the same for the same seed.
std::string random_text(uint64_t seed, int words);

class MiniTask {
 public:
  MiniTask();
  std::string tasks() const { return dir_.path() + "/tasks"; }
  std::string data() const { return tasks() + "/data/mini"; }
  Contract contract() const { return find_task(kMiniTask, tasks()); }
  /// Writes what fetch would bring, without a server.
  void place_raw();
  /// Runs the built binary with the fake Hub as endpoint.
  RunResult cbench(const std::vector<std::string>& arguments, double seconds = 300) const;
  std::string file(const std::string& path) const { return read_file(data() + "/" + path); }
  void overwrite(const std::string& path, const std::string& content) const;

 private:
  void write_contract() const;
  std::map<std::string, std::string> files_;  ///< below the data root -> content
  TempDir dir_{"cbench-mini"};
  FakeHub documents_;
  FakeHub hub_;
};

}  // namespace cbench
