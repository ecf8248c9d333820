// Errors that end in front of a person: what failed, on what, what to do next, and the exit code.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace cbench {

/// Process exit codes, documented in docs/exit-codes.md.
enum class Exit : int {
  kOk = 0,           ///< passed
  kGateFailed = 1,   ///< the submission was measured and a gate failed, or it was refused
  kUsage = 2,        ///< wrong arguments, contract or input file
  kEnvironment = 3,  ///< this machine cannot do it: no GPU, no space, missing program
  kInvalid = 4,      ///< infrastructure failed during a measurement: no verdict
};

/// The one exception family. `code` is a stable machine-readable word ("duplicate_key"); tests and
/// JSON outputs use it, people read what().
class Error : public std::runtime_error {
 public:
  Error(Exit exit, std::string_view code, const std::string& message)
      : std::runtime_error(message), exit_(exit), code_(code) {}
  Exit exit() const { return exit_; }
  const std::string& code() const { return code_; }

 private:
  Exit exit_;
  std::string code_;
};

/// Wrong arguments, a wrong contract, or a malformed input file (exit 2).
class UsageError : public Error {
 public:
  UsageError(std::string_view code, const std::string& message)
      : Error(Exit::kUsage, code, message) {}
};

/// The machine lacks something: a file, a program, space, a device (exit 3).
class EnvironmentError : public Error {
 public:
  EnvironmentError(std::string_view code, const std::string& message)
      : Error(Exit::kEnvironment, code, message) {}
};

/// The infrastructure failed while measuring, so there is no verdict (exit 4).
class InvalidError : public Error {
 public:
  InvalidError(std::string_view code, const std::string& message)
      : Error(Exit::kInvalid, code, message) {}
};

/// "open(/a/b): No such file or directory", from the current errno.
std::string errno_message(std::string_view action, std::string_view subject);

/// Throws EnvironmentError with errno_message(action, subject); code "disk_full" on ENOSPC, else
/// "io".
[[noreturn]] void throw_errno(std::string_view action, std::string_view subject);

}  // namespace cbench
