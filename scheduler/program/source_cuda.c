/* Programs from CUDA C++: NVRTC, and what identifies a source. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cache/includes.h"
#include "cache/nvrtc.h"
#include "scheduler/program/source.h"
#include "scheduler/runtime/runtime.h"

typedef struct cuda_program {
    const mu_nvrtc *nvrtc;
    mu_nvrtc_source source;
    const mu_log *log;
    mu_key identity;
    mu_key surroundings; /* the compiler and the files included */
    bool complete;       /* both are known */
    int sm;              /* of the device whose code is being made */
} cuda_program;

/* -------------------------------------------------------------------------------------------------------- checks -- */

static muster_status check_list(const char *const *list, uint32_t count, const char *name, muster_error *error) {
    if (count && !list) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "source->%s is NULL, its count %u", name, count);
    if (count > 65536) return mu_fail(error, MUSTER_LIMIT_REACHED, "%u %s; at most 65536", count, name);
    for (uint32_t i = 0; i < count; i++)
        if (!list[i]) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "source->%s[%u] is NULL", name, i);
    return MUSTER_OK;
}

static muster_status check_source(const muster_cuda_source *source, muster_error *error) {
    if (source->struct_size != sizeof *source)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "source->struct_size is %zu; set it to sizeof(muster_cuda_source), %zu", source->struct_size,
                       sizeof *source);
    if (!source->text) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "source->text is NULL");
    if (source->bytes && memchr(source->text, '\0', source->bytes))
        return mu_fail(error, MUSTER_PROGRAM_INVALID, "the text has a NUL within its %zu bytes", source->bytes);
    muster_status status;
    if ((status = check_list(source->options, source->option_count, "options", error)) ||
        (status = check_list(source->include_paths, source->include_path_count, "include_paths", error)) ||
        (status = check_list(source->header_names, source->header_count, "header_names", error)) ||
        (status = check_list(source->header_texts, source->header_count, "header_texts", error)))
        return status;
    for (uint32_t i = 0; i < source->option_count; i++)
        if (strncmp(source->options[i], "-arch", 5) == 0 || strncmp(source->options[i], "--gpu-arch", 10) == 0)
            return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                           "option \"%.64s\": Muster chooses the architecture for each device; leave it out",
                           source->options[i]);
    return MUSTER_OK;
}

/* ------------------------------------------------------------------------------------------------------ identity -- */

/* The include paths as options, in front of the caller's. Two allocations, freed by free_options. */
static const char **make_options(const muster_cuda_source *source, uint32_t *count) {
    size_t bytes = 1;
    *count = source->include_path_count + source->option_count;
    for (uint32_t i = 0; i < source->include_path_count; i++) bytes += strlen(source->include_paths[i]) + 3;
    const char **options = mu_alloc_zeroed((size_t)*count + 1, sizeof *options);
    char *text = mu_alloc(bytes);
    if (!options || !text) {
        mu_free(options);
        mu_free(text);
        return NULL;
    }
    options[*count] = text; /* behind the last: for free_options */
    for (uint32_t i = 0; i < source->include_path_count; i++) {
        size_t length = strlen(source->include_paths[i]) + 1;
        options[i] = text;
        memcpy(text, "-I", 2);
        memcpy(text + 2, source->include_paths[i], length);
        text += length + 2;
    }
    for (uint32_t i = 0; i < source->option_count; i++) options[source->include_path_count + i] = source->options[i];
    return options;
}

static void free_options(const char **options, uint32_t count) {
    if (options) mu_free((void *)(uintptr_t)options[count]);
    mu_free(options);
}

static mu_key identify(const mu_nvrtc_source *source) {
    mu_source described = {.kind = MU_SOURCE_CUDA,
                           .content = source->text,
                           .bytes = strlen(source->text),
                           .options = source->options,
                           .option_count = source->option_count};
    mu_key text = mu_source_identity(&described);
    mu_digest_state state;
    mu_digest_begin(&state, "muster cuda source 1");
    mu_digest_field(&state, text.bytes, sizeof text.bytes);
    mu_digest_text(&state, source->name); /* the text can read it: __FILE__ */
    mu_digest_u64(&state, source->header_count);
    for (uint32_t i = 0; i < source->header_count; i++) {
        mu_digest_text(&state, source->header_names[i]);
        mu_digest_text(&state, source->header_texts[i]);
    }
    return mu_digest_end(&state);
}

static muster_status identify_surroundings(cuda_program *cuda, muster_runtime *runtime, muster_error *error) {
    const mu_nvrtc_source *source = &cuda->source;
    mu_include_search search = {.source_name = source->name,
                                .options = source->options,
                                .option_count = source->option_count,
                                .header_texts = source->header_texts,
                                .header_count = source->header_count};
    mu_digest files;
    muster_status status = mu_includes_digest(source->text, &search, &files, &cuda->complete, error);
    if (status) return status;
    int major, minor;
    mu_nvrtc_version(cuda->nvrtc, &major, &minor);
    mu_digest_state state;
    mu_digest_begin(&state, "muster cuda surroundings 1");
    mu_digest_u64(&state, (uint64_t)major);
    mu_digest_u64(&state, (uint64_t)minor);
    mu_digest_text(&state, getenv("NVRTC_PREPEND_FLAGS")); /* NVRTC reads both */
    mu_digest_text(&state, getenv("NVRTC_APPEND_FLAGS"));
    mu_digest_field(&state, files.bytes, sizeof files.bytes);
    /* What may depend on files unknown is never found again. */
    if (!cuda->complete)
        mu_digest_u64(&state, atomic_fetch_add_explicit(&runtime->programs_made, 1, memory_order_relaxed));
    cuda->surroundings = mu_digest_end(&state);
    return MUSTER_OK;
}

/* -------------------------------------------------------------------------------------------------------- making -- */

static muster_status write_ptx(void *user, char **text, size_t *bytes, muster_error *error) {
    cuda_program *cuda = user;
    return mu_nvrtc_compile(cuda->nvrtc, &cuda->source, cuda->sm, cuda->log, text, bytes, error);
}

static muster_status code_of_cuda(void *user, muster_runtime *runtime, mu_device *device, const char *name,
                                  mu_code *code, muster_error *error) {
    cuda_program *cuda = user;
    int target;
    muster_status status = mu_device_target(device, &target, error);
    if (!status) status = mu_nvrtc_choose_sm(cuda->nvrtc, target, &cuda->sm, error);
    if (status) return status;
    mu_ptx_fields fields = {
        .identity = cuda->identity,
        .policy = cuda->surroundings.bytes,
        .policy_bytes = sizeof cuda->surroundings.bytes,
        .target_sm = (uint32_t)cuda->sm,
        .warp_size = (uint32_t)mu_device_capability(device)->warp_size,
    };
    return mu_code_from_writer(runtime, device, name, &fields, cuda->complete, write_ptx, cuda, code, error);
}

muster_status muster_program_from_cuda(muster_runtime *runtime, const muster_cuda_source *source,
                                       muster_program **program, muster_error *error) {
    muster_status status = mu_program_check_make(runtime, source, "source", program, error);
    if (status || (status = check_source(source, error))) return status;
    cuda_program cuda = {.log = &runtime->log};
    uint32_t option_count;
    const char **options = make_options(source, &option_count);
    size_t bytes = source->bytes ? source->bytes : strlen(source->text);
    char *text = mu_alloc(bytes + 1);
    if (!options || !text) {
        status = mu_fail_host_memory(error, "a copy of a source", bytes);
        goto free_copies;
    }
    memcpy(text, source->text, bytes);
    text[bytes] = '\0';
    cuda.source = (mu_nvrtc_source){
        .text = text,
        .name = source->name ? source->name : "program",
        .options = options,
        .option_count = option_count,
        .header_names = source->header_names,
        .header_texts = source->header_texts,
        .header_count = source->header_count,
    };
    status = mu_nvrtc_open(&cuda.nvrtc, error);
    if (!status) status = identify_surroundings(&cuda, runtime, error);
    if (status) goto free_copies;
    cuda.identity = identify(&cuda.source);
    status = mu_program_make(runtime, source->name, code_of_cuda, &cuda, program, error);
free_copies:
    mu_free(text);
    free_options(options, option_count);
    return status;
}
