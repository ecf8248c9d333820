// The escape battery: a shell script inside the box prints one line per attempt; we judge outside.
#include "box/isolation.h"

#include <array>
#include <sstream>

#include <unistd.h>

#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

/// Each attempt prints "<name> ok" or "<name> bad <detail>". $1 = secret file, $2 = pid of the host
/// process, $3 = a directory of the host that is not mounted. Plain sh and coreutils only.
constexpr const char* kBattery = R"sh(
say() { if [ "$2" = 0 ]; then echo "$1 ok $3"; else echo "$1 bad $3"; fi; }
others=$(sed -n 's/^ *\([^:]*\):.*/\1/p' /proc/net/dev | grep -v '^lo$' | tr '\n' ' ')
[ -z "$others" ]; say network $? "interfaces besides lo: ${others:-none}"
routes=$(tail -n +2 /proc/net/route | wc -l)
[ "$routes" = 0 ]; say route $? "$routes routes"
pids=$(ls /proc | grep -c '^[0-9][0-9]*$')
[ "$pids" -lt 20 ]; say processes $? "$pids processes visible"
# Our parent has another pid here, so its number means nothing or something else.
[ "$(cat /proc/$2/cmdline 2>/dev/null | tr '\0' ' ' | cut -c1-200)" != "$4" ]; say host_process $? "host pid $2"
if cat "$1" >/dev/null 2>&1; then say secret 1 "read $1"; else say secret 0 "$1 is not there"; fi
bad=""
for d in / /usr /usr/bin /etc /dev /sys /proc/sys/kernel /root /home /var "$3"; do
  if ( : > "$d/cbench-escape-$$" ) 2>/dev/null; then bad="$bad $d"; rm -f "$d/cbench-escape-$$"; fi
done
[ -z "$bad" ]; say write_outside $? "writable:${bad:- nothing}"
found=""
for s in /var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock; do
  [ -e "$s" ] && found="$found $s"
done
[ -z "$found" ]; say container_socket $? "found:${found:- nothing}"
nnp=$(sed -n 's/^NoNewPrivs:[^0-9]*//p' /proc/self/status)
[ "$nnp" = 1 ]; say setuid $? "no_new_privs=$nnp"
caps=$(sed -n 's/^CapEff:[^0-9a-f]*//p' /proc/self/status)
[ "$caps" = 0000000000000000 ]; say capabilities $? "effective $caps"
seccomp=$(sed -n 's/^Seccomp:[^0-9]*//p' /proc/self/status)
[ "$seccomp" = 2 ]; say seccomp $? "mode $seccomp"
[ "$(id -u)" != 0 ]; say user $? "uid $(id -u)"
# On a directory of its own, and undone at once: a box that fails here must not harm the host.
mkdir -p "/tmp/cbench-mount-$$"; mount -t tmpfs none "/tmp/cbench-mount-$$" 2>/dev/null
[ $? != 0 ]; say mount $? "attempt to mount"
umount "/tmp/cbench-mount-$$" 2>/dev/null; rmdir "/tmp/cbench-mount-$$"
unshare --user true 2>/dev/null; [ $? != 0 ]; say namespaces $? "attempt to make a user namespace"
echo end
)sh";

constexpr std::array kNames = {
    "network",          "route",  "processes",    "host_process", "secret", "write_outside",
    "container_socket", "setuid", "capabilities", "seccomp",      "user",   "mount",
    "namespaces"};

std::string own_command_line() {
  std::string text = read_file("/proc/self/cmdline", 1u << 20).substr(0, 4096);
  for (char& c : text) {
    if (c == '\0') c = ' ';
  }
  return text.substr(0, 200);
}

}  // namespace

std::vector<IsolationCheck> isolation_report(BoxKind kind, const std::string& secret) {
  std::vector<IsolationCheck> checks;
  if (kind == BoxKind::kDirect) {
    // Nothing is tried: on the bare machine the attempts would succeed.
    for (const char* name : kNames)
      checks.push_back({name, false, "a direct box isolates nothing"});
    return checks;
  }
  const TempDir outside("cbench-isolation");
  std::string target = secret;
  if (target.empty()) {
    target = outside.path() + "/secret";
    write_file_atomic(target, "not for the box\n");
  }
  BoxSpec spec;
  spec.argv = {"/bin/sh",      "-c",
               kBattery,       "battery",
               target,         std::to_string(::getpid()),
               outside.path(), own_command_line()};
  spec.limits.processes = 64;
  const RunResult result = run_in_box(kind, spec, 30);

  for (const char* name : kNames) checks.push_back({name, false, "no answer from inside the box"});
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, outcome, detail;
    words >> name >> outcome;
    std::getline(words >> std::ws, detail);
    for (IsolationCheck& check : checks) {
      if (check.name == name) check = {name, outcome == "ok", printable(detail)};
    }
  }
  return checks;
}

}  // namespace cbench
