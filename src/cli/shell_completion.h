// Shell completion scripts, generated from the command tree so that they cannot fall behind it.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace cbench {

/// A script for "bash", "zsh" or "fish". Throws UsageError for another shell.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace cbench
