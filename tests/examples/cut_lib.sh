# For the tests of the examples that cut a dispatch over all devices: the machines to run them on, and expectations. To be sourced, with
# the arguments of the test: PROGRAM [DRIVER].
set -u
export LC_ALL=C
unset MUSTER_DRIVER MUSTER_SIM MUSTER_ACTORS_PER_DEVICE
program=$PWD/$1 driver=${2:-sim} name=$(basename "$1")
dir=${TEST_TMPDIR:-$(mktemp -d)}/$name
mkdir -p "$dir" && cd "$dir" || exit 1
failed=0
case $driver in
sim) machines=('--devices 1' '--devices 3' '--devices 8' '--devices 2 --actors 2') ;;
*) machines=('--devices 1' '--devices 1 --actors 3' '--devices 1 --actors 8') ;;
esac

fail() {
    echo "FAILED: $*" >&2
    sed 's/^/  /' out err >&2
    failed=1
}

# expect STATUS TEXT OPTIONS... : the exit status, and a part of what is printed.
expect() {
    local status=$1 text=$2 got
    shift 2
    timeout 250 "$program" --driver "$driver" "$@" > out 2> err < /dev/null
    got=$?
    if [ $got != 0 ] && grep -q 'MUSTER_NO_DRIVER\|MUSTER_NO_DEVICE' err; then
        echo "SKIPPED: no CUDA device"
        exit 77
    fi
    if [ $got != "$status" ] || ! cat out err | grep -aqF -- "$text" || grep -aq 'Sanitizer\|runtime error' err; then
        fail "$name $*: exit $got, expected $status and '$text'"
    fi
}

# The ranges "A to B on device D" of the lines that begin with TEXT: from 0 to COUNT - 1, none empty, none left out.
expect_cover() { # TEXT COUNT
    grep "^$1" out | awk -v count="$2" '
        { for (i = 1; i < NF; i++) if ($i == "to") { if ($(i - 1) != next_one || $(i + 1) < next_one) bad = 1; next_one = $(i + 1) + 1 } }
        END { exit bad || next_one != count }' || fail "the ranges of '$1' do not cover $2"
}

finish() {
    [ $failed = 0 ] && echo "as expected"
    exit $failed
}
