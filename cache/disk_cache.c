#include "cache/disk_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"

/* The head of every file; numbers are little-endian. The payload follows and ends the file. */
typedef struct header {
    unsigned char magic[8];
    unsigned char version[4];
    unsigned char kind[4];
    unsigned char key[MU_DIGEST_BYTES];
    unsigned char payload_bytes[8];
    unsigned char digest[MU_DIGEST_BYTES]; /* over all of the above and the payload */
} header;
_Static_assert(sizeof(header) == 88, "the file format has no padding");

enum { FORMAT_VERSION = 1, NAME_BYTES = 80 };
static const unsigned char magic[8] = "MUSTERC\n";

enum {
    TOUCH_AGE_S = 60,       /* a hit refreshes a file's time only when it is older: LRU needs no more */
    TEMPORARY_AGE_S = 3600, /* a temporary file this old has no writer any more */
    RESCAN_FRACTION = 16    /* look at the directory again after storing this part of the bound: others store too */
};

struct mu_disk_cache {
    int directory;
    uint64_t max_bytes;
    const mu_log *log;
    atomic_bool warned;
    /* Relaxed: they only count. */
    atomic_uint_fast64_t hits, misses, damaged, stores, store_failures, evictions;
    atomic_uint_fast64_t history_hits, history_misses, history_stores;

    pthread_mutex_t lock;
    bool scanned;
    uint64_t scanned_bytes; /* in the directory when it was last scanned ... */
    uint64_t stored_bytes;  /* ... and stored by us since */

    char path[];
};

static void count(atomic_uint_fast64_t *counter) { atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }

static void warn_once(mu_disk_cache *cache, const char *what, int failure) {
    if (atomic_exchange_explicit(&cache->warned, true, memory_order_relaxed)) return;
    mu_log_line(
        cache->log, MUSTER_LOG_WARNING,
        "disk cache: %s in %s: %s; programs are compiled again in each process (set MUSTER_CACHE_DIR to another "
        "directory, or to nothing to turn the cache off)",
        what, cache->path, strerror(failure));
}

/* ---------------------------------------------------------------------------------------------------------- open -- */

/* What was found under an entry's name is no entry: it goes, so that it is told once. */
static void remove_damaged(mu_disk_cache *cache, const char *name, const char *why) {
    mu_log_line(cache->log, MUSTER_LOG_WARNING, "disk cache: %s in %s is removed: %s; it is made again", name,
                cache->path, why);
    unlinkat(cache->directory, name, 0);
    count(&cache->damaged);
}

static bool is_set(const char *text) { return text && text[0]; }

/* False: off, or there is nowhere to put it. */
static bool choose_directory(const char *given, char path[PATH_MAX]) {
    const char *from = given ? given : secure_getenv("MUSTER_CACHE_DIR");
    const char *suffix = "";
    if (!from) {
        const char *home = secure_getenv("HOME");
        from = secure_getenv("XDG_CACHE_HOME");
        suffix = "/muster";
        if (!is_set(from) || from[0] != '/') { /* the XDG specification says to ignore a relative one */
            from = home;
            suffix = "/.cache/muster";
        }
    }
    if (!is_set(from)) return false;
    int length = snprintf(path, PATH_MAX, "%s%s", from, suffix);
    return length > 0 && length < PATH_MAX;
}

/* Whoever can write the directory decides what runs on the devices. */
static const char *why_unsafe(int directory) {
    struct stat status;
    if (fstat(directory, &status) != 0) return "cannot be examined";
    if (status.st_uid != geteuid() && status.st_uid != 0) return "belongs to another user";
    if (status.st_mode & (S_IWGRP | S_IWOTH)) return "can be written by other users; chmod go-w it";
    return NULL;
}

muster_status mu_disk_cache_open(const mu_disk_cache_options *options, mu_disk_cache **out, muster_error *error) {
    char path[PATH_MAX];
    const mu_log *log = options ? options->log : NULL;
    int directory;
    if (!choose_directory(options ? options->directory : NULL, path)) {
        *out = NULL;
        return MUSTER_OK;
    }
    int failure = mu_directory_open(path, &directory);
    const char *unsafe = failure ? strerror(failure) : why_unsafe(directory);
    if (unsafe) {
        mu_log_line(log, MUSTER_LOG_WARNING,
                    "disk cache: the directory %s is not used: %s; programs are compiled again in each process", path,
                    unsafe);
        if (!failure) close(directory);
        *out = NULL;
        return MUSTER_OK;
    }
    size_t length = strlen(path) + 1;
    mu_disk_cache *cache = mu_alloc_zeroed(1, sizeof *cache + length);
    if (!cache) {
        close(directory);
        return mu_fail_host_memory(error, "a disk cache", sizeof *cache + length);
    }
    cache->directory = directory;
    cache->max_bytes = options && options->max_bytes ? options->max_bytes : MU_DISK_CACHE_BYTES;
    cache->log = log;
    memcpy(cache->path, path, length);
    pthread_mutex_init(&cache->lock, NULL);
    *out = cache;
    return MUSTER_OK;
}

void mu_disk_cache_close(mu_disk_cache *cache) {
    if (!cache) return;
    close(cache->directory);
    pthread_mutex_destroy(&cache->lock);
    mu_free(cache);
}

const char *mu_disk_cache_directory(const mu_disk_cache *cache) { return cache ? cache->path : ""; }

/* ------------------------------------------------------------------------------------------------------- entries -- */

static const char *suffix_of(mu_disk_kind kind) {
    switch (kind) {
        case MU_DISK_PTX: return "ptx";
        case MU_DISK_CUBIN: return "cubin";
        case MU_DISK_HISTORY: break;
    }
    return "history";
}

static void entry_name(mu_disk_kind kind, const mu_key *key, char name[NAME_BYTES]) {
    char hex[MU_DIGEST_HEX_BYTES];
    mu_digest_hex(key, hex);
    /* The version is in the name too, so that two versions do not replace each other's files for ever. */
    snprintf(name, NAME_BYTES, "%s-%d.%s", hex, FORMAT_VERSION, suffix_of(kind));
}

static bool is_entry_name(const char *name) {
    size_t hex = strspn(name, "0123456789abcdef");
    return hex == 2 * MU_DIGEST_BYTES && name[hex] == '-';
}

static void put_number(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(value >> 8 * i);
}

static void make_header(header *header, mu_disk_kind kind, const mu_key *key, const void *payload, size_t bytes) {
    memcpy(header->magic, magic, sizeof magic);
    put_number(header->version, FORMAT_VERSION, sizeof header->version);
    put_number(header->kind, kind, sizeof header->kind);
    memcpy(header->key, key->bytes, sizeof header->key);
    put_number(header->payload_bytes, bytes, sizeof header->payload_bytes);
    mu_digest_state state;
    mu_digest_begin(&state, "muster disk entry 1");
    mu_digest_field(&state, header, offsetof(struct header, digest));
    mu_digest_field(&state, payload, bytes);
    mu_digest digest = mu_digest_end(&state);
    memcpy(header->digest, digest.bytes, sizeof header->digest);
}

/* NULL when the file is the entry it should be. */
static const char *what_is_wrong(mu_disk_kind kind, const mu_key *key, const char *file, size_t bytes) {
    header found, expected;
    if (bytes < sizeof found) return "it is cut short";
    memcpy(&found, file, sizeof found);
    make_header(&expected, kind, key, file + sizeof found, bytes - sizeof found);
    if (memcmp(found.magic, expected.magic, sizeof found.magic) != 0) return "it is not one of ours";
    if (memcmp(found.version, expected.version, sizeof found.version) != 0) return "it is of another version";
    if (memcmp(found.kind, expected.kind, sizeof found.kind) != 0 ||
        memcmp(found.key, expected.key, sizeof found.key) != 0)
        return "it is another program's";
    if (memcmp(found.payload_bytes, expected.payload_bytes, sizeof found.payload_bytes) != 0)
        return "its size is wrong";
    if (memcmp(found.digest, expected.digest, sizeof found.digest) != 0) return "its content is damaged";
    return NULL;
}

/* Marks the file as used now. Failing only makes it look older than it is. */
static void touch(int fd) {
    struct stat status;
    if (fstat(fd, &status) == 0 && time(NULL) - status.st_mtime > TOUCH_AGE_S) futimens(fd, NULL);
}

bool mu_disk_cache_load(mu_disk_cache *cache, mu_disk_kind kind, const mu_key *key, char **data, size_t *bytes) {
    if (!cache) return false;
    char name[NAME_BYTES];
    void *file;
    size_t file_bytes;
    int fd;
    bool program = kind != MU_DISK_HISTORY;
    entry_name(kind, key, name);
    int failure = mu_file_read(cache->directory, name, cache->max_bytes, &file, &file_bytes, &fd);
    if (failure) {
        if (failure == EFBIG || failure == ELOOP)
            remove_damaged(cache, name, failure == EFBIG ? "it is too large" : "it is a symbolic link");
        else if (failure != ENOENT && failure != ENOMEM)
            warn_once(cache, "an entry cannot be read", failure);
        count(program ? &cache->misses : &cache->history_misses);
        return false;
    }
    const char *wrong = what_is_wrong(kind, key, file, file_bytes);
    if (wrong) {
        remove_damaged(cache, name, wrong);
        mu_free(file);
        count(program ? &cache->misses : &cache->history_misses);
    } else {
        touch(fd);
        *bytes = file_bytes - sizeof(header);
        memmove(file, (char *)file + sizeof(header), *bytes + 1);
        *data = file;
        count(program ? &cache->hits : &cache->history_hits);
    }
    close(fd);
    return !wrong;
}

/* ------------------------------------------------------------------------------------------------------ eviction -- */

typedef struct found_file {
    char name[NAME_BYTES];
    uint64_t bytes;
    struct timespec used;
} found_file;

static int by_age(const void *a, const void *b) {
    const found_file *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Lists the entries, and removes temporary files whose writer is gone. */
static int list_directory(mu_disk_cache *cache, found_file **files, size_t *file_count, uint64_t *total) {
    size_t capacity = 0;
    int fd = openat(cache->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* with a position of its own */
    if (fd < 0) return errno;
    DIR *stream = fdopendir(fd);
    if (!stream) {
        int failure = errno;
        close(fd);
        return failure;
    }
    for (struct dirent *entry; (entry = readdir(stream));) {
        struct stat status;
        bool temporary = strncmp(entry->d_name, MU_TEMPORARY_PREFIX, strlen(MU_TEMPORARY_PREFIX)) == 0;
        if (!temporary && !is_entry_name(entry->d_name)) continue;
        if (strlen(entry->d_name) >= NAME_BYTES) continue;
        if (fstatat(cache->directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue; /* just removed */
        if (temporary) {
            if (time(NULL) - status.st_mtime > TEMPORARY_AGE_S) unlinkat(cache->directory, entry->d_name, 0);
            continue;
        }
        if (!mu_grow(files, &capacity, *file_count + 1, sizeof **files)) break; /* what was listed will do */
        found_file *file = &(*files)[(*file_count)++];
        strcpy(file->name, entry->d_name);
        file->bytes = (uint64_t)status.st_size;
        file->used = status.st_mtim;
        *total += file->bytes;
    }
    closedir(stream);
    return 0;
}

/* Brings the directory under its bound: another process that does the same at the same time removes the same files. */
static void evict(mu_disk_cache *cache) {
    found_file *files = NULL;
    size_t file_count = 0;
    uint64_t total = 0;
    int failure = list_directory(cache, &files, &file_count, &total);
    if (failure) warn_once(cache, "the directory cannot be listed", failure);
    if (total > cache->max_bytes) {
        qsort(files, file_count, sizeof *files, by_age);
        uint64_t goal = cache->max_bytes - cache->max_bytes / 8;      /* so that not every store has to do this */
        for (size_t i = 0; i + 1 < file_count && total > goal; i++) { /* never the newest: it was just stored */
            if (unlinkat(cache->directory, files[i].name, 0) == 0) count(&cache->evictions);
            total -= files[i].bytes;
        }
    }
    mu_free(files);
    cache->scanned = true;
    cache->scanned_bytes = total;
    cache->stored_bytes = 0;
}

bool mu_disk_cache_store(mu_disk_cache *cache, mu_disk_kind kind, const mu_key *key, const void *data, size_t bytes) {
    if (!cache) return false;
    if (bytes > cache->max_bytes || cache->max_bytes - bytes < sizeof(header)) return false;
    char name[NAME_BYTES];
    header header;
    entry_name(kind, key, name);
    make_header(&header, kind, key, data, bytes);
    const struct iovec parts[] = {{&header, sizeof header}, {(void *)(uintptr_t)data, bytes}};
    int failure = mu_file_write(cache->directory, name, parts, 2);
    if (failure) {
        warn_once(cache, "an entry cannot be written", failure);
        count(&cache->store_failures);
        return false;
    }
    count(kind != MU_DISK_HISTORY ? &cache->stores : &cache->history_stores);
    pthread_mutex_lock(&cache->lock);
    cache->stored_bytes += sizeof header + bytes;
    if (!cache->scanned || cache->scanned_bytes + cache->stored_bytes > cache->max_bytes ||
        cache->stored_bytes > cache->max_bytes / RESCAN_FRACTION)
        evict(cache);
    pthread_mutex_unlock(&cache->lock);
    return true;
}

void mu_disk_cache_get_stats(mu_disk_cache *cache, mu_disk_cache_stats *stats) {
    memset(stats, 0, sizeof *stats);
    if (!cache) return;
    stats->hits = atomic_load_explicit(&cache->hits, memory_order_relaxed);
    stats->misses = atomic_load_explicit(&cache->misses, memory_order_relaxed);
    stats->damaged = atomic_load_explicit(&cache->damaged, memory_order_relaxed);
    stats->stores = atomic_load_explicit(&cache->stores, memory_order_relaxed);
    stats->store_failures = atomic_load_explicit(&cache->store_failures, memory_order_relaxed);
    stats->evictions = atomic_load_explicit(&cache->evictions, memory_order_relaxed);
    stats->history_hits = atomic_load_explicit(&cache->history_hits, memory_order_relaxed);
    stats->history_misses = atomic_load_explicit(&cache->history_misses, memory_order_relaxed);
    stats->history_stores = atomic_load_explicit(&cache->history_stores, memory_order_relaxed);
}
