#!/usr/bin/env bash
# Installs what is needed, builds, and runs every test that this machine can run; then the parsers of
# untrusted bytes again under the address and undefined-behaviour sanitizers.
# usage: scripts/test.sh [--no-sanitize]
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi

cmake --preset release "${launcher[@]}" >/dev/null
cmake --build --preset release
ctest --test-dir build/release --output-on-failure --no-tests=error
# ctest hides why a test was skipped.
grep -h '^SKIPPED:' build/release/Testing/Temporary/LastTest.log || true

if [ "${1:-}" != --no-sanitize ]; then
  # The modules that read what an adversary wrote.
  targets=(test_util test_text test_package test_task test_model)
  cmake --preset sanitize "${launcher[@]}" >/dev/null
  cmake --build --preset sanitize --target "${targets[@]}"
  ASAN_OPTIONS=detect_leaks=0 ctest --test-dir build/sanitize --output-on-failure --no-tests=error \
    -R "^($(IFS='|'; echo "${targets[*]#test_}"))$"
fi
