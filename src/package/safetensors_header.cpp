#include "package/safetensors_header.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

/// Legal headers nest three deep; a little more is read so that the message can be specific.
constexpr size_t kMaxDepth = 16;

constexpr std::string_view kMetadataKey = "__metadata__";

/// Receives the parser's events. Faults of the JSON itself are thrown at once; a fault in what an
/// entry says is thrown when its JSON has been read, so that broken JSON is called broken JSON.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view source) : source_(source) {}

  bool null() { return scalar("null"); }
  bool boolean(bool) { return scalar("true or false"); }
  bool number_integer(int64_t) { return number("a negative number", false); }
  bool number_float(double, const std::string& text) {
    const bool whole = text.find_first_not_of("0123456789") == std::string::npos;
    return number("the number " + printable(text, 40), whole);
  }
  bool number_unsigned(uint64_t value);
  bool string(std::string& value);
  bool binary(std::vector<uint8_t>&) { return false; }  // JSON has none
  bool start_object(size_t);
  bool key(std::string& name);
  bool end_object();
  bool start_array(size_t);
  bool end_array();
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error);

  SafetensorsHeader take() { return std::move(out_); }

 private:
  enum class Field { kNone, kDtype, kShape, kOffsets, kUnknown };

  [[noreturn]] void refuse(std::string_view code, const std::string& what) const {
    throw UsageError(code, std::string(source_) + ": not a usable safetensors file: " + what);
  }
  void note(std::string_view code, const std::string& what) {
    if (!problem_) problem_.emplace(code, "\"" + printable(name_) + "\": " + what);
  }
  bool scalar(const std::string& what);
  bool number(const std::string& what, bool too_big);
  void misplaced(const std::string& what);
  void push();
  void end_of_member();
  void begin_member();
  void finish_entry();
  uint64_t checked_bytes() const;
  void check_duplicates(std::vector<std::string>& keys) const;
  void check_metadata();

  std::string_view source_;
  SafetensorsHeader out_;
  size_t depth_ = 0;
  std::vector<std::vector<std::string>> keys_;  ///< keys of the open objects, by depth
  bool root_ended_ = false;

  std::string name_;  ///< the top-level member being read
  bool in_metadata_ = false;
  std::string metadata_key_;
  Field field_ = Field::kNone;
  unsigned fields_seen_ = 0;
  std::optional<DType> dtype_;
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> offsets_;
  std::optional<std::pair<std::string, std::string>> problem_;  ///< code, message
};

/// A value of a wrong kind at the current place.
void HeaderReader::misplaced(const std::string& what) {
  if (in_metadata_) {
    note("metadata", "metadata must map strings to strings, found " + what);
  } else if (depth_ == 1 || field_ == Field::kUnknown) {
    note("entry_fields", "expected {dtype, shape, data_offsets}, found " + what);
  } else if (field_ == Field::kDtype) {
    note("dtype", "dtype must be a string, found " + what);
  } else if (field_ == Field::kShape) {
    note("shape", "shape must be a list of non-negative integers, found " + what);
  } else {
    note("offsets", "data_offsets must be two non-negative integers, found " + what);
  }
}

bool HeaderReader::scalar(const std::string& what) {
  misplaced(what);
  end_of_member();
  return true;
}

bool HeaderReader::number(const std::string& what, bool too_big) {
  if (too_big && depth_ == 3 && !in_metadata_ && field_ == Field::kShape) {
    note("overflow", "a dimension does not fit 63 bits");
  } else {
    misplaced(what);
  }
  end_of_member();
  return true;
}

bool HeaderReader::number_unsigned(uint64_t value) {
  if (depth_ == 3 && !in_metadata_ && field_ == Field::kShape) {
    shape_.push_back(value);
  } else if (depth_ == 3 && !in_metadata_ && field_ == Field::kOffsets) {
    if (offsets_.size() < 3) offsets_.push_back(value);
  } else {
    misplaced("a number");
  }
  end_of_member();
  return true;
}

bool HeaderReader::string(std::string& value) {
  if (depth_ == 2 && in_metadata_) {
    out_.metadata.emplace_back(std::move(metadata_key_), std::move(value));
  } else if (depth_ == 2 && field_ == Field::kDtype) {
    dtype_ = dtype_from_name(value);
    if (!dtype_) note("dtype", "unknown dtype \"" + printable(value, 40) + "\"");
  } else {
    misplaced("a string");
  }
  end_of_member();
  return true;
}

void HeaderReader::push() {
  if (++depth_ > kMaxDepth) {
    refuse("json_depth", "its header nests deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  if (keys_.size() < depth_) keys_.emplace_back();
  keys_[depth_ - 1].clear();
}

bool HeaderReader::start_object(size_t) {
  if (depth_ >= 2) misplaced("an object");
  push();
  return true;
}

bool HeaderReader::start_array(size_t) {
  const bool list = depth_ == 2 && (field_ == Field::kShape || field_ == Field::kOffsets);
  if (!list || in_metadata_) misplaced("a list");
  push();
  return true;
}

void HeaderReader::begin_member() {
  in_metadata_ = name_ == kMetadataKey;
  field_ = Field::kNone;
  fields_seen_ = 0;
  dtype_.reset();
  shape_.clear();
  offsets_.clear();
}

bool HeaderReader::key(std::string& name) {
  if (depth_ == 2 && in_metadata_) {
    metadata_key_ = std::move(name);
    return true;
  }
  if (depth_ == 1) {
    name_ = name;
    begin_member();
  } else if (depth_ == 2) {
    field_ = name == "dtype"          ? Field::kDtype
             : name == "shape"        ? Field::kShape
             : name == "data_offsets" ? Field::kOffsets
                                      : Field::kUnknown;
    if (field_ == Field::kUnknown) {
      note("entry_fields", "unknown field \"" + printable(name, 40) + "\"");
    }
    fields_seen_ |= 1u << static_cast<unsigned>(field_);
  }
  keys_[depth_ - 1].push_back(std::move(name));
  return true;
}

void HeaderReader::check_duplicates(std::vector<std::string>& keys) const {
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) {
    refuse("duplicate_key", "its header has the key \"" + printable(*twice) + "\" twice");
  }
}

void HeaderReader::check_metadata() {
  const auto by_key = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::sort(out_.metadata.begin(), out_.metadata.end(), by_key);
  const auto twice =
      std::adjacent_find(out_.metadata.begin(), out_.metadata.end(),
                         [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != out_.metadata.end()) {
    refuse("duplicate_key", "its metadata has the key \"" + printable(twice->first) + "\" twice");
  }
}

bool HeaderReader::end_object() {
  check_duplicates(keys_[depth_ - 1]);
  --depth_;
  if (depth_ == 0) {
    root_ended_ = true;
    return true;
  }
  if (depth_ == 1 && in_metadata_) {
    check_metadata();
  } else if (depth_ == 1 && !problem_) {
    finish_entry();
  }
  end_of_member();
  return true;
}

bool HeaderReader::end_array() {
  --depth_;
  end_of_member();
  return true;
}

/// After each complete value: at the top level, report what was wrong with the member.
void HeaderReader::end_of_member() {
  if (depth_ == 1 && problem_) refuse(problem_->first, problem_->second);
}

/// Bytes that dtype and shape need, with every step checked for overflow.
uint64_t HeaderReader::checked_bytes() const {
  uint64_t bits = 1;
  for (const uint64_t dim : shape_) {
    if (dim > uint64_t{INT64_MAX} || __builtin_mul_overflow(bits, dim, &bits)) {
      refuse("overflow", "\"" + printable(name_) + "\": the shape's product overflows");
    }
  }
  if (__builtin_mul_overflow(bits, static_cast<uint64_t>(dtype_bits(*dtype_)), &bits)) {
    refuse("overflow", "\"" + printable(name_) + "\": the size in bits overflows");
  }
  if (bits % 8 != 0) {
    refuse("misaligned_subbyte", "\"" + printable(name_) + "\": " + std::to_string(bits) +
                                     " bits are not a whole number of bytes");
  }
  return bits / 8;
}

void HeaderReader::finish_entry() {
  constexpr unsigned kAll = 1u << static_cast<unsigned>(Field::kDtype) |
                            1u << static_cast<unsigned>(Field::kShape) |
                            1u << static_cast<unsigned>(Field::kOffsets);
  if (fields_seen_ != kAll) return note("entry_fields", "dtype, shape and data_offsets are needed");
  if (!dtype_) return note("dtype", "dtype must be a string");
  const uint64_t bytes = checked_bytes();
  if (offsets_.size() != 2) return note("offsets", "data_offsets must be two integers");
  const uint64_t begin = offsets_[0];
  const uint64_t end = offsets_[1];
  if (end < begin) return note("offset_order", "data_offsets end before they begin");
  if (end - begin != bytes) {
    return note("size_mismatch", "dtype and shape need " + std::to_string(bytes) +
                                     " bytes, data_offsets span " + std::to_string(end - begin));
  }
  out_.entries.push_back(
      {name_, *dtype_, std::vector<int64_t>(shape_.begin(), shape_.end()), begin, end});
}

bool HeaderReader::parse_error(size_t position, const std::string&,
                               const nlohmann::json::exception& error) {
  if (root_ended_) refuse("header_padding", "only spaces may follow the header's object");
  refuse("json", "its header is not valid JSON at byte " + std::to_string(position) + ": " +
                     printable(error.what()));
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view header, std::string_view source) {
  const auto refuse = [&](std::string_view code, const std::string& what) {
    throw UsageError(code, std::string(source) + ": not a usable safetensors file: " + what);
  };
  if (!header.starts_with('{')) refuse("header_start", "its header must start with '{'");
  if (!is_utf8(header)) refuse("utf8", "its header is not valid UTF-8");
  // The JSON parser takes a zero byte for the end of its input, so it never sees one.
  const std::string_view text = header.substr(0, header.find('\0'));
  HeaderReader reader(source);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  const size_t last = text.find_last_not_of(' ');
  if (text.size() != header.size() || text[last] != '}') {
    refuse("header_padding", "only spaces may follow the header's object");
  }
  return reader.take();
}

}  // namespace cbench
