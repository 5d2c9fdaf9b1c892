/* Options of the compiler, and the linker: PTX in, an image of the simulator's own out. */
#include <stdio.h>
#include <string.h>

#include "device/sim/sim_code.h"

enum { LOG_BYTES = 16384 };

static size_t option_size(void *value) { return (size_t)(uintptr_t)value; }

/* Values are passed by value in pointer-sized slots; the log lengths are overwritten there. */
CUresult sim_jit_options_read(unsigned count, const CUjit_option *names, void **values, sim_jit_options *options) {
    memset(options, 0, sizeof *options);
    if (count && (!names || !values)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        switch (names[i]) {
            case CU_JIT_INFO_LOG_BUFFER: options->info_log = values[i]; break;
            case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
                options->info_bytes = (unsigned)option_size(values[i]);
                options->info_bytes_out = &values[i];
                break;
            case CU_JIT_ERROR_LOG_BUFFER: options->error_log = values[i]; break;
            case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
                options->error_bytes = (unsigned)option_size(values[i]);
                options->error_bytes_out = &values[i];
                break;
            case CU_JIT_TARGET: options->target_sm = (int)option_size(values[i]); break;
            case CU_JIT_OPTIMIZATION_LEVEL:
                if (option_size(values[i]) > 4) return CUDA_ERROR_INVALID_VALUE;
                break;
            default: /* the simulator compiles nothing that the other options could change */
                if ((int)names[i] < 0 || (int)names[i] > 64) return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static void put_log(char *buffer, size_t bytes, void **length_out, const char *log) {
    size_t written = 0;
    if (buffer && bytes) {
        snprintf(buffer, bytes, "%s", log);
        written = strlen(buffer);
    }
    if (length_out) *length_out = (void *)(uintptr_t)written;
}

void sim_jit_log(const sim_jit_options *options, const char *log) {
    put_log(options->error_log, options->error_bytes, options->error_bytes_out, log);
    put_log(options->info_log, options->info_bytes, options->info_bytes_out, "");
}

/* ------------------------------------------------------------------------------------------------------- linking -- */

struct sim_link {
    sim_object object;
    sim_context *context;
    int target_sm;
    sim_jit_options options; /* the log buffers stay the caller's until the link is destroyed */
    char *text;
    size_t bytes;
    sim_cubin *cubin; /* of the last complete */
};

static int device_sm(const sim_context *context) {
    return context->device->config->major * 10 + context->device->config->minor;
}

CUresult sim_do_link_create(sim_driver *driver, unsigned int count, CUjit_option *names, void **values,
                            CUlinkState *state) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    sim_jit_options options;
    code = sim_jit_options_read(count, names, values, &options);
    if (code != CUDA_SUCCESS) return code;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    sim_link *link = mu_alloc_zeroed(1, sizeof *link);
    if (!link) return CUDA_ERROR_OUT_OF_MEMORY;
    link->context = context;
    link->options = options;
    link->target_sm = options.target_sm ? options.target_sm : device_sm(context);
    if (!sim_handle_add(driver, &link->object, SIM_TAG_LINK, context)) {
        mu_free(link);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *state = SIM_HANDLE(CUlinkState, link);
    return CUDA_SUCCESS;
}

void sim_link_free(sim_link *link) {
    sim_handle_remove(link->context->driver, &link->object);
    mu_free(link->text);
    mu_free(link->cubin);
    mu_free(link);
}

/* Compiles to see whether it can be; keeps the text. */
CUresult sim_do_link_add_data(sim_driver *driver, CUlinkState state, CUjitInputType type, void *data, size_t bytes,
                              const char *name, unsigned int count, CUjit_option *names, void **values) {
    (void)name;
    sim_link *link = sim_find(driver, SIM_TAG_LINK, state);
    if (!link) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = sim_context_error(link->context);
    if (code != CUDA_SUCCESS) return code;
    if (!data || !bytes || (count && (!names || !values))) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_JIT_INPUT_PTX) {
        sim_jit_log(&link->options, "the simulator links PTX only");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (link->text) {
        sim_jit_log(&link->options, "the simulator links one PTX text at a time; concatenate the modules' entries");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    char *log = mu_alloc_zeroed(1, LOG_BYTES);
    char *text = mu_alloc(bytes + 1);
    sim_module *module = NULL;
    if (!log || !text) {
        code = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        memcpy(text, data, bytes);
        text[bytes] = 0;
        bytes = strlen(text);
        code = sim_module_load(text, bytes, link->target_sm, &module, log, LOG_BYTES);
        sim_jit_log(&link->options, log);
    }
    if (code == CUDA_SUCCESS) {
        sim_module_free(module);
        link->text = text;
        link->bytes = bytes;
        text = NULL;
    }
    mu_free(text);
    mu_free(log);
    return code;
}

CUresult sim_do_link_complete(sim_driver *driver, CUlinkState state, void **cubin, size_t *bytes) {
    sim_link *link = sim_find(driver, SIM_TAG_LINK, state);
    if (!link) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = sim_context_error(link->context);
    if (code != CUDA_SUCCESS) return code;
    if (!cubin || !link->text) return CUDA_ERROR_INVALID_VALUE;
    sim_cubin *image = mu_alloc_zeroed(1, sizeof *image + link->bytes + 1);
    if (!image) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(image->magic, SIM_CUBIN_MAGIC, sizeof image->magic);
    image->target_sm = (uint32_t)link->target_sm;
    image->text_bytes = link->bytes;
    memcpy(image->text, link->text, link->bytes);
    mu_free(link->cubin);
    link->cubin = image;
    *cubin = image;
    if (bytes) *bytes = sizeof *image + link->bytes + 1;
    return CUDA_SUCCESS;
}

CUresult sim_do_link_destroy(sim_driver *driver, CUlinkState state) {
    sim_link *link = sim_find(driver, SIM_TAG_LINK, state);
    if (!link) return CUDA_ERROR_INVALID_HANDLE;
    sim_link_free(link);
    return CUDA_SUCCESS;
}
