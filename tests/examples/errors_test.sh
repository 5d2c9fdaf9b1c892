#!/bin/bash
# What is wrong with a call of an example is named on stderr, and the exit status is 2 for a wrong command line and 1
# for what fails later; nothing is leaked (a sanitizer's report would change the exit status and show on stderr).
# Arguments: the quickstart and scan programs.
set -u
export LC_ALL=C
unset MUSTER_DRIVER MUSTER_SIM MUSTER_LIBCUDA
quickstart=$PWD/$1 scan=$PWD/$2
dir=${TEST_TMPDIR:-$(mktemp -d)}/errors
mkdir -p "$dir" && cd "$dir" || exit 1
failed=0

# expect STATUS TEXT COMMAND... : the exit status, and a part of what is on stderr.
expect() {
    local status=$1 text=$2 got
    shift 2
    "$@" > out 2> err < /dev/null
    got=$?
    if [ $got != "$status" ] || ! grep -aqF -- "$text" err || grep -aq 'Sanitizer\|runtime error' err; then
        echo "FAILED: $*: exit $got, expected $status and '$text'; stderr:" >&2
        sed 's/^/  /' err >&2
        failed=1
    fi
}
silent() { [ ! -s out ] || { echo "FAILED: prints results although it failed: $(head -1 out)" >&2 && failed=1; }; }

printf 'aab' > text
mkdir -p directory
for program in quickstart scan; do
    call=("${!program}")
    [ $program = scan ] && call+=(--pattern a text)
    expect 2 "unknown option --nonsense" "${call[@]}" --nonsense
    silent
    expect 2 "unknown option --driversim" "${call[@]}" --driversim
    expect 2 "option --driver needs a value" "${call[@]}" --driver
    expect 2 "option --devices needs a value" "${call[@]}" --devices
    expect 2 "option --actors needs a value" "${call[@]}" --actors
    expect 2 "--actors 0: expected a number from 1 to 16" "${call[@]}" --driver sim --actors 0
    expect 1 "actors_per_device" "${call[@]}" --driver sim --devices 3 --actors 16
    expect 2 "--driver nonsense: expected cuda, sim or auto" "${call[@]}" --driver nonsense
    expect 2 "--driver : expected cuda, sim or auto" "${call[@]}" --driver ''
    for number in 0 -1 x 2x '' 1.5 99999999999999999999 18446744073709551617 16777216G; do
        expect 2 "--devices $number: expected a number" "${call[@]}" --driver sim --devices "$number"
    done
    expect 1 "MUSTER_" env MUSTER_SIM='{"devices": 2}' "${call[@]}" --driver sim --devices 3
    silent
    expect 1 "MUSTER_INVALID_CONFIG" "${call[@]}" --driver sim --devices 1000 # more than can be simulated
    silent
    expect 1 "MUSTER_INVALID_CONFIG" env MUSTER_SIM='{' "${call[@]}" --driver sim
    expect 1 "MUSTER_INVALID_CONFIG" env MUSTER_SIM='{"nonsense": 1}' "${call[@]}" --driver sim
    expect 1 "MUSTER_INVALID_CONFIG" env MUSTER_DRIVER=nonsense "${call[@]}"
    expect 1 "MUSTER_NO_DRIVER" env MUSTER_LIBCUDA=/nonexistent/libcuda.so "${call[@]}" --driver cuda
    grep -q '/nonexistent/libcuda.so' err || { echo "FAILED: the library is not named" >&2 && failed=1; }
    silent
    expect 1 "MUSTER_" "${call[@]}" --driver cuda --devices 1000 # no driver here, or fewer devices
    silent
    # Only "auto" takes the simulator instead, and says so.
    expect 0 "using the simulator, since there is no CUDA device" \
        env MUSTER_LIBCUDA=/nonexistent/libcuda.so "${call[@]}"
    expect 0 "running on 2 simulated devices" env MUSTER_SIM='{"devices": 2}' MUSTER_DRIVER=sim "${call[@]}"
    expect 0 "running on 1 simulated device," "${call[@]}" --driver=sim --devices=1
done
expect 2 "unknown option file" "$quickstart" file

expect 2 "no pattern given" "$scan" text
expect 2 "no file given" "$scan" --pattern a
expect 2 "option --pattern needs a value" "$scan" text --pattern
expect 2 "pattern 2 contains a newline" "$scan" --pattern a --pattern $'a\nb' text
silent
for option in --memory --chunk; do
    expect 2 "$option 0: expected a number" "$scan" --pattern a $option 0 text
    expect 2 "$option huge: expected a number" "$scan" --pattern a $option huge text
done
expect 2 "--chunk 1G: expected a number" "$scan" --pattern a --chunk 1G text

# The other files count, as with grep, and the exit status tells.
for pattern in a ''; do
    want="$pattern: $([ -n "$pattern" ] && echo 4 || echo 0)"
    expect 1 "scan: missing: No such file or directory" "$scan" --driver sim --pattern "$pattern" text missing text
    [ "$(cat out)" = "$want" ] || { echo "FAILED: not '$want' but '$(cat out)'" >&2 && failed=1; }
    expect 1 "scan: directory: Is a directory" "$scan" --driver sim --pattern "$pattern" directory text text
    [ "$(cat out)" = "$want" ] || { echo "FAILED: not '$want' but '$(cat out)'" >&2 && failed=1; }
    expect 1 "scan: missing: No such file or directory" "$scan" --driver sim --pattern "$pattern" missing
done
cp text unreadable && chmod 000 unreadable
if [ -r unreadable ]; then
    echo "SKIPPED: a file without read permission (this user may read it all the same)"
else
    expect 1 "scan: unreadable: Permission denied" "$scan" --driver sim --pattern a unreadable
fi
expect 1 "scan: standard output: No space left on device" \
    bash -c '"$0" --driver sim --pattern a text > /dev/full' "$scan"

[ $failed = 0 ] && echo "all errors are named"
exit $failed
