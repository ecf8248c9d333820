// Images of streamed blocks, and the order in which they take their slots.
#include "runtime/weight_memory.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <thread>

#include <sys/mman.h>

#include "util/error.h"
#include "util/file.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr size_t kAlignment = 256;
constexpr int64_t kReserve = int64_t{3} << 30;  // norms, graphs, rounding, the evaluator's kernels
constexpr int64_t kHostReserve = int64_t{2} << 30;
constexpr size_t kLanes = 8, kLaneBytes = size_t{1} << 20;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Several threads: pages of a file come in, and pages of the image are made, faster than by one.
void parallel_copy(char* to, const char* from, size_t bytes) {
  const size_t cores = std::max(1u, std::thread::hardware_concurrency() / 2);
  const size_t lanes = std::clamp<size_t>(bytes / kLaneBytes, 1, std::min(kLanes, cores));
  const size_t share = (bytes / lanes + 4095) / 4096 * 4096;
  const auto copy = [&](size_t lane) {
    const size_t at = std::min(bytes, lane * share);
    std::memcpy(to + at, from + at, lane + 1 == lanes ? bytes - at : std::min(share, bytes - at));
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < lanes; ++i) threads.emplace_back(copy, i);
  copy(0);
  for (std::thread& thread : threads) thread.join();
}

/// The k-th of n is one of the `chosen` evenly spread ones.
bool spread(size_t k, size_t n, size_t chosen) { return (k + 1) * chosen / n > k * chosen / n; }

/// The blocks of `size` that stream when `count` do.
std::vector<size_t> choose(const std::vector<size_t>& size, size_t count) {
  const size_t largest = *std::max_element(size.begin(), size.end());
  const auto large = [&](size_t bytes) { return bytes > largest / 2; };
  const auto total = static_cast<size_t>(std::count_if(size.begin(), size.end(), large));
  const size_t of_large = std::min(count, total), of_small = count - of_large;
  std::vector<size_t> chosen(size.size());
  size_t large_seen = 0, small_seen = 0;
  for (size_t i = 0; i < size.size(); ++i) {
    const bool streams = large(size[i]) ? spread(large_seen++, total, of_large)
                                        : spread(small_seen++, size.size() - total, of_small);
    if (streams) chosen[i] = size[i];
  }
  return chosen;
}

/// The number behind `key` in a text of "key number" lines, or the whole text; -1 if there is none.
int64_t number_after(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  if (at == std::string_view::npos) return -1;
  at = text.find_first_not_of(" \t", at + key.size());
  if (at == std::string_view::npos || text[at] < '0' || text[at] > '9') return -1;
  int64_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    if (value > (int64_t{1} << 58)) return -1;
    value = value * 10 + (text[at] - '0');
  }
  return value;
}

int64_t number_in(const char* path, std::string_view key) {
  try {
    return number_after(read_file(path, 1 << 20), key);
  } catch (const Error&) {
    return -1;
  }
}

std::string size_text(size_t bytes) { return format_size(static_cast<int64_t>(bytes)); }

}  // namespace

size_t StreamPlan::slot_bytes() const {
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}
size_t StreamPlan::host_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

size_t block_bytes(const ModelConfig& config, size_t block, size_t element) {
  ModelConfig one = config;
  one.blocks = {config.blocks[block]};
  size_t bytes = 0;
  for (const MatrixShape& matrix : model_matrices(one)) {
    if (matrix.name == config.embedding_name() || matrix.name == config.head_name()) continue;
    bytes += aligned(static_cast<size_t>(matrix.elements()) * element);
  }
  return bytes;
}

StreamPlan plan_stream(const ModelConfig& config, size_t element, int64_t budget) {
  std::vector<size_t> size;
  for (size_t i = 0; i < config.blocks.size(); ++i) {
    size.push_back(block_bytes(config, i, element));
  }
  const size_t all = std::accumulate(size.begin(), size.end(), size_t{0});
  const size_t room = budget > 0 ? static_cast<size_t>(budget) : 0;
  if (all <= room) return {};
  size_t slots = 0;
  for (size_t count = 1; count <= size.size(); ++count) {
    StreamPlan plan{choose(size, count)};
    slots = StreamPlan::kSlots * plan.slot_bytes();
    if (all - plan.host_bytes() + slots <= room) return plan;
  }
  throw EnvironmentError("out_of_memory",
                         "the weights of " + size_text(all) +
                             " do not fit on the device, and neither do two slots of " +
                             size_text(slots) + " to stream them through: " + size_text(room) +
                             " are left beside caches and embeddings; use a smaller capacity");
}

int64_t block_budget(Ops& ops, const ModelConfig& config, const ArenaReport& planned,
                     int64_t more) {
  const int64_t free = ops.arena().available();
  if (free == std::numeric_limits<int64_t>::max()) return free;
  const int64_t embeddings = config.vocab * config.hidden * (config.tied_embedding ? 2 : 4);
  return free - planned.live_total() - embeddings - more - kReserve;
}

int64_t available_host_memory() {
  const int64_t kib = number_in("/proc/meminfo", "MemAvailable:");
  int64_t bytes = kib < 0 ? std::numeric_limits<int64_t>::max() : kib * 1024;
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
  if (limit >= 0) bytes = std::min(bytes, limit);
  return bytes;
}

WeightMemory::WeightMemory(Ops& ops, StreamPlan plan, int64_t host) : ops_(ops) {
  if (!plan.streams()) return;
  const auto needed = static_cast<int64_t>(plan.host_bytes());
  if (needed > host - std::min(kHostReserve, host / 8)) {
    throw EnvironmentError(
        "host_memory",
        "the weights do not fit on the device, and those that would stream need " +
            format_size(needed) + " of host memory; " + format_size(host) +
            " are available: use a machine with more memory, or end what else takes it");
  }
  slots_ = ops.make_slots(StreamPlan::kSlots, plan.slot_bytes());
  slots_bytes_ = static_cast<int64_t>(StreamPlan::kSlots * plan.slot_bytes());
  holds_.assign(StreamPlan::kSlots, kNone);
  images_.resize(plan.bytes.size());
  std::vector<size_t> order;
  for (size_t i = 0; i < plan.bytes.size(); ++i) {
    if (plan.bytes[i] == 0) continue;
    images_[i].bytes = plan.bytes[i];
    images_[i].slot = order.size() % StreamPlan::kSlots;
    order.push_back(i);
  }
  for (size_t k = 0; k < order.size(); ++k) {
    const size_t later = k + StreamPlan::kSlots;
    images_[order[k]].next = order[later < order.size() ? later : k % StreamPlan::kSlots];
  }
}

WeightMemory::~WeightMemory() {
  slots_.reset();  // no copy is under way any more
  for (const Image& image : images_) {
    if (image.data) ::munmap(image.data, image.bytes);
  }
}

WeightMemory::Image* WeightMemory::opened() { return streams(open_) ? &images_[open_] : nullptr; }

void WeightMemory::open(size_t block) {
  open_ = block;
  Image* image = opened();
  if (!image) return;
  void* data =
      ::mmap(nullptr, image->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw EnvironmentError("host_memory", "no host memory for a streamed block's weights (" +
                                              size_text(image->bytes) + ")");
  }
  ::madvise(data, image->bytes, MADV_HUGEPAGE);
  image->data = static_cast<char*>(data);
}

void WeightMemory::close() {
  if (const Image* image = opened()) {
    slots_->pin(image->data, image->bytes);
    if (holds_[image->slot] == kNone) fill(open_);  // the first pass finds its slots filled
  }
  open_ = kNone;
}

void* WeightMemory::allocate(size_t bytes, Category category, const std::string& name) {
  Image* image = opened();
  if (!image) return ops_.arena().allocate(bytes, category, name);
  if (aligned(bytes) > image->bytes - image->used) {
    throw std::logic_error("a streamed block was planned too small for " + name);
  }
  void* place = static_cast<char*>(slots_->data(image->slot)) + image->used;
  image->used += aligned(bytes);
  return place;
}

void WeightMemory::write(void* to, const void* from, size_t bytes) {
  const Image* image = opened();
  if (!image) return ops_.copy_in(to, from, bytes);
  const ptrdiff_t at = static_cast<char*>(to) - static_cast<char*>(slots_->data(image->slot));
  parallel_copy(image->data + at, static_cast<const char*>(from), bytes);
}

void WeightMemory::fill(size_t block) {
  const Image& image = images_[block];
  holds_[image.slot] = block;
  slots_->fill(image.slot, image.data, image.used);
}

void WeightMemory::arrive(size_t block) {
  if (!streams(block)) return;
  const Image& image = images_[block];
  if (holds_[image.slot] != block) fill(block);  // after a pass that ended early
  slots_->arrive(image.slot);
}

void WeightMemory::leave(size_t block) {
  if (!streams(block)) return;
  const Image& image = images_[block];
  slots_->leave(image.slot);
  if (image.next != block) fill(image.next);
}

int64_t WeightMemory::streamed() const {
  int64_t total = 0;
  for (const Image& image : images_) total += static_cast<int64_t>(image.bytes);
  return total;
}

}  // namespace cbench
