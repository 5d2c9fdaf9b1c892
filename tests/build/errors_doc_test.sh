#!/bin/bash
# docs/errors.md has one row for each status of muster.h, in its order, with its id, recovery group and text, and no other.
# Arguments: muster.h and docs/errors.md.
set -euo pipefail
header=$1 document=$2
LC_ALL=C
# X(NAME, id, GROUP, "text") becomes | id | `MUSTER_NAME` | group | text |, with the names of muster_recovery_name.
wanted=$(sed -nE 's/^ *X\(([A-Z_]+), ([0-9]+), ([A-Z_]+), "([^"]*)"\).*/| \2 | `MUSTER_\1` | <\3> | \4 |/p' "$header" |
    sed 's/<NONE>/none/; s/<FIX_CALL>/fix your call/; s/<TRY_LATER>/try later/; s/<JOB_FAILED>/job failed/
         s/<DEVICE_LOST>/device lost/; s/<FATAL>/fatal/')
found=$(grep -E '^\| [0-9]+ \|' "$document")
[ -n "$wanted" ] || { echo "no status found in $header"; exit 1; }
rows=$(grep -cE '^ *X\([A-Z_]+, [0-9]+,' "$header")
[ "$rows" = "$(wc -l <<<"$wanted")" ] || { echo "$header has $rows statuses, of which not all are on one line"; exit 1; }
if ! difference=$(diff <(echo "$found") <(echo "$wanted")); then
    echo "$document (<) and $header (>) differ; make the rows of the document these:"
    echo "$difference"
    exit 1
fi
echo "$rows statuses documented"
