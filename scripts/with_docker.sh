#!/usr/bin/env bash
# Runs a command with a docker engine of its own, on a socket and in directories that only it uses, and
# with the image of scripts/box_image.py in it (CBENCH_IMAGE). Ends the engine and removes everything
# afterwards. Engines that run here already are left alone.
# usage: scripts/with_docker.sh CBENCH-BINARY COMMAND [ARGUMENT ...]
# Exit 77, with the reason, where no engine can be started: not root, no dockerd, a kernel without what
# it needs.
set -uo pipefail
skip() { echo "SKIPPED: no docker engine here: $*" >&2; exit 77; }

here=$(cd "$(dirname "$0")" && pwd)
program=$1
shift
[ "$(id -u)" -eq 0 ] || skip "this is not root"
for needed in dockerd containerd runc docker python3; do
  command -v "$needed" >/dev/null || skip "$needed is not installed (apt install docker.io)"
done

# The root is memory: overlayfs works on it wherever this runs, and it can be filled without harm.
root=$(mktemp -d "${TMPDIR:-/tmp}/cbench-docker.XXXXXX")
engine=""
finish() {
  if [ -n "$engine" ]; then
    kill "$engine" 2>/dev/null
    wait "$engine" 2>/dev/null
  fi
  umount -l "$root/data" 2>/dev/null
  rm -rf "$root"
}
trap finish EXIT
trap 'exit 130' INT TERM
mkdir "$root/data"
mount -t tmpfs -o size=3g cbench-docker "$root/data" || skip "no tmpfs can be mounted"

export DOCKER_HOST="unix://$root/docker.sock"
export CBENCH_DOCKER_ROOT="$root/data"  # for the test that fills it
unset DOCKER_CONTEXT DOCKER_TLS_VERIFY DOCKER_CERT_PATH
dockerd --host "$DOCKER_HOST" --data-root "$root/data" --exec-root "$root/exec" \
  --pidfile "$root/pid" --bridge=none --iptables=false --ip-masq=false >"$root/log" 2>&1 &
engine=$!
for _ in $(seq 300); do
  docker version >/dev/null 2>&1 && break
  kill -0 "$engine" 2>/dev/null || break
  sleep 0.1
done
docker version >/dev/null 2>&1 || skip "dockerd does not start: $(tail -n 5 "$root/log")"

python3 "$here/box_image.py" --tag cbench-box "$program" >"$root/image" || {
  echo "with_docker: the image cannot be made" >&2
  exit 1
}
export CBENCH_IMAGE=cbench-box
"$@"
