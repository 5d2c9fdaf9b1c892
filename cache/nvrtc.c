#include "cache/nvrtc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* The part of NVRTC's binary interface that is used: unchanged since CUDA 7.0, the two optional ones since 11.2. */
typedef struct nvrtc_program *program_handle;
enum { NVRTC_SUCCESS = 0, NVRTC_OUT_OF_MEMORY = 1 };

#define ENTRIES(REQUIRED, OPTIONAL)                                                                                    \
    REQUIRED(version, "nvrtcVersion", (int *major, int *minor))                                                        \
    REQUIRED(create_program, "nvrtcCreateProgram",                                                                     \
             (program_handle * program, const char *text, const char *name, int header_count,                          \
              const char *const *header_texts, const char *const *header_names))                                       \
    REQUIRED(compile_program, "nvrtcCompileProgram",                                                                   \
             (program_handle program, int option_count, const char *const *options))                                   \
    REQUIRED(destroy_program, "nvrtcDestroyProgram", (program_handle * program))                                       \
    REQUIRED(get_ptx_size, "nvrtcGetPTXSize", (program_handle program, size_t * bytes))                                \
    REQUIRED(get_ptx, "nvrtcGetPTX", (program_handle program, char *ptx))                                              \
    REQUIRED(get_log_size, "nvrtcGetProgramLogSize", (program_handle program, size_t * bytes))                         \
    REQUIRED(get_log, "nvrtcGetProgramLog", (program_handle program, char *log))                                       \
    OPTIONAL(arch_count, "nvrtcGetNumSupportedArchs", (int *count))                                                    \
    OPTIONAL(archs, "nvrtcGetSupportedArchs", (int *archs))

struct mu_nvrtc {
#define MEMBER(member, symbol, parameters) int(*member) parameters;
    ENTRIES(MEMBER, MEMBER)
#undef MEMBER
    const char *(*error_string)(int code);
    int major, minor;
    mu_nvrtc *next;
    char path[];
};

/* ---------------------------------------------------------------------------------------------------------- open -- */

/* Those opened so far: one, but in a process that changes MUSTER_LIBNVRTC. They are the process's, not a runtime's, so
 * their memory is malloc's. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static mu_nvrtc *opened;

typedef void (*entry_point)(void);

static entry_point find(void *library, const char *symbol) {
    void *found = dlsym(library, symbol);
    entry_point entry;
    memcpy(&entry, &found, sizeof entry);
    return entry;
}

/* NULL, or the first symbol that is missing. */
static const char *load_entries(void *library, mu_nvrtc *nvrtc) {
#define LOAD_OPTIONAL(member, symbol, parameters) nvrtc->member = (int(*) parameters)find(library, symbol);
#define LOAD_REQUIRED(member, symbol, parameters)                                                                      \
    LOAD_OPTIONAL(member, symbol, parameters)                                                                          \
    if (!nvrtc->member) return symbol;
    ENTRIES(LOAD_REQUIRED, LOAD_OPTIONAL)
#undef LOAD_REQUIRED
#undef LOAD_OPTIONAL
    nvrtc->error_string = (const char *(*)(int))find(library, "nvrtcGetErrorString");
    return nvrtc->error_string ? NULL : "nvrtcGetErrorString";
}

static muster_status try_open(const char *path, mu_nvrtc **out, muster_error *error) {
    for (mu_nvrtc *known = opened; known; known = known->next)
        if (strcmp(known->path, path) == 0) {
            *out = known;
            return MUSTER_OK;
        }
    size_t length = strlen(path) + 1;
    mu_nvrtc *nvrtc = calloc(1, sizeof *nvrtc + length);
    if (!nvrtc) return mu_fail_host_memory(error, "the NVRTC library", sizeof *nvrtc + length);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        free(nvrtc);
        return mu_fail(error, MUSTER_UNSUPPORTED,
                       "CUDA C++ needs NVRTC, which cannot be opened (%.200s); install the CUDA toolkit's libnvrtc, or "
                       "set MUSTER_LIBNVRTC to its path, or give programs as PTX",
                       dlerror());
    }
    const char *missing = load_entries(library, nvrtc);
    if (missing || nvrtc->version(&nvrtc->major, &nvrtc->minor) != NVRTC_SUCCESS) {
        dlclose(library);
        free(nvrtc);
        return mu_fail(error, MUSTER_UNSUPPORTED,
                       "%.200s is not NVRTC (%s); set MUSTER_LIBNVRTC to the path of libnvrtc.so", path,
                       missing ? missing : "it does not tell its version");
    }
    memcpy(nvrtc->path, path, length);
    nvrtc->next = opened;
    opened = *out = nvrtc;
    return MUSTER_OK;
}

muster_status mu_nvrtc_open(const mu_nvrtc **out, muster_error *error) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                        "/usr/local/cuda/lib64/libnvrtc.so"};
    const char *chosen = secure_getenv("MUSTER_LIBNVRTC");
    mu_nvrtc *found = NULL;
    muster_status status = MUSTER_UNSUPPORTED;
    pthread_mutex_lock(&open_lock);
    if (chosen && *chosen)
        status = try_open(chosen, &found, error);
    else
        for (size_t i = 0; i < sizeof names / sizeof *names && status == MUSTER_UNSUPPORTED; i++)
            status = try_open(names[i], &found, error);
    pthread_mutex_unlock(&open_lock);
    if (!status) *out = found;
    return status;
}

void mu_nvrtc_version(const mu_nvrtc *nvrtc, int *major, int *minor) {
    *major = nvrtc->major;
    *minor = nvrtc->minor;
}

/* ------------------------------------------------------------------------------------------------- architectures -- */

muster_status mu_nvrtc_choose_sm(const mu_nvrtc *nvrtc, int target_sm, int *sm, muster_error *error) {
    enum { MAX_ARCHS = 256 };
    int archs[MAX_ARCHS], count = 0, best = 0, lowest = 0;
    if (!nvrtc->arch_count || !nvrtc->archs) {
        *sm = target_sm; /* it does not tell; if it is too new the compiler says so */
        return MUSTER_OK;
    }
    int code = nvrtc->arch_count(&count);
    if (code == NVRTC_SUCCESS && (count <= 0 || count > MAX_ARCHS)) count = 0;
    if (code == NVRTC_SUCCESS && count) code = nvrtc->archs(archs);
    if (code != NVRTC_SUCCESS)
        return mu_fail(error, MUSTER_UNSUPPORTED, "NVRTC does not tell its architectures: %.100s",
                       nvrtc->error_string(code));
    for (int i = 0; i < count; i++) {
        if (archs[i] <= target_sm && archs[i] > best) best = archs[i];
        if (lowest == 0 || archs[i] < lowest) lowest = archs[i];
    }
    if (best == 0)
        return mu_fail(error, MUSTER_UNSUPPORTED,
                       "NVRTC %d.%d compiles for sm_%d and newer, the device takes at most sm_%d; install an older "
                       "libnvrtc, or give the program as PTX",
                       nvrtc->major, nvrtc->minor, lowest, target_sm);
    *sm = best;
    return MUSTER_OK;
}

/* ------------------------------------------------------------------------------------------------------- compile -- */

static muster_status call_failed(const mu_nvrtc *nvrtc, int code, const char *call, const char *name,
                                 muster_error *error) {
    if (code == NVRTC_OUT_OF_MEMORY) return mu_fail_host_memory(error, "NVRTC's program", 0);
    return mu_fail(error, MUSTER_PROGRAM_INVALID, "%s for program %.64s: %.100s", call, name,
                   nvrtc->error_string(code));
}

/* The whole log, or NULL when there is none, or no memory for it. Freed with mu_free. */
static char *read_log(const mu_nvrtc *nvrtc, program_handle program) {
    size_t bytes = 0;
    if (nvrtc->get_log_size(program, &bytes) != NVRTC_SUCCESS || bytes <= 1) return NULL;
    char *text = mu_alloc_zeroed(1, bytes + 1);
    if (text && nvrtc->get_log(program, text) == NVRTC_SUCCESS) return text;
    mu_free(text);
    return NULL;
}

/* Calls the log for each line; what is cut in the middle by it is the application's to see in full elsewhere. */
static void tell_log(const mu_log *log, const char *name, const char *text) {
    while (*text) {
        size_t length = strcspn(text, "\n");
        if (length) mu_log_line(log, MUSTER_LOG_INFO, "NVRTC, program %s: %.*s", name, (int)length, text);
        text += length + (text[length] == '\n');
    }
}

/* The log as one line from its first error on: warnings before it would fill the message. */
static void first_error(char *text) {
    char *from = strstr(text, "error");
    while (from && from > text && from[-1] != '\n') from--;
    if (!from) from = text;
    char *to = text;
    for (; *from; from++) {
        bool blank = (unsigned char)*from <= ' ';
        if (!blank)
            *to++ = *from;
        else if (to > text && to[-1] != ' ')
            *to++ = ' ';
    }
    *to = '\0';
}

static muster_status read_ptx(const mu_nvrtc *nvrtc, program_handle program, const char *name, char **out,
                              size_t *out_bytes, muster_error *error) {
    size_t bytes = 0;
    int code = nvrtc->get_ptx_size(program, &bytes);
    if (code != NVRTC_SUCCESS) return call_failed(nvrtc, code, "nvrtcGetPTXSize", name, error);
    if (bytes <= 1)
        return mu_fail(error, MUSTER_PROGRAM_INVALID,
                       "NVRTC made no PTX of program %.64s; drop options that ask for another output (-dlto)", name);
    char *ptx = mu_alloc_zeroed(1, bytes + 1);
    if (!ptx) return mu_fail_host_memory(error, "a compiled program", bytes);
    code = nvrtc->get_ptx(program, ptx);
    if (code != NVRTC_SUCCESS) {
        mu_free(ptx);
        return call_failed(nvrtc, code, "nvrtcGetPTX", name, error);
    }
    *out = ptx;
    *out_bytes = strlen(ptx);
    return MUSTER_OK;
}

muster_status mu_nvrtc_compile(const mu_nvrtc *nvrtc, const mu_nvrtc_source *source, int sm, const mu_log *log,
                               char **ptx, size_t *bytes, muster_error *error) {
    char arch[48];
    program_handle program;
    snprintf(arch, sizeof arch, "--gpu-architecture=compute_%d", sm);
    const char **options = mu_alloc_zeroed((size_t)source->option_count + 1, sizeof *options);
    if (!options) return mu_fail_host_memory(error, "compiler options", (source->option_count + 1) * sizeof *options);
    options[0] = arch;
    for (uint32_t i = 0; i < source->option_count; i++) options[i + 1] = source->options[i];
    muster_status status;
    int code = nvrtc->create_program(&program, source->text, source->name, (int)source->header_count,
                                     source->header_texts, source->header_names);
    if (code != NVRTC_SUCCESS) {
        status = call_failed(nvrtc, code, "nvrtcCreateProgram", source->name, error);
        goto free_options;
    }
    code = nvrtc->compile_program(program, (int)source->option_count + 1, options);
    char *text = read_log(nvrtc, program);
    if (text) tell_log(log, source->name, text);
    if (code == NVRTC_SUCCESS) {
        status = read_ptx(nvrtc, program, source->name, ptx, bytes, error);
    } else if (code == NVRTC_OUT_OF_MEMORY || !text) {
        status = call_failed(nvrtc, code, "nvrtcCompileProgram", source->name, error);
    } else {
        first_error(text);
        status = mu_fail(error, MUSTER_PROGRAM_INVALID, "compiling program %.64s for sm_%d: %s: %s", source->name, sm,
                         nvrtc->error_string(code), text);
    }
    mu_free(text);
    nvrtc->destroy_program(&program);
free_options:
    mu_free(options);
    return status;
}
