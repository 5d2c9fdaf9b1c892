#!/bin/bash
# An example prints what its folder says it prints. Arguments: the expected output, the program and its arguments.
set -u
expected=$1
shift
"$@" > "$TEST_TMPDIR/got" || { echo "FAILED: $*: exit $?" && exit 1; }
diff "$expected" "$TEST_TMPDIR/got" && echo "as expected"
