#include "tests/device/sim/ptx_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/device/sim/ptx_harness.h"

enum { BLOCK = 96, GRID = 16, N = BLOCK * GRID, ROWS_A_MODULE = 16, TEXT = 64 << 10 };

static size_t append(char *text, size_t used, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(text + used, TEXT - used, format, arguments);
    va_end(arguments);
    assert_true(more >= 0 && used + (size_t)more < TEXT);
    return used + (size_t)more;
}

/* "op d, a, b;" or, with a $ in the instruction, that replaced. */
static size_t append_instruction(char *text, size_t used, const row *r) {
    char operands[128];
    size_t length = 0;
    for (unsigned n = 0; r->kinds[n]; n++)
        length += (size_t)snprintf(operands + length, sizeof operands - length, "%s%%%c%u", n ? ", " : "", r->kinds[n],
                                   n ? n : 9);
    const char *mark = strchr(r->instruction, '$');
    if (!mark) return append(text, used, "    %s %s;\n", r->instruction, operands);
    return append(text, used, "    %.*s%s%s;\n", (int)(mark - r->instruction), r->instruction, operands, mark + 1);
}

static size_t append_kernel(char *text, size_t used, const row *r, unsigned index) {
    used = append(text, used,
                  ".visible .entry k%u(.param .u64 in, .param .u64 out) {\n"
                  "    .reg .b16 %%h<10>;\n    .reg .b32 %%r<20>;\n    .reg .b64 %%l<20>;\n    .reg .f32 %%f<10>;\n    "
                  ".reg .f64 %%d<10>;\n    .reg .pred %%p<10>;\n"
                  "    mov.u32 %%r10, %%tid.x;\n    mov.u32 %%r11, %%ctaid.x;\n    mov.u32 %%r12, %%ntid.x;\n    "
                  "mad.lo.u32 %%r10, %%r11, %%r12, %%r10;\n"
                  "    ld.param.u64 %%l10, [in];\n    ld.param.u64 %%l11, [out];\n"
                  "    mad.wide.u32 %%l10, %%r10, 32, %%l10;\n    mad.wide.u32 %%l11, %%r10, 8, %%l11;\n",
                  index);
    for (unsigned n = 1; r->kinds[0] && r->kinds[n]; n++) {
        used = append(text, used, "    ld.global.b64 %%l%u, [%%l10+%u];\n", n, (n - 1) * 8);
        switch (r->kinds[n]) {
            case 'h': used = append(text, used, "    cvt.u16.u64 %%h%u, %%l%u;\n", n, n); break;
            case 'r': used = append(text, used, "    cvt.u32.u64 %%r%u, %%l%u;\n", n, n); break;
            case 'f':
                used = append(text, used, "    cvt.u32.u64 %%r%u, %%l%u;\n    mov.b32 %%f%u, %%r%u;\n", n, n, n, n);
                break;
            case 'd': used = append(text, used, "    mov.b64 %%d%u, %%l%u;\n", n, n); break;
            case 'p':
                used = append(text, used, "    and.b64 %%l12, %%l%u, 1;\n    setp.ne.u64 %%p%u, %%l12, 0;\n", n, n);
                break;
            default: break;
        }
    }
    used = append_instruction(text, used, r);
    switch (r->kinds[0]) {
        case 'h': used = append(text, used, "    cvt.u64.u16 %%l9, %%h9;\n"); break;
        case 'r': used = append(text, used, "    cvt.u64.u32 %%l9, %%r9;\n"); break;
        case 'f': used = append(text, used, "    mov.b32 %%r9, %%f9;\n    cvt.u64.u32 %%l9, %%r9;\n"); break;
        case 'd': used = append(text, used, "    mov.b64 %%l9, %%d9;\n"); break;
        case 'p': used = append(text, used, "    selp.b64 %%l9, 1, 0, %%p9;\n"); break;
        default: break;
    }
    return append(text, used, "    st.global.b64 [%%l11], %%l9;\n    ret;\n}\n");
}

static uint64_t mask_of(char kind) {
    switch (kind) {
        case 'h': return 0xffff;
        case 'r':
        case 'f': return UINT32_MAX;
        case 'p': return 1;
        default: return UINT64_MAX;
    }
}

static uint64_t operand(char kind, uint64_t *seed) {
    switch (kind) {
        case 'f': return harness_float32(seed);
        case 'd': return harness_float64(seed);
        case 'l': return harness_edge64(seed);
        case 'p': return harness_random(seed) & 1;
        default: return harness_edge32(seed) & mask_of(kind);
    }
}

static double as_double(char kind, uint64_t bits) {
    double d;
    float f;
    uint32_t low = (uint32_t)bits;
    memcpy(&d, &bits, 8);
    memcpy(&f, &low, 4);
    return kind == 'f' ? (double)f : d;
}

static bool is_near(char kind, uint64_t got, uint64_t expected, double ulps, double absolute) {
    if (got == expected) return true;
    double g = as_double(kind, got), e = as_double(kind, expected);
    if (isnan(g) || isnan(e)) return isnan(g) && isnan(e);
    double unit = kind == 'f' ? fmax(fabs(e) * 0x1p-23, 0x1p-149) : fmax(fabs(e) * 0x1p-52, 0x1p-1074);
    return fabs(g - e) <= fmax(ulps * unit, absolute);
}

static void check_row(harness *h, const row *r, unsigned index, double ulps, double absolute) {
    uint64_t *in = harness_alloc(h, N * 32), *out = harness_alloc(h, N * 8);
    uint64_t seed = index * 977 + strlen(r->instruction), mask = mask_of(r->kinds[0]);
    unsigned sources = (unsigned)strlen(r->kinds) - 1;
    for (unsigned i = 0; i < N; i++)
        for (unsigned s = 0; s < sources; s++) in[i * 4 + s] = operand(r->kinds[1 + s], &seed);
    char kernel[16];
    snprintf(kernel, sizeof kernel, "k%u", index);
    void *p[] = {in, out};
    harness_ok(h, kernel, GRID, BLOCK, p);
    for (unsigned i = 0; i < N; i++) {
        uint64_t expected = r->model(in[i * 4], in[i * 4 + 1], in[i * 4 + 2], in[i * 4 + 3]) & mask,
                 got = out[i] & mask;
        if (got == expected || (ulps > 0 && is_near(r->kinds[0], got, expected, ulps, absolute))) continue;
        fail_msg("%s (%s) of %#llx, %#llx, %#llx, %#llx gives %#llx, not %#llx", r->instruction, r->kinds,
                 (unsigned long long)in[i * 4], (unsigned long long)in[i * 4 + 1], (unsigned long long)in[i * 4 + 2],
                 (unsigned long long)in[i * 4 + 3], (unsigned long long)got, (unsigned long long)expected);
    }
}

void check_rows_near(const row *rows, unsigned count, double ulps, double absolute) {
    char *text = malloc(TEXT);
    assert_non_null(text);
    for (unsigned first = 0; first < count; first += ROWS_A_MODULE) {
        unsigned more = count - first < ROWS_A_MODULE ? count - first : ROWS_A_MODULE;
        size_t used = append(text, 0, ".version 9.0\n.target sm_90\n.address_size 64\n");
        for (unsigned n = 0; n < more; n++) used = append_kernel(text, used, &rows[first + n], n);
        harness h;
        harness_load(&h, text);
        for (unsigned n = 0; n < more; n++) check_row(&h, &rows[first + n], n, ulps, absolute);
        harness_free(&h);
    }
    free(text);
}

void check_rows(const row *rows, unsigned count) { check_rows_near(rows, count, 0, 0); }
