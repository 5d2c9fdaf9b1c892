#include "scheduler/placement/history.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "scheduler/program/program.h"
#include "scheduler/runtime/runtime.h"

/* An entry is lines of a number, a space and a name. That of a kernel's pace is the kernel's, which has no blanks in it; that of its
 * wide pace has a suffix. */
static const char first_line[] = "muster history 1\n";

static const char *const suffixes[] = {"", " wide"};

enum { LINE_NUMBER_BYTES = 24, KERNEL_FIGURES = 2 };

/* No kernel takes an hour a block, and no link moves a petabyte a second: such an entry is not believed. */
#define LARGEST UINT64_C(3600000000000000)

struct mu_history {
    mu_history *next; /* of the program */
    mu_key key;
    char *text; /* as it was read, NULL: nothing was */
};

static bool is_kept(const muster_runtime *runtime) { return runtime->device_count > 1 && runtime->caches.disk; }

/* ----------------------------------------------------------------------------------------------------------- keys -- */

static void add_kind(mu_digest_state *state, const mu_actor *actor) {
    const mu_capability *c = mu_device_capability(actor->device);
    mu_digest_text(state, c->name);
    mu_digest_u64(state, (uint64_t)c->simulated);
    mu_digest_u64(state, (uint64_t)c->multiprocessors);
    mu_digest_u64(state, actor->runtime->config.actors_per_device); /* which have the device by turns */
}

mu_key mu_history_program_key(const mu_key *identity, const mu_actor *actor) {
    mu_digest_state state;
    mu_digest_begin(&state, "muster history of a program 1");
    mu_digest_field(&state, identity->bytes, sizeof identity->bytes);
    add_kind(&state, actor);
    return mu_digest_end(&state);
}

mu_key mu_history_device_key(const mu_actor *actor) {
    const mu_capability *c = mu_device_capability(actor->device);
    mu_digest_state state;
    mu_digest_begin(&state, "muster history of a device 1");
    mu_digest_field(&state, c->uuid, sizeof c->uuid);
    add_kind(&state, actor);
    return mu_digest_end(&state);
}

/* ---------------------------------------------------------------------------------------------------------- lines -- */

typedef struct line {
    uint64_t number;
    const char *name;
    size_t name_bytes;
} line;

/* Reads the line at `*at` and moves on to the next; false at the end, or where there is none: `*at` tells. */
static bool next_line(const char **at, line *out) {
    char *end;
    if (**at < '0' || **at > '9') return false;
    errno = 0;
    out->number = strtoull(*at, &end, 10);
    if (errno || *end != ' ' || out->number == 0 || out->number > LARGEST) return false;
    out->name = end + 1;
    out->name_bytes = strcspn(out->name, "\n");
    if (out->name_bytes == 0 || out->name[out->name_bytes] != '\n') return false;
    *at = out->name + out->name_bytes + 1;
    return true;
}

static bool is_well_formed(const char *text, size_t bytes) {
    const size_t head = sizeof first_line - 1;
    if (bytes < head || memcmp(text, first_line, head) != 0 || strlen(text) != bytes) return false;
    const char *at = text + head;
    line line;
    while (next_line(&at, &line)) {
    }
    return *at == '\0';
}

/* The lines of an entry; NULL: there is none, or none that can be read. Freed with mu_free. */
static char *read_entry(muster_runtime *runtime, const mu_key *key) {
    char *text;
    size_t bytes;
    if (!mu_disk_cache_load(runtime->caches.disk, MU_DISK_HISTORY, key, &text, &bytes)) return NULL;
    if (is_well_formed(text, bytes)) return text;
    mu_log_line(&runtime->log, MUSTER_LOG_WARNING,
                "history: an entry of %zu bytes cannot be read by this version; what it says is learnt again", bytes);
    mu_free(text);
    return NULL;
}

static bool is_named(const line *line, const char *name, const char *suffix) {
    size_t bytes = strlen(name);
    return line->name_bytes == bytes + strlen(suffix) && memcmp(line->name, name, bytes) == 0 &&
           memcmp(line->name + bytes, suffix, strlen(suffix)) == 0;
}

/* 0: the text does not say. */
static uint64_t number_of(const char *text, const char *name, const char *suffix) {
    if (!text) return 0;
    const char *at = text + sizeof first_line - 1;
    for (line line; next_line(&at, &line);)
        if (is_named(&line, name, suffix)) return line.number;
    return 0;
}

/* Texts under construction. `failed`: host memory is short. */
typedef struct writing {
    char *text;
    size_t bytes, capacity;
    bool failed;
} writing;

static void append(writing *w, const char *text, size_t bytes) {
    w->failed = w->failed || !mu_grow(&w->text, &w->capacity, w->bytes + bytes + 1, 1);
    if (w->failed) return;
    memcpy(w->text + w->bytes, text, bytes);
    w->text[w->bytes += bytes] = '\0';
}

static void append_line(writing *w, uint64_t number, const char *name, const char *suffix) {
    char digits[LINE_NUMBER_BYTES];
    int length = snprintf(digits, sizeof digits, "%" PRIu64 " ", number);
    append(w, digits, (size_t)length);
    append(w, name, strlen(name));
    append(w, suffix, strlen(suffix));
    append(w, "\n", 1);
}

static void begin(writing *w) {
    *w = (writing){0};
    append(w, first_line, sizeof first_line - 1);
}

static bool has_name(const writing *w, const line *wanted) {
    const char *at = w->text + sizeof first_line - 1;
    for (line line; next_line(&at, &line);)
        if (line.name_bytes == wanted->name_bytes && memcmp(line.name, wanted->name, line.name_bytes) == 0) return true;
    return false;
}

/* Lines of what is on disk whose names are not there yet. */
static void append_others(writing *w, const char *found) {
    if (!found) return;
    const char *at = found + sizeof first_line - 1, *from = at;
    for (line line; !w->failed && next_line(&at, &line); from = at)
        if (!has_name(w, &line)) append(w, from, (size_t)(at - from));
}

static void store(muster_runtime *runtime, const mu_key *key, writing *w) {
    if (!w->failed) mu_disk_cache_store(runtime->caches.disk, MU_DISK_HISTORY, key, w->text, w->bytes);
    mu_free(w->text);
}

/* Estimates go up and down by what else a machine does. What differs by less than an eighth is not worth a write. */
static bool is_news(uint64_t known, uint64_t now) {
    if (now == 0 || now > LARGEST) return false;
    return known == 0 || (now > known ? now - known : known - now) > known / 8;
}

/* ------------------------------------------------------------------------------------------------------- programs -- */

static mu_history *find(const muster_program *program, const mu_key *key) {
    mu_history *history = program->histories;
    while (history && !mu_key_equal(&history->key, key)) history = history->next;
    return history;
}

void mu_history_load(muster_program *program) {
    muster_runtime *runtime = program->handle.runtime;
    if (!is_kept(runtime)) return;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        mu_program_device *device = &program->devices[d];
        if (!device->code) continue;
        mu_key key = mu_history_program_key(&device->code->identity, &runtime->actors[d]);
        device->history = find(program, &key);
        if (device->history) continue;
        mu_history *history = mu_alloc_zeroed(1, sizeof *history);
        if (!history) return;
        history->key = key;
        history->text = read_entry(runtime, &key);
        history->next = program->histories;
        program->histories = device->history = history;
    }
}

static atomic_uint_fast64_t *figure_of(const muster_kernel *kernel, int figure) {
    return figure ? kernel->wide_pace_ps : kernel->pace_ps;
}

void mu_history_recall(muster_kernel *kernel) {
    const muster_program *program = kernel->program;
    for (uint32_t d = 0; d < program->handle.runtime->device_count; d++) {
        const mu_history *history = program->devices[d].history;
        for (int f = 0; history && f < KERNEL_FIGURES; f++)
            atomic_init(&figure_of(kernel, f)[d], number_of(history->text, kernel->name, suffixes[f]));
    }
}

void mu_history_free(muster_program *program) {
    while (program->histories) {
        mu_history *history = program->histories;
        program->histories = history->next;
        mu_free(history->text);
        mu_free(history);
    }
}

/* What the devices of the kind say together; 0: nothing. */
static uint64_t figure_now(const muster_program *program, const mu_history *history, const muster_kernel *kernel,
                           int figure) {
    unsigned __int128 sum = 0;
    uint32_t count = 0;
    for (uint32_t d = 0; d < program->handle.runtime->device_count; d++) {
        uint64_t one = atomic_load_explicit(&figure_of(kernel, figure)[d], memory_order_relaxed);
        if (program->devices[d].history != history || one == 0) continue;
        sum += one;
        count++;
    }
    return count ? (uint64_t)(sum / count) : 0;
}

static void save_kind(muster_program *program, const mu_history *history) {
    muster_runtime *runtime = program->handle.runtime;
    bool any = false;
    writing w;
    begin(&w);
    for (const muster_kernel *kernel = program->kernels; kernel; kernel = kernel->next)
        for (int f = 0; f < KERNEL_FIGURES; f++) {
            uint64_t now = figure_now(program, history, kernel, f);
            if (!is_news(number_of(history->text, kernel->name, suffixes[f]), now)) continue;
            append_line(&w, now, kernel->name, suffixes[f]);
            any = true;
        }
    if (!any) {
        mu_free(w.text);
        return;
    }
    char *found = read_entry(runtime, &history->key);
    append_others(&w, found);
    mu_free(found);
    store(runtime, &history->key, &w);
}

void mu_history_save(muster_program *program) {
    pthread_mutex_lock(&program->lock); /* of the list of kernels */
    for (const mu_history *history = program->histories; history; history = history->next) save_kind(program, history);
    pthread_mutex_unlock(&program->lock);
}

/* ---------------------------------------------------------------------------------------------------------- rates -- */

static const char from_host[] = "host_bytes_per_us", from_peers[] = "peer_bytes_per_us";

void mu_history_load_rates(muster_runtime *runtime) {
    if (!is_kept(runtime)) return;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        mu_actor *actor = &runtime->actors[d];
        mu_key key = mu_history_device_key(actor);
        char *text = read_entry(runtime, &key);
        actor->host_rate_known = number_of(text, from_host, "");
        actor->peer_rate_known = number_of(text, from_peers, "");
        mu_free(text);
        atomic_store_explicit(&actor->host_bytes_per_us, actor->host_rate_known, memory_order_relaxed);
        atomic_store_explicit(&actor->peer_bytes_per_us, actor->peer_rate_known, memory_order_relaxed);
    }
}

void mu_history_save_rates(muster_runtime *runtime) {
    if (!is_kept(runtime)) return;
    for (uint32_t d = 0; d < runtime->device_count; d++) {
        const mu_actor *actor = &runtime->actors[d];
        uint64_t host = atomic_load_explicit(&actor->host_bytes_per_us, memory_order_relaxed);
        uint64_t peer = atomic_load_explicit(&actor->peer_bytes_per_us, memory_order_relaxed);
        if (!is_news(actor->host_rate_known, host) && !is_news(actor->peer_rate_known, peer)) continue;
        mu_key key = mu_history_device_key(actor);
        writing w;
        begin(&w);
        if (host && host <= LARGEST) append_line(&w, host, from_host, "");
        if (peer && peer <= LARGEST) append_line(&w, peer, from_peers, "");
        store(runtime, &key, &w);
    }
}
