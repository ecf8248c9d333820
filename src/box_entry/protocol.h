// What cbench tells the first process of a docker box, over the socket that they share: one header,
// then the payload; descriptors travel beside the header's first byte. All numbers in host order:
// both sides are one build on one machine.
//
//   payload   argv strings, environment strings (each with its final NUL),
//             int32 numbers[fds], Rlimit limits[rlimits]
//   beside    the seccomp filter (a BPF program in a file), then `fds` descriptors for `numbers`
//
// Later cbench sends single bytes: kTerminate. When the connection ends, the box ends. The entry
// answers once, when the command has ended: its status as waitpid gives it, int32.
#pragma once

#include <cstdint>

namespace cbench::entry {

inline constexpr uint32_t kMagic = 0x32584243;         // "CBX2"
inline constexpr uint32_t kMaxPayload = 8u << 20;      // a command line is at most 2 MiB
inline constexpr uint32_t kMaxFds = 64;                // the kernel allows 253 in one message
inline constexpr uint32_t kMaxFilter = 4096 * 8;       // BPF_MAXINSNS instructions of 8 bytes
inline constexpr char kTerminate = 'T';                // SIGTERM for the command and its group
inline constexpr const char* kDirectory = "/.cbench";  // in the box: `entry` and `socket`

struct Header {
  uint32_t magic;
  uint32_t argv, env;  ///< numbers of strings
  uint32_t fds;        ///< descriptors for the command; the filter comes in addition
  uint32_t rlimits;
  uint32_t payload;  ///< bytes that follow
};

struct Rlimit {
  int32_t resource;
  uint32_t unused;
  uint64_t value;
};

}  // namespace cbench::entry
