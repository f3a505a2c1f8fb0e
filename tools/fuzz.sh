#!/usr/bin/env bash
# Fuzzes the parsers of kalosd with libFuzzer under the address and undefined-behaviour sanitizers: `make fuzz`.
#
#   FUZZ_SECONDS   for each target (300)
#   FUZZ_TARGETS   which ones (all: message slot control filter json)
#   FUZZ_KEEP=1    add what was newly reached to the corpus in native/fuzz/corpus, smallest inputs first
#
# A finding ends the run: its input lies in build/fuzz/findings, and the words say how to run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${FUZZ_SECONDS:-300}
read -ra targets <<<"${FUZZ_TARGETS:-message slot control filter json}"
build=build/fuzz
corpus=native/fuzz/corpus

fuzzes() { # COMPILER: does it link libFuzzer?
  command -v "$1" >/dev/null && echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    "$1" -x c++ - -fsanitize=fuzzer,address -o /dev/null 2>/dev/null
}

compiler=
find_compiler() {
  for name in ${CLANGXX:-} clang++ clang++-{20,19,18,17,16,15,14}; do
    if fuzzes "$name"; then
      compiler=$name
      return 0
    fi
  done
  return 1
}

if ! find_compiler; then
  if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
    echo "installing clang with apt-get"
    apt-get update -qq
    version=$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      "clang-$version" "libclang-rt-$version-dev" >/dev/null
  fi
  if ! find_compiler; then
    echo "make fuzz needs clang++ with libFuzzer (on Debian: clang-14 and libclang-rt-14-dev); CLANGXX=… names another" >&2
    exit 1
  fi
fi

cmake -S . -B "$build" -G Ninja -DKALOS_FUZZ=ON -DKALOS_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_C_COMPILER="${compiler/clang++/clang}" -DCMAKE_CXX_COMPILER="$compiler" >/dev/null
cmake --build "$build" --parallel "$(nproc)"

fuzz() { # TARGET
  local own=$build/corpus/$1 findings=$build/findings/$1-
  mkdir -p "$own" "$build/findings"
  if ! "$build/native/fuzz_$1" -max_total_time="$seconds" -max_len=8192 -timeout=60 -rss_limit_mb=4096 \
    -artifact_prefix="$findings" -print_final_stats=1 "$own" "$corpus/$1" >"$build/$1.log" 2>&1; then
    tail -n 40 "$build/$1.log"
    echo "fuzz_$1 found something: the input lies in $build/findings; again with $build/native/fuzz_$1 FILE" >&2
    return 1
  fi
  echo "fuzz_$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$1.log") inputs in $seconds s, clean"
}

code=0
running=()
for target in "${targets[@]}"; do
  fuzz "$target" &
  running+=($!)
  if [ ${#running[@]} -ge "$(nproc)" ]; then
    wait "${running[0]}" || code=1
    running=("${running[@]:1}")
  fi
done
for pid in "${running[@]}"; do wait "$pid" || code=1; done

if [ "$code" -eq 0 ] && [ -n "${FUZZ_KEEP:-}" ]; then
  for target in "${targets[@]}"; do
    "$build/native/fuzz_$target" -set_cover_merge=1 -max_len=4096 "$corpus/$target" "$build/corpus/$target" >/dev/null 2>&1
    echo "native/fuzz/corpus/$target: $(find "$corpus/$target" -type f | wc -l) inputs"
  done
fi
exit $code
