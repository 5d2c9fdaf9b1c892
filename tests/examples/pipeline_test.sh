#!/bin/bash
# The pipeline example: results against the CPU, OpenSSL and zlib, whatever the chunks and the ring; a device that is lost on the way;
# and what is wrong with files and on the command line.
#
#   pipeline_test.sh PROGRAM [DRIVER]
set -u
export LC_ALL=C
unset MUSTER_DRIVER MUSTER_SIM
pipeline=$PWD/$1 driver=${2:-sim}
dir=${TEST_TMPDIR:-$(mktemp -d)}/pipeline
mkdir -p "$dir/out" "$dir/back" && cd "$dir" || exit 1
failed=0
fail() {
    echo "FAILED: $*" >&2
    failed=1
}

# expect STATUS TEXT OPTIONS... : the exit status, and a part of what is printed.
expect() {
    local status=$1 text=$2 got
    shift 2
    timeout 120 "$pipeline" "$@" > printed 2> err < /dev/null
    got=$?
    if [ $got != "$status" ] || ! cat printed err | grep -aqF -- "$text" || grep -aq 'Sanitizer\|runtime error' err; then
        fail "pipeline $*: exit $got, expected $status and '$text'"
        sed 's/^/  /' printed err >&2
    fi
}

head -c 300000 /dev/urandom > noise
: > empty
printf 'x' > one
head -c 65536 noise > exact
seq 1 30000 > lines

expect 0 "noise.chacha20: 300000 bytes" --driver "$driver" --output out --chunk 16K --verify noise empty one exact lines
if grep -q 'MUSTER_NO_DRIVER\|MUSTER_NO_DEVICE' err; then
    echo "SKIPPED: no CUDA device"
    exit 77
fi
grep -q '^empty.chacha20: 0 bytes, adler32 00000001, entropy 0.000$' printed || fail "an empty file"
[ "$(wc -l < printed)" = 5 ] || fail "a line a file"
[ -f out/empty.chacha20 ] && [ ! -s out/empty.chacha20 ] || fail "the result of an empty file"
cp printed first
key=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
index=0
for file in noise empty one exact lines; do
    if openssl enc -chacha20 -K $key -iv "00000000$(printf %02x $index)0000000000000000000000" -in $file > want 2> /dev/null; then
        cmp -s want out/$file.chacha20 || fail "$file is not what OpenSSL makes of it"
    else
        echo "SKIPPED: comparing $file with OpenSSL (no chacha20 there)"
    fi
    if command -v python3 > /dev/null; then
        sum=$(python3 -c "import sys, zlib; print('%08x' % zlib.adler32(open(sys.argv[1], 'rb').read()))" out/$file.chacha20)
        grep -q "^$file.chacha20: .* adler32 $sum," first || fail "the checksum of $file is not $sum"
    else
        echo "SKIPPED: comparing $file with zlib (no python3)"
    fi
    index=$((index + 1))
done

# The same whatever the shape of the work.
for shape in "--chunk 64" "--chunk 1000 --ring 1" "--chunk 64K --ring 3" "--chunk 100K --ring 64" "--devices 1"; do
    files="noise empty one exact lines"
    [ "$shape" = "--chunk 64" ] && head -c 5000 lines > few && files=few
    expect 0 "bytes" --driver "$driver" --output back --verify $shape $files
    [ "$shape" = "--chunk 64" ] && continue
    cmp -s first printed || fail "$shape gives other results"
    for file in $files; do cmp -s out/$file.chacha20 back/$file.chacha20 || fail "$shape: $file differs"; done
done

# There and back, from a pipe, with a key of its own.
expect 0 "stdin.chacha20: 0 bytes" --driver "$driver" --output out /dev/stdin
expect 0 "bytes" --driver "$driver" --output out --key ${key//0/a} --nonce 0102030405060708090a0bff noise
expect 0 "bytes" --driver "$driver" --output back --key ${key//0/A} --nonce 0102030405060708090a0bff out/noise.chacha20
cmp -s noise back/noise.chacha20.chacha20 || fail "decrypting does not give the file back"
cat noise | timeout 120 "$pipeline" --driver "$driver" --output back --chunk 7K --stats /dev/stdin > printed 2> err
[ "$(sed 's/stdin/noise/' printed)" = "$(head -1 first)" ] || fail "a pipe is not read as the file: $(cat printed err)"
grep -q 'chunks under way' err || fail "--stats says nothing of what overlapped"

if [ "$driver" = sim ]; then
    for nth in 3 20 40; do
        export MUSTER_SIM='{"devices": 3, "faults": [{"kind": "lose", "device": 1, "nth": '$nth'}]}'
        expect 0 "bytes" --driver sim --output back --chunk 8K --verify noise empty one exact lines
        cmp -s first printed || fail "other results when a device is lost at its launch $nth"
    done
    export MUSTER_SIM='{"faults": [{"kind": "lose", "nth": 9}]}'
    expect 1 "no device of this runtime is left" --driver sim --output back --chunk 8K noise
    [ ! -e back/noise.chacha20 ] || fail "a result that is not whole stays"
    unset MUSTER_SIM
fi

# The other files are done, and the exit status tells.
expect 1 "missing: No such file or directory" --driver "$driver" --output out missing one
grep -q '^one' printed || fail "a missing file ends the others"
mkdir -p directory
expect 1 "directory: Is a directory" --driver "$driver" --output out directory one
expect 1 "nowhere/one.chacha20: No such file or directory" --driver "$driver" --output nowhere one
expect 1 "one/one.chacha20: Not a directory" --driver "$driver" --output one one
if [ -w /dev/full ]; then
    ln -sf /dev/full out/lines.chacha20
    expect 1 "out/lines.chacha20: No space left on device" --driver "$driver" --output out --chunk 16K lines one
    grep -q '^one' printed || fail "a file that cannot be written ends the others"
    timeout 120 "$pipeline" --driver "$driver" --output out one > /dev/full 2> err
    [ $? = 1 ] && grep -q 'standard output: No space left on device' err || fail "standard output that is full"
fi

expect 0 "usage: pipeline" --help
expect 2 "no --output given" one
expect 2 "no file given" --output out
expect 2 "unknown option --nonsense" --nonsense
expect 2 "option --output needs a value" one --output
expect 2 "--key: expected 64 hexadecimal digits" --output out --key 12 one
expect 2 "--nonce: expected 24 hexadecimal digits" --output out --nonce 0102030405060708090a0b0g one
for value in 0 x -1 2G; do expect 2 "--chunk $value: expected a number" --output out --chunk $value one; done
for value in 0 65; do expect 2 "--ring $value: expected a number" --output out --ring $value one; done
[ $failed = 0 ] && echo "all results are as expected"
exit $failed
