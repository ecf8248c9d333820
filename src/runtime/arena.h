// The only source of device memory: tagged by category, counted live and at peak, frozen after
// load.
//
// Resident bytes are a score, so one allocator makes them true by construction; the evaluator
// cross-checks from outside the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

enum class Category : int {
  kWeights,      ///< matrices, compressed or not
  kMetadata,     ///< norms, gates, convolution taps, tables
  kEmbedding,    ///< embedding table and LM head
  kKv,           ///< attention caches
  kState,        ///< recurrent and convolution states
  kActivations,  ///< residual stream and intermediate rows
  kWorkspace,    ///< transient scratch of ops
  kLogits,       ///< rows handed to the evaluator, when the engine owns them
};
inline constexpr int kCategories = 8;
const char* category_name(Category category);
/// True for what counts as model storage (weights, metadata, embedding).
bool is_model_storage(Category category);

struct ArenaReport {
  std::array<int64_t, kCategories> live{};  ///< bytes
  std::array<int64_t, kCategories> peak{};
  int64_t model_storage() const;  ///< live bytes of the categories that count
  int64_t live_total() const;
  int64_t padding = 0;  ///< bytes that the source takes beyond `live` by rounding blocks up
};

/// Where an arena's bytes come from: host memory, or a CUDA device.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* allocate(
      size_t bytes) = 0;  ///< zeroed, 256-byte aligned; nullptr when out of memory
  virtual void release(void* data, size_t bytes) = 0;
  /// What a block of `bytes` really takes.
  virtual size_t footprint(size_t bytes) const { return bytes; }
  /// Bytes that are free now; the largest number where nobody says.
  virtual int64_t available() const { return std::numeric_limits<int64_t>::max(); }
};
MemorySource& host_memory();

class Arena {
 public:
  explicit Arena(MemorySource& source) : source_(source) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Throws EnvironmentError ("out_of_memory") naming what was asked for, and std::logic_error when
  /// frozen: pointers are baked into graphs, so a later allocation is a programming error.
  void* allocate(size_t bytes, Category category, std::string_view name);
  template <typename T>
  T* allocate(size_t count, Category category, std::string_view name) {
    return static_cast<T*>(allocate(count * sizeof(T), category, name));
  }
  void release(void* data);
  void freeze() { frozen_ = true; }
  const ArenaReport& report() const { return report_; }
  int64_t available() const { return source_.available(); }

 private:
  struct Block {
    size_t bytes;
    Category category;
    std::string name;
  };
  MemorySource& source_;
  std::map<void*, Block> blocks_;
  ArenaReport report_;
  bool frozen_ = false;
};

}  // namespace cbench
