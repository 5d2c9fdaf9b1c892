/* Strands: under ThreadSanitizer every stream, and every branch of a graph, runs on a host thread of its own, so that
 * its history is its own. The executor hands it one operation at a time and waits, in a way that the sanitizer does
 * not see: what orders two streams is what they say to each other, not that one thread happened to start both. In
 * ordinary builds there are no strands, and the executor runs everything itself. */
#include "device/sim/sim_queue.h"

#if MU_TSAN

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef enum turn { EXECUTOR, STRAND, STOP, GONE } turn;

struct sim_strand {
    uint32_t turn; /* whose it is; only uninstrumented code touches it */
    void (*function)(void *);
    void *argument;
};

static SIM_UNSEEN void pass(sim_strand *strand, turn to) {
    __atomic_store_n(&strand->turn, (uint32_t)to, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &strand->turn, FUTEX_WAKE_PRIVATE, 2, NULL, NULL, 0);
}

static SIM_UNSEEN void wait_while(sim_strand *strand, turn is) {
    while (__atomic_load_n(&strand->turn, __ATOMIC_SEQ_CST) == (uint32_t)is)
        syscall(SYS_futex, &strand->turn, FUTEX_WAIT_PRIVATE, (uint32_t)is, NULL, NULL, 0);
}

static SIM_UNSEEN void *strand_main(void *argument) {
    sim_strand *strand = argument;
    for (;;) {
        wait_while(strand, EXECUTOR);
        if (__atomic_load_n(&strand->turn, __ATOMIC_SEQ_CST) == STOP) break;
        strand->function(strand->argument);
        pass(strand, EXECUTOR);
    }
    pass(strand, GONE); /* the last touch */
    return NULL;
}

sim_strand *sim_strand_create(void) {
    sim_strand *strand = mu_alloc_zeroed(1, sizeof *strand);
    pthread_t thread;
    if (!strand) return NULL;
    if (pthread_create(&thread, NULL, strand_main, strand) != 0) {
        mu_free(strand);
        return NULL;
    }
    pthread_detach(thread); /* joining would order it */
    return strand;
}

SIM_UNSEEN void sim_strand_destroy(sim_strand *strand) {
    if (!strand) return;
    pass(strand, STOP);
    wait_while(strand, STOP);
    sim_free_unordered(strand);
}

SIM_UNSEEN void sim_strand_run(sim_strand *strand, void (*function)(void *), void *argument) {
    if (!strand) {
        function(argument);
        return;
    }
    strand->function = function;
    strand->argument = argument;
    pass(strand, STRAND);
    wait_while(strand, STRAND);
}

void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

void sim_free_unordered(void *pointer) {
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    mu_free(pointer);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}

#else

sim_strand *sim_strand_create(void) { return NULL; }
void sim_strand_destroy(sim_strand *strand) { (void)strand; }
void sim_strand_run(sim_strand *strand, void (*function)(void *), void *argument) {
    (void)strand;
    function(argument);
}
void sim_free_unordered(void *pointer) { mu_free(pointer); }

#endif
