// What of an engine's memory is explained, and what counts as model storage because nothing
// explains it.
#include <algorithm>

#include "engine/client.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
/// Growth of the C library's heap that no arena accounts for: 0.3 to 1.1 MiB over a whole verify of
/// the tiny model on the CPU (docs/engine-protocol.md).
constexpr int64_t kHeapAllowance = 3 * kMiB / 2;
/// The same beside a GPU, where the driver and cuBLASLt keep tables in host memory: 3 MiB for a
/// small model, 27 MiB after a whole verification's work at the 27B shapes.
constexpr int64_t kDriverHeapAllowance = 48 * kMiB;
/// Library kernels loaded at their first use, recorded graphs, and pieces of 2 MiB begun by small
/// blocks.
/// Seen: 2.7 MiB after a whole verification's work at the 27B shapes.
constexpr int64_t kDeviceAllowance = 16 * kMiB;
/// The driver's own share of a device beside what it charges to processes. Seen: none.
constexpr int64_t kUnownedAllowance = 16 * kMiB;

int64_t beyond(int64_t growth, int64_t allowance) {
  return std::max<int64_t>(0, growth - allowance);
}

/// Rounding is believed up to a share of what is believed to be allocated: a block of 1 MiB or more
/// loses less than 2 MiB, and a model has few that are not large.
int64_t padding_of(const EngineMemory& memory) {
  return std::clamp<int64_t>(memory.arena.padding, 0, memory.explained() / 50 + 64 * kMiB);
}

}  // namespace

int64_t EngineMemory::explained() const {
  int64_t sum = arena.model_storage();
  for (size_t i = 0; i < kCategories; ++i) {
    if (!is_model_storage(static_cast<Category>(i))) sum += std::min(arena.live[i], planned[i]);
  }
  return sum;
}

int64_t EngineMemory::unexplained_host() const {
  const int64_t growth = outside - baseline - streamed;
  if (device) return beyond(growth, kDriverHeapAllowance);
  return beyond(growth - explained(), kHeapAllowance);
}

int64_t EngineMemory::unexplained_device() const {
  if (!device) return 0;
  const bool named = device->engine >= 0 && device_baseline.engine >= 0;
  // A driver that names no process still tells the sum: what the others did not take, the engine
  // did.
  const int64_t growth = named ? device->engine - device_baseline.engine
                               : device->unowned() - device_baseline.unowned();
  return beyond(growth - explained() - padding_of(*this), kDeviceAllowance);
}

int64_t EngineMemory::unexplained_unowned() const {
  if (!device || device->engine < 0 || device_baseline.engine < 0) return 0;
  // The device's page tables of page-locked host memory: 8 bytes for 4 KiB. Seen: 38 MiB for 20 GB.
  const int64_t page_tables = streamed / 512;
  return beyond(device->unowned() - device_baseline.unowned() - page_tables, kUnownedAllowance);
}

int64_t EngineMemory::unexplained() const {
  return unexplained_host() + unexplained_device() + unexplained_unowned();
}

int64_t EngineMemory::resident() const { return arena.model_storage() + streamed + unexplained(); }

std::string EngineMemory::explain() const {
  std::string text;
  const auto add = [&](int64_t bytes, const char* what) {
    if (bytes == 0) return;
    text += (text.empty() ? "" : ", ") + format_size(bytes) + " of " + what;
  };
  add(unexplained_device(), "device memory");
  add(unexplained_unowned(), "device memory that no process owns (managed memory)");
  add(unexplained_host(), device ? "host memory (pinned, or copies on the host)" : "host memory");
  return text;
}

}  // namespace cbench
