/* Modules and functions. Loading and unloading wait for the device and hold up launches of the context. */
#include <string.h>

#include "device/sim/sim_code.h"

enum { LOG_BYTES = 16384 };

/* ------------------------------------------------------------------------------------------------------- loading -- */

/* What kind of image it is, where its text begins and how long it is. */
static CUresult open_image(const void *image, int device_sm, const char **text, size_t *bytes, const char **why) {
    static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'}, fatbin[] = {0x50, 0xed, 0x55, 0xba};
    const sim_cubin *cubin = image;
    if (memcmp(image, elf, sizeof elf) == 0 || memcmp(image, fatbin, sizeof fatbin) == 0) {
        *why = "the simulator runs PTX; a cubin or fatbin holds machine code of a real device";
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    if (strncmp(image, SIM_CUBIN_MAGIC, sizeof cubin->magic - 1) != 0) {
        *text = image;
        *bytes = strlen(image);
        return CUDA_SUCCESS;
    }
    sim_cubin header;
    memcpy(&header, image, sizeof header);
    if (header.target_sm != (uint32_t)device_sm) {
        *why = "the image was linked for another architecture";
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    *text = cubin->text;
    *bytes = header.text_bytes;
    return CUDA_SUCCESS;
}

static int max_threads(const sim_context *context, const sim_function_info *info) {
    int warps = context->device->config->registers_per_block / ((info->registers * 32 + 255) / 256 * 256) / 4 * 4;
    int by_registers = warps * context->device->config->warp_size;
    int bound = info->max_threads < 1024 ? info->max_threads : 1024;
    return by_registers < bound ? by_registers : bound;
}

static bool add_kernels(sim_image *image) {
    size_t count = sim_module_function_count(image->module);
    image->kernels = mu_alloc_zeroed(count, sizeof *image->kernels);
    if (!image->kernels) return false;
    for (size_t i = 0; i < count; i++) {
        sim_kernel *kernel = &image->kernels[i];
        kernel->image = image;
        kernel->function = sim_module_function_at(image->module, i);
        kernel->info = sim_function_get_info(kernel->function);
        kernel->max_threads = max_threads(image->context, kernel->info);
        int room = image->context->device->config->shared_per_block - (int)kernel->info->static_shared_bytes;
        atomic_init(&kernel->dynamic_limit, room > 0 ? room : 0);
        atomic_init(&kernel->carveout, -1);
        if (!sim_handle_add(image->context->driver, &kernel->object, SIM_TAG_KERNEL, image->context)) return false;
        image->kernel_count = i + 1;
    }
    return true;
}

static bool add_variables(sim_image *image, uint64_t **addresses) {
    sim_context *context = image->context;
    size_t count = sim_module_variable_count(image->module);
    image->variables = mu_alloc_zeroed(count, sizeof *image->variables);
    *addresses = mu_alloc_zeroed(count, sizeof **addresses);
    if (!image->variables || !*addresses) return false;
    for (size_t i = 0; i < count; i++) {
        const sim_variable *variable = sim_module_variable_at(image->module, i);
        size_t bytes = variable->bytes ? variable->bytes : 1;
        if (!sim_charge(context->device, sim_charged(bytes))) return false;
        sim_block *block = sim_block_create(context->driver->heap, SIM_BLOCK_DEVICE, context->device, context, bytes);
        if (!block) {
            sim_discharge(context->device, sim_charged(bytes));
            return false;
        }
        block->variable = true;
        image->variables[i] = block;
        image->variable_count = i + 1;
        (*addresses)[i] = block->range.low;
    }
    return true;
}

static CUresult bind(sim_image *image, size_t text_bytes) {
    sim_context *context = image->context;
    if (!sim_charge(context->device, sim_charged(text_bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    image->charged_bytes = sim_charged(text_bytes);
    uint64_t *addresses = NULL;
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    if (add_variables(image, &addresses)) code = sim_instance_create(image->module, addresses, &image->instance);
    mu_free(addresses);
    if (code != CUDA_SUCCESS) return code;
    for (size_t i = 0; i < image->variable_count; i++) {
        sim_block *block = image->variables[i];
        sim_block_mark_written(block, block->range.low, block->range.high - block->range.low);
        /* The instance has written it; kernels may not write constants. */
        block->range.writable = !sim_module_variable_at(image->module, i)->constant;
    }
    return add_kernels(image) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_image_free(sim_image *image) {
    sim_context *context = image->context;
    sim_driver *driver = context->driver;
    if (image->object.handle) sim_handle_remove(driver, &image->object);
    for (size_t i = 0; i < image->kernel_count; i++) sim_handle_remove(driver, &image->kernels[i].object);
    for (size_t i = 0; i < image->variable_count; i++) {
        sim_block *block = image->variables[i];
        sim_discharge(context->device, sim_charged(block->range.high - block->range.low));
        sim_block_free(driver->heap, block);
    }
    sim_discharge(context->device, image->charged_bytes);
    if (image->instance) sim_instance_free(image->instance);
    if (image->module) sim_module_free(image->module);
    mu_free(image->kernels);
    mu_free(image->variables);
    mu_free(image);
}

static CUresult load(sim_context *context, const char *text, size_t bytes, char *log, sim_image **out) {
    const sim_device_config *config = context->device->config;
    sim_image *image = mu_alloc_zeroed(1, sizeof *image);
    if (!image) return CUDA_ERROR_OUT_OF_MEMORY;
    image->context = context;
    CUresult code = sim_module_load(text, bytes, config->major * 10 + config->minor, &image->module, log, LOG_BYTES);
    if (code == CUDA_SUCCESS) code = bind(image, bytes);
    if (code == CUDA_SUCCESS && !sim_handle_add(context->driver, &image->object, SIM_TAG_IMAGE, context))
        code = CUDA_ERROR_OUT_OF_MEMORY;
    if (code == CUDA_SUCCESS)
        *out = image;
    else
        sim_image_free(image);
    return code;
}

CUresult sim_do_module_load_data_ex(sim_driver *driver, CUmodule *module, const void *data, unsigned int count,
                                    CUjit_option *names, void **values) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    sim_jit_options options;
    code = sim_jit_options_read(count, names, values, &options);
    if (code != CUDA_SUCCESS) return code;
    if (!module || !data) return CUDA_ERROR_INVALID_VALUE;
    const char *text = NULL, *why = "";
    size_t bytes = 0;
    code = open_image(data, context->device->config->major * 10 + context->device->config->minor, &text, &bytes, &why);
    if (code != CUDA_SUCCESS) {
        sim_jit_log(&options, why);
        return code;
    }
    char *log = mu_alloc_zeroed(1, LOG_BYTES);
    if (!log) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock(driver);
    code = sim_device_drain(context);
    sim_unlock(driver);
    sim_image *image = NULL;
    if (code == CUDA_SUCCESS) {
        code = load(context, text, bytes, log, &image);
        sim_jit_log(&options, log);
    }
    mu_free(log);
    if (code == CUDA_SUCCESS) *module = SIM_HANDLE(CUmodule, image);
    return code;
}

CUresult sim_do_module_unload(sim_driver *driver, CUmodule handle) {
    sim_image *image = sim_find(driver, SIM_TAG_IMAGE, handle);
    if (!image) return CUDA_ERROR_INVALID_HANDLE;
    sim_lock(driver);
    CUresult code = sim_device_drain(image->context);
    sim_unlock(driver);
    if (code == CUDA_SUCCESS) sim_image_free(image);
    return code;
}

/* --------------------------------------------------------------------------------------------- looking things up -- */

static CUresult find_image(sim_driver *driver, CUmodule handle, sim_image **image) {
    *image = sim_find(driver, SIM_TAG_IMAGE, handle);
    return *image ? sim_context_error((*image)->context) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_do_module_get_function(sim_driver *driver, CUfunction *function, CUmodule handle, const char *name) {
    sim_image *image;
    CUresult code = find_image(driver, handle, &image);
    if (code != CUDA_SUCCESS) return code;
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < image->kernel_count; i++)
        if (strcmp(image->kernels[i].info->name, name) == 0) {
            *function = SIM_HANDLE(CUfunction, &image->kernels[i]);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult sim_do_module_get_global(sim_driver *driver, CUdeviceptr *pointer, size_t *bytes, CUmodule handle,
                                  const char *name) {
    sim_image *image;
    CUresult code = find_image(driver, handle, &image);
    if (code != CUDA_SUCCESS) return code;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < image->variable_count; i++) {
        const sim_variable *variable = sim_module_variable_at(image->module, i);
        if (strcmp(variable->name, name) != 0) continue;
        if (pointer) *pointer = image->variables[i]->range.low;
        if (bytes) *bytes = variable->bytes;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult sim_do_module_get_function_count(sim_driver *driver, unsigned int *count, CUmodule handle) {
    sim_image *image;
    CUresult code = find_image(driver, handle, &image);
    if (code != CUDA_SUCCESS) return code;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned)image->kernel_count;
    return CUDA_SUCCESS;
}

CUresult sim_do_module_enumerate_functions(sim_driver *driver, CUfunction *functions, unsigned int count,
                                           CUmodule handle) {
    sim_image *image;
    CUresult code = find_image(driver, handle, &image);
    if (code != CUDA_SUCCESS) return code;
    if (!functions && count) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && i < image->kernel_count; i++)
        functions[i] = SIM_HANDLE(CUfunction, &image->kernels[i]);
    return CUDA_SUCCESS;
}

/* ----------------------------------------------------------------------------------------------------- functions -- */

static CUresult find_kernel(sim_driver *driver, CUfunction handle, sim_kernel **kernel) {
    *kernel = sim_find(driver, SIM_TAG_KERNEL, handle);
    return *kernel ? sim_context_error((*kernel)->image->context) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_do_func_get_name(sim_driver *driver, const char **name, CUfunction function) {
    sim_kernel *kernel;
    CUresult code = find_kernel(driver, function, &kernel);
    if (code != CUDA_SUCCESS) return code;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = kernel->info->name;
    return CUDA_SUCCESS;
}

CUresult sim_do_func_get_param_info(sim_driver *driver, CUfunction function, size_t index, size_t *offset,
                                    size_t *bytes) {
    sim_kernel *kernel;
    CUresult code = find_kernel(driver, function, &kernel);
    if (code != CUDA_SUCCESS) return code;
    if (!offset || index >= kernel->info->parameter_count) return CUDA_ERROR_INVALID_VALUE;
    *offset = kernel->info->parameter_offsets[index];
    if (bytes) *bytes = kernel->info->parameter_bytes[index];
    return CUDA_SUCCESS;
}

CUresult sim_do_func_load(sim_driver *driver, CUfunction function) {
    sim_kernel *kernel;
    return find_kernel(driver, function, &kernel);
}

CUresult sim_do_func_get_attribute(sim_driver *driver, int *value, CUfunction_attribute attribute,
                                   CUfunction function) {
    sim_kernel *kernel;
    CUresult code = find_kernel(driver, function, &kernel);
    if (code != CUDA_SUCCESS) return code;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    const sim_device_config *config = kernel->image->context->device->config;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = kernel->max_threads; break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)kernel->info->static_shared_bytes; break;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)kernel->info->local_bytes; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = kernel->info->registers; break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = config->major * 10 + config->minor; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = atomic_load_explicit(&kernel->dynamic_limit, memory_order_relaxed);
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            *value = atomic_load_explicit(&kernel->carveout, memory_order_relaxed);
            break;
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            *value = atomic_load_explicit(&kernel->non_portable_clusters, memory_order_relaxed);
            break;
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
        case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: *value = 0; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sim_do_func_set_attribute(sim_driver *driver, CUfunction function, CUfunction_attribute attribute, int value) {
    sim_kernel *kernel;
    CUresult code = find_kernel(driver, function, &kernel);
    if (code != CUDA_SUCCESS) return code;
    const sim_device_config *config = kernel->image->context->device->config;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            if (value < 0 || value > config->shared_per_block_optin - (int)kernel->info->static_shared_bytes)
                return CUDA_ERROR_INVALID_VALUE;
            atomic_store_explicit(&kernel->dynamic_limit, value, memory_order_relaxed);
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
            atomic_store_explicit(&kernel->carveout, value, memory_order_relaxed);
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            atomic_store_explicit(&kernel->non_portable_clusters, value != 0, memory_order_relaxed);
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}
