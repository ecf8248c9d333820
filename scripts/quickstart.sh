#!/bin/sh
# From a clone to a leaderboard: installs what is needed, builds cbench, lets the scripted agent compress
# the tiny model, and writes the report. Arguments go to `cbench run` after the task.
# Exit codes are those of `cbench run`: 1 when a gate failed.
set -eu
cd "$(dirname "$0")/.."
task=tiny-hybrid-6m_4m_standard_cpu
scripts/setup.sh

# Said now and not after the build. The same namespaces as a box of cbench.
bwrap --unshare-user --unshare-ipc --unshare-pid --unshare-uts --unshare-net --ro-bind / / \
  --proc /proc --dev /dev /usr/bin/true || {
  echo "quickstart: bubblewrap cannot make a sandbox here. Submissions run in one, so this machine" >&2
  echo "  cannot measure. A chroot never can (the kernel refuses user namespaces in it); a container" >&2
  echo "  needs --security-opt seccomp=unconfined --security-opt systempaths=unconfined; elsewhere" >&2
  echo "  user.max_user_namespaces must not be 0." >&2
  exit 3
}

cmake --preset release >/dev/null
cmake --build --preset release --target cbench
status=0
build/release/cbench run "$task" --agent baseline --runs-dir runs "$@" || status=$?
[ "$status" -le 1 ] || exit "$status"
build/release/cbench report --runs-dir runs --out runs
cat runs/leaderboard.csv
exit "$status"
