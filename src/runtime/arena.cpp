// The arena: tagged allocation over a memory source.
#include "runtime/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <sys/mman.h>

#include "util/error.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr size_t kMaxHostBytes = size_t{1} << 39;  // one host allocation; nothing real is larger

/// Pages of its own per block: what the arena holds is apart from the C library's heap, whose
/// growth the evaluator has to explain. Touched at once, so that what is declared is resident.
class HostMemory : public MemorySource {
 public:
  void* allocate(size_t bytes) override {
    if (bytes > kMaxHostBytes) return nullptr;
    void* data = ::mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    std::memset(data, 0, bytes);
    return data;
  }
  void release(void* data, size_t bytes) override { ::munmap(data, std::max<size_t>(bytes, 1)); }
};

}  // namespace

const char* category_name(Category category) {
  static constexpr const char* kNames[kCategories] = {
      "weights", "metadata", "embedding", "kv", "state", "activations", "workspace", "logits"};
  return kNames[static_cast<size_t>(category)];
}

bool is_model_storage(Category category) {
  return category == Category::kWeights || category == Category::kMetadata ||
         category == Category::kEmbedding;
}

int64_t ArenaReport::model_storage() const {
  int64_t total = 0;
  for (int i = 0; i < kCategories; ++i) {
    if (is_model_storage(static_cast<Category>(i))) total += live[static_cast<size_t>(i)];
  }
  return total;
}

int64_t ArenaReport::live_total() const {
  int64_t total = 0;
  for (const int64_t bytes : live) total += bytes;
  return total;
}

MemorySource& host_memory() {
  static HostMemory memory;
  return memory;
}

Arena::~Arena() {
  for (const auto& [data, block] : blocks_) source_.release(data, block.bytes);
}

void* Arena::allocate(size_t bytes, Category category, std::string_view name) {
  if (frozen_) {
    throw std::logic_error("arena: allocation of " + std::string(name) + " after freeze()");
  }
  const size_t size = std::max<size_t>(bytes, 1);
  void* data = size > static_cast<size_t>(INT64_MAX) ? nullptr : source_.allocate(size);
  if (!data) {
    const auto shown = static_cast<int64_t>(std::min<size_t>(bytes, INT64_MAX));
    throw EnvironmentError("out_of_memory", "no memory for " + std::string(name) + " (" +
                                                format_size(shown) + " of " +
                                                category_name(category) +
                                                "); in use: " + format_size(report_.live_total()));
  }
  const auto index = static_cast<size_t>(category);
  blocks_.emplace(data, Block{size, category, std::string(name)});
  report_.live[index] += static_cast<int64_t>(size);
  report_.peak[index] = std::max(report_.peak[index], report_.live[index]);
  report_.padding += static_cast<int64_t>(source_.footprint(size) - size);
  return data;
}

void Arena::release(void* data) {
  if (!data) return;
  const auto it = blocks_.find(data);
  if (it == blocks_.end()) throw std::logic_error("arena: release of a foreign pointer");
  report_.live[static_cast<size_t>(it->second.category)] -= static_cast<int64_t>(it->second.bytes);
  report_.padding -= static_cast<int64_t>(source_.footprint(it->second.bytes) - it->second.bytes);
  source_.release(data, it->second.bytes);
  blocks_.erase(it);
}

}  // namespace cbench
