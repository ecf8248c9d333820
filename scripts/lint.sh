#!/usr/bin/env bash
# Checks formatting with clang-format; with --tidy also runs clang-tidy over src/ (slow).
# usage: scripts/lint.sh [--tidy]
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-format >/dev/null || { echo "lint: clang-format is not installed; skipped" >&2; exit 0; }
git ls-files 'src/*.h' 'src/*.cpp' 'include/*.h' 'kernels/*.h' 'kernels/*.cpp' 'tests/*.h' 'tests/*.cpp' \
  'examples/*.cpp' | xargs clang-format --dry-run --Werror
if [ "${1:-}" = --tidy ]; then
  git ls-files 'src/*.cpp' | xargs -P "$(nproc)" -n 4 clang-tidy -p build/release --quiet
fi
