// Readers of item files.
#include "eval/grading/items.h"

#include <algorithm>
#include <array>
#include <set>

#include "eval/grading/gsm8k.h"
#include "text/jsonl.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr JsonLimits kRecordLimits{.max_bytes = 4u << 20, .max_depth = 16};

/// Calls `use(record, "FILE:LINE", number)` for every record.
template <typename Use>
void each_line(const std::string& path, Use use) {
  JsonlReader reader(path, kRecordLimits.max_bytes);
  size_t number = 0;
  for (std::string_view line; reader.next(line);) {
    use(parse_json(line, reader.where(), kRecordLimits), reader.where(), number++);
  }
  if (number == 0) throw UsageError("no_items", path + ": no records");
}

class Ids {
 public:
  void add(const std::string& id, const std::string& where) {
    if (!seen_.insert(id).second) {
      throw UsageError("duplicate_id", where + ": the id '" + printable(id) + "' came before");
    }
  }

 private:
  std::set<std::string> seen_;
};

std::string id_or_number(const Json& record, size_t number, const std::string& where) {
  return record.contains("id") ? json_string(record, "id", where) : std::to_string(number);
}

std::vector<std::string> strings(const Json& object, std::string_view key,
                                 const std::string& where) {
  const Json& list = json_member(object, key, where);
  std::vector<std::string> out;
  if (!list.is_array()) {
    throw UsageError("json_type", where + ": '" + std::string(key) + "' must be a list of texts");
  }
  for (const Json& entry : list) {
    if (!entry.is_string()) {
      throw UsageError("json_type", where + ": '" + std::string(key) + "' must hold texts only");
    }
    out.push_back(entry.get<std::string>());
  }
  return out;
}

/// The question inside "Question: ...\nAnswer:".
std::string question_of(const std::string& context, const std::string& where) {
  constexpr std::string_view kBefore = "Question: ", kAfter = "\nAnswer:";
  if (!context.starts_with(kBefore) || !context.ends_with(kAfter)) {
    throw UsageError("item", where + ": 'context' must read \"Question: ...\\nAnswer:\"");
  }
  return context.substr(kBefore.size(), context.size() - kBefore.size() - kAfter.size());
}

TriviaQaItem triviaqa_item(const Json& record, const std::string& where, size_t number) {
  TriviaQaItem item;
  if (record.is_object() && record.contains("Question")) {
    const Json& answer = json_member(record, "Answer", where);
    item.id = json_string(record, "QuestionId", where);
    item.question = json_string(record, "Question", where);
    item.answer = json_string(answer, "Value", where);
    item.aliases = strings(answer, "Aliases", where);
    return item;
  }
  if (record.is_object() && record.contains("answer") && record["answer"].is_object()) {
    const Json& answer = record["answer"];
    item.id = json_string(record, "question_id", where);
    item.question = json_string(record, "question", where);
    item.answer = json_string(answer, "value", where);
    item.aliases = strings(answer, "aliases", where);
    return item;
  }
  item.id = id_or_number(record, number, where);
  item.question = record.contains("context")
                      ? question_of(json_string(record, "context", where), where)
                      : json_string(record, "question", where);
  item.aliases = strings(record, "aliases", where);
  item.answer = record.contains("answer") || item.aliases.empty()
                    ? json_string(record, "answer", where)
                    : item.aliases.front();
  return item;
}

}  // namespace

std::vector<Gsm8kItem> read_gsm8k(const std::string& path) {
  std::vector<Gsm8kItem> items;
  Ids ids;
  each_line(path, [&](const Json& record, const std::string& where, size_t number) {
    Gsm8kItem item{"", json_string(record, "question", where), json_string(record, "answer", where),
                   ""};
    item.id = id_or_number(record, number, where);
    ids.add(item.id, where);
    try {
      item.gold = gsm8k_gold(item.answer);
    } catch (const UsageError& error) {
      throw UsageError(error.code(), where + ": " + error.what());
    }
    items.push_back(std::move(item));
  });
  return items;
}

std::vector<HumanEvalItem> read_humaneval(const std::string& path) {
  std::vector<HumanEvalItem> items;
  Ids ids;
  each_line(path, [&](const Json& record, const std::string& where, size_t) {
    items.push_back({json_string(record, "task_id", where), json_string(record, "prompt", where),
                     json_string(record, "entry_point", where),
                     json_string(record, "canonical_solution", where),
                     json_string(record, "test", where)});
    ids.add(items.back().id, where);
  });
  return items;
}

std::vector<TriviaQaItem> read_triviaqa(const std::string& path, bool repeats) {
  std::vector<TriviaQaItem> items;
  Ids ids;
  std::set<std::array<std::string, 3>> said;
  each_line(path, [&](const Json& record, const std::string& where, size_t number) {
    TriviaQaItem item = triviaqa_item(record, where, number);
    if (repeats && !said.insert({item.id, item.question, item.answer}).second) return;
    ids.add(item.id, where);
    // An alias list that lacks the answer itself would refuse the answer.
    if (std::ranges::find(item.aliases, item.answer) == item.aliases.end()) {
      item.aliases.push_back(item.answer);
    }
    items.push_back(std::move(item));
  });
  return items;
}

std::vector<Math500Item> read_math500(const std::string& path) {
  std::vector<Math500Item> items;
  Ids ids;
  const auto add = [&](const Json& record, const std::string& where, size_t number) {
    Math500Item item{"", json_string(record, "problem", where),
                     json_string(record, "answer", where)};
    item.id = record.contains("unique_id") ? json_string(record, "unique_id", where)
                                           : id_or_number(record, number, where);
    ids.add(item.id, where);
    items.push_back(std::move(item));
  };
  if (!read_file(path).starts_with('[')) {
    each_line(path, add);
    return items;
  }
  const Json all = read_json(path);
  for (size_t i = 0; i < all.size(); ++i) add(all[i], path + "[" + std::to_string(i) + "]", i);
  if (items.empty()) throw UsageError("no_items", path + ": no records");
  return items;
}

}  // namespace cbench
