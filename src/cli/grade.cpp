// cbench grade: grades a file of answers with the code that the evaluator uses.
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "eval/grading/records.h"

namespace cbench {
namespace {

struct GradeArguments {
  std::string benchmark, file, box = "bwrap";
};

void run_grade(const GradeArguments& arguments) {
  const bool mixed = arguments.benchmark == "all";
  if (!mixed) parse_benchmark(arguments.benchmark);
  ProgramOptions options;
  options.box = parse_box_kind(arguments.box);
  const RecordCounts counts =
      grade_file(arguments.file, mixed ? "" : arguments.benchmark, options,
                 [](const std::string& line) { std::printf("%s\n", line.c_str()); });
  std::fprintf(stderr, "%lld records, %lld right", static_cast<long long>(counts.total),
               static_cast<long long>(counts.right));
  if (counts.expected > 0) {
    std::fprintf(stderr, ", %lld of %lld not as the record says",
                 static_cast<long long>(counts.unexpected),
                 static_cast<long long>(counts.expected));
  }
  std::fprintf(stderr, "\n");
}

}  // namespace

void add_grade(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("grade", "Grade a file of answers, one JSON record a line");
  const auto arguments = std::make_shared<GradeArguments>();
  command
      ->add_option("benchmark", arguments->benchmark,
                   "gsm8k, humaneval, triviaqa, math500, or all (each record names its task)")
      ->required();
  command->add_option("file", arguments->file, "JSON lines, described in docs/grading.md")
      ->required();
  command
      ->add_option("--box", arguments->box,
                   "where programs run: bwrap, docker, or direct (no isolation)")
      ->capture_default_str();
  command->callback([arguments, &exit_code] {
    run_grade(*arguments);
    exit_code = 0;
  });
}

}  // namespace cbench
