#!/bin/bash
# Runs the programs of this bundle on the machine it was copied to, one after the other.
#
#   run.sh [-t seconds] [-l] [tests|conformance|bench|examples|all] [filter]
#
#   suite    which programs (default: all)
#   filter   an extended regular expression over "path arguments"
#   -t       time limit of each program instead of its own
#   -l       list, run nothing
#
# Each program's output goes to $OUT/<program>.log (default ./out), and a benchmark's figures to the terminal as well. A
# program that ends with 0 passed; with 77, or with all its cmocka tests skipped, it was skipped; anything else failed,
# 124 being the time limit. The last line is "N passed, N failed, N skipped"; the exit status is 0 when none failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$PWD/out}
limit='' list=0
while getopts 't:l' option; do
    case $option in
    t) limit=$OPTARG ;;
    l) list=1 ;;
    *) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
suite=${1:-all} filter=${2:-}
case $suite in
tests | conformance | bench | examples | all) ;;
*) echo "run.sh: no suite '$suite'; there are tests, conformance, bench, examples and all" >&2 && exit 2 ;;
esac

export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$here/root" || exit 2

command -v nvidia-smi >/dev/null && [ $list = 0 ] &&
    nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader 2>/dev/null

passed=0 failed=0 skipped=0
while IFS='|' read -r in_suite path seconds environment arguments; do
    [ "$suite" = all ] || [ "$suite" = "$in_suite" ] || continue
    [[ "$path $arguments" =~ $filter ]] || continue
    title="$path${arguments:+ $arguments}"
    if [ $list = 1 ]; then
        printf '%-12s %s%s\n' "$in_suite" "${environment:+$environment }" "$title"
        continue
    fi
    log=$out/$(tr '/ ' '__' <<<"$title").log
    mkdir -p "$scratch/tmp"
    start=$(date +%s%N)
    # shellcheck disable=SC2086 # arguments and environment are lists of words
    env TEST_TMPDIR="$scratch/tmp" TEST_SRCDIR="$here" MUSTER_CACHE_DIR= $environment \
        timeout -k 10 "${limit:-$seconds}" "./$path" $arguments </dev/null >"$log" 2>&1
    code=$?
    milliseconds=$((($(date +%s%N) - start) / 1000000))
    rm -rf "$scratch/tmp"

    # cmocka's own sums: "[==========] 3 test(s) run." and "[  SKIPPED ] 2 test(s), listed below:"
    read -r ran inner < <(awk '/^\[=+\] [0-9]+ test\(s\) run/ { ran += $2 }
                               /^\[  SKIPPED \] [0-9]+ test\(s\)/ { skipped += $4 }
                               END { print ran + 0, skipped + 0 }' "$log")
    if [ $code = 77 ] || { [ $code = 0 ] && [ "$ran" -gt 0 ] && [ "$inner" -ge "$ran" ]; }; then
        verdict=skipped skipped=$((skipped + 1))
    elif [ $code = 0 ]; then
        verdict=passed passed=$((passed + 1))
    else
        verdict=FAILED failed=$((failed + 1))
    fi
    note=''
    [ "$inner" = 0 ] || note="  $inner of $ran tests skipped"
    [ $code = 0 ] || [ $code = 77 ] || note="  exit $code$([ $code = 124 ] && echo ', time limit')"
    printf '%-8s %-12s %7d.%03d s  %s%s\n' $verdict "$in_suite" $((milliseconds / 1000)) $((milliseconds % 1000)) \
        "$title" "$note"
    if [ $verdict = FAILED ] || [ "$in_suite" = bench ]; then tail -n 60 "$log" | sed 's/^/    | /'; fi
done <"$here/programs"

[ $list = 1 ] && exit 0
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
