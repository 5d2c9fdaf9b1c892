#!/bin/bash
# Installs what building Muster needs and this Debian or Ubuntu machine lacks; asks nothing, changes nothing else.
#   tools/setup.sh         compiler, Bazel, libraries
#   tools/setup.sh --all   also clang, clang-format and what .ci/run uses
set -euo pipefail

packages=(bazel-bootstrap g++ gcc libb2-dev libck-dev libcmocka-dev libjansson-dev)
case ${1:-} in
'') ;;
--all) packages+=(binutils clang clang-format git llvm python3) ;;
*) echo "usage: tools/setup.sh [--all]" >&2 && exit 2 ;;
esac

# Another Bazel will do as well.
if command -v bazel >/dev/null; then packages=("${packages[@]/bazel-bootstrap/}"); fi

missing=()
for package in "${packages[@]}"; do
    [ -z "$package" ] || dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
        missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo); fi
if ! command -v apt-get >/dev/null; then
    echo "tools/setup.sh: no apt-get here; install the equivalents of: ${missing[*]}" >&2
    exit 1
fi
echo "installing ${missing[*]}" >&2
"${as_root[@]}" apt-get update -qq </dev/null >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    </dev/null >&2
