// Inside src/box: how each kind turns a BoxSpec into a child process.
#pragma once

#include <string>
#include <vector>

#include "box/box.h"

namespace cbench {

struct Launch {
  ProcessOptions process;
  std::vector<Fd> keep;          ///< descriptors the child gets; ours can close once it has started
  Fd info;                       ///< bwrap writes the pid of the box's first process here
  Fd go;                         ///< the command starts when a byte arrives here
  std::string token;             ///< direct: marks the environment
  bool encodes_signals = false;  ///< exit code 128 + N means signal N
};

inline constexpr int kBoxUser = 65534;  ///< uid and gid inside (nobody)
inline constexpr const char* kTokenVariable = "CBENCH_BOX";

Launch bwrap_launch(const BoxSpec& spec);
Launch direct_launch(const BoxSpec& spec);

/// Sends SIGKILL to every process whose environment carries the token, until a pass over /proc
/// finds none.
void sweep_token(const std::string& token);

/// The first number from 3 on that neither the spec nor an earlier call uses.
int next_free_fd(const ProcessOptions& process);

/// rlimits that hold for every kind. `processes` is not among them: RLIMIT_NPROC counts per user.
std::vector<std::pair<int, uint64_t>> common_rlimits(const Limits& limits);

/// A sealed, rewound memory file with these bytes.
Fd memory_file(std::string_view name, std::string_view bytes);

/// {child's end, ours}: the command starts when we send a byte.
std::pair<Fd, Fd> go_channel();

/// 32 random hexadecimal digits from the kernel.
std::string random_token();

/// The filter for untrusted programs as a BPF program in a memory file (see seccomp.cpp).
Fd seccomp_filter();

}  // namespace cbench
