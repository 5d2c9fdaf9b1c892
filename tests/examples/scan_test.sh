#!/bin/bash
# The scan example against grep: generated files and patterns that overlap themselves, that straddle chunks, batches,
# shards and files, and everything a file can be.
#
#   scan_test.sh PROGRAM [sim|cuda]
#
# On the CUDA driver every device of the machine takes part, instead of 1 to 5 simulated ones. Exit status 77: skipped,
# there is no GPU.
set -u
export LC_ALL=C
scan=$1 driver=${2:-sim}
dir=${TEST_TMPDIR:-$(mktemp -d)}/scan
mkdir -p "$dir" && cd "$dir" || exit 1
case $scan in /*) ;; *) scan=$OLDPWD/$scan ;; esac
checks=0

fail() {
    echo "FAILED: $*" >&2
    [ -s "$dir/err" ] && sed 's/^/  stderr: /' "$dir/err" >&2
    exit 1
}

printf 'aab' > text
if [ "$driver" = cuda ] && ! "$scan" --driver cuda --pattern a text > got 2> err &&
    grep -q 'MUSTER_NO_DRIVER\|MUSTER_NO_DEVICE' err; then
    echo "SKIPPED: no CUDA device" && exit 77
fi

# same OPTIONS -- FILE... : the patterns in the array `patterns`, counted by scan with the options and by grep.
same() {
    local options=() arguments=() pattern
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    if [ "$driver" = cuda ] && [ "${options[0]:-}" = --devices ]; then options=("${options[@]:2}"); fi
    for pattern in "${patterns[@]}"; do
        arguments+=(--pattern "$pattern")
        printf '%s: %s\n' "$pattern" "$(grep -aoF -- "$pattern" "$@" | wc -l)"
    done > want
    "$scan" --driver $driver "${options[@]}" "${arguments[@]}" -- "$@" > got 2> err ||
        fail "scan ${options[*]} -- $*: exit $?"
    cmp -s want got || { diff -a want got | head -20; fail "scan ${options[*]} -- $* differs from grep"; }
    checks=$((checks + ${#patterns[@]}))
}

# random SEED COUNT LETTERS : that many letters drawn from LETTERS.
random() {
    awk -v seed="$1" -v count="$2" -v letters="$3" 'BEGIN {
        srand(seed); n = length(letters)
        for (i = 0; i < count; i++) printf "%s", substr(letters, 1 + int(rand() * n), 1)
    }'
}

repeat() { printf "%$2s" '' | tr ' ' "$1"; } # LETTER COUNT

# ------------------------------------------------------------------------------------------------------- the files --
: > empty
printf a > one
printf 'aaa' > three
printf '\n' > newline
repeat a 20011 > ones
random 1 6007 ab > letters
random 2 6007 abbn | tr n '\n' > lines
random 3 9001 abcnrzq | tr 'nrzq' '\n\r\000\377' > binary
random 4 30011 abcdefgh > many
(for i in $(seq 0 70); do repeat x "$i"; printf needle; done) > straddling
# The Fibonacci word: full of overlapping repetitions of many periods.
awk 'BEGIN { a = "b"; b = "a"; while (length(b) < 10000) { c = b a; a = b; b = c } printf "%s", b }' > fibonacci
# One period, broken now and then.
awk 'BEGIN { srand(5); for (i = 0; i < 900; i++) printf "%s%s", "abaab", rand() < .05 ? "a" : "" }' > broken

# ------------------------------------------------------------------------------- overlaps, lengths, chunks, devices --
patterns=(a b aa ab aaa aba abab aabaa abaab abaaba abaababaab "$(repeat a 7)" "$(repeat a 31)" "$(repeat a 32)"
    "$(repeat a 33)" "$(repeat a 64)" "$(repeat a 65)" needle needlex nee $'a\r' $'\r' $'\377' $'b\377a' c ccc 'a.*b'
    '-v' ' ' '\' '"' '[a]' '$')
for length in 2 3 5 8 13 21 34 55 89 144; do patterns+=("$(head -c $length fibonacci)"); done
for at in 17 500 1234 3999; do
    for length in 4 9 16 48 64 100; do patterns+=("$(tail -c +$at letters | head -c $length)"); done
done
patterns+=("$(head -c 700 fibonacci)" "$(head -c 1100 ones)" "$(head -c 900 broken)")
for devices in 1 2 3 5; do
    same --devices $devices -- letters lines binary fibonacci straddling broken
done
same --devices 3 -- ones

# Chunks as small as the longest pattern allows, and several batches of several chunks.
patterns=(a aa aaa aba abaab needle $'a\r' "$(repeat a 17)" "$(repeat a 32)" "$(head -c 21 fibonacci)")
for chunk in 32 64 96 1K; do
    same --devices 2 --chunk $chunk -- letters binary straddling fibonacci
    same --devices 3 --chunk $chunk --memory 12K -- straddling lines broken ones
done
same --devices 5 --chunk 32 --memory 1 -- one three straddling

# One pattern at a time, so that it alone decides the sizes; with a length of 1 there is nothing behind a chunk.
for pattern in a aa needle "$(repeat a 33)" "$(head -c 55 fibonacci)"; do
    patterns=("$pattern")
    same --devices 2 --chunk 32 -- straddling
    same --devices 2 -- ones fibonacci
done

# ---------------------------------------------------------------------------------------- greedy, by the rule itself --
count_is() { # PATTERN TEXT COUNT
    printf '%s' "$2" > text
    [ "$("$scan" --driver $driver --pattern "$1" text 2> err)" = "$1: $3" ] || fail "$1 in $2 is not $3"
}
count_is aa aaa 1
count_is aa aaaa 2
count_is aba ababababa 2
count_is abcab abcabcabcab 2
count_is x '' 0

# -------------------------------------------------------------------------------------------------- kinds of files --
patterns=(a aa ab aaa abc b)
same -- empty
same -- empty empty one empty
same -- one
same -- one one one           # no match across files
same -- three newline three three
same --chunk 32 -- three newline three three ones one one
mkdir -p several
for i in $(seq 300); do random "$i" $((i % 90)) ab > several/$i; done
same --devices 3 -- several/*
cp letters 'a name with spaces' && cp lines ./-dash
same -- 'a name with spaces' ./-dash

# A file larger than the memory allowed.
cat many many many many many many > large
patterns=(abc dcba hh "$(tail -c +777 many | head -c 40)")
same --devices 2 --memory 96K -- large

# Pipes and standard input. Between the two a newline, for in grep's input no line may go on from one file to the next.
mkfifo fifo
cat letters newline lines > joined
for pattern in aa ab aba; do printf '%s: %s\n' "$pattern" "$(grep -aoF -- "$pattern" joined | wc -l)"; done > want
arguments=(--driver $driver --pattern aa --pattern ab --pattern aba)
(for at in 1 501 5001; do tail -c +$at letters | head -c $((at == 1 ? 500 : at == 501 ? 4500 : 100000)); done) > fifo &
"$scan" "${arguments[@]}" fifo - < lines > got 2> err || fail "FIFO and standard input: exit $?"
wait
cmp -s want got || { diff want got; fail "FIFO and standard input differ from grep"; }
"$scan" "${arguments[@]}" <(cat joined) > got 2> err || fail "process substitution: exit $?"
cmp -s want got || { diff want got; fail "process substitution differs from grep"; }

# ------------------------------------------------------------------------------------------- the form of the output --
printf 'aab' > text
[ "$("$scan" --driver $driver --pattern b --pattern '' --pattern a --pattern=b --pattern a: text 2> err)" = \
    "$(printf 'b: 1\n: 0\na: 2\nb: 1\na:: 0')" ] || fail "order, repeated and empty patterns"
[ "$("$scan" --driver $driver --pattern '' text 2> err)" = ": 0" ] || fail "only an empty pattern"

"$scan" --driver $driver --chunk 32 --stats --pattern aa ones > got 2> err || fail "--stats: exit $?"
devices=$(sed -n 's/^scan: running on \([0-9]*\) .*/\1/p' err)
[ "$(grep -c '^scan: device [0-9]*: [1-9][0-9]* bytes in, [1-9][0-9]* bytes out, [1-9][0-9]* launches$' err)" = \
    "$devices" ] || fail "--stats does not report work on each of $devices devices"

echo "$checks counts equal grep's"
