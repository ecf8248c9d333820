#include "text/tokenizer_json.h"

#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

/// Receives parse events (nlohmann's SAX interface).
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(std::string_view source, const TokenizerLimits& limits)
      : source_(source), limits_(limits) {}

  TokenizerJson take() { return std::move(result_); }

  bool null() override { return place(Json(nullptr)); }
  bool boolean(bool value) override { return place(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return place(Json(value)); }
  bool binary(binary_t&) override { return false; }
  bool number_integer(number_integer_t value) override {
    if (kind() == Kind::kVocab) bad_id();
    return place(Json(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (kind() != Kind::kVocab) return place(Json(value));
    if (value > INT32_MAX) bad_id();
    add_token(static_cast<int32_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (kind() == Kind::kMerges) return add_merge_line(value);
    if (kind() == Kind::kPair) return add_merge_part(value);
    return place(Json(std::move(value)));
  }

  bool key(string_t& value) override {
    if (kind() != Kind::kVocab && frames_.back().node->contains(value)) {
      fail("duplicate_key", "duplicate key \"" + printable(value) + "\"");
    }
    key_ = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    if (at_model_member("vocab")) {
      result_.has_vocab = true;
      return open(Kind::kVocab, nullptr);
    }
    if (kind() != Kind::kTree) wrong_element();
    Json* node = put(Json::object());
    return open(Kind::kTree, node);
  }

  bool start_array(size_t) override {
    if (at_model_member("merges")) {
      result_.has_merges = true;
      return open(Kind::kMerges, nullptr);
    }
    if (kind() == Kind::kMerges) {
      pair_parts_ = 0;
      result_.merges.push_back({arena_offset(), 0, 0});
      return open(Kind::kPair, nullptr);
    }
    if (kind() != Kind::kTree) wrong_element();
    Json* node = put(Json::array());
    return open(Kind::kTree, node);
  }

  bool end_object() override { return close(); }
  bool end_array() override {
    if (kind() == Kind::kPair && pair_parts_ != 2) bad_merge();
    return close();
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    fail("json", std::string("not valid JSON: ") + error.what());
  }

 private:
  enum class Kind { kTree, kVocab, kMerges, kPair };
  struct Frame {
    Kind kind;
    Json* node;
    std::string key;  ///< the member of the parent that this is
  };

  [[noreturn]] void fail(std::string_view code, const std::string& message) const {
    throw UsageError(code, source_ + ": " + message);
  }
  [[noreturn]] void bad_id() const {
    fail("vocab",
         "the id of token \"" + printable(key_) + "\" must be an integer from 0 to 2^31-1");
  }
  [[noreturn]] void bad_merge() const {
    fail("merges", "merge " + std::to_string(result_.merges.size()) +
                       " must be \"left right\" or [\"left\", \"right\"]");
  }
  [[noreturn]] void wrong_element() const {
    if (kind() == Kind::kVocab) bad_id();
    bad_merge();
  }

  Kind kind() const { return frames_.empty() ? Kind::kTree : frames_.back().kind; }
  bool at_model_member(std::string_view name) const {
    return frames_.size() == 2 && frames_[1].key == "model" && frames_[1].node->is_object() &&
           key_ == name;
  }
  uint32_t arena_offset() const { return static_cast<uint32_t>(result_.arena.size()); }

  bool open(Kind kind, Json* node) {
    if (static_cast<int>(frames_.size()) >= limits_.max_depth) {
      fail("too_deep", "nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    }
    frames_.push_back({kind, node, key_});
    return true;
  }

  bool close() {
    frames_.pop_back();
    return true;
  }

  bool place(Json value) {
    if (kind() != Kind::kTree) wrong_element();
    put(std::move(value));
    return true;
  }

  /// Adds a value to the tree and returns where it lies now.
  Json* put(Json value) {
    if (++nodes_ > limits_.max_nodes) fail("too_large", "too many JSON values");
    if (frames_.empty()) return &(result_.root = std::move(value));
    Json& parent = *frames_.back().node;
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    if (parent.size() >= limits_.max_keys) fail("too_large", "too many members in one object");
    return &(parent[key_] = std::move(value));
  }

  void append(std::string_view text) {
    if (result_.arena.size() + text.size() > UINT32_MAX) fail("too_large", "too much text");
    result_.arena += text;
  }

  void add_token(int32_t id) {
    if (result_.vocab.size() >= limits_.max_tokens) {
      fail("too_large", "more than " + std::to_string(limits_.max_tokens) + " tokens");
    }
    if (key_.size() > limits_.max_token_bytes) {
      fail("too_large", "a token of " + std::to_string(key_.size()) + " bytes");
    }
    result_.vocab.push_back({arena_offset(), static_cast<uint32_t>(key_.size()), id});
    append(key_);
  }

  void count_merge() const {
    if (result_.merges.size() > limits_.max_merges) {
      fail("too_large", "more than " + std::to_string(limits_.max_merges) + " merges");
    }
  }

  bool add_merge_line(std::string_view line) {
    if (line.starts_with("#version")) return true;
    const size_t blank = line.find(' ');
    result_.merges.push_back({arena_offset(), 0, 0});
    count_merge();
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos) {
      bad_merge();
    }
    append(line.substr(0, blank));
    append(line.substr(blank + 1));
    result_.merges.back().left = static_cast<uint32_t>(blank);
    result_.merges.back().right = static_cast<uint32_t>(line.size() - blank - 1);
    return true;
  }

  bool add_merge_part(std::string_view part) {
    if (pair_parts_ == 2) bad_merge();
    count_merge();
    auto& merge = result_.merges.back();
    (pair_parts_++ == 0 ? merge.left : merge.right) = static_cast<uint32_t>(part.size());
    append(part);
    return true;
  }

  std::string source_;
  const TokenizerLimits& limits_;
  TokenizerJson result_;
  std::vector<Frame> frames_;
  std::string key_;
  size_t nodes_ = 0;
  int pair_parts_ = 0;
};

}  // namespace

TokenizerJson read_tokenizer_json(std::string_view bytes, std::string_view source,
                                  const TokenizerLimits& limits) {
  if (bytes.size() > limits.max_bytes) {
    throw UsageError("too_large", std::string(source) + ": " + std::to_string(bytes.size()) +
                                      " bytes; at most " + std::to_string(limits.max_bytes) +
                                      " are allowed");
  }
  Reader reader(source, limits);
  Json::sax_parse(bytes.data(), bytes.data() + bytes.size(), &reader);
  return reader.take();
}

}  // namespace cbench
