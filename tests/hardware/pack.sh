#!/bin/bash
# pack.sh MANIFEST RUN_SH OUTPUT: gathers the programs of a bundle, the libraries that a bare machine lacks, and run.sh.
# Manifest lines: kind|suite|path|short path|seconds|environment|arguments
set -euo pipefail
manifest=$1 run=$2 output=$3
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
root=$staging/muster
mkdir -p "$root/root" "$root/lib"

touch "$staging/libraries"
while IFS='|' read -r kind suite path short seconds environment arguments; do
    mkdir -p "$root/root/$(dirname "$short")"
    cp -Lf "$path" "$root/root/$short"
    chmod u+w "$root/root/$short"
    [ "$kind" = data ] || printf '%s|%s|%s|%s|%s\n' "$suite" "$short" "$seconds" "$environment" "$arguments" >>"$root/programs"
    if [ "$(head -c 4 "$path" | tail -c 3)" = ELF ]; then
        strip --strip-debug "$root/root/$short"
        ldd "$path" | awk '$2 == "=>" && $1 ~ /^lib(cmocka|jansson|ck|b2)\./ { print $3 }' >>"$staging/libraries"
    fi
done <"$manifest"

sort -u "$staging/libraries" | while read -r library; do cp -Lf "$library" "$root/lib/"; done
cp -Lf "$run" "$root/run.sh"
chmod 755 "$root/run.sh"
tar -C "$staging" --owner=0 --group=0 --mtime=@0 --sort=name -cf - muster | gzip -9n >"$output"
