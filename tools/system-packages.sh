#!/usr/bin/env bash
# Sees to what pip cannot install: a C++20 compiler, CMake, Ninja and the headers of SQLite and nlohmann-json.
# Installs what is missing with apt-get where that is allowed without a question; otherwise says what to install.
set -euo pipefail

missing=()

has_header() { # NAME: can the compiler see it?
  echo "#include <$1>" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1
}

command -v g++ >/dev/null || missing+=(g++)
command -v cmake >/dev/null || missing+=(cmake)
command -v ninja >/dev/null || missing+=(ninja-build)
has_header sqlite3.h || missing+=(libsqlite3-dev)
has_header nlohmann/json.hpp || missing+=(nlohmann-json3-dev)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)

[ ${#missing[@]} -eq 0 ] && exit 0

if command -v apt-get >/dev/null; then
  if [ "$(id -u)" -eq 0 ]; then
    sudo=()
  elif sudo -n true 2>/dev/null; then
    sudo=(sudo -n)
  else
    echo "make setup needs: ${missing[*]}. Install them with: sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "installing ${missing[*]} with apt-get"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  exit 0
fi

# Elsewhere CMake can fetch the two libraries itself, so only the tools are a must.
tools=()
for name in "${missing[@]}"; do
  case $name in
    libsqlite3-dev | nlohmann-json3-dev) echo "not installed: $name (its name on Debian); CMake will download its sources" >&2 ;;
    *) tools+=("$name") ;;
  esac
done
if [ ${#tools[@]} -gt 0 ]; then
  echo "make setup needs these (the names are Debian's): ${tools[*]}. Install them with your package manager." >&2
  exit 1
fi
