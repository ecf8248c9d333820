// The system-call filter of a box: everything is allowed but what only serves to leave it, to watch
// others, or to reach rarely used kernel code. A program meets EPERM (or ENOSYS where libraries
// have a fallback), never a kill, so that probing for a feature is not fatal.
#include <array>
#include <cerrno>
#include <memory>

#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "box/launch.h"
#include "util/error.h"

namespace cbench {
namespace {

constexpr std::array kForbidden = {"ptrace",
                                   "process_vm_readv",
                                   "process_vm_writev",
                                   "pidfd_getfd",
                                   "kcmp",
                                   "mount",
                                   "umount2",
                                   "pivot_root",
                                   "chroot",
                                   "open_tree",
                                   "move_mount",
                                   "fsopen",
                                   "fsconfig",
                                   "fsmount",
                                   "fspick",
                                   "mount_setattr",
                                   "open_by_handle_at",
                                   "name_to_handle_at",
                                   "unshare",
                                   "setns",
                                   "bpf",
                                   "keyctl",
                                   "add_key",
                                   "request_key",
                                   "perf_event_open",
                                   "userfaultfd",
                                   "kexec_load",
                                   "kexec_file_load",
                                   "init_module",
                                   "finit_module",
                                   "delete_module",
                                   "reboot",
                                   "swapon",
                                   "swapoff",
                                   "acct",
                                   "quotactl",
                                   "quotactl_fd",
                                   "settimeofday",
                                   "clock_settime",
                                   "adjtimex",
                                   "clock_adjtime",
                                   "sethostname",
                                   "setdomainname",
                                   "iopl",
                                   "ioperm",
                                   "syslog",
                                   "lookup_dcookie",
                                   "nfsservctl",
                                   "vhangup",
                                   "fanotify_init",
                                   "uselib",
                                   "modify_ldt",
                                   "personality"};

void check(int result, const char* what) {
  if (result == 0) return;
  errno = -result;
  throw_errno("seccomp filter", what);
}

void deny(scmp_filter_ctx context, const char* name, int error) {
  const int number = ::seccomp_syscall_resolve_name(name);
  if (number == __NR_SCMP_ERROR) return;  // newer than this libseccomp, or not on this machine
  const int result =
      ::seccomp_rule_add(context, SCMP_ACT_ERRNO(static_cast<uint16_t>(error)), number, 0);
  if (result != -EDOM) check(result, name);
}

}  // namespace

Fd seccomp_filter() {
  const std::unique_ptr<void, void (*)(void*)> context(::seccomp_init(SCMP_ACT_ALLOW),
                                                       ::seccomp_release);
  if (context == nullptr)
    throw EnvironmentError("box_unavailable", "libseccomp: no filter context");
  for (const char* name : kForbidden) deny(context.get(), name, EPERM);
  for (const char* name : {"io_uring_setup", "io_uring_enter", "io_uring_register", "clone3"}) {
    deny(context.get(), name, ENOSYS);  // clone3 hides its flags from filters; libc falls back
  }
  constexpr uint64_t kNamespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET |
                                   CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
  for (uint64_t flag = 1; flag != 0 && flag <= kNamespaces; flag <<= 1) {
    if ((kNamespaces & flag) == 0) continue;
    const scmp_arg_cmp has_flag{0, SCMP_CMP_MASKED_EQ, flag, flag};
    check(::seccomp_rule_add(context.get(), SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1, has_flag),
          "clone");
  }
  for (const int family : {AF_PACKET, AF_VSOCK, AF_ALG}) {
    const scmp_arg_cmp of_family{0, SCMP_CMP_EQ, static_cast<scmp_datum_t>(family), 0};
    check(::seccomp_rule_add(context.get(), SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
                             of_family),
          "socket");
  }
  Fd file(::memfd_create("seccomp", MFD_CLOEXEC));
  if (!file.valid()) throw_errno("memfd_create", "seccomp");
  check(::seccomp_export_bpf(context.get(), file.get()), "export");
  if (::lseek(file.get(), 0, SEEK_SET) != 0) throw_errno("lseek", "seccomp");
  return file;
}

}  // namespace cbench
