#!/bin/sh
# From a clone to a leaderboard: installs what is needed, builds cbench, lets the scripted agent compress
# the tiny model, and writes the report. Arguments go to `cbench run` after the task.
set -eu
cd "$(dirname "$0")/.."
task=tiny-hybrid-6m_4m_standard_cpu
scripts/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release --target cbench
build/release/cbench run "$task" --agent baseline --runs-dir runs "$@"
build/release/cbench report --runs-dir runs --out runs
cat runs/leaderboard.csv
