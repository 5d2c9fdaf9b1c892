/* The patterns in the form the kernel reads, and the sizes that follow from them.
 *
 * A pattern is searched for with the Knuth-Morris-Pratt automaton. State s means that the last s bytes of text are the
 * first s of the pattern. Its rule is one word: in the low 8 bits the byte that leads to state s + 1, above them the
 * state to try instead, which is the length of the longest proper prefix of the pattern's first s bytes that is also a
 * suffix of them. When that of the full match is not 0, the pattern can overlap itself, as "aa" can in "aaa". */
#ifndef MUSTER_EXAMPLES_SCAN_PATTERNS_H
#define MUSTER_EXAMPLES_SCAN_PATTERNS_H

#include <stddef.h>
#include <stdint.h>

/* As the kernel reads it: five words. */
typedef struct scan_pattern {
    uint32_t length; /* bytes */
    uint32_t states; /* of the count between two chunks: `length` when the pattern can overlap itself, otherwise 1 */
    uint32_t span;   /* bytes that one thread searches: a multiple of 32 */
    uint32_t table;  /* word of the first rule, counted from the first pattern; length + 1 rules */
    uint32_t entry;  /* of its first answer among a chunk's answers; one for each state */
} scan_pattern;

/* One answer of the kernel: from one state, the matches counted in a chunk and the state left to the next chunk. */
typedef struct scan_answer {
    uint32_t matches, state;
} scan_answer;

typedef struct scan_plan {
    uint32_t count;         /* patterns, none empty */
    scan_pattern *patterns; /* `count` of them, followed by their rules; owned */
    size_t pattern_bytes;   /* of all that */
    uint32_t chunk_bytes;   /* searched by one block */
    uint32_t tail_bytes;    /* of the text behind a chunk that are stored with it */
    uint32_t entries;       /* answers for one chunk */
    uint32_t threads;       /* in a block */
} scan_plan;

/* Plans the search for `count` patterns, none of them empty or with a newline. chunk_bytes 0 chooses; otherwise it is
 * rounded up to what the patterns need. 0 when memory is exhausted. */
int scan_plan_create(const char *const *patterns, uint32_t count, uint32_t chunk_bytes, scan_plan *plan);
void scan_plan_destroy(scan_plan *plan);

#endif
