// The fields of a contract, described once: the reader, the renderer and the JSON writer all walk
// this description, so that they cannot disagree about keys, types, ranges or order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "task/contract.h"

namespace cbench {

enum class Need { kRequired, kOptional };

/// What a text field accepts: `expected` is the words of the error message.
struct TextRule {
  const char* expected;
  bool (*accepts)(std::string_view);
};

/// One walk over a contract. Readers assign, writers only look. An optional field that is empty,
/// zero or false is absent.
class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;

  virtual void begin(const char* key, Need need = Need::kRequired) = 0;
  virtual void end() = 0;
  virtual void text(const char* key, std::string& value, const TextRule& rule,
                    Need need = Need::kRequired) = 0;
  virtual void integer(const char* key, int64_t& value, int64_t least, int64_t most,
                       Need need = Need::kRequired) = 0;
  virtual void number(const char* key, double& value, double least, double most,
                      Need need = Need::kRequired) = 0;
  virtual void flag(const char* key, bool& value) = 0;  ///< optional, absent = false
  virtual void size(const char* key, int64_t& bytes, int64_t most, Need need = Need::kRequired) = 0;
  virtual void duration(const char* key, double& seconds, double most) = 0;
  /// An exact decimal in (0, 1], kept as a reduced fraction.
  virtual void fraction(const char* key, int64_t& numerator, int64_t& denominator) = 0;
  virtual void words(const char* key, std::vector<std::string>& values, const TextRule& rule,
                     size_t most, Need need = Need::kRequired) = 0;

  /// A list of mappings: returns how many items to visit, given how many there are now.
  virtual size_t begin_list(const char* key, size_t present, size_t most, Need need) = 0;
  virtual void begin_item(size_t index) = 0;
  virtual void end_item() = 0;
  virtual void end_list() = 0;
};

/// Visits every field of `contract` in canonical order.
void visit_fields(FieldVisitor& visitor, Contract& contract);

/// Rules that concern several fields. Returns {key, message} of the first violation, or empty
/// strings.
struct Conflict {
  std::string key, message;
};
Conflict find_conflict(const Contract& contract);

}  // namespace cbench
