#include "scheduler/program/source.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/image.h"
#include "scheduler/runtime/runtime.h"

void mu_code_drop_image(mu_code *code) {
    mu_ptx_text_release(&code->text);
    mu_free(code->copy);
    code->copy = NULL;
    code->image = NULL;
}

/* --------------------------------------------------------------------------------------------------- PTX to code -- */

static bool in_a_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
           c == '.';
}

/* Whether the word that ends before `at` is ".ptr": then a state space describes a parameter, and declares nothing. */
static bool follows_ptr(const char *ptx, const char *at) {
    while (at > ptx && (at[-1] == ' ' || at[-1] == '\t' || at[-1] == '\n' || at[-1] == '\r')) at--;
    return at - ptx >= 4 && memcmp(at - 4, ".ptr", 4) == 0;
}

/* Whether one of the directives from `at` to `stop`, which may be written without blanks between them, declares something. */
static bool declares(const char *ptx, const char *at, const char *stop) {
    static const char *const spaces[] = {".global", ".const", ".texref", ".samplerref", ".surfref"};
    while (at < stop) {
        const char *next = memchr(at + 1, '.', (size_t)(stop - at - 1));
        if (!next) next = stop;
        for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
            if (strlen(spaces[i]) == (size_t)(next - at) && !memcmp(at, spaces[i], (size_t)(next - at)) &&
                !follows_ptr(ptx, at))
                return true;
        at = next;
    }
    return false;
}

/* A state space among directives declares something; in an instruction it comes behind its name ("ld.global.u32"). */
bool mu_ptx_has_variables(const char *ptx, size_t bytes) {
    const char *end = ptx + bytes, *stop;
    for (const char *at = ptx; (at = memchr(at, '.', (size_t)(end - at))); at = stop) {
        for (stop = at; stop < end && in_a_word(*stop);) stop++;
        if ((at == ptx || !in_a_word(at[-1])) && declares(ptx, at, stop)) return true;
    }
    return false;
}

muster_status mu_code_from_ptx(muster_runtime *runtime, mu_device *device, const char *name, const char *ptx,
                               size_t bytes, mu_code *code, muster_error *error) {
    mu_key raw = mu_raw_ptx_key(ptx, bytes);
    muster_status status = mu_compile_cubin(&runtime->caches, NULL, device, &raw, ptx, bytes, name, &code->text, error);
    if (status) return status;
    code->key = mu_device_cubin_key(device, &raw);
    code->identity = raw;
    code->image = code->text.text;
    code->bytes = code->text.bytes;
    code->has_variables = mu_ptx_has_variables(ptx, bytes);
    return MUSTER_OK;
}

typedef struct writing {
    muster_runtime *runtime;
    mu_device *device;
    const char *name;
    mu_write_ptx_fn write;
    void *user;
} writing;

static muster_status write_and_compile(void *user, const mu_key *key, char **out, size_t *out_bytes,
                                       muster_error *error) {
    writing *w = user;
    char *text = NULL;
    size_t bytes = 0;
    mu_code checked = {0};
    (void)key;
    muster_status status = w->write(w->user, &text, &bytes, error);
    if (!status) status = mu_code_from_ptx(w->runtime, w->device, w->name, text, bytes, &checked, error);
    mu_code_drop_image(&checked);
    if (status) {
        mu_free(text);
        return status;
    }
    *out = text;
    *out_bytes = bytes;
    return MUSTER_OK;
}

muster_status mu_code_from_writer(muster_runtime *runtime, mu_device *device, const char *name,
                                  const mu_ptx_fields *fields, bool persistent, mu_write_ptx_fn write, void *user,
                                  mu_code *code, muster_error *error) {
    writing w = {.runtime = runtime, .device = device, .name = name, .write = write, .user = user};
    mu_key key = mu_ptx_key(fields);
    mu_ptx_text text;
    muster_status status =
        mu_compile_ptx(&runtime->caches, NULL, &key, persistent, write_and_compile, &w, &text, error);
    if (status) return status;
    status = mu_code_from_ptx(runtime, device, name, text.text, text.bytes, code, error);
    mu_ptx_text_release(&text);
    return status;
}

/* ----------------------------------------------------------------------------------------------- text and images -- */

muster_status mu_program_check_make(muster_runtime *runtime, const void *source, const char *source_name,
                                    muster_program **program, muster_error *error) {
    muster_status status = mu_handle_check(runtime, MU_TAG_RUNTIME, NULL, "runtime", error);
    if (status || (status = mu_runtime_check(runtime, error))) return status;
    if (!program) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "program is NULL; pass where to store the handle");
    if (!source) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "%s is NULL", source_name);
    return MUSTER_OK;
}

typedef struct given {
    const void *content;
    size_t bytes;
    mu_image_kind kind;
} given;

static muster_status code_of_text(void *user, muster_runtime *runtime, mu_device *device, const char *name,
                                  mu_code *code, muster_error *error) {
    const given *text = user;
    int sm;
    muster_status status = mu_device_target(device, &sm, error);
    return status ? status : mu_code_from_ptx(runtime, device, name, text->content, text->bytes, code, error);
}

muster_status muster_program_from_ptx(muster_runtime *runtime, const char *ptx, size_t bytes, const char *name,
                                      muster_program **program, muster_error *error) {
    muster_status status = mu_program_check_make(runtime, ptx, "ptx", program, error);
    if (status) return status;
    given text = {.content = ptx, .bytes = bytes ? bytes : strlen(ptx)};
    if (text.bytes == 0) return mu_fail(error, MUSTER_PROGRAM_INVALID, "the PTX text is empty");
    status = mu_image_classify(ptx, text.bytes, name ? name : "program", &text.kind, error);
    if (status) return status;
    if (text.kind != MU_IMAGE_PTX)
        return mu_fail(error, MUSTER_PROGRAM_INVALID,
                       "program %.64s is compiled already, no PTX text; use muster_program_from_image",
                       name ? name : "program");
    while (text.bytes && ptx[text.bytes - 1] == '\0') text.bytes--; /* a terminator that was counted */
    return mu_program_make(runtime, name, code_of_text, &text, program, error);
}

/* The caller's bytes are copied once; every kind of device loads them, each from a copy of its own that goes when all
 * of the kind have. */
static muster_status code_of_image(void *user, muster_runtime *runtime, mu_device *device, const char *name,
                                   mu_code *code, muster_error *error) {
    const given *image = user;
    (void)runtime, (void)device, (void)name;
    code->copy = mu_alloc(image->bytes);
    if (!code->copy) return mu_fail_host_memory(error, "a copy of an image", image->bytes);
    memcpy(code->copy, image->content, image->bytes);
    code->image = code->copy;
    code->bytes = image->bytes;
    code->key = code->identity = mu_raw_ptx_key(image->content, image->bytes);
    code->has_variables = true; /* it cannot be told */
    return MUSTER_OK;
}

muster_status muster_program_from_image(muster_runtime *runtime, const void *image, size_t bytes, const char *name,
                                        muster_program **program, muster_error *error) {
    muster_status status = mu_program_check_make(runtime, image, "image", program, error);
    if (status) return status;
    given given = {.content = image, .bytes = bytes};
    if (bytes == 0) return mu_fail(error, MUSTER_PROGRAM_INVALID, "the image has no bytes; pass its size");
    status = mu_image_classify(image, bytes, name ? name : "program", &given.kind, error);
    if (status) return status;
    if (given.kind == MU_IMAGE_PTX)
        return mu_fail(error, MUSTER_PROGRAM_INVALID,
                       "program %.64s is PTX text, no image; use muster_program_from_ptx", name ? name : "program");
    return mu_program_make(runtime, name, code_of_image, &given, program, error);
}
