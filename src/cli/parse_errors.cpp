#include "cli/parse_errors.h"

#include <algorithm>

#include "util/text.h"

namespace cbench {
namespace {

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> visible_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : subcommands(app)) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

/// The innermost subcommand that the words of the command line name.
const CLI::App& innermost(const CLI::App& app, int argc, char** argv, std::string& path) {
  const CLI::App* current = &app;
  path = app.get_name();
  for (int i = 1; i < argc; ++i) {
    for (const CLI::App* command : subcommands(*current)) {
      if (command->get_name() != argv[i]) continue;
      current = command;
      path += " " + command->get_name();
      break;
    }
  }
  return *current;
}

/// Long option names of a command and, since options fall through, of those around it.
std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

/// Position of the first word that is neither an option nor the value of a global one; argc if
/// none.
int first_word(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--tasks") {
      ++i;
    } else if (!word.starts_with("-")) {
      return i;
    }
  }
  return argc;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : "; did you mean " + near + "?";
}

std::string unknown_option(const CLI::App& command, int argc, char** argv) {
  const std::vector<std::string> known = option_names(command);
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    if (!word.starts_with("--")) continue;
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    return "unknown option " + printable(word, 60) + suggestion(word, known);
  }
  return "";
}

}  // namespace

std::string explain_parse_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                                char** argv) {
  std::string path;
  const CLI::App& command = innermost(app, argc, argv, path);
  const std::string hint = " (`" + path + " --help` shows how)";
  const int first = first_word(argc, argv);
  const std::string early = unknown_option(app, first, argv);
  if (!early.empty()) return early + hint;
  const std::vector<const CLI::App*> all = subcommands(app);
  const auto named = [&](const CLI::App* one) { return one->get_name() == argv[first]; };
  if (first < argc && std::none_of(all.begin(), all.end(), named)) {
    return "unknown command \"" + printable(argv[first], 60) + "\"" +
           suggestion(argv[first], visible_names(app)) + hint;
  }
  const std::string option = unknown_option(command, argc, argv);
  if (!option.empty()) return option + hint;
  const bool wants_word = !subcommands(command).empty();
  if (wants_word && argc > 1) {
    const std::string last = argv[argc - 1];
    const std::string near = nearest(last, visible_names(command));
    if (last != command.get_name() && !near.empty()) {
      return "unknown command \"" + path + " " + printable(last, 60) + "\"; did you mean " + near +
             "?" + hint;
    }
  }
  return printable(error.what(), 400) + hint;
}

}  // namespace cbench
