#!/bin/sh
# Installs what cbench needs on Debian 12: one apt line, nothing when all is there already.
# usage: scripts/setup.sh
set -eu

# ocl-icd-opencl-dev: the CMake files of libdnnl-dev ask for it, the package does not.
packages="build-essential cmake ninja-build pkg-config git ca-certificates
  libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libspdlog-dev libcurl4-openssl-dev libzstd-dev
  zlib1g-dev libssl-dev libpcre2-dev libutf8proc-dev libdnnl-dev ocl-icd-opencl-dev libseccomp-dev libtomlplusplus-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  bubblewrap python3 poppler-utils"

missing=""
for package in $packages; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
  echo "setup: everything is installed"
  exit 0
fi

as_root=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: run as root, or install sudo; missing:$missing" >&2; exit 3; }
  as_root=sudo
fi
echo "setup: installing$missing"
$as_root apt-get update -qq
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
