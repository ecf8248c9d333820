// CSV after RFC 4180, safe to open in a spreadsheet: text that a spreadsheet would run as a formula
// gets an apostrophe in front.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cbench {

class CsvWriter {
 public:
  explicit CsvWriter(const std::vector<std::string>& header);

  CsvWriter& text(std::string_view value);
  CsvWriter& number(std::optional<double> value);  ///< absent or non-finite: an empty cell
  CsvWriter& integer(std::optional<double> value);
  void end_row();
  std::string take() { return std::move(out_); }

 private:
  void cell(std::string_view value);

  std::string out_;
  bool first_ = true;
};

/// Nine significant digits, the same on every machine; "" when absent or not finite.
std::string format_figure(std::optional<double> value);

}  // namespace cbench
