/* A small simulated machine and kernels whose grids synchronise: for the tests of admission. */
#ifndef MUSTER_TESTS_SCHEDULER_RESIDENCY_FIXTURE_H
#define MUSTER_TESTS_SCHEDULER_RESIDENCY_FIXTURE_H

#include "tests/scheduler/fixture.h"

extern const char test_residency_kernels_ptx[]; /* residency_kernels.cu describes them */

/* Two multiprocessors of 2048 threads and 233472 bytes of shared memory: at most 16 blocks of 256 threads are resident. */
#define RESIDENCY_SPEC "{\"devices\": [{\"preset\": \"H200\", \"sms\": 2}]}"
enum { RESIDENCY_LIMIT = 16, RESIDENCY_THREADS = 256, RESIDENCY_COUNT = 5000 };
/* With so much dynamic shared memory a multiprocessor holds two blocks. */
enum { RESIDENCY_SHARED = 100000, RESIDENCY_SHARED_LIMIT = 4 };

typedef struct residency {
    fixture fixture;
    muster_program *program; /* the kernels with barriers */
    muster_kernel *reverse, *phases[2], *arrive;
    muster_buffer *in, *tmp, *out; /* RESIDENCY_COUNT words each */
    muster_arg args[4];
} residency;

void residency_open(residency *r, const char *spec, const muster_config *config);
/* A cooperative dispatch of `reverse` that declares everything but a fallback. */
muster_dispatch residency_reverse(residency *r, uint32_t blocks, uint32_t shared_bytes);
void residency_declare(residency *r, muster_dispatch *dispatch, muster_fallback fallback);
/* `out` is what `reverse` makes of `in`; it is cleared for the next time. */
void residency_check(residency *r);
void residency_clear(residency *r); /* zeros in `out` and `tmp`, which a failed job leaves undefined */

muster_device_stats residency_stats(const residency *r);
uint64_t residency_calls(const residency *r, const char *entry);
/* Driver calls of all kinds so far, but for those in the list, which NULL ends. */
uint64_t residency_calls_but(const residency *r, const char *const *excluded);

#endif
