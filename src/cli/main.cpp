// Entry point: assembles the subcommands, parses, and turns every error into one line and an exit
// code.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>

#include <poll.h>
#include <unistd.h>

#include "build_info.h"
#include "cli/commands.h"
#include "cli/parse_errors.h"
#include "commands_present.h"
#include "task/contract.h"
#include "util/error.h"
#include "util/json.h"
#include "util/log.h"

namespace cbench {
namespace {

constexpr const char* kDescription =
    "cbench: let an agent compress a language model, then measure the result without trusting it.";
constexpr const char* kFooter =
    "Typical order:  cbench fetch TASK; cbench preflight TASK; cbench run TASK --agent ... --hours "
    "8;\n"
    "                cbench verify RUN; cbench report\n"
    "Exit codes:     0 passed, 1 a gate failed, 2 usage or contract, 3 this machine cannot, "
    "4 invalid measurement";

std::string version_text() {
  std::string text = "cbench " CBENCH_VERSION;
  const std::string revision = CBENCH_REVISION;
  if (!revision.empty()) text += " (" + revision + ")";
#ifdef CBENCH_HAVE_CUDA
  return text + ", " CBENCH_BUILD_TYPE ", CUDA yes";
#else
  return text + ", " CBENCH_BUILD_TYPE ", CUDA no";
#endif
}

/// Gives the subcommands that `add` adds their heading in --help; "" hides them.
void add_under(CLI::App& app, int& exit_code, void (*add)(CLI::App&, int&), const char* heading) {
  const size_t before = app.get_subcommands([](CLI::App*) { return true; }).size();
  add(app, exit_code);
  const auto all = app.get_subcommands([](CLI::App*) { return true; });
  for (size_t i = before; i < all.size(); ++i) all[i]->group(heading);
}

void set_up(CLI::App& app, int& exit_code) {
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(kFooter);
  app.set_version_flag("--version", version_text, "Print version, build type and CUDA support");
  app.add_option_function<std::string>(
         "--tasks", [](const std::string& directory) { set_tasks_root(directory); },
         "Directory of the tasks (default: ./tasks, or the one beside the program)")
      ->type_name("DIR")
      ->trigger_on_parse();
  app.add_flag_callback(
         "-v,--verbose", [] { set_up_log(2); }, "Say more")
      ->trigger_on_parse();
  app.add_flag_callback(
         "-q,--quiet", [] { set_up_log(0); }, "Only warnings and errors")
      ->trigger_on_parse();
#define CBENCH_ADD(name, heading) add_under(app, exit_code, add_##name, heading);
  CBENCH_COMMANDS(CBENCH_ADD)
#undef CBENCH_ADD
}

int report_error(bool json, Exit exit, const std::string& code, const std::string& message) {
  std::cerr << "cbench: " << message << "\n";
  if (json) {
    const Json object = {
        {"schema", "cbench.error.v1"},
        {"error", {{"code", code}, {"message", message}, {"exit", static_cast<int>(exit)}}}};
    std::cout << dump_json(object) << "\n";
  }
  return static_cast<int>(exit);
}

bool asks_for_json(int argc, char** argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    if (std::string_view(argv[i]) == "--json") return true;
  }
  return false;
}

int run(int argc, char** argv) {
  int exit_code = 0;
  const bool json = asks_for_json(argc, argv);
  CLI::App app(kDescription, "cbench");
  try {
    set_up_log(1);
    set_up(app, exit_code);
    if (argc <= 1) {
      std::cerr << app.help();
      return static_cast<int>(Exit::kUsage);
    }
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    return report_error(json, Exit::kUsage, "usage", explain_parse_error(app, error, argc, argv));
  } catch (const Error& error) {
    return report_error(json, error.exit(), error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report_error(json, Exit::kEnvironment, "out_of_memory", "out of memory");
  } catch (const std::filesystem::filesystem_error& error) {
    return report_error(json, Exit::kEnvironment, "io", error.what());
  } catch (const std::exception& error) {
    return report_error(json, Exit::kInvalid, "internal",
                        std::string("internal error: ") + error.what());
  }
}

bool reader_left() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

/// Output that did not arrive is a failure, except when the reader simply went away.
int flush_output(int exit_code) {
  errno = 0;
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0 && std::cout.good() && std::ferror(stdout) == 0;
  if (written || reader_left()) return exit_code;
  if (errno == 0) errno = EIO;
  std::cerr << "cbench: " << errno_message("write", "standard output") << "\n";
  return exit_code == 0 ? static_cast<int>(Exit::kEnvironment) : exit_code;
}

}  // namespace
}  // namespace cbench

int main(int argc, char** argv) {
  // A reader that goes away is an error of the write, not the end of the program.
  std::signal(SIGPIPE, SIG_IGN);
  return cbench::flush_output(cbench::run(argc, argv));
}
