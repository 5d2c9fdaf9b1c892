/* Counts byte patterns in files on all devices, as `LC_ALL=C grep -aoF -- PATTERN FILE... | wc -l` counts them.
 *
 * The files are one stream (source.h), cut into chunks of equal size; one block of the kernel searches one chunk for
 * one pattern (patterns.h, scan.ptx). With each chunk are stored the bytes that follow it, for the matches that cross
 * its end. Batches of chunks go through a few slots, each with buffers of its own: while devices search one batch, the
 * next is read. So memory is bounded whatever the size of the files, which may be pipes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/02_scan/patterns.h"
#include "examples/02_scan/scan_ptx.h"
#include "examples/02_scan/source.h"
#include "examples/common/example.h"
#include "muster.h"

enum { SLOTS = 3, EXIT_USAGE = 2 };

static const char usage[] =
    "usage: scan --pattern P [--pattern P ...] [options] FILE...\n"
    "Counts each pattern over all files as grep -aoF does. FILE - is standard input.\n"
    "  --driver cuda|sim|auto  the CUDA driver, the simulator, or (default) the first that works\n"
    "  --devices N             use N devices\n"
    "  --actors N              N actors on each of them\n"
    "  --memory BYTES          of text in flight (default 256M)\n"
    "  --chunk BYTES           searched by one block (default: chosen from the patterns)\n"
    "  --stats                 print to stderr what each device did\n";

typedef struct request {
    example_options common;
    const char **patterns; /* as given, empty ones too */
    const char **paths;
    uint32_t pattern_count, path_count;
    uint64_t memory_bytes;
    uint64_t chunk_bytes; /* 0: choose */
    int stats;
} request;

typedef struct slot {
    muster_buffer *text;    /* chunks with their tails */
    muster_buffer *answers; /* of each chunk */
    muster_run *run;        /* of the batch in flight, NULL when none */
    uint64_t chunks;        /* of that batch */
} slot;

typedef struct scan {
    muster_runtime *runtime;
    scan_plan plan;
    scan_source source;
    uint64_t pitch_bytes;  /* of a chunk with its tail */
    uint64_t answer_bytes; /* of a chunk */
    uint64_t capacity;     /* chunks in a slot */
    muster_kernel *kernel;
    muster_buffer *patterns;
    slot slots[SLOTS];
    unsigned char *tail; /* of the last chunk read: the first bytes of the next */
    uint32_t *states;    /* of each pattern behind the batches collected so far */
    uint64_t *totals;    /* of each pattern */
} scan;

/* ------------------------------------------------------------------------------------------------------- request -- */

static int complain_usage(const char *problem, const char *subject) {
    fprintf(stderr, "scan: %s%s\n%s", problem, subject, usage);
    return EXIT_USAGE;
}

/* Takes one option. 0, or the exit status. */
static int parse_option(request *request, int argc, char **argv, int *at) {
    int bad = 0;
    const char *value;
    example_parsed parsed = example_option(&request->common, argc, argv, at);
    if (parsed != EXAMPLE_NOT_MINE) return parsed == EXAMPLE_TAKEN ? 0 : EXIT_USAGE;
    if (strcmp(argv[*at], "--stats") == 0) {
        request->stats = 1;
    } else if ((value = example_value("scan", "--pattern", argc, argv, at, &bad))) {
        if (strchr(value, '\n')) {
            fprintf(stderr,
                    "scan: pattern %u contains a newline, which would make it two patterns to grep: give each "
                    "line as a --pattern of its own\n",
                    request->pattern_count + 1);
            return EXIT_USAGE;
        }
        request->patterns[request->pattern_count++] = value;
    } else if (!bad && (value = example_value("scan", "--memory", argc, argv, at, &bad))) {
        if (!example_number("scan", "--memory", value, 1, UINT64_C(1) << 50, &request->memory_bytes)) return EXIT_USAGE;
    } else if (!bad && (value = example_value("scan", "--chunk", argc, argv, at, &bad))) {
        if (!example_number("scan", "--chunk", value, 1, 256 << 10, &request->chunk_bytes)) return EXIT_USAGE;
    } else if (!bad) {
        return complain_usage("unknown option ", argv[*at]);
    }
    return bad ? EXIT_USAGE : 0;
}

static int parse(int argc, char **argv, request *request) {
    int options_end = 0;
    for (int i = 1; i < argc; i++) {
        if (options_end || argv[i][0] != '-' || strcmp(argv[i], "-") == 0) {
            request->paths[request->path_count++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            options_end = 1;
        } else {
            int status = parse_option(request, argc, argv, &i);
            if (status) return status;
        }
    }
    if (!request->pattern_count) return complain_usage("no pattern given", "");
    if (!request->path_count) return complain_usage("no file given", "");
    return 0;
}

/* ------------------------------------------------------------------------------------------------------- batches -- */

#define TRY(call)                                                                                                      \
    if ((call) != MUSTER_OK) return 0

/* The number of chunks in a slot: what the memory asked for allows, no more than half the devices' memory budgets, and
 * no more than the files need. */
static uint64_t choose_capacity(const scan *scan, const request *request) {
    uint64_t chunk_cost = scan->pitch_bytes + scan->answer_bytes;
    uint64_t memory = request->memory_bytes;
    for (int i = 0, n = muster_device_count(scan->runtime); i < n; i++) {
        muster_device_info info = {.struct_size = sizeof info};
        if (muster_device_get_info(scan->runtime, i, &info, NULL) != MUSTER_OK) continue;
        uint64_t share = info.budget_bytes / 2 * (uint64_t)n;
        if (share < memory) memory = share;
    }
    uint64_t capacity = memory / SLOTS / chunk_cost;
    uint64_t estimate = scan_source_estimate(request->paths, request->path_count);
    uint64_t needed = estimate / scan->plan.chunk_bytes + 2; /* the last chunk's tail can need one more */
    if (capacity > needed) capacity = needed;
    if (capacity > INT32_MAX) capacity = INT32_MAX;
    return capacity ? capacity : 1;
}

static int prepare(scan *scan, muster_error *error) {
    muster_runtime *rt = scan->runtime;
    muster_program *program;
    TRY(muster_program_from_ptx(rt, scan_ptx, 0, "scan", &program, error));
    TRY(muster_program_kernel(program, "scan", &scan->kernel, error));
    TRY(muster_buffer_create(rt, scan->plan.pattern_bytes, scan->plan.patterns, &scan->patterns, error));
    for (int i = 0; i < SLOTS; i++) {
        slot *slot = &scan->slots[i];
        TRY(muster_buffer_create(rt, scan->capacity * scan->pitch_bytes, NULL, &slot->text, error));
        TRY(muster_buffer_create(rt, scan->capacity * scan->answer_bytes, NULL, &slot->answers, error));
    }
    return 1;
}

/* Fills the slot with the next chunks of the stream. Each starts with the tail of the one before; what the stream
 * leaves of the last is filled with newlines, which are part of no match. Sets *end when the stream has ended. */
static int read_batch(scan *scan, slot *slot, int *end, muster_error *error) {
    size_t chunk = scan->plan.chunk_bytes, tail = scan->plan.tail_bytes;
    void *memory;
    TRY(muster_buffer_acquire(slot->text, 0, scan->capacity * scan->pitch_bytes, MUSTER_WRITE, MUSTER_FOREVER, &memory,
                              error));
    unsigned char *at = memory;
    for (slot->chunks = 0; slot->chunks < scan->capacity && !*end; slot->chunks++, at += chunk + tail) {
        memcpy(at, scan->tail, tail);
        size_t got = scan_source_read(&scan->source, at + tail, chunk);
        memset(at + tail + got, '\n', chunk - got);
        memcpy(scan->tail, at + chunk, tail);
        *end = got < chunk && tail + got <= chunk; /* the stream has ended, and nothing is left for another chunk */
    }
    TRY(muster_buffer_release(slot->text, memory, error));
    return 1;
}

/* Submits the search of the slot's batch, cut over all devices. */
static int submit_batch(scan *scan, slot *slot, muster_error *error) {
    muster_arg args[] = {
        muster_block_cut(muster_range_arg(slot->text, MUSTER_READ, 0, slot->chunks * scan->pitch_bytes),
                         scan->pitch_bytes),
        muster_buffer_arg(scan->patterns, MUSTER_READ),
        muster_block_cut(muster_range_arg(slot->answers, MUSTER_WRITE, 0, slot->chunks * scan->answer_bytes),
                         scan->answer_bytes),
        muster_u32_arg(scan->plan.chunk_bytes),
        muster_u32_arg((uint32_t)scan->pitch_bytes),
        muster_u32_arg(scan->plan.entries),
    };
    muster_dispatch dispatch = {
        .struct_size = sizeof dispatch,
        .kernel = scan->kernel,
        .grid.x = (uint32_t)slot->chunks,
        .grid.y = scan->plan.count,
        .block.x = scan->plan.threads,
        .dynamic_shared_bytes = scan->plan.chunk_bytes / 8,
        .flags = MUSTER_DISPATCH_SHARDED,
        .arg_count = sizeof args / sizeof args[0],
        .args = args,
    };
    muster_graph *graph;
    muster_job job;
    TRY(muster_graph_create(scan->runtime, &graph, error));
    muster_status status = muster_graph_dispatch(graph, &dispatch, &job, error);
    if (status == MUSTER_OK) status = muster_submit(scan->runtime, graph, &slot->run, error);
    muster_graph_destroy(graph);
    return status == MUSTER_OK;
}

/* Waits for the slot's batch, if any, and follows its answers from chunk to chunk. Batches are collected in order. */
static int collect_batch(scan *scan, slot *slot, muster_error *error) {
    void *memory;
    if (!slot->run) return 1;
    TRY(muster_run_wait(slot->run, MUSTER_FOREVER, error));
    muster_run_destroy(slot->run);
    slot->run = NULL;
    TRY(muster_buffer_acquire(slot->answers, 0, slot->chunks * scan->answer_bytes, MUSTER_READ, MUSTER_FOREVER, &memory,
                              error));
    const scan_answer *answers = memory;
    for (uint64_t chunk = 0; chunk < slot->chunks; chunk++, answers += scan->plan.entries) {
        for (uint32_t i = 0; i < scan->plan.count; i++) {
            scan_answer answer = answers[scan->plan.patterns[i].entry + scan->states[i]];
            scan->totals[i] += answer.matches;
            scan->states[i] = answer.state;
        }
    }
    TRY(muster_buffer_release(slot->answers, memory, error));
    return 1;
}

static int run_scan(scan *scan, muster_error *error) {
    int end = 0;
    for (uint64_t batch = 0; !end; batch++) {
        slot *slot = &scan->slots[batch % SLOTS];
        if (!collect_batch(scan, slot, error) || !read_batch(scan, slot, &end, error) ||
            !submit_batch(scan, slot, error))
            return 0;
        if (!end) continue;
        for (uint64_t i = 1; i <= SLOTS; i++)
            if (!collect_batch(scan, &scan->slots[(batch + i) % SLOTS], error)) return 0;
    }
    return 1;
}

static void print_stats(const muster_runtime *runtime) {
    for (int i = 0; i < muster_device_count(runtime); i++) {
        muster_device_stats stats = {.struct_size = sizeof stats};
        if (muster_device_get_stats(runtime, i, &stats, NULL) != MUSTER_OK) continue;
        fprintf(stderr, "scan: device %d: %llu bytes in, %llu bytes out, %llu launches\n", i,
                (unsigned long long)stats.bytes_to_device, (unsigned long long)stats.bytes_to_host,
                (unsigned long long)stats.launches);
    }
}

/* ---------------------------------------------------------------------------------------------------------- main -- */

/* Counts the patterns of `plan` into totals. 0 or the exit status; *counted tells whether the totals hold. */
static int count(const request *request, const scan_plan *plan, uint64_t *totals, int *counted) {
    muster_error error;
    scan scan = {.plan = *plan, .totals = totals};
    int status = EXIT_FAILURE;
    *counted = 0;
    scan.pitch_bytes = (uint64_t)plan->chunk_bytes + plan->tail_bytes;
    scan.answer_bytes = plan->entries * sizeof(scan_answer);
    scan.states = calloc(plan->count, sizeof *scan.states);
    scan.tail = malloc(plan->tail_bytes + 1);
    if (!scan.states || !scan.tail) {
        fprintf(stderr, "scan: out of memory\n");
        goto free_memory;
    }
    memset(scan.tail, '\n', plan->tail_bytes);
    if (!(scan.runtime = example_runtime_create(&request->common))) goto free_memory;

    scan_source_open(request->paths, request->path_count, &scan.source);
    scan.capacity = choose_capacity(&scan, request);
    if (!prepare(&scan, &error) || !run_scan(&scan, &error)) {
        example_complain("scan", "the scan failed", &error);
    } else {
        *counted = 1;
        status = scan.source.failures ? EXIT_FAILURE : 0;
        if (request->stats) print_stats(scan.runtime);
    }
    scan_source_close(&scan.source);
    if (muster_runtime_destroy(scan.runtime, MUSTER_FOREVER, &error) != MUSTER_OK) {
        example_complain("scan", "cannot stop Muster", &error);
        status = EXIT_FAILURE;
    }
free_memory:
    free(scan.tail);
    free(scan.states);
    return status;
}

/* Without a pattern to search for, the files are only read to their end, for what is wrong with them. */
static int only_read(const request *request) {
    unsigned char bytes[4096];
    scan_source source;
    scan_source_open(request->paths, request->path_count, &source);
    while (scan_source_read(&source, bytes, sizeof bytes) == sizeof bytes) continue;
    scan_source_close(&source);
    return source.failures ? EXIT_FAILURE : 0;
}

static int print_totals(const request *request, const uint64_t *totals) {
    for (uint32_t i = 0; i < request->pattern_count; i++) {
        /* grep -o prints no empty match, and so an empty pattern counts 0. */
        unsigned long long total = request->patterns[i][0] ? *totals++ : 0;
        printf("%s: %llu\n", request->patterns[i], total);
    }
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    perror("scan: standard output");
    return EXIT_FAILURE;
}

/* Searches and prints. 0 or the exit status. */
static int answer(const request *request) {
    int status = EXIT_FAILURE;
    uint32_t used = 0;
    scan_plan plan = {0};
    const char **patterns = calloc(request->pattern_count, sizeof *patterns);
    uint64_t *totals = calloc(request->pattern_count, sizeof *totals);
    if (!patterns || !totals) goto out_of_memory;
    for (uint32_t i = 0; i < request->pattern_count; i++)
        if (request->patterns[i][0]) patterns[used++] = request->patterns[i];

    int counted = 1;
    if (used == 0) {
        status = only_read(request);
    } else {
        if (!scan_plan_create(patterns, used, (uint32_t)request->chunk_bytes, &plan)) goto out_of_memory;
        status = count(request, &plan, totals, &counted);
        scan_plan_destroy(&plan);
    }
    /* As with grep, a file that cannot be read leaves the others' counts, and the exit status tells. */
    if (counted && print_totals(request, totals)) status = EXIT_FAILURE;
    goto free_arrays;
out_of_memory:
    fprintf(stderr, "scan: out of memory\n");
free_arrays:
    free(totals);
    free(patterns);
    return status;
}

int main(int argc, char **argv) {
    request request = {.common = {.name = "scan"}, .memory_bytes = UINT64_C(256) << 20};
    request.patterns = calloc((size_t)argc, sizeof *request.patterns);
    request.paths = calloc((size_t)argc, sizeof *request.paths);
    int status = EXIT_FAILURE;
    if (!request.patterns || !request.paths)
        fprintf(stderr, "scan: out of memory\n");
    else if ((status = parse(argc, argv, &request)) == 0)
        status = answer(&request);
    free(request.paths);
    free(request.patterns);
    return status;
}
