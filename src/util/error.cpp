#include "util/error.h"

#include <cerrno>
#include <system_error>

namespace cbench {

std::string errno_message(std::string_view action, std::string_view subject) {
  return std::string(action) + "(" + std::string(subject) +
         "): " + std::generic_category().message(errno);
}

void throw_errno(std::string_view action, std::string_view subject) {
  const bool full = errno == ENOSPC || errno == EDQUOT;
  std::string message = errno_message(action, subject);
  if (full) message += "; free some space there and run the same command again";
  throw EnvironmentError(full ? "disk_full" : "io", message);
}

}  // namespace cbench
