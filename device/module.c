/* Compiling, loading, and finding entries: what stalls a busy device is here, and says so. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/image.h"
#include "device/state.h"

/* ----------------------------------------------------------------------------------------------------------- logs -- */

enum { LOG_BYTES = 4096 };

/* The compiler's error log as JIT options: two of them, for cuModuleLoadDataEx and cuLinkCreate alike. */
typedef struct jit_log {
    char text[LOG_BYTES];
    CUjit_option names[2];
    void *values[2];
} jit_log;

static void jit_log_init(jit_log *log) {
    log->text[0] = '\0';
    log->names[0] = CU_JIT_ERROR_LOG_BUFFER;
    log->values[0] = log->text;
    log->names[1] = CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
    log->values[1] = (void *)(uintptr_t)LOG_BYTES;
}

/* Makes the log one line: an error message has one. */
static const char *one_line(jit_log *log) {
    log->text[LOG_BYTES - 1] = '\0';
    char *to = log->text;
    for (const char *from = log->text; *from; from++) {
        bool blank = *from == '\n' || *from == '\r' || *from == '\t' || *from == ' ';
        if (!blank)
            *to++ = *from;
        else if (to > log->text && to[-1] != ' ')
            *to++ = ' ';
    }
    while (to > log->text && to[-1] == ' ') to--;
    *to = '\0';
    return log->text;
}

static muster_status compile_failed(mu_device *device, CUresult code, jit_log *log, const char *what, const char *name,
                                    muster_error *error) {
    const char *text = one_line(log);
    /* The log first: the driver's name of the code is all that may be cut. */
    if (!*text) return mu_device_fail(device, code, error, "%s of program %.64s", what, name);
    muster_status status = mu_device_fail(device, code, NULL, "%s", what);
    mu_device_refuse(device, status, error, "device %d: %s of program %.64s: %s (%d): %s", device->index, what, name,
                     mu_driver_error_name(device->driver, code), (int)code, text);
    if (error) error->driver_code = (int)code;
    return status;
}

/* ------------------------------------------------------------------------------------------------- images and text -- */

/* What the driver is given: the caller's image, or a terminated copy of its text. */
typedef struct source {
    const void *image;
    size_t bytes; /* with the terminator */
    char *copy;
    mu_image_kind kind;
} source;

static muster_status source_init(source *source, const void *image, size_t bytes, const char *name,
                                 muster_error *error) {
    source->copy = NULL;
    source->image = image;
    source->bytes = bytes;
    muster_status status = mu_image_classify(image, bytes, name, &source->kind, error);
    if (status || source->kind != MU_IMAGE_PTX) return status;
    if (((const char *)image)[bytes - 1] == '\0') return MUSTER_OK;
    source->copy = mu_alloc(bytes + 1);
    if (!source->copy) return mu_fail_host_memory(error, "a program's text", bytes + 1);
    memcpy(source->copy, image, bytes);
    source->copy[bytes] = '\0';
    source->image = source->copy;
    source->bytes = bytes + 1;
    return MUSTER_OK;
}

/* -------------------------------------------------------------------------------------------------------- compile -- */

static muster_status link_text(mu_device *device, const source *source, const char *name, jit_log *log, void **cubin,
                               size_t *cubin_bytes, muster_error *error) {
    const mu_driver *driver = device->driver;
    CUlinkState state;
    void *made = NULL;
    size_t made_bytes = 0;
    muster_status status = MUSTER_OK;
    CUresult code = driver->link_create(2, log->names, log->values, &state);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuLinkCreate for program %.64s", name);
    code = driver->link_add_data(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)source->image, source->bytes, name, 0,
                                 NULL, NULL);
    if (code == CUDA_SUCCESS) code = driver->link_complete(state, &made, &made_bytes);
    if (code != CUDA_SUCCESS) {
        status = compile_failed(device, code, log, "compiling", name, error);
        goto destroy_state;
    }
    /* The image is the link state's. */
    void *copy = mu_alloc(made_bytes);
    if (!copy) {
        status = mu_fail_host_memory(error, "a compiled program", made_bytes);
        goto destroy_state;
    }
    memcpy(copy, made, made_bytes);
    *cubin = copy;
    *cubin_bytes = made_bytes;
destroy_state:
    if (!mu_device_is_lost(device)) driver->link_destroy(state);
    return status;
}

muster_status mu_module_compile(mu_device *device, const void *ptx, size_t bytes, const char *name, void **cubin,
                                size_t *cubin_bytes, muster_error *error) {
    source source;
    mu_scope scope;
    if (!name) name = "(unnamed)";
    muster_status status = source_init(&source, ptx, bytes, name, error);
    if (status) return status;
    if (source.kind != MU_IMAGE_PTX)
        return mu_device_refuse(device, MUSTER_INVALID_ARGUMENT, error,
                                "program %.64s is compiled already; load it as it is", name);
    jit_log *log = mu_alloc(sizeof *log);
    if (!log) {
        status = mu_fail_host_memory(error, "a compiler log", sizeof *log);
        goto free_source;
    }
    jit_log_init(log);
    status = mu_scope_begin(&scope, device, error);
    if (status) goto free_log;
    status = link_text(device, &source, name, log, cubin, cubin_bytes, error);
    mu_scope_end(&scope);
free_log:
    mu_free(log);
free_source:
    mu_free(source.copy);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- load -- */

uint64_t mu_free_memory(mu_device *device) {
    size_t free_bytes = 0, total_bytes = 0;
    CUresult code = device->driver->mem_get_info(&free_bytes, &total_bytes);
    if (code == CUDA_SUCCESS) return free_bytes;
    mu_device_fail(device, code, NULL, "cuMemGetInfo");
    return 0;
}

static CUresult load_once(mu_device *device, const source *source, jit_log *log, mu_module module) {
    jit_log_init(log);
    return device->driver->module_load_data_ex(&module->handle, source->image, 2, log->names, log->values);
}

static muster_status load(mu_device *device, const source *source, jit_log *log, mu_module module,
                          muster_error *error) {
    uint64_t before = mu_free_memory(device);
    muster_status status = mu_device_alive(device, error);
    if (status) return status;
    CUresult code = load_once(device, source, log, module);
    if (code == CUDA_ERROR_OUT_OF_MEMORY) { /* what the pool keeps of freed buffers may be in its way */
        if ((status = mu_device_trim(device, error))) return status;
        before = mu_free_memory(device);
        if ((status = mu_device_alive(device, error))) return status;
        code = load_once(device, source, log, module);
    }
    if (code != CUDA_SUCCESS) return compile_failed(device, code, log, "loading", module->name, error);
    uint64_t after = mu_free_memory(device);
    /* With other actors on the device the difference tells what they did meanwhile too: the code's size is a fair part of it, and the
     * rest is memory that is not free. */
    module->charged_bytes = device->common ? source->bytes : after && before > after ? before - after : 0;
    mu_ledger_fix(&device->ledger, module->charged_bytes);
    mu_count(&device->counters, &device->counters.module_loads, 1);
    mu_count(&device->counters, &device->counters.device_stalls, 1);
    return MUSTER_OK;
}

static mu_module make_module(const char *name) {
    size_t length = strlen(name) + 1;
    mu_module module = mu_alloc_zeroed(1, sizeof *module + length);
    if (module) memcpy(module->name, name, length);
    return module;
}

muster_status mu_module_load(mu_device *device, const void *image, size_t bytes, const char *name, mu_module *module,
                             muster_error *error) {
    source source;
    mu_scope scope;
    jit_log *log = NULL;
    mu_module made = NULL;
    if (!name) name = "(unnamed)";
    muster_status status = source_init(&source, image, bytes, name, error);
    if (status) return status;
    log = mu_alloc(sizeof *log);
    made = make_module(name);
    if (!log || !made) {
        status = mu_fail_host_memory(error, "a module", sizeof *log + sizeof *made);
        goto free_all;
    }
    status = mu_scope_begin(&scope, device, error);
    if (status) goto free_all;
    status = load(device, &source, log, made, error);
    mu_scope_end(&scope);
    if (!status) {
        *module = made;
        made = NULL;
    }
free_all:
    mu_free(made);
    mu_free(log);
    mu_free(source.copy);
    return status;
}

void mu_module_unload(mu_device *device, mu_module module) {
    if (!module) return;
    mu_scope scope;
    if (mu_scope_begin_release(&scope, device)) {
        CUresult code = device->driver->module_unload(module->handle);
        if (code != CUDA_SUCCESS) mu_device_fail(device, code, NULL, "cuModuleUnload");
        mu_count(&device->counters, &device->counters.module_unloads, 1);
        mu_count(&device->counters, &device->counters.device_stalls, 1);
        mu_scope_end(&scope);
    }
    mu_ledger_unfix(&device->ledger, module->charged_bytes);
    for (mu_function function = module->functions, next; function; function = next) {
        next = function->next;
        mu_free(function);
    }
    mu_free(module);
}

muster_status mu_module_global(mu_device *device, mu_module module, const char *name, mu_address *address,
                               uint64_t *bytes, muster_error *error) {
    CUdeviceptr pointer = 0;
    size_t size = 0;
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    CUresult code = device->driver->module_get_global(&pointer, &size, module->handle, name);
    if (code == CUDA_SUCCESS) {
        *address = pointer;
        *bytes = size;
    } else {
        status = mu_device_fail(device, code, error, "program %.64s has no module-scope variable \"%.64s\"",
                                module->name, name);
    }
    mu_scope_end(&scope);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ functions -- */

enum { MAX_LISTED = 64 };

/* The entries of a module as "a, b, c", or "" where the driver cannot tell. */
static void list_entries(mu_device *device, mu_module module, char *text, size_t bytes) {
    const mu_driver *driver = device->driver;
    CUfunction functions[MAX_LISTED];
    unsigned int count = 0;
    size_t used = 0;
    text[0] = '\0';
    if (!driver->module_get_function_count || !driver->module_enumerate_functions || !driver->func_get_name) return;
    if (driver->module_get_function_count(&count, module->handle) != CUDA_SUCCESS) return;
    unsigned int listed = count < MAX_LISTED ? count : MAX_LISTED;
    if (listed == 0 || driver->module_enumerate_functions(functions, listed, module->handle) != CUDA_SUCCESS) return;
    for (unsigned int i = 0; i < listed && used + 1 < bytes; i++) {
        const char *name = NULL;
        if (driver->func_get_name(&name, functions[i]) != CUDA_SUCCESS || !name) continue;
        int written = snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", name);
        if (written > 0) used += (size_t)written;
    }
    if (listed < count && used < bytes) snprintf(text + used, bytes - used, ", ... (%u in all)", count);
}

static muster_status entry_not_found(mu_device *device, mu_module module, const char *entry, CUresult code,
                                     muster_error *error) {
    char entries[256];
    list_entries(device, module, entries, sizeof entries);
    mu_device_refuse(
        device, MUSTER_ENTRY_NOT_FOUND, error,
        "program %.64s has no entry \"%.64s\"%s%s; entries of C++ sources carry mangled names unless they are "
        "extern \"C\"",
        module->name, entry, *entries ? "; it has " : "", entries);
    if (error) error->driver_code = (int)code;
    return MUSTER_ENTRY_NOT_FOUND;
}

static CUresult read_attributes(const mu_driver *driver, CUfunction handle, mu_function_info *info) {
    const struct {
        CUfunction_attribute attribute;
        int *value;
    } wanted[] = {
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &info->max_threads},
        {CU_FUNC_ATTRIBUTE_NUM_REGS, &info->registers},
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &info->static_shared_bytes},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &info->local_bytes},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        CUresult code = driver->func_get_attribute(wanted[i].value, wanted[i].attribute, handle);
        if (code != CUDA_SUCCESS) return code;
    }
    return CUDA_SUCCESS;
}

/* The driver tells the end of the parameters by CUDA_ERROR_INVALID_VALUE. */
static muster_status read_parameters(mu_device *device, mu_function function, muster_error *error) {
    const mu_driver *driver = device->driver;
    mu_function_info *info = &function->info;
    if (!driver->func_get_param_info) return MUSTER_OK;
    for (uint32_t i = 0;; i++) {
        size_t offset = 0, bytes = 0;
        CUresult code = driver->func_get_param_info(function->handle, i, &offset, &bytes);
        if (code == CUDA_ERROR_INVALID_VALUE) break;
        if (code != CUDA_SUCCESS)
            return mu_device_fail(device, code, error, "cuFuncGetParamInfo of %.64s", function->name);
        if (i == MU_MAX_PARAMETERS)
            return mu_device_refuse(device, MUSTER_LIMIT_REACHED, error,
                                    "kernel %.64s has more than %d parameters; pass a struct or a buffer",
                                    function->name, (int)MU_MAX_PARAMETERS);
        info->parameter_bytes[i] = (uint32_t)bytes;
        info->parameter_count = i + 1;
    }
    info->parameters_known = true;
    return MUSTER_OK;
}

static muster_status find_function(mu_device *device, mu_module module, mu_function function, muster_error *error) {
    const mu_driver *driver = device->driver;
    CUresult code = driver->module_get_function(&function->handle, module->handle, function->name);
    if (code == CUDA_ERROR_NOT_FOUND) return entry_not_found(device, module, function->name, code, error);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuModuleGetFunction(%.64s)", function->name);
    /* A driver that loads lazily would do so at the first launch, in the middle of work. */
    if (driver->func_load) code = driver->func_load(function->handle);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuFuncLoad of %.64s", function->name);
    code = read_attributes(driver, function->handle, &function->info);
    if (code != CUDA_SUCCESS) return mu_device_fail(device, code, error, "cuFuncGetAttribute of %.64s", function->name);
    return read_parameters(device, function, error);
}

static mu_function known_function(mu_module module, const char *entry) {
    for (mu_function function = module->functions; function; function = function->next)
        if (strcmp(function->name, entry) == 0) return function;
    return NULL;
}

muster_status mu_module_function(mu_device *device, mu_module module, const char *entry, mu_function *function,
                                 mu_function_info *info, muster_error *error) {
    mu_scope scope;
    muster_status status = mu_scope_begin(&scope, device, error);
    if (status) return status;
    mu_function found = known_function(module, entry);
    if (!found) {
        size_t length = strlen(entry) + 1;
        found = mu_alloc_zeroed(1, sizeof *found + length);
        if (!found) {
            status = mu_fail_host_memory(error, "a function", sizeof *found + length);
            goto end_scope;
        }
        memcpy(found->name, entry, length);
        status = find_function(device, module, found, error);
        if (status) {
            mu_free(found);
            goto end_scope;
        }
        found->next = module->functions;
        module->functions = found;
    }
    *function = found;
    if (info) *info = found->info;
end_scope:
    mu_scope_end(&scope);
    return status;
}
