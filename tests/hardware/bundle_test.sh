#!/bin/bash
# Unpacks the bundle, as one would on another machine, and runs a few of its programs through run.sh.
set -euo pipefail
bundle=$PWD/$1
limit_bytes=$((60 << 20))
bytes=$(stat -Lc %s "$bundle")
[ "$bytes" -lt $limit_bytes ] || { echo "the bundle has $bytes bytes, over $limit_bytes"; exit 1; }

cd "$TEST_TMPDIR"
tar xzf "$bundle"
OUT=$PWD/logs muster/run.sh tests 'tests/base/(error|log)_test' | tee table
[ "$(tail -n 1 table)" = '2 passed, 0 failed, 0 skipped' ]
[ -s logs/tests_base_error_test.log ]

echo "-- a program that fails is counted and its log shown"
printf '#!/bin/bash\necho reason; exit 3\n' >muster/root/failing
printf '#!/bin/bash\necho "no device"; exit 77\n' >muster/root/skipping
chmod +x muster/root/failing muster/root/skipping
printf 'tests|failing|5||\ntests|skipping|5||\n' >>muster/programs
if OUT=$PWD/logs muster/run.sh tests 'failing|skipping' >table; then echo "a failure must show in the exit status"; exit 1; fi
cat table
grep -q '| reason' table
[ "$(tail -n 1 table)" = '0 passed, 1 failed, 1 skipped' ]
