#include "report/csv.h"

#include <array>
#include <charconv>
#include <cmath>

#include "util/text.h"

namespace cbench {

std::string format_figure(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return "";
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), *value,
                                 std::chars_format::general, 9);
  return {buffer.data(), end.ptr};
}

CsvWriter::CsvWriter(const std::vector<std::string>& header) {
  for (const std::string& name : header) text(name);
  end_row();
}

CsvWriter& CsvWriter::text(std::string_view value) {
  std::string safe = repair_utf8(value);
  if (!safe.empty() && std::string_view("=+-@\t\r\n").find(safe[0]) != std::string_view::npos) {
    safe.insert(0, 1, '\'');
  }
  cell(safe);
  return *this;
}

CsvWriter& CsvWriter::number(std::optional<double> value) {
  cell(format_figure(value));
  return *this;
}

CsvWriter& CsvWriter::integer(std::optional<double> value) {
  const bool whole = value && std::isfinite(*value) && std::abs(*value) < 0x1p53;
  cell(whole ? std::to_string(std::llround(*value)) : "");
  return *this;
}

void CsvWriter::end_row() {
  out_ += "\r\n";
  first_ = true;
}

void CsvWriter::cell(std::string_view value) {
  if (!first_) out_ += ',';
  first_ = false;
  if (value.find_first_of(",\"\r\n") == std::string_view::npos) {
    out_ += value;
    return;
  }
  out_ += '"';
  for (const char c : value) {
    if (c == '"') out_ += '"';
    out_ += c;
  }
  out_ += '"';
}

}  // namespace cbench
