// Fuzzes the frames of the engine protocol as one side receives them: a stream of bytes is
// messages, then a named fault; never anything else.
#include <cstdlib>

#include <sys/socket.h>
#include <unistd.h>

#include "engine/channel.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  int ends[2];
  if (size > 65536 || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 0;
  cbench::Channel channel{cbench::Fd(ends[0])};
  if (::send(ends[1], bytes, size, MSG_DONTWAIT) != static_cast<ssize_t>(size)) std::abort();
  ::close(ends[1]);
  try {
    while (true) {
      const cbench::Message message = channel.receive(1);
      if (!message.head.is_object() || message.type().empty()) std::abort();
      (void)cbench::ids_of(message);
    }
  } catch (const cbench::ChannelError& error) {
    if (error.fault() == cbench::ChannelFault::kTimeout) std::abort();  // the peer is gone
  }
  return 0;
}
