#!/bin/bash
# The sharded saxpy: exact for every number of devices and every tail, and each element on one device.
#
#   saxpy_test.sh PROGRAM [DRIVER]
. "$(dirname "$0")/cut_lib.sh"

for machine in "${machines[@]}"; do
    for count in 1 255 256 257 2047 100003; do
        # shellcheck disable=SC2086 # a list of words
        expect 0 "; 0 of $count elements of y are wrong" $machine --count $count
        expect_cover saxpy $count
        expect_cover dot $count
        # The second dispatch ran where the first had left its data.
        [ "$(sed -n 's/^saxpy *//p' out)" = "$(sed -n 's/^dot *//p' out)" ] || fail "dot is not where saxpy was"
    done
done
# 100003 elements are 391 blocks: a shard for each device.
if [ "$driver" = sim ]; then
    expect 0 "on device 7" --devices 8 --count 100003
    [ "$(grep -c '^saxpy' out)" = 8 ] || fail "not 8 shards"
fi
expect 2 "--count 0: expected a number" --count 0
expect 2 "unknown option --size" --size 3
expect 0 "--count N" --help
finish
