#!/bin/bash
# Checks of the source text that need no build. One line for each: "ok <check>" or "FAILED <check>" after the findings.
#   tools/check.sh          all of them
#   tools/check.sh <check>  one: format headers layers links entries text
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cc' '*.inc')
mapfile -t headers < <(git ls-files --cached --others --exclude-standard '*.h')
mapfile -t documents < <(git ls-files --cached --others --exclude-standard '*.md')

# Formatted as .clang-format says.
check_format() { clang-format --dry-run -Werror "${sources[@]}"; }

# Every header compiles by itself. Generated headers and CUDA's are left to the build.
check_headers() {
    local header status=0 include=()
    [ -e /usr/local/cuda/include/cuda.h ] || include=(-Ithird_party/cuda)
    for header in "${headers[@]}"; do
        case $header in third_party/*) continue ;; esac
        gcc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -I. -I/usr/local/cuda/include "${include[@]}" \
            -fsyntax-only -x c - <<<"#include \"$header\"" || status=1
    done
    return $status
}

# Only device/, its tests and third_party/cuda know CUDA's header; muster_cuda.h is the application's own choice.
check_layers() {
    ! grep -nE '^ *# *include *[<"](cuda|cuda_runtime[a-z_]*|nvrtc|nvml)\.h[>"]' "${sources[@]}" /dev/null |
        grep -vE '^(device/|tests/|third_party/cuda/|muster_cuda\.h)'
}

# Relative links of the documents lead to something.
check_links() {
    local document target path status=0
    for document in "${documents[@]}"; do
        while read -r target; do
            path=${target%%#*}
            case $target in '' | '#'* | *://* | mailto:*) continue ;; esac
            case $path in /*) path=.$path ;; *) path=$(dirname "$document")/$path ;; esac
            [ -e "$path" ] || { echo "$document: no such file: $target" && status=1; }
        done < <(sed '/^```/,/^```/d; s/`[^`]*`//g' "$document" | grep -oE '\]\([^) ]+' | sed 's/^](//')
    done
    return $status
}

# docs/simulator.md names every entry that a fault plan can use.
check_entries() {
    local entry status=0
    while read -r entry; do
        grep -qF "\`$entry\`" docs/simulator.md || { echo "docs/simulator.md does not name $entry" && status=1; }
    done < <(sed -nE 's/^ *(REQUIRED|OPTIONAL)\(([a-z0-9_]+),.*/\2/p' device/driver_entries.h)
    return $status
}

# No tabs or trailing blanks in sources and documents, and no line over 120 columns where clang-format does not rule.
check_text() {
    local status=0
    grep -nP '[ \t]+$|\t' "${sources[@]}" /dev/null && status=1
    grep -nP '[ \t]+$' "${documents[@]}" /dev/null && status=1
    return $status
}

status=0
for check in ${1:-format headers layers links entries text}; do
    if "check_$check"; then
        echo "ok $check"
    else
        echo "FAILED $check"
        status=1
    fi
done
exit $status
