// cbench pack: a package by round-to-nearest, to start from and to compare with.
#include "package/pack.h"

#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "util/units.h"

namespace cbench {
namespace {

struct Arguments {
  std::string checkpoint, task, out, fit = "range", plugin = "starter";
  PackChoice choice;
};

int run_pack(const Arguments& arguments) {
  PackChoice choice = arguments.choice;
  choice.weights.fit_mse = arguments.fit == "mse";
  if (arguments.plugin == "fast") choice.plugin = PackPlugin::kFast;
  const PackReport report =
      pack_checkpoint(arguments.checkpoint, arguments.task, choice, arguments.out);
  std::printf("%s: %s, %s (%lld bytes); %lld matrices quantised, %lld tensors kept\n",
              arguments.out.c_str(), choice.text().c_str(), format_size(report.bytes).c_str(),
              static_cast<long long>(report.bytes), static_cast<long long>(report.quantised),
              static_cast<long long>(report.kept));
  for (const std::string& name : report.skipped) {
    std::printf("%s kept in BF16: groups of %lld do not divide its columns\n", name.c_str(),
                static_cast<long long>(choice.weights.group));
  }
  return 0;
}

}  // namespace

void add_pack(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "pack", "Make a package of a checkpoint by rounding to nearest (the starter's format)");
  command->add_option("checkpoint", arguments->checkpoint, "BF16 checkpoint directory")->required();
  command->add_option("--task", arguments->task, "Task that the manifest names");
  command->add_option("--bits", arguments->choice.weights.bits, "Bits of each weight")
      ->check(CLI::IsMember({2, 3, 4, 8}))
      ->capture_default_str();
  command->add_option("--group", arguments->choice.weights.group, "Weights that share a scale")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command
      ->add_option("--embedding-bits", arguments->choice.embedding_bits,
                   "Bits of embedding and output head, when others")
      ->check(CLI::IsMember({2, 3, 4, 8}));
  command->add_option("--fit", arguments->fit, "range: the group's whole range; mse: least error")
      ->check(CLI::IsMember({"range", "mse"}))
      ->capture_default_str();
  command->add_option("--plugin", arguments->plugin, "starter (shortest) or fast (own matmul)")
      ->check(CLI::IsMember({"starter", "fast"}))
      ->capture_default_str();
  command->add_option("--out", arguments->out, "New directory")->required();
  command->callback([arguments, &exit_code] { exit_code = run_pack(*arguments); });
}

}  // namespace cbench
