#include "cli/shell_completion.h"

#include "util/error.h"

namespace cbench {
namespace {

struct Entry {
  std::string path;   ///< words after "cbench", e.g. "task show"
  std::string words;  ///< subcommands, then long options
  bool takes_task = false;
};

bool takes_task(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional() && option->get_type_name() == "TASK") return true;
  }
  return false;
}

void collect(const CLI::App& app, const std::string& path, std::vector<Entry>& entries) {
  Entry entry{path, "", takes_task(app)};
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : commands) {
    if (!command->get_group().empty()) entry.words += command->get_name() + " ";
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) entry.words += "--" + name + " ";
  }
  entries.push_back(entry);
  for (const CLI::App* command : commands) {
    if (command->get_group().empty()) continue;
    collect(*command, path.empty() ? command->get_name() : path + " " + command->get_name(),
            entries);
  }
}

std::string bash(const std::vector<Entry>& entries) {
  std::string script =
      "_cbench() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" path=\"\" words=\"\" i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$path ${COMP_WORDS[i]}\" in\n";
  std::string paths;
  for (const Entry& entry : entries) {
    if (!entry.path.empty()) paths += (paths.empty() ? "\" " : " | \" ") + entry.path + "\"";
  }
  script += "      " + paths + ") path=\"$path ${COMP_WORDS[i]}\" ;;\n";
  script +=
      "    esac\n"
      "  done\n"
      "  case \"$path\" in\n";
  for (const Entry& entry : entries) {
    const std::string tasks = entry.takes_task ? " $(cbench task list --names 2>/dev/null)" : "";
    const std::string label = entry.path.empty() ? "" : " " + entry.path;
    script += "    \"" + label + "\") words=\"" + entry.words + tasks + "\" ;;\n";
  }
  return script +
         "  esac\n"
         "  case \"${COMP_WORDS[COMP_CWORD-1]}\" in\n"
         "    --task) words=\"$(cbench task list --names 2>/dev/null)\" ;;\n"
         "  esac\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
         "}\n"
         "complete -o default -F _cbench cbench\n";
}

std::string fish(const CLI::App& app) {
  const auto quoted = [](const std::string& text) {
    std::string out = "'";
    for (const char c : text)
      out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return out + "'";
  };
  std::string script = "complete -c cbench -n __fish_use_subcommand -f\n";
  const auto options = [&](const CLI::App& command, const std::string& condition) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) {
        script += "complete -c cbench" + condition + " -l " + name + " -d " +
                  quoted(option->get_description()) + "\n";
      }
    }
  };
  options(app, "");
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;
    const std::string& name = command->get_name();
    script += "complete -c cbench -n __fish_use_subcommand -a " + name + " -d " +
              quoted(command->get_description()) + "\n";
    const std::string seen = " -n '__fish_seen_subcommand_from " + name + "'";
    options(*command, seen);
    if (takes_task(*command)) {
      script += "complete -c cbench" + seen + " -a '(cbench task list --names 2>/dev/null)'\n";
    }
    for (const CLI::App* inner : command->get_subcommands([](const CLI::App*) { return true; })) {
      script += "complete -c cbench" + seen + " -a " + inner->get_name() + " -d " +
                quoted(inner->get_description()) + "\n";
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  std::vector<Entry> entries;
  collect(app, "", entries);
  if (shell == "bash") return bash(entries);
  if (shell == "zsh") return "autoload -U +X bashcompinit && bashcompinit\n" + bash(entries);
  if (shell == "fish") return fish(app);
  throw UsageError("usage", "no completion for \"" + shell + "\"; choose bash, zsh or fish");
}

}  // namespace cbench
