// Token strings and their ids, both ways.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

/// Open-addressed string -> id table over one arena; ids may have gaps. Immutable once loaded.
class Vocabulary {
 public:
  /// Room for `count` tokens whose ids are at most `highest`.
  Vocabulary(size_t count, int32_t highest);

  enum class Added { kNew, kKnown, kIdTaken, kOtherId };
  /// kKnown: this token with this id is there already. kIdTaken and kOtherId change nothing.
  Added add(std::string_view token, int32_t id);

  std::optional<int32_t> find(std::string_view token) const;
  /// False for ids out of range and for gaps.
  bool has(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < spans_.size() && spans_[id].length != kGap;
  }
  /// `id` must be there.
  std::string_view token(int32_t id) const {
    return std::string_view(arena_).substr(spans_[id].offset, spans_[id].length);
  }
  /// Highest id + 1.
  size_t size() const { return spans_.size(); }

 private:
  static constexpr uint32_t kGap = UINT32_MAX;
  struct Span {
    uint32_t offset = 0;
    uint32_t length = kGap;
  };
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
  };
  size_t probe(std::string_view token, uint32_t& hash) const;

  std::string arena_;
  std::vector<Span> spans_;  ///< by id
  std::vector<Slot> slots_;  ///< a power of two, at most half full
};

}  // namespace cbench
