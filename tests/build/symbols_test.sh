#!/bin/bash
# libmuster.so exports what muster.h declares, all of it under a version, and nothing else.
set -euo pipefail
library=$1 header=$2
LC_ALL=C
exported=$(nm -D --defined-only --format=posix "$library" | awk '$2 != "A" { print $1 }' | sort)
declared=$(grep -v '^ *#' "$header" | tr '\n' ' ' | grep -oE 'MUSTER_API [^;(]*\(' | sed -E 's/.*[ *](muster_[a-z0-9_]+)\(/\1/' | sort)
[ -n "$declared" ] || { echo "no MUSTER_API declaration found in $header"; exit 1; }

status=0
while read -r symbol; do
    case $symbol in
    muster_*@@MUSTER_[0-9]*) ;;
    *) echo "exported, but not a versioned muster_* symbol: $symbol" && status=1 ;;
    esac
done <<<"$exported"
difference=$(diff <(sed 's/@.*//' <<<"$exported") <(echo "$declared")) || {
    echo "exported (<) and declared in muster.h (>) differ:"
    echo "$difference"
    status=1
}
needed=$(readelf -d "$library" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p')
for name in $needed; do
    case $name in
    libc.so.* | libm.so.* | libjansson.so.* | libb2.so.* | ld-linux*) ;;
    libasan.so.* | libubsan.so.* | libtsan.so.* | libgcc_s.so.*) ;; # sanitizer builds
    *) echo "the library needs $name at run time" && status=1 ;;
    esac
done
echo "$(wc -l <<<"$declared") functions declared, $(wc -l <<<"$exported") exported; needs: $(tr '\n' ' ' <<<"$needed")"
exit $status
