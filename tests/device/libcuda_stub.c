/* A library in libcuda's place: it has every symbol, and cuInit answers what STUB_INIT says. */
#include <stdlib.h>

#include "device/driver_entries.h"

enum { NOT_INITIALIZED = 3 }; /* CUDA_ERROR_NOT_INITIALIZED */

/* Only the names matter: whoever calls one without having initialised the driver gets "not initialised". */
#define STUB(member, symbol, parameters) int stub_##member(void) __asm__(symbol) __attribute__((visibility("default")));
#define NO_STUB(member, symbol, parameters)
MU_DRIVER_ENTRIES(STUB, NO_STUB)
#undef STUB

#define STUB(member, symbol, parameters)                                                                               \
    int stub_##member(void) { return stub_answer(#member); }
static int stub_answer(const char *member);
MU_DRIVER_ENTRIES(STUB, NO_STUB)

static int stub_answer(const char *member) {
    const char *code = getenv("STUB_INIT");
    if (member[0] == 'i' && member[1] == 'n' && code) return atoi(code);
    return NOT_INITIALIZED;
}
