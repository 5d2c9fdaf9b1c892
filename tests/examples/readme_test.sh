#!/bin/bash
# The C code in README.md is the quickstart's own, word for word, and so is what the README says it prints.
# Arguments: README.md, quickstart.c, the quickstart's expected output.
set -u
readme=$1 source=$(cat "$2") expected=$(cat "$3")
blocks=0 failed=0

block='' language=none
while IFS= read -r line; do
    case $line in
    '```'*)
        if [ "$language" = none ]; then
            language=${line#'```'} block=''
            continue
        fi
        if [ "$language" = c ]; then
            blocks=$((blocks + 1))
            [[ $source == *"${block%$'\n'}"* ]] || { echo "not in $2:"; echo "$block" && failed=1; }
        elif [ "$language" = '' ]; then
            blocks=$((blocks + 1))
            [ "${block%$'\n'}" = "$expected" ] || { echo "not the text of $3:"; echo "$block" && failed=1; }
        fi
        language=none
        ;;
    *) block+=$line$'\n' ;;
    esac
done < "$readme"
[ $blocks = 3 ] || { echo "README.md has $blocks blocks of code and output, expected 3" && failed=1; }
exit $failed
