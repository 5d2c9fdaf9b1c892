#!/bin/bash
# The devices example: every answer a preflight can give, its JSON, and what is wrong on the command line.
#
#   devices_test.sh PROGRAM
set -u
export LC_ALL=C
unset MUSTER_DRIVER MUSTER_SIM MUSTER_LIBCUDA
devices=$PWD/$1
dir=${TEST_TMPDIR:-$(mktemp -d)}/devices
mkdir -p "$dir" && cd "$dir" || exit 1
failed=0

# expect STATUS TEXT OPTIONS... : the exit status, and a part of what is printed.
expect() {
    local status=$1 text=$2 got
    shift 2
    "$devices" "$@" > out 2> err < /dev/null
    got=$?
    if [ $got != "$status" ] || ! cat out err | grep -aqF -- "$text" || grep -aq 'Sanitizer\|runtime error' err; then
        echo "FAILED: devices $*: exit $got, expected $status and '$text'" >&2
        sed 's/^/  /' out err >&2
        failed=1
    fi
}
lines() { # COUNT TEXT
    [ "$(grep -acF -- "$2" out)" = "$1" ] || { echo "FAILED: not $1 lines with '$2'" >&2 && failed=1; }
}

expect 0 "NVIDIA H200 (simulated), compute capability 9.0" --driver sim --devices 3
lines 3 "device "
lines 0 "this launch"
expect 0 "this launch     yes" --driver sim --grid 7,5,3 --block 32,4 --shared 100K
lines 2 "grid=[7, 5, 3]|block=[32, 4, 1]|grid_blocks=105|threads_per_block=128|dynamic_shared_bytes=102400"
expect 0 "this launch     yes: 1056 blocks of at most 1056" --driver sim --grid 1056 --cooperative
expect 0 "MUSTER_COOPERATIVE_TOO_LARGE" --driver sim --grid 1057 --cooperative
expect 0 "MUSTER_INVALID_GEOMETRY" --driver sim --block 1025
lines 2 "fix=threads_per_block(requested=1025,max=1024)"
expect 0 "MUSTER_INVALID_GEOMETRY" --driver sim --grid 0
expect 0 "MUSTER_INVALID_GEOMETRY" --driver sim --shared 1M
export MUSTER_SIM='{"devices": [{"preset": "H200", "cooperative": false}, {"preset": "L4"}]}'
expect 0 "cannot synchronise as a whole" --driver sim --devices 2 --cooperative
lines 1 "this launch     no: 1 blocks of at most 0"
lines 1 "this launch     yes"
unset MUSTER_SIM

expect 0 '"answer": "no"' --driver sim --devices 2 --json --cooperative --grid 100000
if command -v python3 > /dev/null; then
    python3 - out << 'END' || { echo "FAILED: the JSON is not what it should be" >&2 && failed=1; }
import json, sys
root = json.load(open(sys.argv[1]))
assert [d["device"] for d in root["devices"]] == [0, 1]
for d in root["devices"]:
    assert d["simulated"] and d["multiprocessors"] == 132 and len(d["uuid"]) == 32
    p = d["preflight"]
    assert p["status"] == "MUSTER_COOPERATIVE_TOO_LARGE" and p["grid_blocks"] == 100000 and p["resident_limit"] == 1056
    assert "\n" not in p["line"] and p["line"].startswith("cuda-kernel-capability-v1|kernel=shape|")
END
else
    echo "SKIPPED: reading the JSON (no python3)"
fi

for shape in "" x 1, ,1 1,2,3,4 -1 4294967296 "1 2"; do
    expect 2 "--grid $shape: expected X, X,Y or X,Y,Z" --driver sim --grid "$shape"
done
expect 2 "--shared no: expected a number" --driver sim --shared no
expect 2 "option --block needs a value" --driver sim --block
expect 2 "unknown option --nonsense" --nonsense
[ $failed = 0 ] && echo "all answers are as expected"
exit $failed
