// Message framing between evaluator and engine, right and wrong.
#include "engine/channel.h"

#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cbench {
namespace {

std::string frame(uint32_t magic, uint32_t head, uint32_t payload, std::string_view rest = {}) {
  const uint32_t words[3] = {magic, head, payload};
  return std::string(reinterpret_cast<const char*>(words), sizeof words) + std::string(rest);
}
constexpr uint32_t kMagic = 0x31454243;

/// What receiving these bytes leads to.
struct Outcome {
  bool message = false;
  ChannelFault fault = ChannelFault::kClosed;
};
Outcome receive(const std::string& bytes, bool close = true, double seconds = 5) {
  auto [ours, theirs] = Channel::make_pair();
  EXPECT_EQ(::write(theirs.descriptor(), bytes.data(), bytes.size()),
            static_cast<ssize_t>(bytes.size()));
  if (close) ::shutdown(theirs.descriptor(), SHUT_WR);
  try {
    ours.receive(seconds);
    return {true, {}};
  } catch (const ChannelError& error) {
    return {false, error.fault()};
  }
}

TEST(Channel, CarriesHeadPayloadAndDescriptor) {
  auto [a, b] = Channel::make_pair();
  const std::vector<int32_t> ids = {1, -2, 3};
  a.send({{"type", "x"}, {"n", 7}}, ids_payload(ids), STDIN_FILENO);
  a.send({{"type", "y"}});
  const Message first = b.receive(5);
  EXPECT_EQ(first.type(), "x");
  EXPECT_EQ(first.head["n"], 7);
  EXPECT_EQ(ids_of(first), ids);
  EXPECT_TRUE(first.fd.valid());
  EXPECT_NE(first.fd.get(), STDIN_FILENO);
  const Message second = b.receive(5);
  EXPECT_EQ(second.type(), "y");
  EXPECT_FALSE(second.fd.valid());
  EXPECT_TRUE(second.payload.empty());
}

TEST(Channel, CarriesMoreThanTheSocketHolds) {
  auto [a, b] = Channel::make_pair();
  const std::string payload(8 << 20, 'p');
  std::thread sender([&, &end = a] { end.send({{"type", "big"}}, payload); });
  EXPECT_EQ(b.receive(30).payload, payload);
  sender.join();
}

TEST(Channel, DescriptorsThatNobodyAskedForAreClosed) {
  auto [a, b] = Channel::make_pair();
  const auto open_descriptors = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  };
  const int before = open_descriptors();
  for (int i = 0; i < 20; ++i) a.send({{"type", "x"}}, {}, STDIN_FILENO);
  for (int i = 0; i < 20; ++i) b.receive(5);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Channel, MalformedMessages) {
  const std::string good = R"({"type":"x"})";
  const auto size = static_cast<uint32_t>(good.size());
  ASSERT_TRUE(receive(frame(kMagic, size, 0, good)).message);
  const std::string nested(1000, '[');
  const struct {
    const char* name;
    std::string bytes;
    ChannelFault fault;
  } cases[] = {
      {"nothing", "", ChannelFault::kClosed},
      {"half a frame", "CBE", ChannelFault::kClosed},
      {"wrong magic", frame(0, size, 0, good), ChannelFault::kMalformed},
      {"text", "GET / HTTP/1.1\r\n\r\n", ChannelFault::kMalformed},
      {"head too large", frame(kMagic, 0xffffffff, 0), ChannelFault::kMalformed},
      {"payload too large", frame(kMagic, size, 0xffffffff, good), ChannelFault::kMalformed},
      {"head cut off", frame(kMagic, size + 1, 0, good), ChannelFault::kClosed},
      {"payload cut off", frame(kMagic, size, 5, good + "1234"), ChannelFault::kClosed},
      {"empty head", frame(kMagic, 0, 0), ChannelFault::kMalformed},
      {"no JSON", frame(kMagic, 3, 0, "{{{"), ChannelFault::kMalformed},
      {"no object", frame(kMagic, 2, 0, "[]"), ChannelFault::kMalformed},
      {"no type", frame(kMagic, 2, 0, "{}"), ChannelFault::kMalformed},
      {"type no string", frame(kMagic, 10, 0, R"({"type":1})"), ChannelFault::kMalformed},
      {"duplicate key", frame(kMagic, 23, 0, R"({"type":"x","type":"y"})"),
       ChannelFault::kMalformed},
      {"nested", frame(kMagic, 1000, 0, nested), ChannelFault::kMalformed},
      {"not UTF-8", frame(kMagic, 12, 0, "{\"type\":\"\xff\"}"), ChannelFault::kMalformed},
  };
  for (const auto& c : cases) {
    const Outcome outcome = receive(c.bytes);
    EXPECT_FALSE(outcome.message) << c.name;
    EXPECT_EQ(outcome.fault, c.fault) << c.name;
  }
}

TEST(Channel, SilenceEndsAtTheTimeout) {
  const Outcome silent = receive("", false, 0.05);
  EXPECT_FALSE(silent.message);
  EXPECT_EQ(silent.fault, ChannelFault::kTimeout);
  EXPECT_EQ(receive("CBE1", false, 0.05).fault, ChannelFault::kTimeout);
}

TEST(Channel, DribbledBytesDoNotExtendTheTimeout) {
  auto [ours, theirs] = Channel::make_pair();
  std::thread dribble([&, &end = theirs] {
    const std::string bytes = frame(kMagic, 400, 0, std::string(400, ' '));
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (::send(end.descriptor(), bytes.data() + i, 1, MSG_NOSIGNAL) != 1) return;
      ::usleep(5000);
    }
  });
  ChannelFault fault = ChannelFault::kClosed;
  try {
    ours.receive(0.2);
  } catch (const ChannelError& error) {
    fault = error.fault();
  }
  EXPECT_EQ(fault, ChannelFault::kTimeout);
  { const Channel closed = std::move(ours); }
  dribble.join();
}

TEST(Channel, APeerThatDoesNotReadIsNotWaitedForLong) {
  auto [a, b] = Channel::make_pair();
  ChannelFault fault = ChannelFault::kClosed;
  try {
    a.send({{"type", "big"}}, std::string(16 << 20, 'x'), -1, 0.1);
  } catch (const ChannelError& error) {
    fault = error.fault();
  }
  EXPECT_EQ(fault, ChannelFault::kTimeout);
}

TEST(Channel, SendingToNobodyIsNoSignal) {
  auto [a, b] = Channel::make_pair();
  { const Channel closed = std::move(b); }
  EXPECT_THROW(a.send({{"type", "x"}}), ChannelError);
}

TEST(Channel, RaggedIds) {
  Message message;
  message.payload = "12345";
  EXPECT_THROW(ids_of(message), ChannelError);
  message.payload = "";
  EXPECT_TRUE(ids_of(message).empty());
}

}  // namespace
}  // namespace cbench
