/* The PTX front end and interpreter on arbitrary text: whatever it is, loading ends in a module or a logged error, and
 * a module that loads runs to an end or a fault. With clang, -fsanitize=fuzzer and -DPTX_FUZZ_LIBFUZZER this file is a
 * libFuzzer target; otherwise it mutates the files given as arguments, always in the same way:
 *     ptx_fuzz [-n mutations] file.ptx ... */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/sim/exec.h"

enum { DATA_BYTES = 4096, MAX_VARIABLES = 64, MAX_VARIABLE_BYTES = 1 << 16, INSTRUCTIONS = 30000 };

struct sim_memory {
    sim_range ranges[MAX_VARIABLES + 1];
    unsigned count;
};

const sim_range *sim_memory_lookup(sim_memory *memory, uint64_t address) {
    for (unsigned r = 0; r < memory->count; r++)
        if (address >= memory->ranges[r].low && address < memory->ranges[r].high) return &memory->ranges[r];
    return NULL;
}

void sim_memory_describe(sim_memory *memory, uint64_t address, char *text, size_t bytes) {
    snprintf(text, bytes, "0x%llx in none of %u allocations", (unsigned long long)address, memory->count);
}

static void add(sim_memory *memory, void *bytes, size_t count, bool writable, uint8_t *initialised) {
    memory->ranges[memory->count++] =
        (sim_range){(uint64_t)(uintptr_t)bytes, (uint64_t)(uintptr_t)bytes + count, writable, initialised};
}

static void run(const sim_module *module, const sim_instance *instance, sim_memory *memory, void *data) {
    for (size_t f = 0; f < sim_module_function_count(module) && f < 4; f++) {
        const sim_function *function = sim_module_function_at(module, f);
        const sim_function_info *info = sim_function_get_info(function);
        unsigned char parameters[1 << 15] = {0};
        for (size_t p = 0; p < info->parameter_count; p++) { /* pointers to the data, small numbers */
            uint64_t value = info->parameter_bytes[p] == 8 ? (uint64_t)(uintptr_t)data : 3;
            if (info->parameter_bytes[p] <= 8)
                memcpy(parameters + info->parameter_offsets[p], &value, info->parameter_bytes[p]);
        }
        sim_launch launch = {.function = function,
                             .instance = instance,
                             .memory = memory,
                             .grid = {2, 1, 1},
                             .block = {37, 1, 1},
                             .dynamic_shared_bytes = 256,
                             .parameters = parameters,
                             .cooperative = f & 1,
                             .sm_count = 2,
                             .warp_size = 32,
                             .target_sm = 90,
                             .seed = f,
                             .max_instructions = INSTRUCTIONS};
        sim_fault fault = {0};
        CUresult code = sim_launch_run(&launch, &fault, NULL);
        if (code != CUDA_SUCCESS && !fault.message[0]) abort(); /* a fault always says what it was */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *text, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *text, size_t bytes) {
    static unsigned char data[DATA_BYTES] __attribute__((aligned(256)));
    static uint8_t initialised[DATA_BYTES / 8];
    char log[256];
    sim_module *module = NULL;
    CUresult code = sim_module_load((const char *)text, bytes, 90, &module, log, sizeof log);
    if (code != CUDA_SUCCESS) {
        if (module || !log[0]) abort(); /* a refusal always says why */
        return 0;
    }
    sim_memory memory = {.count = 0};
    void *variables[MAX_VARIABLES] = {0};
    uint64_t addresses[MAX_VARIABLES];
    size_t count = sim_module_variable_count(module);
    memset(initialised, 0xff, sizeof initialised);
    add(&memory, data, sizeof data, true, initialised);
    bool small = count <= MAX_VARIABLES;
    for (size_t v = 0; small && v < count; v++) {
        const sim_variable *variable = sim_module_variable_at(module, v);
        small = variable->bytes <= MAX_VARIABLE_BYTES;
        variables[v] = small ? calloc(1, variable->bytes + 1) : NULL;
        if (!variables[v]) break;
        addresses[v] = (uint64_t)(uintptr_t)variables[v];
        add(&memory, variables[v], variable->bytes, !variable->constant, NULL);
    }
    sim_instance *instance = NULL;
    if (small && sim_instance_create(module, addresses, &instance) == CUDA_SUCCESS)
        run(module, instance, &memory, data);
    sim_instance_free(instance);
    for (size_t v = 0; v < MAX_VARIABLES; v++) free(variables[v]);
    sim_module_free(module);
    return 0;
}

#ifndef PTX_FUZZ_LIBFUZZER

static uint64_t state = 1;

static uint32_t random_below(uint32_t limit) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return limit ? (uint32_t)(state >> 33) % limit : 0;
}

typedef struct text {
    char *bytes;
    size_t length;
} text;

static text read_file(const char *path) {
    text t = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        perror(path);
        exit(1);
    }
    long length = ftell(file);
    rewind(file);
    t.bytes = malloc((size_t)length + 1);
    if (!t.bytes || fread(t.bytes, 1, (size_t)length, file) != (size_t)length) exit(1);
    t.length = (size_t)length;
    fclose(file);
    return t;
}

static void replace(text *t, size_t at, size_t removed, const char *with, size_t added) {
    if (at > t->length) at = t->length;
    if (removed > t->length - at) removed = t->length - at;
    char *bytes = malloc(t->length - removed + added + 1);
    if (!bytes) exit(1);
    memcpy(bytes, t->bytes, at);
    memcpy(bytes + at, with, added);
    memcpy(bytes + at + added, t->bytes + at + removed, t->length - at - removed);
    free(t->bytes);
    t->bytes = bytes;
    t->length = t->length - removed + added;
}

static size_t line_at(const text *t, size_t at, size_t *length) {
    size_t begin = at;
    while (begin > 0 && t->bytes[begin - 1] != '\n') begin--;
    size_t end = at;
    while (end < t->length && t->bytes[end] != '\n') end++;
    *length = end < t->length ? end - begin + 1 : end - begin;
    return begin;
}

/* One change: of bytes, of lines, or of a word for one that PTX knows. */
static void mutate(text *t) {
    static const char *const words[] = {".reg",
                                        ".b32",
                                        ".b64",
                                        ".u8",
                                        ".s16",
                                        ".f32",
                                        ".f64",
                                        ".pred",
                                        ".v2",
                                        ".v4",
                                        ".param",
                                        ".shared",
                                        ".local",
                                        ".global",
                                        ".const",
                                        ".align 8",
                                        "[]",
                                        "[4]",
                                        "{",
                                        "}",
                                        "(",
                                        ")",
                                        ";",
                                        ",",
                                        "|",
                                        "!",
                                        "@%p1 ",
                                        "_",
                                        "0",
                                        "-1",
                                        "2147483647",
                                        "0xffffffffffffffff",
                                        "9223372036854775808U",
                                        "1e400",
                                        "0f7f800000",
                                        "%r1",
                                        "%rd1",
                                        "%p1",
                                        "%f1",
                                        "%r<99999999>",
                                        "%tid.x",
                                        "%clock64",
                                        "WARP_SZ",
                                        "bra",
                                        "call",
                                        "ret",
                                        "exit",
                                        "bar.sync 0;",
                                        "trap;",
                                        "shfl.sync.idx.b32",
                                        "vote.sync.ballot.b32",
                                        "atom.global.add.u32",
                                        "mad.wide.s32",
                                        "cvt.rn.f32.s32",
                                        "ld.global.v4.u32",
                                        "st.shared.u64",
                                        "div.s32",
                                        "brx.idx",
                                        ".branchtargets",
                                        ".callprototype",
                                        ".func",
                                        ".entry",
                                        ".visible",
                                        ".extern",
                                        ".version 99.0",
                                        ".target sm_200",
                                        ".address_size 32",
                                        "//",
                                        "/*",
                                        "\""};
    if (!t->length) return;
    size_t at = random_below((uint32_t)t->length), length, other;
    switch (random_below(9)) {
        case 0: t->bytes[at] = (char)random_below(256); break;
        case 1: replace(t, at, 1 + random_below(8), "", 0); break;
        case 2: t->length = at; break;
        case 3: /* a line goes */
            at = line_at(t, at, &length);
            replace(t, at, length, "", 0);
            break;
        case 4: { /* a line comes again somewhere else */
            at = line_at(t, at, &length);
            char *copy = malloc(length + 1);
            if (!copy) exit(1);
            memcpy(copy, t->bytes + at, length);
            other = line_at(t, random_below((uint32_t)t->length), &(size_t){0});
            replace(t, other, 0, copy, length);
            free(copy);
            break;
        }
        case 5: { /* a digit changes */
            while (at < t->length && (t->bytes[at] < '0' || t->bytes[at] > '9')) at++;
            if (at < t->length) t->bytes[at] = (char)('0' + random_below(10));
            break;
        }
        case 6: /* a dot and what follows goes: a type or modifier */
            while (at < t->length && t->bytes[at] != '.') at++;
            for (length = 1;
                 at + length < t->length && (t->bytes[at + length] | 32) >= 'a' && (t->bytes[at + length] | 32) <= 'z';)
                length++;
            replace(t, at, length, "", 0);
            break;
        default: {
            const char *word = words[random_below(sizeof words / sizeof *words)];
            for (length = 0; at + length < t->length && t->bytes[at + length] != ' ' && t->bytes[at + length] != '\n' &&
                             length < 24;)
                length++;
            replace(t, at, random_below(2) ? length : 0, word, strlen(word));
            break;
        }
    }
}

int main(int argc, char **argv) {
    unsigned long mutations = 3000;
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "-n") == 0) {
        mutations = strtoul(argv[2], NULL, 10);
        first = 3;
    }
    if (first >= argc) {
        fprintf(stderr, "usage: %s [-n mutations] file.ptx ...\n", argv[0]);
        return 2;
    }
    for (int f = first; f < argc; f++) { /* unchanged, and cut off at every so many bytes */
        text t = read_file(argv[f]);
        for (size_t cut = t.length; cut > 0; cut = cut > 997 ? cut - 997 : 0)
            LLVMFuzzerTestOneInput((const uint8_t *)t.bytes, cut);
        free(t.bytes);
    }
    for (unsigned long n = 0; n < mutations; n++) {
        state = n + 1;
        text t = read_file(argv[first + (int)random_below((uint32_t)(argc - first))]);
        for (uint32_t changes = 1 + random_below(4); changes; changes--) mutate(&t);
        LLVMFuzzerTestOneInput((const uint8_t *)t.bytes, t.length);
        free(t.bytes);
    }
    printf("%lu mutations of %d files: every one ended in a module, a refusal or a fault\n", mutations, argc - first);
    return 0;
}

#endif
