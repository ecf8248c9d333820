// Message framing between evaluator and engine (docs/engine-protocol.md): a stream socket carrying
// {magic, json bytes, payload bytes} + JSON + raw payload, and file descriptors beside it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "util/file.h"
#include "util/json.h"

namespace cbench {

struct Message {
  Json head;            ///< an object; head["type"] is a string
  std::string payload;  ///< raw bytes, e.g. int32 token ids in host byte order
  Fd fd;                ///< a descriptor that came along, if any

  std::string type() const;
};

/// Why no message came.
enum class ChannelFault { kClosed, kTimeout, kMalformed };

class ChannelError : public std::runtime_error {
 public:
  ChannelError(ChannelFault fault, const std::string& what)
      : std::runtime_error(what), fault_(fault) {}
  ChannelFault fault() const { return fault_; }

 private:
  ChannelFault fault_;
};

class Channel {
 public:
  explicit Channel(Fd socket) : socket_(std::move(socket)) {}

  /// Two connected ends.
  static std::pair<Channel, Channel> make_pair();

  int descriptor() const { return socket_.get(); }

  /// Sends one message; a peer that does not read is waited for at most `seconds`. `pass_fd` < 0
  /// passes none. Throws ChannelError.
  void send(const Json& head, std::string_view payload = {}, int pass_fd = -1, double seconds = 60);
  /// Receives one message within `seconds` (negative: for ever). Throws ChannelError: the peer is
  /// gone, silent, or sent something that is not a message.
  Message receive(double seconds);

 private:
  void read_exact(void* to, size_t size, double deadline, Fd* fd);

  Fd socket_;
};

/// Token ids as a payload and back; ids_of throws ChannelError(kMalformed) on a ragged size.
std::string_view ids_payload(std::span<const int32_t> ids);
std::vector<int32_t> ids_of(const Message& message);

}  // namespace cbench
