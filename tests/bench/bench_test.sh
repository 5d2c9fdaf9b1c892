#!/bin/bash
# Each bench given runs on the simulator without execution, with little of everything: its text has rows, and its JSON is JSON as
# far as brackets tell. Figures are not looked at.
set -euo pipefail
for bench in "$@"; do
    name=$(basename "$bench")
    "$bench" --driver null --quick >text || { echo "$name fails"; exit 1; }
    [ "$(wc -l <text)" -ge 3 ] || { echo "$name prints no row:"; cat text; exit 1; }
    cat text
    "$bench" --driver null --quick --json >json || { echo "$name --json fails"; exit 1; }
    head -c 1 json | grep -q '{' && tail -n 1 json | grep -qx '\]}' || { echo "$name prints no JSON:"; cat json; exit 1; }
    [ "$(tr -cd '{' <json | wc -c)" = "$(tr -cd '}' <json | wc -c)" ] || { echo "$name's JSON is unbalanced"; exit 1; }
    ! grep -qE '(nan|inf)[,}]' json || { echo "$name's JSON has what is no number:"; cat json; exit 1; }
    if "$bench" --no-such-option >/dev/null 2>&1; then echo "$name takes any option"; exit 1; fi
done
echo "$# benches"
