#include "engine/channel.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util/clock.h"
#include "util/error.h"
#include "util/passed_fds.h"

namespace cbench {
namespace {

constexpr uint32_t kMagic = 0x31454243;  // "CBE1"
constexpr uint32_t kMaxHead = 4u << 20;
constexpr uint32_t kMaxPayload = 256u << 20;

struct Frame {
  uint32_t magic;
  uint32_t head_bytes;
  uint32_t payload_bytes;
};

/// Waits until `events` are possible on `fd`; throws on the deadline.
void wait_for(int fd, short events, double deadline) {
  while (true) {
    int timeout = -1;
    if (deadline >= 0) {
      const double left = deadline - boot_seconds();
      if (left <= 0) throw ChannelError(ChannelFault::kTimeout, "no answer in time");
      timeout = static_cast<int>(left * 1000) + 1;
    }
    pollfd poller{fd, events, 0};
    const int ready = ::poll(&poller, 1, timeout);
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) {
      throw ChannelError(ChannelFault::kClosed, errno_message("poll", "engine socket"));
    }
  }
}

}  // namespace

std::string Message::type() const { return head.at("type").get<std::string>(); }

std::pair<Channel, Channel> Channel::make_pair() {
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw_errno("socketpair", "engine");
  }
  return {Channel(Fd(ends[0])), Channel(Fd(ends[1]))};
}

void Channel::send(const Json& head, std::string_view payload, int pass_fd, double seconds) {
  const std::string text = dump_json(head);
  const Frame frame{kMagic, static_cast<uint32_t>(text.size()),
                    static_cast<uint32_t>(payload.size())};
  std::string bytes(reinterpret_cast<const char*>(&frame), sizeof frame);
  bytes += text;
  bytes += payload;
  const double deadline = boot_seconds() + seconds;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    iovec part{const_cast<char*>(rest.data()), rest.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    PassedFds<1> passed;
    if (pass_fd >= 0) passed.attach(message, {&pass_fd, 1});
    const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      rest.remove_prefix(static_cast<size_t>(n));
      pass_fd = -1;
    } else if (errno == EAGAIN) {
      wait_for(socket_.get(), POLLOUT, deadline);
    } else if (errno != EINTR) {
      throw ChannelError(ChannelFault::kClosed, errno_message("send", "engine socket"));
    }
  }
}

void Channel::read_exact(void* to, size_t size, double deadline, Fd* fd) {
  char* out = static_cast<char*>(to);
  while (size > 0) {
    iovec part{out, size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    PassedFds<4> passed;
    passed.make_room(message);
    const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) {
      if (errno == EAGAIN) {
        wait_for(socket_.get(), POLLIN, deadline);
      } else if (errno != EINTR) {
        throw ChannelError(ChannelFault::kClosed, errno_message("receive", "engine socket"));
      }
      continue;
    }
    Fd came = passed.taken(message);  // closes what nobody asked for
    if (fd != nullptr && came.valid()) *fd = std::move(came);
    if (n == 0) throw ChannelError(ChannelFault::kClosed, "the other side closed the connection");
    out += n;
    size -= static_cast<size_t>(n);
  }
}

Message Channel::receive(double seconds) {
  const double deadline = seconds < 0 ? -1 : boot_seconds() + seconds;
  Message message;
  Frame frame{};
  read_exact(&frame, sizeof frame, deadline, &message.fd);
  if (frame.magic != kMagic || frame.head_bytes > kMaxHead || frame.payload_bytes > kMaxPayload) {
    throw ChannelError(ChannelFault::kMalformed, "the reply is not a protocol message");
  }
  std::string text(frame.head_bytes, '\0');
  read_exact(text.data(), text.size(), deadline, &message.fd);
  message.payload.resize(frame.payload_bytes);
  read_exact(message.payload.data(), message.payload.size(), deadline, &message.fd);
  try {
    message.head = parse_json(text, "engine message", {.max_bytes = kMaxHead, .max_depth = 16});
    json_string(message.head, "type", "engine message");
  } catch (const Error& error) {
    throw ChannelError(ChannelFault::kMalformed, error.what());
  }
  return message;
}

std::string_view ids_payload(std::span<const int32_t> ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size_bytes()};
}

std::vector<int32_t> ids_of(const Message& message) {
  if (message.payload.size() % sizeof(int32_t) != 0) {
    throw ChannelError(ChannelFault::kMalformed, "token ids do not fill whole numbers");
  }
  std::vector<int32_t> ids(message.payload.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), message.payload.data(), message.payload.size());
  return ids;
}

}  // namespace cbench
