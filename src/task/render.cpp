// Writes a contract: canonical YAML, JSON, and the differences of two.
#include <array>
#include <charconv>
#include <map>

#include "task/contract.h"
#include "task/fields.h"
#include "task/yaml_tree.h"
#include "util/json.h"

namespace cbench {
namespace {

/// Shortest decimal that reads back as the same number.
std::string decimal(double value) {
  std::array<char, 64> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  return {buffer.data(), end.ptr};
}

std::string size_text(int64_t bytes) {
  constexpr std::array<std::pair<const char*, int>, 4> kUnits{
      {{" TiB", 40}, {" GiB", 30}, {" MiB", 20}, {" KiB", 10}}};
  for (const auto& [unit, shift] : kUnits) {
    if (bytes >= int64_t{1} << shift && bytes % (int64_t{1} << shift) == 0) {
      return std::to_string(bytes >> shift) + unit;
    }
  }
  return std::to_string(bytes) + " B";
}

std::string duration_text(double seconds) {
  for (const auto& [unit, factor] : {std::pair{"h", 3600.0}, std::pair{"m", 60.0}}) {
    const double count = seconds / factor;
    if (count >= 1 && count == static_cast<double>(static_cast<int64_t>(count))) {
      return decimal(count) + unit;
    }
  }
  return decimal(seconds) + "s";
}

/// numerator / denominator as the decimal it was read from; the denominator divides 10^6.
std::string fraction_text(int64_t numerator, int64_t denominator) {
  const int64_t millionths = numerator * (1'000'000 / denominator);
  std::string digits = std::to_string(1'000'000 + millionths % 1'000'000).substr(1);
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  return std::to_string(millionths / 1'000'000) + "." + digits;
}

/// A visitor that only looks: turns each present field into one call with its text and JSON forms.
class Writer : public FieldVisitor {
 public:
  void text(const char* key, std::string& value, const TextRule&, Need) override {
    if (!value.empty()) put(key, quote_yaml(value), value);
  }
  void integer(const char* key, int64_t& value, int64_t, int64_t, Need need) override {
    if (need == Need::kRequired || value != 0) put(key, std::to_string(value), value);
  }
  void number(const char* key, double& value, double, double, Need need) override {
    if (need == Need::kRequired || value != 0) put(key, decimal(value), value);
  }
  void flag(const char* key, bool& value) override {
    if (value) put(key, "true", true);
  }
  void size(const char* key, int64_t& bytes, int64_t, Need need) override {
    if (need == Need::kRequired || bytes != 0) put(key, size_text(bytes), bytes);
  }
  void duration(const char* key, double& seconds, double) override {
    put(key, duration_text(seconds), seconds);
  }
  void fraction(const char* key, int64_t& numerator, int64_t& denominator) override {
    put(key, fraction_text(numerator, denominator),
        static_cast<double>(numerator) / static_cast<double>(denominator));
  }
  void words(const char* key, std::vector<std::string>& values, const TextRule&, size_t,
             Need) override {
    if (values.empty()) return;
    std::string line;
    for (const std::string& value : values) {
      std::string word = quote_yaml(value);
      line += (line.empty() ? "[" : ", ") + word;
    }
    put(key, line + "]", values);
  }

 protected:
  virtual void put(const char* key, const std::string& yaml, const Json& json) = 0;
};

/// Block YAML, two blanks a level; sections and lists open when their first field comes.
class YamlWriter : public Writer {
 public:
  std::string take() { return std::move(out_); }

  void begin(const char* key, Need) override { open(std::string(key) + ":"); }
  void end() override { close(); }
  size_t begin_list(const char* key, size_t present, size_t, Need) override {
    open(std::string(key) + ":");
    return present;
  }
  void begin_item(size_t) override {
    flush();
    dash_ = true;
    ++depth_;
  }
  void end_item() override {
    --depth_;
    dash_ = false;
  }
  void end_list() override { close(); }

 protected:
  void put(const char* key, const std::string& yaml, const Json&) override {
    flush();
    line(std::string(key) + ": " + yaml);
  }

 private:
  void open(const std::string& header) {
    flush();
    pending_ = header;
    ++depth_;
  }
  void close() {
    --depth_;
    pending_.clear();
  }
  void flush() {
    if (pending_.empty()) return;
    const std::string header = std::exchange(pending_, "");
    --depth_;
    line(header);
    ++depth_;
  }
  void line(const std::string& text) {
    std::string indent(static_cast<size_t>(2 * depth_), ' ');
    if (dash_) indent[indent.size() - 2] = '-';
    dash_ = false;
    out_ += indent + text + "\n";
  }

  std::string out_, pending_;
  int depth_ = 0;
  bool dash_ = false;
};

class JsonWriter : public Writer {
 public:
  JsonWriter() { stack_.emplace_back("", Json::object()); }
  Json take() { return std::move(stack_.front().second); }

  void begin(const char* key, Need) override { stack_.emplace_back(key, Json::object()); }
  void end() override { close(); }
  size_t begin_list(const char* key, size_t present, size_t, Need) override {
    stack_.emplace_back(key, Json::array());
    return present;
  }
  void begin_item(size_t) override { stack_.emplace_back("", Json::object()); }
  void end_item() override {
    Json item = std::move(stack_.back().second);
    stack_.pop_back();
    stack_.back().second.push_back(std::move(item));
  }
  void end_list() override { close(); }

 protected:
  void put(const char* key, const std::string&, const Json& json) override {
    stack_.back().second[key] = json;
  }

 private:
  void close() {
    auto [key, value] = std::move(stack_.back());
    stack_.pop_back();
    if (!value.empty()) stack_.back().second[key] = std::move(value);
  }

  std::vector<std::pair<std::string, Json>> stack_;
};

/// Dotted keys and their YAML text, in canonical order.
class FlatWriter : public Writer {
 public:
  std::vector<std::pair<std::string, std::string>> take() { return std::move(fields_); }

  void begin(const char* key, Need) override { prefix_.push_back(std::string(key) + "."); }
  void end() override { prefix_.pop_back(); }
  size_t begin_list(const char* key, size_t present, size_t, Need) override {
    prefix_.emplace_back(key);
    return present;
  }
  void begin_item(size_t index) override { prefix_.push_back("[" + std::to_string(index) + "]."); }
  void end_item() override { prefix_.pop_back(); }
  void end_list() override { prefix_.pop_back(); }

 protected:
  void put(const char* key, const std::string& yaml, const Json&) override {
    std::string full;
    for (const std::string& part : prefix_) full += part;
    fields_.emplace_back(full + key, yaml);
  }

 private:
  std::vector<std::string> prefix_;
  std::vector<std::pair<std::string, std::string>> fields_;
};

}  // namespace

std::string render_contract(const Contract& contract) {
  Contract copy = contract;
  YamlWriter writer;
  visit_fields(writer, copy);
  return writer.take();
}

std::string contract_json(const Contract& contract) {
  Contract copy = contract;
  JsonWriter writer;
  visit_fields(writer, copy);
  return dump_json(writer.take(), 2);
}

std::vector<ContractDifference> diff_contracts(const Contract& left, const Contract& right) {
  const auto flatten = [](Contract contract) {
    FlatWriter writer;
    visit_fields(writer, contract);
    return writer.take();
  };
  const auto of_left = flatten(left);
  const auto of_right = flatten(right);
  const std::map<std::string, std::string> left_map(of_left.begin(), of_left.end());
  const std::map<std::string, std::string> right_map(of_right.begin(), of_right.end());
  std::vector<ContractDifference> differences;
  for (const auto& [key, value] : of_left) {
    const auto found = right_map.find(key);
    if (found == right_map.end()) {
      differences.push_back({key, value, ""});
    } else if (found->second != value) {
      differences.push_back({key, value, found->second});
    }
  }
  for (const auto& [key, value] : of_right) {
    if (!left_map.contains(key)) differences.push_back({key, "", value});
  }
  return differences;
}

}  // namespace cbench
