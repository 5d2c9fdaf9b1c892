/* Backlogs of empty jobs, and how an application may bring them to a runtime. */
#ifndef MUSTER_TESTS_BENCH_BACKLOG_H
#define MUSTER_TESTS_BENCH_BACKLOG_H

#include "tests/bench/bench.h"

typedef enum backlog_kind {
    BACKLOG_VALUES,      /* a kernel with two plain values: no data, no dependencies */
    BACKLOG_INDEPENDENT, /* a kernel that reads two buffers: no dependencies */
    BACKLOG_DEPENDENT, /* a kernel that reads one buffer of 16 and updates another: about two inferred dependencies each */
    BACKLOG_CHAIN /* a kernel that reads one buffer and updates another, always the same: each depends on the one before */
} backlog_kind;

enum { BACKLOG_KINDS = 4, BACKLOG_BUFFERS = 16, BACKLOG_KERNELS = 16 };

typedef struct backlog {
    const bench *bench;
    muster_kernel *
        kernels[BACKLOG_KERNELS]; /* as many different ones as `functions` says, drawn at random; 1: always the first */
    uint32_t functions;
    muster_buffer *buffers[BACKLOG_BUFFERS];
    backlog_kind kind;
    uint32_t jobs;
    uint32_t chunk; /* jobs of a graph, where there are several */
} backlog;

extern const char *const backlog_kind_names[BACKLOG_KINDS];

void backlog_open(backlog *backlog, const bench *bench, backlog_kind kind, uint32_t jobs);
void backlog_close(backlog *backlog); /* its buffers */

/* A graph of jobs first .. first + count - 1. */
muster_graph *backlog_build(const backlog *backlog, uint32_t first, uint32_t count);
/* Which kernel job i has: the raw side takes the same. */
uint32_t backlog_function(const backlog *backlog, uint32_t job);

/* In graphs of `chunk` jobs, each submitted when it is built, at most 64 unfinished. Returns when all have ended. */
void backlog_run_graphs(const backlog *backlog);
/* The same graphs, added to one open run. */
void backlog_run_open(const backlog *backlog);

/* Microseconds of wall clock per job of one measurement, as bench_way; `user` is a backlog. */
double backlog_raw_us(void *user);       /* a loop of launches, then a synchronisation */
double backlog_one_graph_us(void *user); /* build, submit, wait */
double backlog_graphs_us(void *user);
double backlog_open_run_us(void *user);

#endif
