#include "cache/dump.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"

struct mu_dump {
    mu_dump_mode mode;
    int directory;
    const mu_log *log;
    atomic_bool warned;
    char path[];
};

muster_status mu_dump_mode_parse(const char *text, mu_dump_mode *mode, muster_error *error) {
    static const char *const names[] = {[MU_DUMP_NONE] = "none", [MU_DUMP_FAILING] = "failing", [MU_DUMP_ALL] = "all"};
    if (!text || !text[0]) text = "none";
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *mode = (mu_dump_mode)i;
            return MUSTER_OK;
        }
    return mu_fail(error, MUSTER_INVALID_CONFIG,
                   "dump_ptx (MUSTER_DUMP_PTX) is \"%.64s\"; use \"none\", \"failing\" or \"all\"", text);
}

muster_status mu_dump_open(mu_dump_mode mode, const char *directory, const mu_log *log, mu_dump **out,
                           muster_error *error) {
    *out = NULL;
    if (mode == MU_DUMP_NONE) return MUSTER_OK;
    int fd;
    int failure = mu_directory_open(directory ? directory : "", &fd);
    if (failure) {
        mu_log_line(log, MUSTER_LOG_WARNING, "PTX dumps: the directory \"%s\" cannot be opened: %s; nothing is dumped",
                    directory ? directory : "", strerror(failure));
        return MUSTER_OK;
    }
    size_t length = strlen(directory) + 1;
    mu_dump *dump = mu_alloc_zeroed(1, sizeof *dump + length);
    if (!dump) {
        close(fd);
        return mu_fail_host_memory(error, "a PTX dump", sizeof *dump + length);
    }
    dump->mode = mode;
    dump->directory = fd;
    dump->log = log;
    memcpy(dump->path, directory, length);
    *out = dump;
    return MUSTER_OK;
}

void mu_dump_close(mu_dump *dump) {
    if (!dump) return;
    close(dump->directory);
    mu_free(dump);
}

/* A file of that name has that content: it is not written again. */
static void write_once(mu_dump *dump, const char *name, const void *content, size_t bytes) {
    if (faccessat(dump->directory, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) return;
    const struct iovec part = {(void *)(uintptr_t)content, bytes};
    int failure = mu_file_write(dump->directory, name, &part, 1);
    if (failure && !atomic_exchange_explicit(&dump->warned, true, memory_order_relaxed))
        mu_log_line(dump->log, MUSTER_LOG_WARNING, "PTX dumps: %s cannot be written in %s: %s", name, dump->path,
                    strerror(failure));
}

void mu_dump_ptx(mu_dump *dump, const char *text, size_t bytes, const muster_error *failure) {
    if (!dump || (!failure && dump->mode != MU_DUMP_ALL)) return;
    mu_key key = mu_raw_ptx_key(text, bytes);
    char hex[MU_DIGEST_HEX_BYTES], name[MU_DIGEST_HEX_BYTES + 4];
    mu_digest_hex(&key, hex);
    snprintf(name, sizeof name, "%s.ptx", hex);
    write_once(dump, name, text, bytes);
    if (!failure) return;
    char line[sizeof failure->message + 1];
    int length = snprintf(line, sizeof line, "%s\n", failure->message);
    snprintf(name, sizeof name, "%s.log", hex);
    write_once(dump, name, line, (size_t)length);
}
