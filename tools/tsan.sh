#!/usr/bin/env bash
# A stress run of kalosd under the thread sanitizer: fifty client processes, floods, clients that die in every state, and
# the native tests of what its threads share. Part of `make asan`. A race is a failure, and is printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=$PWD/build/tsan
reports=$build/reports
# Where addresses are laid out too randomly for the sanitizer's shadow memory, they are laid out plainly.
plainly=()
command -v setarch >/dev/null && setarch -R true 2>/dev/null && plainly=(setarch -R)

cmake -S . -B "$build" -G Ninja -DKALOS_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKALOS_SANITIZE=thread >/dev/null
cmake --build "$build" --parallel "${JOBS:-$(nproc)}" --target kalosd test_database test_writer replay_slot
rm -rf "$reports"
mkdir -p "$reports"
export TSAN_OPTIONS="log_path=$reports/race exitcode=66 ${TSAN_OPTIONS:-}"

"${plainly[@]}" "$build/native/test_database"
"${plainly[@]}" "$build/native/test_writer"
"${plainly[@]}" "$build/native/replay_slot" native/fuzz/corpus/slot

# Clients start kalosd by its name alone.
printf '#!/bin/sh\nexec %s %q "$@"\n' "${plainly[*]}" "$build/native/kalosd" >"$build/kalosd"
chmod +x "$build/kalosd"
KALOSD=$build/kalosd KALOS_CROWD_SECONDS=${STRESS_SECONDS:-30} \
  .venv/bin/python -m pytest -q tests/test_crowd.py tests/test_many_clients.py tests/crash/test_client_deaths.py

if [ -n "$(ls "$reports")" ]; then
  head -n 60 "$reports"/*
  echo "the thread sanitizer found races in kalosd: $reports" >&2
  exit 1
fi
echo "no race"
