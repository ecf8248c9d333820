#!/bin/bash
# Builds and runs every GPU test, the benches (beside transformers, where python3 has it) and the sanitizer
# pass on a machine with an H100 or H200, and prints one table.
#   scripts/gpu_check.sh [--build DIR] [--out DIR] [--binaries DIR] [--skip-sanitizer] [--quick] [--box KIND]
# --binaries DIR takes test_kernels, bench_kernels, bench_cuda_ops, test_gpu with its plugins, and cbench
# from there instead of building them. --box direct for machines without bubblewrap.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/gpu out=/tmp/gpu_check binaries="" sanitizer=1 quick=0 box=bwrap
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift ;;
    --out) out=$2; shift ;;
    --binaries) binaries=$2; shift ;;
    --skip-sanitizer) sanitizer=0 ;;
    --quick) quick=1 ;;
    --box) box=$2; shift ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$out"
: > "$out/table"
failures=0
# row NAME LOG COMMAND...: runs it, keeps the log, adds a line to the table.
row() {
  local name=$1 log=$out/$2; shift 2
  local start=$SECONDS status
  "$@" > "$log" 2>&1; status=$?
  [ $status -ne 0 ] && failures=$((failures + 1))
  printf '%-28s %-8s %4ds  %s\n' "$name" "$([ $status -eq 0 ] && echo ok || echo "FAIL $status")" \
    $((SECONDS - start)) "$(grep -E 'PASSED|FAILED  \]|ERROR SUMMARY|tests ran' "$log" | tail -1)" >> "$out/table"
}

nvidia-smi --query-gpu=name,driver_version,memory.used,clocks.sm,power.draw --format=csv,noheader \
  || { echo "no usable NVIDIA driver on this machine" >&2; exit 3; }
if [ -z "$binaries" ]; then
  generator=(); command -v ninja > /dev/null && generator=(-G Ninja)
  cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCBENCH_CUDA=ON \
    > "$out/configure.log" 2>&1 \
    && cmake --build "$build" -j --target test_kernels bench_kernels bench_cuda_ops test_gpu cbench > "$out/build.log" 2>&1 \
    || { tail -20 "$out/configure.log" "$out/build.log"; echo "the build failed" >&2; exit 3; }
  tests=$build/tests/test_kernels bench=$build/tests/bench/bench_kernels
  ops=$build/tests/bench/bench_cuda_ops
  engine=$build/tests/test_gpu cbench=$build/cbench
else
  tests=$binaries/test_kernels bench=$binaries/bench_kernels ops=$binaries/bench_cuda_ops
  engine=$binaries/test_gpu
  cbench=$binaries/cbench
  export CBENCH_TEST_BINARIES=$binaries
fi
export CBENCH_TEST_BOX=$box

row "GPU tests" tests.log "$tests" --gtest_brief=0
row "engine and evaluator" engine.log "$engine"
# compare CONFIG LOG: the public transformers implementation on the same shapes, beside LOG's rate.
compare() {
  local name; name=transformers-$(basename "$1" .json)
  if ! python3 -c 'import torch, transformers' 2> /dev/null; then
    printf '%-28s %-8s\n' "$name" "not run: no torch and transformers for python3" >> "$out/table"
    return
  fi
  row "$name" "$name.log" timeout 300 python3 "$root/scripts/score_transformers.py" "$1"
  local theirs ours
  theirs=$(grep -o '"tokens_per_second": [0-9.]*' "$out/$name.log" | grep -o '[0-9.]*$')
  ours=$(sed -n 's/^scoring .*: \([0-9]*\) tok\/s$/\1/p' "$2")
  awk -v a="${ours:-0}" -v b="${theirs:-0}" 'BEGIN { if (a > 0 && b > 0)
    printf "%-28s %.0f tok/s against %.0f: %.2f times\n", "  scoring, ours to theirs", a, b, a / b }' \
    >> "$out/table"
}
row "single ops" ops.log "$ops"
cat "$out/ops.log"
flags=(); [ $quick = 1 ] && flags=(--seconds 1 --tokens 8192 --steps 64)
for config in "$root"/tasks/configs/qwen3.8-27b.json; do
  row "bench $(basename "$config" .json)" "bench-$(basename "$config" .json).log" "$bench" "$config" "${flags[@]}"
  cat "$out/bench-$(basename "$config" .json).log"
  log=evaluator-$(basename "$config" .json).log
  row "evaluator $(basename "$config" .json)" "$log" "$cbench" bench --evaluator --model "$config" \
    --device cuda --box "$box" --blocks $([ $quick = 1 ] && echo 64 || echo 256)
  cat "$out/$log"
  compare "$config" "$out/$log"
done
if [ $sanitizer = 1 ] && command -v compute-sanitizer > /dev/null; then
  # One shape of everything: the tools are 10 to 100 times slower.
  few='*/1x5120x1000:*130x512*:GateUp*:LowRank*:Rows.Norm*:*/24q4kv256*:*4q2kv32*:*6q2kv80*:*8q1kv512*:*Experts*2of8w64*:*Experts*3of6w20*:PluginExperts*:*Route*/22of512*:*Route*/6of64w128*:*Mamba2*/4h64x128g2c4:*Mamba2*/4h40x24*:Residual*:*2k6v128x128c4_0:*1k2v16x32c4_0:*GpuGolden.*/qwen3_5_tied:GpuPlugin*:ScoreRows*:SampleRows*'
  for tool in memcheck racecheck initcheck; do
    row "compute-sanitizer $tool" $tool.log timeout 900 compute-sanitizer --tool $tool \
      --error-exitcode 9 "$tests" --gtest_filter="$few"
  done
fi
echo; cat "$out/table"
exit $((failures > 0))
