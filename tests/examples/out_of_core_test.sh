#!/bin/bash
# The out-of-core example: right for every number of devices, in waves; everything goes up and home once; what cannot be cut is refused.
#
#   out_of_core_test.sh PROGRAM [DRIVER]
. "$(dirname "$0")/cut_lib.sh"

# Tables with a tail that is no multiple of a slice. A GPU's budget must also hold the kernels and what launches them fast.
case $driver in
sim) bytes=25165848 mib=24 budget=3M least=8 ;;
*) bytes=3221225496 mib=3072 budget=1G least=3 ;;
esac
for machine in "${machines[@]}"; do
    for memory in pageable pinned; do
        # shellcheck disable=SC2086 # a list of words
        expect 0 "; 0 of $((bytes / 8)) words are wrong" $machine --bytes $bytes --budget $budget --memory $memory
        grep -q "; $mib MiB up and $mib MiB home\$" out || fail "more than the table moved"
        waves=$(sed -n 's/ waves;.*//p' out)
        [ "${waves:-0}" -ge $least ] || fail "${waves:-no} waves are too few for $mib MiB with $budget a device"
    done
done
expect 0 "; 0 of 1 words are wrong" --bytes 8 --budget 1G
[ "$driver" != sim ] || expect 1 "MUSTER_UNCUTTABLE" --bytes 1M --budget 40K
expect 2 "--memory floppy: expected pageable or pinned" --memory floppy
finish
