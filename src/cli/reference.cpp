// cbench reference: sample the likelihood blocks with the BF16 model and take its own figures.
#include "eval/reference.h"

#include "cli/commands.h"

namespace cbench {

void add_reference(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string task, box = "bwrap";
    ReferenceOptions options;
  };
  auto a = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "reference", "Sample a task's text with its BF16 model and measure the reference figures");
  command->add_option("task", a->task, "Task name, directory or contract.yaml")->required();
  command->add_option("--box", a->box, "bwrap, docker or direct")->capture_default_str();
  command->add_option("--device", a->options.device, "cpu or cuda instead of the contract's");
  command->add_flag("--keep-blocks", a->options.keep_blocks,
                    "Measure again on the blocks there are");
  command->add_flag("--select", a->options.select,
                    "Choose items, shots and documents anew from the fetched data");
  command->add_flag("-q,--quiet", a->options.quiet, "No progress");
  command->callback([a, &exit_code] {
    a->options.box = parse_box_kind(a->box);
    const Contract contract = find_task(a->task);
    set_box_image(contract.image);
    make_reference(contract, a->options);
    exit_code = 0;
  });
}

}  // namespace cbench
