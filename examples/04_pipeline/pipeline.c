/* Files streamed through three kernels: each is encrypted (ChaCha20), its bytes are counted, and the result is checksummed.
 *
 * The files are cut into chunks, which go through a ring of slots. A slot has pinned host memory for a chunk and its result,
 * buffers over them, and a graph that is built once:
 *
 *     fill counts -> histogram --+
 *     (chunk read) -> chacha20 --+-> adler -> write (a host job)
 *
 * The main thread reads a chunk into the next free slot and submits the slot's graph, and goes on to the next. Muster uploads the
 * chunk, runs its kernels on some device, brings the result home and calls `write_chunk` on its host thread. So while one chunk is
 * read, others are on their way up, computed, on their way down, and written, on all devices at once. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "examples/04_pipeline/kernels_ptx.h"
#include "examples/04_pipeline/reference.h"
#include "examples/common/example.h"
#include "muster.h"

enum { EXIT_USAGE = 2, MAX_SLOTS = 64, BLOCK_BYTES = 64, THREADS = 256 };

static const char usage[] =
    "usage: pipeline --output DIR [options] FILE...\n"
    "Encrypts each file with ChaCha20 to DIR/NAME.chacha20, and prints its size, the Adler-32 checksum of the result "
    "and\n"
    "the entropy of the file.\n"
    "  --output DIR            where the results go; it must exist\n"
    "  --key HEX               64 digits (default: 000102...1f, for trying it out)\n"
    "  --nonce HEX             24 digits, of the first file; the others count on (default: zeros)\n"
    "  --chunk BYTES           read and computed at a time (default 4M)\n"
    "  --ring N                chunks in flight, 1 to 64 (default: 4 for each device)\n"
    "  --verify                compute every chunk on the CPU too, and compare\n"
    "  --stats                 print to stderr how fast it went and what overlapped\n"
    "  --driver cuda|sim|auto  the CUDA driver, the simulator, or (default) the first that works\n"
    "  --devices N             use N devices\n";

typedef struct request {
    example_options common;
    const char **paths;
    uint32_t path_count;
    const char *output;
    unsigned char key[32], nonce[12];
    uint64_t chunk_bytes, ring; /* ring 0: default */
    int verify, stats, help;
} request;

/* What is kept of a chunk for the checksum of its file, which needs them in order. */
typedef struct chunk_sums {
    uint64_t bytes, sums[2];
} chunk_sums;

/* A file under way. The host thread writes the part below until the last chunk's run has ended. */
typedef struct stream {
    const char *path;
    char *result; /* path of the output */
    int in, out;
    uint64_t bytes;
    size_t chunk_count, chunk_capacity;
    chacha_key key;
    int failed;
    /* The host thread's. */
    chunk_sums *sums; /* by chunk; only grown while none of the file is in flight */
    uint64_t histogram[256];
} stream;

typedef struct pipeline pipeline;

typedef struct slot {
    pipeline *all;
    void *in_memory, *out_memory; /* pinned */
    muster_buffer *in, *out, *counts;
    muster_graph *graph;
    muster_job histogram, chacha, adler;
    muster_run *run; /* of the chunk in flight, NULL when none */
    /* The chunk in flight. */
    stream *file;
    size_t index;
    uint64_t offset;
    uint32_t bytes;
    double submitted;
} slot;

struct pipeline {
    const request *request;
    muster_runtime *runtime;
    muster_kernel *histogram, *chacha, *adler;
    slot slots[MAX_SLOTS];
    uint32_t slot_count;
    uint64_t next;           /* chunks submitted so far: chunk i is in slot i % slot_count */
    uint64_t bytes, again;   /* of all files; chunks submitted again after a device was lost */
    double reading, waiting; /* seconds of the main thread */
    double writing, flying;  /* of the host thread; chunks' times from their submission to there, together */
    unsigned char *check;    /* --verify: a chunk's result on the CPU */
    muster_error error;      /* of what ended the pipeline */
};

/* ------------------------------------------------------------------------------------------------------- request -- */

static int complain_usage(const char *problem, const char *subject) {
    fprintf(stderr, "pipeline: %s%s\n%s", problem, subject, usage);
    return EXIT_USAGE;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static int parse_hex(const char *option, const char *text, unsigned char *bytes, size_t count) {
    int ok = strlen(text) == 2 * count;
    for (size_t i = 0; ok && i < 2 * count; i++) ok = hex_digit(text[i]) >= 0;
    if (!ok) fprintf(stderr, "pipeline: %s: expected %zu hexadecimal digits\n", option, 2 * count);
    for (size_t i = 0; ok && i < count; i++)
        bytes[i] = (unsigned char)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    return ok;
}

/* Takes one option. 0, or the exit status. */
static int parse_option(request *request, int argc, char **argv, int *at) {
    int bad = 0;
    const char *value;
    example_parsed parsed = example_option(&request->common, argc, argv, at);
    if (parsed != EXAMPLE_NOT_MINE) return parsed == EXAMPLE_TAKEN ? 0 : EXIT_USAGE;
    if (strcmp(argv[*at], "--help") == 0) {
        request->help = 1;
    } else if (strcmp(argv[*at], "--verify") == 0) {
        request->verify = 1;
    } else if (strcmp(argv[*at], "--stats") == 0) {
        request->stats = 1;
    } else if ((value = example_value("pipeline", "--output", argc, argv, at, &bad))) {
        request->output = value;
    } else if (!bad && (value = example_value("pipeline", "--key", argc, argv, at, &bad))) {
        if (!parse_hex("--key", value, request->key, sizeof request->key)) return EXIT_USAGE;
    } else if (!bad && (value = example_value("pipeline", "--nonce", argc, argv, at, &bad))) {
        if (!parse_hex("--nonce", value, request->nonce, sizeof request->nonce)) return EXIT_USAGE;
    } else if (!bad && (value = example_value("pipeline", "--chunk", argc, argv, at, &bad))) {
        if (!example_number("pipeline", "--chunk", value, 1, 1 << 30, &request->chunk_bytes)) return EXIT_USAGE;
    } else if (!bad && (value = example_value("pipeline", "--ring", argc, argv, at, &bad))) {
        if (!example_number("pipeline", "--ring", value, 1, MAX_SLOTS, &request->ring)) return EXIT_USAGE;
    } else if (!bad) {
        return complain_usage("unknown option ", argv[*at]);
    }
    return bad ? EXIT_USAGE : 0;
}

static int parse(int argc, char **argv, request *request) {
    int options_end = 0;
    for (int i = 1; i < argc; i++) {
        if (options_end || argv[i][0] != '-') {
            request->paths[request->path_count++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            options_end = 1;
        } else {
            int status = parse_option(request, argc, argv, &i);
            if (status) return status;
        }
    }
    if (request->help) return 0;
    if (!request->output) return complain_usage("no --output given", "");
    if (!request->path_count) return complain_usage("no file given", "");
    /* Whole blocks of the cipher, so that each chunk starts one. */
    request->chunk_bytes = (request->chunk_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- slots -- */

#define TRY(call)                                                                                                      \
    if ((call) != MUSTER_OK) return 0

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static muster_status check_chunk(const slot *slot, const unsigned char *text, const unsigned char *out,
                                 const chunk_counts *counts, muster_error *error) {
    chunk_counts expected;
    chacha20(&slot->file->key, (uint32_t)(slot->offset / BLOCK_BYTES), text, slot->bytes, slot->all->check);
    count_chunk(text, slot->all->check, slot->bytes, &expected);
    if (memcmp(slot->all->check, out, slot->bytes) == 0 && memcmp(&expected, counts, sizeof expected) == 0)
        return MUSTER_OK;
    snprintf(error->message, sizeof error->message, "the chunk at byte %" PRIu64 " is not what the CPU computes",
             slot->offset);
    return MUSTER_INTERNAL;
}

/* The host job at the end of a chunk's graph: arguments are the chunk, its result and its counts. Anywhere in the file, for chunks
 * of different slots end in any order. */
static muster_status write_chunk(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    slot *slot = user;
    stream *file = slot->file;
    const unsigned char *out = pointers[1];
    const chunk_counts *counts = pointers[2];
    double start = now();
    (void)count;
    if (slot->all->request->verify) {
        muster_status status = check_chunk(slot, pointers[0], out, counts, error);
        if (status != MUSTER_OK) return status;
    }
    for (uint32_t done = 0; done < slot->bytes;) {
        ssize_t wrote = pwrite(file->out, out + done, slot->bytes - done, (off_t)(slot->offset + done));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) {
            snprintf(error->message, sizeof error->message, "%s: %s", file->result, strerror(errno));
            return MUSTER_FILE_UNREADABLE;
        }
        done += (uint32_t)wrote;
    }
    file->sums[slot->index] = (chunk_sums){slot->bytes, {counts->sums[0], counts->sums[1]}};
    for (int v = 0; v < 256; v++) file->histogram[v] += counts->histogram[v];
    double end = now();
    slot->all->writing += end - start;
    slot->all->flying += end - slot->submitted;
    return MUSTER_OK;
}

static muster_dispatch over_chunk(const pipeline *all, muster_kernel *kernel, const muster_arg *args, uint32_t count,
                                  uint32_t bytes_per_thread) {
    uint64_t blocks = (all->request->chunk_bytes / bytes_per_thread + THREADS - 1) / THREADS;
    return (muster_dispatch){.struct_size = sizeof(muster_dispatch),
                             .kernel = kernel,
                             .grid.x = blocks < 4096 ? (uint32_t)blocks : 4096,
                             .block.x = THREADS,
                             .arg_count = count,
                             .args = args};
}

/* The graph of a slot. Values that differ from chunk to chunk are set before each submit. */
static int build_graph(slot *slot, muster_error *error) {
    pipeline *all = slot->all;
    muster_arg sums = muster_range_arg(slot->counts, MUSTER_READ_WRITE, offsetof(chunk_counts, sums), 16);
    muster_arg histogram = muster_range_arg(slot->counts, MUSTER_READ_WRITE, offsetof(chunk_counts, histogram), 1024);
    const muster_arg count[] = {muster_buffer_arg(slot->in, MUSTER_READ), muster_u32_arg(0), histogram};
    const muster_arg encrypt[] = {muster_buffer_arg(slot->in, MUSTER_READ), muster_buffer_arg(slot->out, MUSTER_WRITE),
                                  muster_value_arg(&(chacha_key){{0}, {0}}, sizeof(chacha_key)), muster_u32_arg(0),
                                  muster_u32_arg(0)};
    const muster_arg check[] = {muster_buffer_arg(slot->out, MUSTER_READ), muster_u32_arg(0), sums};
    const muster_arg write[] = {muster_buffer_arg(slot->in, MUSTER_READ), muster_buffer_arg(slot->out, MUSTER_READ),
                                muster_buffer_arg(slot->counts, MUSTER_READ)};
    muster_dispatch dispatch;
    const muster_host_job last = {
        .struct_size = sizeof last, .run = write_chunk, .user = slot, .arg_count = 3, .args = write};
    TRY(muster_graph_create(all->runtime, &slot->graph, error));
    TRY(muster_graph_fill(slot->graph, slot->counts, 0, sizeof(chunk_counts), 0, 4, NULL, error));
    dispatch = over_chunk(all, all->histogram, count, 3, 16);
    TRY(muster_graph_dispatch(slot->graph, &dispatch, &slot->histogram, error));
    dispatch = over_chunk(all, all->chacha, encrypt, 5, BLOCK_BYTES);
    TRY(muster_graph_dispatch(slot->graph, &dispatch, &slot->chacha, error));
    dispatch = over_chunk(all, all->adler, check, 3, 16);
    TRY(muster_graph_dispatch(slot->graph, &dispatch, &slot->adler, error));
    TRY(muster_graph_host(slot->graph, &last, NULL, error));
    return 1;
}

static int make_slot(slot *slot, muster_error *error) {
    muster_runtime *rt = slot->all->runtime;
    uint64_t bytes = slot->all->request->chunk_bytes;
    TRY(muster_host_alloc(rt, bytes, &slot->in_memory, error));
    TRY(muster_host_alloc(rt, bytes, &slot->out_memory, error));
    TRY(muster_buffer_create(rt, bytes, slot->in_memory, &slot->in, error));
    TRY(muster_buffer_create(rt, bytes, slot->out_memory, &slot->out, error));
    TRY(muster_buffer_create(rt, sizeof(chunk_counts), NULL, &slot->counts, error));
    return build_graph(slot, error);
}

static int prepare(pipeline *all, muster_error *error) {
    muster_program *program;
    uint64_t ring = all->request->ring;
    if (!ring) ring = 4 * (uint64_t)muster_device_count(all->runtime);
    all->slot_count = (uint32_t)(ring < MAX_SLOTS ? ring : MAX_SLOTS);
    TRY(muster_program_from_ptx(all->runtime, kernels_ptx, 0, "pipeline", &program, error));
    TRY(muster_program_kernel(program, "histogram", &all->histogram, error));
    TRY(muster_program_kernel(program, "chacha20", &all->chacha, error));
    TRY(muster_program_kernel(program, "adler", &all->adler, error));
    for (uint32_t i = 0; i < all->slot_count; i++) {
        all->slots[i].all = all;
        if (!make_slot(&all->slots[i], error)) return 0;
    }
    return 1;
}

/* -------------------------------------------------------------------------------------------------------- chunks -- */

/* A device was lost: with the job, or with what an earlier job of the chunk had left there. */
static int is_of_a_loss(muster_status status) {
    return muster_status_recovery(status) == MUSTER_RECOVERY_DEVICE_LOST || status == MUSTER_DATA_UNDEFINED;
}

/* Waits until the slot is free. A file that cannot be written fails alone; a chunk whose device was lost is submitted again, for its
 * text is still in host memory, and goes to another device. */
static int collect(slot *slot) {
    pipeline *all = slot->all;
    muster_error *error = &all->error;
    int tries = muster_device_count(all->runtime);
    while (slot->run) {
        double start = now();
        muster_status status = muster_run_wait(slot->run, MUSTER_FOREVER, error);
        all->waiting += now() - start;
        muster_run_destroy(slot->run);
        slot->run = NULL;
        if (status == MUSTER_OK) return 1;
        if (is_of_a_loss(status) && tries-- > 0) {
            all->again++;
            TRY(muster_submit(all->runtime, slot->graph, &slot->run, error));
            continue;
        }
        if (status != MUSTER_CALLBACK_FAILED) return 0;
        if (!slot->file->failed) example_complain("pipeline", "writing failed", error);
        slot->file->failed = 1;
    }
    return 1;
}

static int collect_all(pipeline *all) {
    int ok = 1;
    for (uint64_t i = 0; i < all->slot_count; i++) ok &= collect(&all->slots[(all->next + i) % all->slot_count]);
    return ok;
}

/* Reads until the chunk is full or the file ends. */
static int read_chunk(slot *slot, unsigned char *memory) {
    uint64_t want = slot->all->request->chunk_bytes, got = 0;
    double start = now();
    while (got < want) {
        ssize_t part = read(slot->file->in, memory + got, want - got);
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) {
            fprintf(stderr, "pipeline: %s: %s\n", slot->file->path, strerror(errno));
            slot->file->failed = 1;
        }
        if (part <= 0) break;
        got += (uint64_t)part;
    }
    slot->all->reading += now() - start;
    slot->bytes = (uint32_t)got;
    return !slot->file->failed;
}

/* Room for the sums of one chunk more. They must not move under the host thread. */
static int make_room(pipeline *all, stream *file) {
    if (file->chunk_count < file->chunk_capacity) return 1;
    if (!collect_all(all)) return 0;
    size_t capacity = file->chunk_capacity ? 2 * file->chunk_capacity : 1024;
    chunk_sums *sums = realloc(file->sums, capacity * sizeof *sums);
    if (!sums) {
        snprintf(all->error.message, sizeof all->error.message, "out of memory");
        all->error.status = MUSTER_OUT_OF_HOST_MEMORY;
        return 0;
    }
    file->sums = sums;
    file->chunk_capacity = capacity;
    return 1;
}

static int submit_chunk(slot *slot, muster_error *error) {
    uint32_t counter = (uint32_t)(slot->offset / BLOCK_BYTES);
    const struct {
        muster_job job;
        uint32_t index;
        const void *value;
        uint32_t bytes;
    } values[] = {
        {slot->histogram, 1, &slot->bytes, 4}, {slot->chacha, 2, &slot->file->key, sizeof slot->file->key},
        {slot->chacha, 3, &counter, 4},        {slot->chacha, 4, &slot->bytes, 4},
        {slot->adler, 1, &slot->bytes, 4},
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        TRY(muster_graph_set_argument(slot->graph, values[i].job, values[i].index, values[i].value, values[i].bytes,
                                      error));
    slot->submitted = now();
    TRY(muster_submit(slot->all->runtime, slot->graph, &slot->run, error));
    return 1;
}

/* The next chunk of the file. *end: there is none. */
static int stream_chunk(pipeline *all, stream *file, int *end) {
    slot *slot = &all->slots[all->next % all->slot_count];
    void *memory;
    if (!make_room(all, file) || !collect(slot)) return 0;
    slot->file = file;
    slot->index = file->chunk_count;
    slot->offset = file->bytes;
    TRY(muster_buffer_acquire(slot->in, 0, 0, MUSTER_WRITE, MUSTER_FOREVER, &memory, &all->error));
    int more = read_chunk(slot, memory) && slot->bytes;
    TRY(muster_buffer_release(slot->in, memory, &all->error));
    *end = !more || slot->bytes < all->request->chunk_bytes;
    if (!more) return 1;
    file->bytes += slot->bytes;
    file->chunk_count++;
    all->bytes += slot->bytes;
    all->next++;
    return submit_chunk(slot, &all->error);
}

/* --------------------------------------------------------------------------------------------------------- files -- */

static int complain_file(stream *file, const char *path) {
    fprintf(stderr, "pipeline: %s: %s\n", path, strerror(errno));
    file->failed = 1;
    return 0;
}

static int open_stream(const request *request, uint32_t index, stream *file) {
    unsigned char nonce[12];
    const char *name = strrchr(request->paths[index], '/');
    struct stat about;
    uint32_t carry = index;
    *file = (stream){.path = request->paths[index], .in = -1, .out = -1};
    name = name ? name + 1 : file->path;
    /* No two files with the same nonce: their key streams would be the same. */
    memcpy(nonce, request->nonce, sizeof nonce);
    for (int i = 0; i < 12 && carry; i++, carry >>= 8) {
        carry += nonce[i];
        nonce[i] = (unsigned char)carry;
    }
    chacha_key_set(&file->key, request->key, nonce);
    size_t length = strlen(request->output) + strlen(name) + sizeof "/.chacha20";
    file->result = malloc(length);
    if (!file->result) return complain_file(file, file->path);
    snprintf(file->result, length, "%s/%s.chacha20", request->output, name);
    file->in = open(file->path, O_RDONLY);
    if (file->in < 0 || fstat(file->in, &about) != 0) return complain_file(file, file->path);
    if (S_ISDIR(about.st_mode)) {
        errno = EISDIR;
        return complain_file(file, file->path);
    }
    file->out = open(file->result, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    return file->out >= 0 || complain_file(file, file->result);
}

static void print_stream(const stream *file) {
    uint32_t adler = 1;
    for (size_t i = 0; i < file->chunk_count; i++)
        adler = adler32_append(adler, file->sums[i].bytes, file->sums[i].sums);
    const char *name = strrchr(file->result, '/') + 1;
    printf("%s: %" PRIu64 " bytes, adler32 %08" PRIx32 ", entropy %.3f\n", name, file->bytes, adler,
           entropy(file->histogram));
}

/* A result that is not whole does not stay. */
static void close_stream(stream *file) {
    if (file->in >= 0) close(file->in);
    if (file->out >= 0 && close(file->out) != 0 && !file->failed) complain_file(file, file->result);
    if (file->out >= 0 && file->failed) unlink(file->result);
    free(file->sums);
    free(file->result);
}

/* 0 when the pipeline cannot go on. */
static int run_file(pipeline *all, uint32_t index, int *failures) {
    stream file;
    int ok = 1, end = !open_stream(all->request, index, &file);
    while (ok && !end && !file.failed) ok = stream_chunk(all, &file, &end);
    /* Nothing of the file is in flight any more. */
    if (file.out >= 0) ok &= collect_all(all);
    if (!ok) file.failed = 1;
    if (!file.failed) print_stream(&file);
    close_stream(&file);
    *failures += file.failed;
    return ok;
}

static void print_stats(const pipeline *all, double elapsed) {
    fprintf(stderr,
            "pipeline: %" PRIu64 " bytes in %" PRIu64 " chunks, %.3f s, %.3f GB/s; %" PRIu64 " submitted again\n",
            all->bytes, all->next, elapsed, (double)all->bytes / elapsed * 1e-9, all->again);
    /* More than the time that passed: that much was done at the same time. */
    fprintf(stderr,
            "pipeline: reading %.3f s, writing %.3f s, chunks under way %.3f s (%.1f at a time, of at most %u)\n",
            all->reading, all->writing, all->flying, all->flying / elapsed, all->slot_count);
    fprintf(stderr, "pipeline: waiting for a free slot %.3f s\n", all->waiting);
    for (int i = 0; i < muster_device_count(all->runtime); i++) {
        muster_device_stats stats = {.struct_size = sizeof stats};
        if (muster_device_get_stats(all->runtime, i, &stats, NULL) != MUSTER_OK) continue;
        fprintf(stderr, "pipeline: device %d: %" PRIu64 " jobs, %" PRIu64 " bytes up, %" PRIu64 " bytes down\n", i,
                stats.jobs, stats.bytes_to_device, stats.bytes_to_host);
    }
}

/* ---------------------------------------------------------------------------------------------------------- main -- */

static int run(const request *request) {
    pipeline *all = calloc(1, sizeof *all);
    int status = EXIT_FAILURE, failures = 0, ok = 1;
    muster_error error;
    if (all) all->check = malloc(request->chunk_bytes);
    if (!all || !all->check) {
        fprintf(stderr, "pipeline: out of memory\n");
        free(all);
        return EXIT_FAILURE;
    }
    all->request = request;
    if (!(all->runtime = example_runtime_create(&request->common))) goto free_memory;
    if (!prepare(all, &error)) {
        example_complain("pipeline", "cannot prepare", &error);
        goto destroy;
    }
    double start = now();
    for (uint32_t i = 0; ok && i < request->path_count; i++) ok = run_file(all, i, &failures);
    if (!ok) example_complain("pipeline", "stopped", &all->error);
    if (ok && request->stats) print_stats(all, now() - start);
    status = ok && !failures ? 0 : EXIT_FAILURE;
destroy:
    if (muster_runtime_destroy(all->runtime, MUSTER_FOREVER, &error) != MUSTER_OK) {
        example_complain("pipeline", "cannot stop Muster", &error);
        status = EXIT_FAILURE;
    }
free_memory:
    free(all->check);
    free(all);
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    perror("pipeline: standard output");
    return EXIT_FAILURE;
}

int main(int argc, char **argv) {
    request request = {.common = {.name = "pipeline"}, .chunk_bytes = 4 << 20};
    for (int i = 0; i < 32; i++) request.key[i] = (unsigned char)i;
    request.paths = calloc((size_t)argc, sizeof *request.paths);
    if (!request.paths) {
        fprintf(stderr, "pipeline: out of memory\n");
        return EXIT_FAILURE;
    }
    int status = parse(argc, argv, &request);
    if (status == 0 && request.help)
        fputs(usage, stdout);
    else if (status == 0)
        status = run(&request);
    free(request.paths);
    return status;
}
