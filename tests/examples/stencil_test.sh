#!/bin/bash
# The stencil: the CPU's cells, bit for bit, for every number of devices; only halos move from step to step; the picture.
#
#   stencil_test.sh PROGRAM [DRIVER]
. "$(dirname "$0")/cut_lib.sh"

pictures=0
for machine in "${machines[@]}"; do
    # shellcheck disable=SC2086 # a list of words
    expect 0 "0 of 7488 cells differ" $machine --width 96 --height 78 --steps 120 --output wave.ppm
    expect_cover rows 78
    shards=$(grep -c '^rows' out)
    halos=$((2 * (shards - 1) * 96 * 4))
    grep -q "^each of the 118 after: 0 from the host, $halos from other devices, 0 home; the halos are $halos\$" out ||
        fail "more than halos moved on $machine"
    [ "$(head -c 13 wave.ppm | tr '\n' ' ')" = 'P6 96 78 255 ' ] || fail "wave.ppm is no picture"
    [ "$(stat -c %s wave.ppm)" = $((13 + 3 * 7488)) ] || fail "wave.ppm has another size"
    [ $pictures = 0 ] || cmp -s wave.ppm first.ppm || fail "the picture of $machine is another"
    cp wave.ppm first.ppm
    pictures=$((pictures + 1))
done

# A fast device among slow ones has more rows, in several shards, between which nothing moves.
if [ "$driver" = sim ]; then
    MUSTER_SIM='{"devices": [{"preset": "H200"}, {"preset": "L4"}]}' \
        expect 0 "0 of 7488 cells differ" --width 96 --height 78 --steps 20 --output /dev/null
    expect_cover rows 78
    [ "$(grep -c 'on device 0$' out)" -gt 1 ] || fail "the fast device has one shard"
    grep -q "^each of the 18 after: 0 from the host, 768 from other devices, 0 home; the halos are 768\$" out ||
        fail "more than halos moved between unlike devices"
fi

# Devices without access to each other exchange halos by way of the host.
if [ "$driver" = sim ]; then
    MUSTER_SIM='{"devices": 3, "peers": "none"}' \
        expect 0 "0 of 7488 cells differ" --width 96 --height 78 --steps 20 --output /dev/null
    grep -q "^each of the 18 after: 1536 from the host, 0 from other devices, 1536 home; the halos are 1536\$" out ||
        fail "without peers"
fi
expect 0 "0 of 1320 cells differ" --width 33 --height 40 --steps 5 --output /dev/null
expect 1 "missing/wave.ppm: No such file or directory" --width 32 --height 32 --steps 4 --output missing/wave.ppm
expect 2 "--width 31: expected a number" --width 31
finish
