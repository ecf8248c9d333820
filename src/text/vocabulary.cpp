#include "text/vocabulary.h"

#include <bit>
#include <functional>

#include "util/error.h"

namespace cbench {
namespace {

/// No honest table half full probes this far; a crafted one must not make loading quadratic.
constexpr size_t kMaxProbes = 2048;

}  // namespace

Vocabulary::Vocabulary(size_t count, int32_t highest)
    : spans_(static_cast<size_t>(highest) + 1), slots_(std::bit_ceil(2 * count + 2)) {}

size_t Vocabulary::probe(std::string_view token, uint32_t& hash) const {
  const size_t full = std::hash<std::string_view>{}(token);
  hash = static_cast<uint32_t>(full >> 32);
  const size_t mask = slots_.size() - 1;
  size_t at = full & mask;
  for (size_t probes = 0; slots_[at].id >= 0; ++probes) {
    if (slots_[at].hash == hash && this->token(slots_[at].id) == token) break;
    if (probes == kMaxProbes) {
      throw UsageError("vocab", "vocabulary whose tokens collide on purpose: refused");
    }
    at = (at + 1) & mask;
  }
  return at;
}

Vocabulary::Added Vocabulary::add(std::string_view token, int32_t id) {
  uint32_t hash = 0;
  Slot& slot = slots_[probe(token, hash)];
  if (slot.id >= 0) return slot.id == id ? Added::kKnown : Added::kOtherId;
  if (has(id)) return Added::kIdTaken;
  spans_[id] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(token.size())};
  arena_ += token;
  slot = {hash, id};
  return Added::kNew;
}

std::optional<int32_t> Vocabulary::find(std::string_view token) const {
  uint32_t hash = 0;
  const int32_t id = slots_[probe(token, hash)].id;
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

}  // namespace cbench
