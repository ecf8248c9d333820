// cbench version: the agent's ./version, inside the box: asks the run to save the submission.
#include <cstdio>
#include <memory>

#include "agent/version_client.h"
#include "cli/commands.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {
constexpr double kTimeout = 3600;  // a package of many gigabytes takes long to copy
}  // namespace

void add_version(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string note, socket;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("version", "Save the submission as a version (inside an agent's box)");
  command->add_option("note", arguments->note, "What this version is, at most 300 bytes");
  command->add_option("--socket", arguments->socket, "Control socket of the run")->required();
  command->callback([arguments, &exit_code] {
    const SavedVersion saved = request_version(arguments->socket, arguments->note, kTimeout);
    std::printf("saved v%lld: %s (%lld bytes), %s left\n", static_cast<long long>(saved.number),
                format_size(saved.bytes).c_str(), static_cast<long long>(saved.bytes),
                format_duration(saved.seconds_left).c_str());
    exit_code = 0;
  });
}

}  // namespace cbench
