#include "util/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace cbench {

void set_up_log(int verbosity) {
  auto logger = std::make_shared<spdlog::logger>(
      "cbench", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%^%l%$: %v");
  logger->set_level(verbosity <= 0   ? spdlog::level::warn
                    : verbosity == 1 ? spdlog::level::info
                                     : spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace cbench
