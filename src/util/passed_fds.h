// Descriptors beside a message on a Unix socket (SCM_RIGHTS). Room on the stack and no allocation
// to send, so that a process between fork and exec can.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include <sys/socket.h>

#include "util/file.h"

namespace cbench {

/// Room for up to `kMost` descriptors; must outlive the call that uses the message.
template <size_t kMost>
class PassedFds {
 public:
  /// Lets `message` carry `fds`: one to kMost of them.
  void attach(msghdr& message, std::span<const int> fds) {
    message.msg_control = room_.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size_bytes());
  }
  /// Before recvmsg: lets descriptors come along.
  void make_room(msghdr& message) {
    message.msg_control = room_.data();
    message.msg_controllen = room_.size();
  }
  /// After recvmsg: the last descriptor that came, an invalid one if none did. Others are closed.
  static Fd taken(msghdr& message) {
    Fd last;
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
         head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
        last = Fd(fd);
      }
    }
    return last;
  }

 private:
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMost * sizeof(int))> room_{};
};

}  // namespace cbench
