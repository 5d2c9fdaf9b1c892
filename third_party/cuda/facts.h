/* Every constant, size, offset and signedness that a <cuda.h> declares and Muster relies on, as a table. */
#ifndef MUSTER_THIRD_PARTY_CUDA_FACTS_H
#define MUSTER_THIRD_PARTY_CUDA_FACTS_H

#include <stddef.h>

typedef struct facts_row {
    const char *name;
    long long value;
} facts_row;

typedef struct facts_table {
    const facts_row *rows;
    size_t count; /* 0: no such header on this machine */
    int cuda_version;
} facts_table;

facts_table facts_of_fallback(void);
facts_table facts_of_real(void);

#endif
