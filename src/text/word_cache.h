// A bounded cache of short words -> token ids: direct-mapped, one cache line an entry.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace cbench {

class WordCache {
 public:
  static constexpr size_t kMaxWord = 31;  ///< bytes
  static constexpr size_t kMaxIds = 7;

  WordCache() : entries_(size_t{1} << kBits) {}

  struct Key {
    std::array<uint64_t, 4> words{};
    size_t slot;
    /// `word` has at most kMaxWord bytes.
    explicit Key(std::string_view word) {
      std::memcpy(words.data(), word.data(), word.size());
      words[3] |= static_cast<uint64_t>(word.size() + 1) << 56;  // no key equals an empty entry
      uint64_t hash = 0;
      for (const uint64_t part : words) hash = (hash ^ part) * 0x9E3779B97F4A7C15u ^ (hash >> 29);
      slot = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u >> (64 - kBits);
    }
  };

  /// The ids of a word, nullptr if it is not there.
  const int32_t* find(const Key& key, size_t& count) const {
    const Entry& entry = entries_[key.slot];
    if (entry.key != key.words) return nullptr;
    count = static_cast<size_t>(entry.count);
    return entry.ids.data();
  }

  void store(const Key& key, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    Entry& entry = entries_[key.slot];
    entry.key = key.words;
    entry.count = static_cast<int32_t>(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) entry.ids[i] = ids[i];
  }

 private:
  static constexpr int kBits = 15;
  struct alignas(64) Entry {
    std::array<uint64_t, 4> key{};
    int32_t count = 0;
    std::array<int32_t, kMaxIds> ids{};
  };
  std::vector<Entry> entries_;
};

}  // namespace cbench
