// The relay: a reverse proxy on a unix socket, the only hole in an agent's box. It forwards the
// model API of one upstream, adds the key on this side, streams answers as they come, and records
// every call. It retries nothing and hides nothing: what the upstream says is what the agent sees.
#pragma once

#include <string>

#include <sys/types.h>

#include "relay/policy.h"
#include "relay/upstream.h"
#include "util/file.h"

namespace cbench::relay {

struct RelayOptions {
  Api api = Api::kAnthropic;
  UpstreamOptions upstream;
  std::string socket;             ///< path of the unix socket to make
  std::string log;                ///< JSON lines; "" = none
  pid_t namespace_of = 0;         ///< also listen on 127.0.0.1 in this process's network
  int port = 8080;                ///< there
  uint64_t max_body = 32u << 20;  ///< of a request
  int max_connections = 32;       ///< more are answered 503
  double head_seconds = 30;       ///< for a request's head once it has begun, and for idling
  double body_seconds = 300;      ///< for its body
  double write_seconds = 60;      ///< for the box to take what is sent
};

/// Serves until SIGTERM or SIGINT, which end it at once: calls under way are cut and recorded as
/// "stopped". Prints "listening" on standard output when it does. Returns the exit code.
int serve(const RelayOptions& options);

/// A listening socket on 127.0.0.1:port inside the network namespace of a process, so that a client
/// without unix sockets reaches the relay from a box without network. Needs to be root, or the
/// owner of the process's user namespace. Throws EnvironmentError ("relay_namespace").
Fd listen_in_namespace(pid_t pid, int port);

/// A listening unix socket that any user of a box may connect to; replaces a dead one. Throws
/// EnvironmentError ("relay_socket").
Fd listen_at(const std::string& path);

}  // namespace cbench::relay
