/* The kernels of kernels.cu in C, one element after another, from their descriptions. */
#include <string.h>

#include "tests/scheduler/scenario.h"

static uint32_t hash(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Memory is bytes: buffers have any alignment on the host. */
static uint32_t word(const uint8_t *bytes, uint64_t index) {
    uint32_t value;
    memcpy(&value, bytes + 4 * index, 4);
    return value;
}
static void set_word(uint8_t *bytes, uint64_t index, uint32_t value) { memcpy(bytes + 4 * index, &value, 4); }

#define MODEL_ADD(name, type)                                                                                          \
    static void name(uint8_t *bytes, uint64_t index, type value) {                                                     \
        type sum;                                                                                                      \
        memcpy(&sum, bytes + sizeof sum * index, sizeof sum);                                                          \
        sum += value;                                                                                                  \
        memcpy(bytes + sizeof sum * index, &sum, sizeof sum);                                                          \
    }
/* Two's complement sums are the same signed and unsigned, and unsigned ones may wrap. */
MODEL_ADD(add_32, uint32_t)
MODEL_ADD(add_64, uint64_t)
MODEL_ADD(add_f32, float)
MODEL_ADD(add_f64, double)

static void model_sum(sc_op op, uint8_t *acc, uint32_t bins, const uint8_t *in0, uint32_t scalar, uint32_t count) {
    for (uint32_t g = 0; g < count; g++) {
        uint32_t h = hash(word(in0, g) + scalar + g), bin = h % bins;
        switch (op) {
            case SC_SUM_I32:
            case SC_SUM_U32: add_32(acc, bin, h); break;
            case SC_SUM_I64: add_64(acc, bin, h & 0x80000000u ? h | 0xffffffff00000000u : h); break;
            case SC_SUM_U64: add_64(acc, bin, h * 0x100000001u); break;
            case SC_SUM_F32: add_f32(acc, bin, (float)(h % 4)); break;
            default: add_f64(acc, bin, (double)(h % 4)); break;
        }
    }
}

static void model_settle(sc_op op, uint8_t *rw, uint32_t count) {
    for (uint32_t g = 0; g < count; g++) {
        if (op == SC_SETTLE_F32) {
            float value;
            memcpy(&value, rw + 4 * (size_t)g, 4);
            value = (float)(hash((uint32_t)value + g) % 256);
            memcpy(rw + 4 * (size_t)g, &value, 4);
        } else {
            double value;
            memcpy(&value, rw + 8 * (size_t)g, 8);
            value = (double)(hash((uint32_t)value + g) % 256);
            memcpy(rw + 8 * (size_t)g, &value, 8);
        }
    }
}

/* Threads of a block exchange their elements, last with first. */
static void model_stage(uint8_t *out, const uint8_t *in0, uint32_t scalar, uint32_t threads, uint32_t count) {
    for (uint32_t g = 0; g < count; g++) {
        uint64_t first = (uint64_t)(g / threads) * threads, partner = first + threads - 1 - (g - first);
        set_word(out, g, hash((partner < count ? word(in0, partner) : scalar) + 3 * word(in0, g) + g));
    }
}

static void model_weighted(uint8_t *out, const uint8_t *in0, const uint32_t weights[SC_WEIGHTS], uint32_t count) {
    for (uint32_t g = 0; g < count; g++) {
        uint32_t h = word(in0, g) + g;
        for (int k = 0; k < SC_WEIGHTS; k++) h = hash(h ^ weights[k]);
        set_word(out, g, h);
    }
}

static void model_fill(uint8_t *out, uint32_t bytes, uint32_t pattern, uint32_t pattern_bytes) {
    for (uint32_t i = 0; i < bytes; i++) out[i] = (uint8_t)(pattern >> 8 * (i % pattern_bytes));
}

void sc_model_job(const sc_job *job, uint8_t *const memory[SC_MAX_BUFFERS]) {
    uint8_t *at[SC_MAX_RANGES] = {NULL};
    for (uint32_t r = 0; r < job->range_count; r++) at[r] = memory[job->range[r].buffer] + job->range[r].offset;
    uint32_t count = job->count, scalar = job->scalar;
    switch (job->op) {
        case SC_HOST: /* rw[i] = H(rw[i] + in0[i] + scalar) + g */
            for (uint32_t g = 0; g < count; g++) set_word(at[0], g, hash(word(at[0], g) + word(at[1], g) + scalar) + g);
            break;
        case SC_PREFETCH:
        case SC_READ_BACK: break;
        case SC_ENQUEUE: /* a copy that the application enqueues */
        case SC_COPY:
            if (job->range[0].bytes) memmove(at[0], at[1], job->range[0].bytes);
            break;
        case SC_FILL: model_fill(at[0], job->range[0].bytes, job->pattern, job->pattern_bytes); break;
        case SC_MIX:
            for (uint32_t g = 0; g < count; g++) {
                uint32_t a = word(at[1], g), b = word(at[2], hash(a ^ scalar ^ g) % job->extent);
                set_word(at[0], g, hash(a + 0x9e3779b1u * b + g));
            }
            break;
        case SC_MIX32:
            for (uint32_t g = 0; g < count; g++) set_word(at[0], g, hash(word(at[1], g) + scalar) ^ g);
            break;
        case SC_TWIDDLE:
            for (uint32_t g = 0; g < count; g++) {
                uint32_t a = word(at[0], g);
                if (hash(a ^ scalar) % 4 != 0) set_word(at[0], g, hash(a + word(at[1], (a + g) % job->extent)));
            }
            break;
        case SC_PAIR:
            for (uint32_t g = 0; g < count; g++) {
                uint32_t a = word(at[2], g);
                if (!job->scratch_bytes) set_word(at[0], g, hash(a ^ scalar ^ g));
                set_word(at[1], g, hash(word(at[1], g) + a + g));
            }
            break;
        case SC_STAGE: model_stage(at[0], at[1], scalar, job->block.x * job->block.y * job->block.z, count); break;
        case SC_BYTES:
            for (uint32_t g = 0; g < count; g++) at[0][g] = (uint8_t)hash(at[1][g] + scalar + g);
            break;
        case SC_WEIGHTED: model_weighted(at[0], at[1], job->weights, count); break;
        case SC_SETTLE_F32:
        case SC_SETTLE_F64: model_settle(job->op, at[0], count); break;
        default: model_sum(job->op, at[0], job->extent, at[1], scalar, count); break;
    }
}
