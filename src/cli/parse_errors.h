// Words for command lines that do not parse: what was wrong, the near match, and where help is.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace cbench {

/// One line for a person: "unknown command \"veriyf\"; did you mean verify? ...".
std::string explain_parse_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                                char** argv);

}  // namespace cbench
