#include "cache/includes.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"

typedef struct walk {
    const mu_include_search *search;
    mu_digest_state digest;
    char **paths; /* of the files found, in order; searched one after the other */
    size_t count, capacity;
    uint64_t bytes;
    bool complete, out_of_memory;
} walk;

/* --------------------------------------------------------------------------------------------------------- names -- */

static bool in_a_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Skips blanks, continued lines, comments, and the parenthesis of __has_include. */
static const char *skip_blanks(const char *at, bool parenthesis) {
    for (;;) {
        if (*at == ' ' || *at == '\t' || (parenthesis && *at == '(')) {
            at++;
        } else if (at[0] == '\\' && (at[1] == '\n' || (at[1] == '\r' && at[2] == '\n'))) {
            at += at[1] == '\n' ? 2 : 3;
        } else if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            if (!end) return at;
            at = end + 2;
        } else {
            return at;
        }
    }
}

/* Whether the word at `word` is a directive's: the last thing before it is a '#'. */
static bool is_directive(const char *text, const char *word) {
    while (word > text && (word[-1] == ' ' || word[-1] == '\t' || word[-1] == '/' || word[-1] == '*')) word--;
    return word > text && (word[-1] == '#' || (word[-1] == ':' && word - 1 > text && word[-2] == '%'));
}

/* --------------------------------------------------------------------------------------------------------- files -- */

static void visit(walk *walk, const char *path) {
    for (size_t i = 0; i < walk->count; i++)
        if (strcmp(walk->paths[i], path) == 0) return;
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) return; /* if it appears, it is found then */
    if (walk->count == MU_INCLUDES_MAX || walk->bytes + (uint64_t)status.st_size > MU_INCLUDES_BYTES) {
        walk->complete = false;
        return;
    }
    char *copy = mu_strdup(path);
    if (!copy || !mu_grow(&walk->paths, &walk->capacity, walk->count + 1, sizeof *walk->paths)) {
        mu_free(copy);
        walk->out_of_memory = true;
        return;
    }
    walk->paths[walk->count++] = copy;
    walk->bytes += (uint64_t)status.st_size;
}

static void visit_in(walk *walk, const char *directory, size_t directory_bytes, const char *name, size_t name_bytes) {
    char path[PATH_MAX];
    int length = directory_bytes
                     ? snprintf(path, sizeof path, "%.*s/%.*s", (int)directory_bytes, directory, (int)name_bytes, name)
                     : snprintf(path, sizeof path, "%.*s", (int)name_bytes, name);
    if (length > 0 && (size_t)length < sizeof path)
        visit(walk, path);
    else
        walk->complete = false;
}

/* The bytes of a path that are its directory; 0 for a name alone. */
static size_t directory_bytes(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

/* `value` when the option is `name` with a value behind it, or when it is `name` alone and the next one is the
 * value. */
static const char *option_value(const mu_include_search *search, uint32_t *index, const char *name) {
    const char *option = search->options[*index];
    size_t length = strlen(name);
    if (strncmp(option, name, length) != 0) return NULL;
    if (option[length]) return option + length + (option[length] == '=');
    return *index + 1 < search->option_count ? search->options[++*index] : "";
}

/* One name, wherever the compiler may look: beside who includes it, beside the source, and on the search path. */
static void look_for(walk *walk, const char *from, const char *name, size_t bytes) {
    const mu_include_search *search = walk->search;
    if (bytes == 0) return;
    if (name[0] == '/') {
        visit_in(walk, NULL, 0, name, bytes);
        return;
    }
    visit_in(walk, from, directory_bytes(from), name, bytes);
    visit_in(walk, search->source_name, directory_bytes(search->source_name), name, bytes);
    for (uint32_t i = 0; i < search->option_count; i++) {
        const char *path = option_value(search, &i, "--include-path");
        if (!path) path = option_value(search, &i, "-I");
        if (path) visit_in(walk, path, strlen(path), name, bytes);
    }
}

/* Follows every name that `text`, which lies at `from`, may include. */
static void follow(walk *walk, const char *from, const char *text) {
    for (const char *at = text; (at = strstr(at, "include")) && !walk->out_of_memory; at++) {
        bool question = at - text >= 6 && memcmp(at - 6, "__has_", 6) == 0;
        const char *word = question ? at - 6 : at, *end = at + strlen("include");
        if (strncmp(end, "_next", 5) == 0) end += 5;
        if ((word > text && in_a_name(word[-1])) || in_a_name(*end)) continue;
        const char *name = skip_blanks(end, question);
        char close = *name == '<' ? '>' : *name == '"' ? '"' : '\0';
        size_t bytes = close ? strcspn(name + 1, close == '>' ? ">\n" : "\"\n") : 0;
        if (close && name[1 + bytes] == close)
            look_for(walk, from, name + 1, bytes);
        else if (question || is_directive(text, word))
            walk->complete = false;
    }
}

static void follow_file(walk *walk, const char *path) {
    void *text = NULL;
    size_t bytes = 0;
    char file[PATH_MAX];
    /* Headers may be symbolic links, which mu_file_read does not follow. */
    int failure = realpath(path, file) ? mu_file_read(AT_FDCWD, file, MU_INCLUDES_BYTES, &text, &bytes, NULL) : errno;
    if (failure == ENOMEM) walk->out_of_memory = true;
    if (failure) {
        walk->complete = false;
        return;
    }
    mu_digest_text(&walk->digest, path);
    mu_digest_field(&walk->digest, text, bytes);
    follow(walk, path, text);
    mu_free(text);
}

/* ------------------------------------------------------------------------------------------------------- options -- */

static void follow_options(walk *walk) {
    static const char *const opaque[] = {"--options-file", "-optf", "--use-pch", "--create-pch", "-pch", "--pch"};
    const mu_include_search *search = walk->search;
    for (uint32_t i = 0; i < search->option_count; i++) {
        for (size_t j = 0; j < sizeof opaque / sizeof *opaque; j++)
            if (strncmp(search->options[i], opaque[j], strlen(opaque[j])) == 0) walk->complete = false;
        if (strncmp(search->options[i], "--include-path", 14) == 0) continue;
        const char *file = option_value(search, &i, "--pre-include");
        if (!file) file = option_value(search, &i, "-include");
        if (file) look_for(walk, search->source_name, file, strlen(file));
    }
}

muster_status mu_includes_digest(const char *text, const mu_include_search *search, mu_digest *digest, bool *complete,
                                 muster_error *error) {
    walk walk = {.search = search, .complete = true};
    mu_digest_begin(&walk.digest, "muster includes 1");
    follow_options(&walk);
    follow(&walk, search->source_name, text);
    for (uint32_t i = 0; i < search->header_count; i++) follow(&walk, search->source_name, search->header_texts[i]);
    for (size_t i = 0; i < walk.count && !walk.out_of_memory; i++) follow_file(&walk, walk.paths[i]);
    mu_digest result = mu_digest_end(&walk.digest);
    for (size_t i = 0; i < walk.count; i++) mu_free(walk.paths[i]);
    mu_free(walk.paths);
    if (walk.out_of_memory) return mu_fail_host_memory(error, "the list of included files", walk.count * PATH_MAX);
    *digest = result;
    *complete = walk.complete;
    return MUSTER_OK;
}
