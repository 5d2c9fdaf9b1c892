/* A library that looks like NVRTC and compiles a language of its own: a text that contains "syntax" is in error, every
 * other becomes the kernel `answer`, which stores the architecture and the value of the option -DN=, 0 without it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct program {
    char text[4096];
    char ptx[2048], log[1024];
} program;

EXPORT int fake_nvrtc_compiles;

EXPORT int nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = 3;
    return 0;
}

EXPORT const char *nvrtcGetErrorString(int code) { return code == 6 ? "FAKE_ERROR_COMPILATION" : "FAKE_ERROR"; }

EXPORT int nvrtcGetNumSupportedArchs(int *count) {
    *count = 3;
    return 0;
}

EXPORT int nvrtcGetSupportedArchs(int *archs) {
    archs[0] = 75;
    archs[1] = 80;
    archs[2] = 90;
    return 0;
}

EXPORT int nvrtcCreateProgram(program **out, const char *text, const char *name, int count, const char *const *texts,
                              const char *const *names) {
    (void)name, (void)count, (void)texts, (void)names;
    program *made = calloc(1, sizeof *made);
    if (!made) return 1;
    snprintf(made->text, sizeof made->text, "%s", text);
    *out = made;
    return 0;
}

EXPORT int nvrtcDestroyProgram(program **out) {
    free(*out);
    *out = NULL;
    return 0;
}

EXPORT int nvrtcCompileProgram(program *made, int count, const char *const *options) {
    int sm = 0, value = 0;
    __atomic_fetch_add(&fake_nvrtc_compiles, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < count; i++) {
        sscanf(options[i], "--gpu-architecture=compute_%d", &sm);
        sscanf(options[i], "-DN=%d", &value);
    }
    if (strstr(made->text, "syntax")) {
        snprintf(made->log, sizeof made->log,
                 "a.cu(1): warning: a remark that comes first\n\na.cu(3): error: expected a \";\"\n1 error detected\n");
        return 6;
    }
    if (strstr(made->text, "empty")) return 0;
    snprintf(
        made->ptx, sizeof made->ptx,
        ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry answer(.param .u64 out)\n{\n"
        "    .reg .b32 %%r<3>;\n    .reg .b64 %%rd<2>;\n    ld.param.u64 %%rd1, [out];\n    mov.u32 %%r1, %d;\n"
        "    mov.u32 %%r2, %d;\n    st.global.u32 [%%rd1], %%r1;\n    st.global.u32 [%%rd1+4], %%r2;\n    ret;\n}\n",
        sm, value);
    return 0;
}

EXPORT int nvrtcGetPTXSize(program *made, size_t *bytes) {
    *bytes = strlen(made->ptx) + 1;
    return 0;
}

EXPORT int nvrtcGetPTX(program *made, char *ptx) {
    strcpy(ptx, made->ptx);
    return 0;
}

EXPORT int nvrtcGetProgramLogSize(program *made, size_t *bytes) {
    *bytes = strlen(made->log) + 1;
    return 0;
}

EXPORT int nvrtcGetProgramLog(program *made, char *log) {
    strcpy(log, made->log);
    return 0;
}
