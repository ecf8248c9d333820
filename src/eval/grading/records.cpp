// The record kinds: grade, truncate, stream_truncate, exec, exec_env, prompt, threshold, estimate.
#include "eval/grading/records.h"

#include <cmath>
#include <optional>

#include "eval/grading/gsm8k.h"
#include "eval/grading/math500.h"
#include "eval/grading/stops.h"
#include "eval/grading/triviaqa.h"
#include "text/jsonl.h"
#include "util/error.h"
#include "util/json.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr JsonLimits kRecordLimits{.max_bytes = 256u << 20, .max_depth = 16};

struct Record {
  Json value;
  std::string where, task, kind;
  Json out;                       // the result line, once known
  std::optional<size_t> program;  // exec: its place among the programs
};

std::vector<std::string> texts(const Record& record, std::string_view key) {
  const Json& list = json_member(record.value, key, record.where);
  std::vector<std::string> out;
  for (const Json& entry : list) {
    if (!list.is_array() || !entry.is_string()) {
      throw UsageError("json_type", record.where + ": '" + std::string(key) + "' must hold texts");
    }
    out.push_back(entry.get<std::string>());
  }
  return out;
}

std::string text(const Record& record, std::string_view key) {
  return json_string(record.value, key, record.where);
}

Record parse_record(std::string_view line, const std::string& where, std::string_view benchmark) {
  Record record;
  record.where = where;
  record.value = parse_json(line, where, kRecordLimits);
  if (!record.value.is_object()) {
    throw UsageError("json_type", where + ": a record must be a JSON object");
  }
  record.task = record.value.contains("task") ? text(record, "task") : std::string(benchmark);
  if (record.task.empty()) throw UsageError("record", where + ": the record needs a 'task'");
  if (!benchmark.empty() && record.task != benchmark) {
    throw UsageError("record", where + ": a record of '" + printable(record.task) + "' among " +
                                   std::string(benchmark) + " records");
  }
  const bool program = record.task == "humaneval";
  record.kind = record.value.contains("kind") ? text(record, "kind") : program ? "exec" : "grade";
  if (record.value.contains("id")) record.out["id"] = text(record, "id");
  record.out["task"] = record.task;
  record.out["kind"] = record.kind;
  return record;
}

Grade grade_text(const Record& record) {
  const std::string answer = text(record, "text");
  if (record.task == "gsm8k") return grade_gsm8k(answer, text(record, "gold"));
  if (record.task == "math500") return grade_math500(answer, text(record, "gold"));
  if (record.task == "triviaqa") return grade_triviaqa(answer, texts(record, "aliases"));
  throw UsageError("record", record.where + ": '" + record.task + "' has no records of kind grade");
}

/// As in the records themselves, "right" is the outcome: a truth value, a text or a number.
void put_outcome(Record& record, Json outcome) { record.out["right"] = std::move(outcome); }

std::string stream_cut(const Record& record) {
  StopMatcher matcher(texts(record, "stops"));
  std::string out;
  for (const std::string& chunk : texts(record, "chunks")) out += matcher.append(chunk);
  return out + matcher.finish();
}

bool gate(const Record& record) {
  const auto pair = [&](std::string_view key) {
    const Json& list = json_member(record.value, key, record.where);
    if (!list.is_array() || list.size() != 2 || !list[0].is_number_integer() ||
        !list[1].is_number_integer()) {
      throw UsageError("json_type",
                       record.where + ": '" + std::string(key) + "' must be [correct, total]");
    }
    return std::pair(list[0].get<int64_t>(), list[1].get<int64_t>());
  };
  const auto [reference, reference_total] = pair("ref_correct");
  const auto [candidate, candidate_total] = pair("cand_correct");
  return passes_gate(candidate, candidate_total, reference, reference_total);
}

Program program_of(const Record& record) {
  const std::string id = record.value.contains("id") ? text(record, "id") : record.where;
  // exec_env: "flags" name interpreter flags that must not reach the runner; nothing is passed on.
  return {id, text(record, "prompt"), text(record, "completion"), text(record, "test"),
          text(record, "entry_point")};
}

void grade_record(Record& record, std::vector<Program>& programs) {
  const std::string& kind = record.kind;
  if (kind == "grade") {
    const Grade grade = grade_text(record);
    record.out["right"] = grade.right;
    record.out["extracted"] = grade.extracted;
    record.out["reason"] = grade.reason;
  } else if (kind == "exec" || kind == "exec_env") {
    record.program = programs.size();
    programs.push_back(program_of(record));
  } else if (kind == "truncate") {
    put_outcome(record, std::string(cut_at_stop(text(record, "text"), texts(record, "stops"))));
  } else if (kind == "stream_truncate") {
    put_outcome(record, stream_cut(record));
  } else if (kind == "prompt" && record.task == "triviaqa") {
    put_outcome(record, triviaqa_prompt({}, {"", text(record, "question"), "", {}}));
  } else if (kind == "prompt" && record.task == "gsm8k") {
    put_outcome(record, gsm8k_prompt({}, {"", text(record, "question"), "", ""}));
  } else if (kind == "threshold") {
    put_outcome(record, gate(record));
  } else if (kind == "estimate") {
    put_outcome(record, pass_at_k(json_int(record.value, "n", record.where),
                                  json_int(record.value, "c", record.where),
                                  json_int(record.value, "k", record.where)));
  } else {
    throw UsageError("record", record.where + ": unknown kind '" + printable(kind) + "' of task '" +
                                   printable(record.task) + "'");
  }
}

void count(const Record& record, RecordCounts& counts) {
  ++counts.total;
  const Json& got = record.out.at("right");
  if (got.is_boolean() && got.get<bool>()) ++counts.right;
  if (!record.value.contains("right")) return;
  const Json& wanted = record.value["right"];
  ++counts.expected;
  const bool same = got.is_number() && wanted.is_number()
                        ? std::abs(got.get<double>() - wanted.get<double>()) < 1e-12
                        : got == wanted;
  counts.unexpected += !same;
}

std::vector<Record> read_records(const std::string& path, std::string_view benchmark) {
  JsonlReader reader(path, kRecordLimits.max_bytes);
  std::vector<Record> records;
  for (std::string_view line; reader.next(line);) {
    records.push_back(parse_record(line, reader.where(), benchmark));
  }
  return records;
}

}  // namespace

RecordCounts grade_file(const std::string& path, std::string_view benchmark,
                        const ProgramOptions& options,
                        const std::function<void(const std::string&)>& emit) {
  std::vector<Record> records = read_records(path, benchmark);
  std::vector<Program> programs;
  for (Record& record : records) {
    try {
      grade_record(record, programs);
    } catch (const UsageError& error) {
      const std::string message = error.what();
      if (message.starts_with(record.where)) throw;
      throw UsageError(error.code(), record.where + ": " + message);
    }
  }
  const std::vector<ProgramResult> results = run_programs(programs, options);
  RecordCounts counts;
  for (Record& record : records) {
    if (record.program) {
      const ProgramResult& result = results[*record.program];
      record.out["right"] = result.passed;
      record.out["extracted"] = "";
      record.out["reason"] = result.reason;
    }
    emit(dump_json(record.out));
    count(record, counts);
  }
  return counts;
}

}  // namespace cbench
