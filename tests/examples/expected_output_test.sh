#!/bin/bash
# An example prints what its folder says it prints. Arguments: the expected output, the program and its arguments.
# On the CUDA driver, how many shards there are and where they run depends on the machine and is not compared.
# Exit status 77: skipped, there is no GPU.
set -u
expected=$1
shift
"$@" > "$TEST_TMPDIR/got" 2> "$TEST_TMPDIR/err"
code=$?
cat "$TEST_TMPDIR/err" >&2
if [ $code != 0 ]; then
    grep -q 'MUSTER_NO_DRIVER\|MUSTER_NO_DEVICE' "$TEST_TMPDIR/err" && echo "SKIPPED: no CUDA device" && exit 77
    echo "FAILED: $*: exit $code"
    exit 1
fi
case " $* " in
*cuda*) place='s/[0-9]* shards*, from device [0-9]*/shards/' ;;
*) place= ;;
esac
diff <(sed "$place" "$expected") <(sed "$place" "$TEST_TMPDIR/got") && echo "as expected"
