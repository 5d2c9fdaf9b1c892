/* Copies and fills. Both are checked against the allocation table when they are issued and again when they run. */
#include <stdio.h>
#include <string.h>

#include "device/sim/sim_graph.h"
#include "device/sim/sim_heap.h"
#include "device/sim/sim_queue.h"

/* One side of a copy. */
typedef struct side {
    uint64_t address;
    bool host; /* given as a host pointer */
} side;

typedef struct copy_op {
    sim_op op;
    uint64_t to, from;
    size_t width, height, to_pitch, from_pitch;
    bool to_device, from_device; /* checked when run */
    double gbps;
    void *staging; /* pageable source, copied at the call */
} copy_op;

/* A word written in stream order, which the host may be looking at meanwhile. */
typedef struct word_op {
    sim_op op;
    uint64_t to;
    uint32_t value;
} word_op;

typedef struct fill_op {
    sim_op op;
    uint64_t to;
    size_t count, rows, pitch; /* elements of each row */
    unsigned value, width;     /* bytes of one element */
} fill_op;

/* ------------------------------------------------------------------------------------------------------ checking -- */

/* Every row lies in one block; `device`: and there must be a block. */
static bool mapped(sim_driver *driver, uint64_t address, size_t width, size_t height, size_t pitch, bool device,
                   bool write) {
    uint64_t last, end;
    if (__builtin_mul_overflow((uint64_t)pitch, (uint64_t)(height - 1), &last) ||
        __builtin_add_overflow(address, last, &end) || __builtin_add_overflow(end, (uint64_t)width, &end))
        return false;
    sim_block *block = sim_table_find(driver->memory, address);
    if (!block) return !device && !sim_table_overlap(driver->memory, address, end);
    /* A module's constants are read-only to kernels, not to copies. */
    return end <= block->range.high && (!write || block->range.writable || block->variable);
}

static bool pageable(sim_driver *driver, uint64_t address) { return !sim_table_find(driver->memory, address); }

/* ------------------------------------------------------------------------------------------------------- running -- */

static CUresult fault_range(sim_op *op, const char *what, uint64_t address, size_t bytes) {
    char where[256], message[512];
    sim_memory_describe(&op->stream->context->memory, address, where, sizeof where);
    snprintf(message, sizeof message, "%s of %zu bytes at 0x%llx: %s", what, bytes, (unsigned long long)address, where);
    sim_fault_kernel(op->stream->context, CUDA_ERROR_ILLEGAL_ADDRESS, message);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult run_copy(sim_op *op) {
    copy_op *copy = (copy_op *)op;
    sim_driver *driver = op->stream->context->driver;
    /* It may have been freed, in stream order, since the call. */
    if (copy->from_device && !mapped(driver, copy->from, copy->width, copy->height, copy->from_pitch, true, false))
        return fault_range(op, "copy from", copy->from, copy->width * copy->height);
    if (copy->to_device && !mapped(driver, copy->to, copy->width, copy->height, copy->to_pitch, true, true))
        return fault_range(op, "copy to", copy->to, copy->width * copy->height);
    sim_block *to = sim_table_find(driver->memory, copy->to), *from = sim_table_find(driver->memory, copy->from);
    bool packed = copy->to_pitch == copy->width && copy->from_pitch == copy->width;
    size_t rows = packed ? 1 : copy->height, bytes = packed ? copy->width * copy->height : copy->width;
    for (size_t row = 0; row < rows; row++) {
        uint64_t onto = copy->to + row * copy->to_pitch, off = copy->from + row * copy->from_pitch;
        memmove((void *)(uintptr_t)onto, (const void *)(uintptr_t)off, bytes);
        if (to) sim_block_copy_written(to, onto, copy->staging ? NULL : from, off, bytes);
    }
    sim_plan_copy(op->stream->context->device, (void *)(uintptr_t)copy->to, bytes);
    op->cost_ns = 1000 + (uint64_t)((double)(copy->width * copy->height) / copy->gbps);
    return CUDA_SUCCESS;
}

static void release_copy(sim_op *op) {
    sim_free_unordered(((copy_op *)op)->staging);
    sim_free_unordered(op);
}

static void fill_row(const fill_op *fill, unsigned char *base, size_t bytes) {
    if (fill->width == 1) {
        memset(base, (int)fill->value, bytes);
    } else if (fill->width == 2) {
        uint16_t *elements = (uint16_t *)(void *)base;
        for (size_t i = 0; i < fill->count; i++) elements[i] = (uint16_t)fill->value;
    } else {
        uint32_t *elements = (uint32_t *)(void *)base;
        for (size_t i = 0; i < fill->count; i++) elements[i] = fill->value;
    }
}

static CUresult run_fill(sim_op *op) {
    fill_op *fill = (fill_op *)op;
    sim_driver *driver = op->stream->context->driver;
    size_t bytes = fill->count * fill->width;
    if (!mapped(driver, fill->to, bytes, fill->rows, fill->pitch, true, true))
        return fault_range(op, "fill", fill->to, bytes);
    for (size_t row = 0; row < fill->rows; row++) {
        uint64_t at = fill->to + row * fill->pitch;
        fill_row(fill, (unsigned char *)(uintptr_t)at, bytes);
        sim_block_mark_written(sim_table_find(driver->memory, fill->to), at, bytes);
    }
    op->cost_ns =
        1000 + (uint64_t)((double)bytes * (double)fill->rows / op->stream->context->device->config->local_gbps);
    return CUDA_SUCCESS;
}

static CUresult run_word(sim_op *op) {
    const word_op *word = (const word_op *)op;
    sim_driver *driver = op->stream->context->driver;
    if (!mapped(driver, word->to, sizeof word->value, 1, 0, true, true))
        return fault_range(op, "write of a value", word->to, sizeof word->value);
    /* Release: the host that sees it sees what came before it in the stream, as by the real driver's fence. */
    atomic_store_explicit((_Atomic uint32_t *)(uintptr_t)word->to, word->value, memory_order_release);
    sim_block_mark_written(sim_table_find(driver->memory, word->to), word->to, sizeof word->value);
    op->cost_ns = 500;
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------- issuing -- */

typedef enum direction { UPLOAD, DOWNLOAD, WITHIN, PEER } direction;

static void set_route(copy_op *copy, sim_device *device, direction way) {
    const sim_device_config *config = device->config;
    switch (way) {
        case UPLOAD: copy->op.engine_ns = &device->upload_ns, copy->gbps = config->upload_gbps; break;
        case DOWNLOAD: copy->op.engine_ns = &device->download_ns, copy->gbps = config->download_gbps; break;
        case PEER: copy->op.engine_ns = &device->peer_ns, copy->gbps = config->peer_gbps; break;
        case WITHIN: copy->gbps = config->local_gbps; break;
    }
}

/* A pageable source is staged now, so that the caller may change it; more of it than the driver's command buffer takes, or a pageable
 * destination, makes the call wait. */
static CUresult issue(sim_stream *stream, copy_op plan, side to, side from, direction way, bool synchronous) {
    sim_driver *driver = stream->context->driver;
    if (stream->capture) return sim_capture_refuse(stream);
    if (!plan.width || !plan.height) return CUDA_SUCCESS;
    if (!to.address || !from.address) return CUDA_ERROR_INVALID_VALUE;
    if (!mapped(driver, to.address, plan.width, plan.height, plan.to_pitch, !to.host, true) ||
        !mapped(driver, from.address, plan.width, plan.height, plan.from_pitch, !from.host, false))
        return CUDA_ERROR_INVALID_VALUE;
    copy_op *copy = (copy_op *)sim_op_create(sizeof *copy, run_copy, release_copy);
    if (!copy) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_op op = copy->op;
    *copy = plan;
    copy->op = op;
    copy->op.counted = true;
    copy->to = to.address;
    copy->from = from.address;
    copy->to_device = !to.host;
    copy->from_device = !from.host;
    set_route(copy, stream->context->device, way);
    size_t bytes = plan.width * plan.height;
    bool from_pageable = from.host && pageable(driver, from.address);
    bool waits = synchronous || (to.host && pageable(driver, to.address)) ||
                 (from_pageable && bytes > SIM_PAGEABLE_INLINE_BYTES);
    if (from_pageable && !waits && !driver->null_mode) {
        copy->staging = mu_alloc(bytes);
        if (!copy->staging) {
            mu_free(copy);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        for (size_t row = 0; row < plan.height; row++)
            memcpy((char *)copy->staging + row * plan.width,
                   (const char *)(uintptr_t)from.address + row * plan.from_pitch, plan.width);
        copy->from = (uintptr_t)copy->staging;
        copy->from_pitch = plan.width;
    }
    return sim_enqueue(stream, &copy->op, waits);
}

static CUresult issue_line(sim_driver *driver, CUstream handle, side to, side from, size_t bytes, direction way,
                           bool synchronous) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    copy_op plan = {.width = bytes, .height = 1, .to_pitch = bytes, .from_pitch = bytes};
    return issue(stream, plan, to, from, way, synchronous);
}

static side device_side(CUdeviceptr pointer) { return (side){pointer, false}; }
static side host_side(const void *pointer) { return (side){(uintptr_t)pointer, true}; }

CUresult sim_do_memcpy_htod(sim_driver *driver, CUdeviceptr to, const void *from, size_t bytes) {
    return issue_line(driver, NULL, device_side(to), host_side(from), bytes, UPLOAD, true);
}

CUresult sim_do_memcpy_dtoh(sim_driver *driver, void *to, CUdeviceptr from, size_t bytes) {
    return issue_line(driver, NULL, host_side(to), device_side(from), bytes, DOWNLOAD, true);
}

CUresult sim_do_memcpy_htod_async(sim_driver *driver, CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return issue_line(driver, stream, device_side(to), host_side(from), bytes, UPLOAD, false);
}

CUresult sim_do_memcpy_dtoh_async(sim_driver *driver, void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return issue_line(driver, stream, host_side(to), device_side(from), bytes, DOWNLOAD, false);
}

CUresult sim_do_memcpy_dtod_async(sim_driver *driver, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return issue_line(driver, stream, device_side(to), device_side(from), bytes, WITHIN, false);
}

CUresult sim_do_memcpy_peer_async(sim_driver *driver, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                  CUcontext from_context, size_t bytes, CUstream stream) {
    sim_context *owner, *peer;
    CUresult code = sim_context_find(driver, to_context, &owner);
    if (code == CUDA_SUCCESS) code = sim_context_find(driver, from_context, &peer);
    if (code != CUDA_SUCCESS) return code;
    direction way = owner->device == peer->device ? WITHIN : PEER;
    return issue_line(driver, stream, device_side(to), device_side(from), bytes, way, false);
}

/* One side of a 2D copy; false for what the simulator has not (arrays) or what is wrong. */
static bool read_side(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch,
                      const CUDA_MEMCPY2D *copy, size_t *pitch_out, side *out) {
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) return false;
    if (!pitch) pitch = copy->WidthInBytes;
    uint64_t offset, base = type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : device;
    if (!base || pitch < copy->WidthInBytes || x > pitch - copy->WidthInBytes) return false;
    if (__builtin_mul_overflow((uint64_t)pitch, (uint64_t)y, &offset) ||
        __builtin_add_overflow(offset, base, &offset) || __builtin_add_overflow(offset, (uint64_t)x, &offset))
        return false;
    *out = (side){offset, type == CU_MEMORYTYPE_HOST};
    *pitch_out = pitch;
    return true;
}

CUresult sim_do_memcpy_2d_async(sim_driver *driver, const CUDA_MEMCPY2D *copy, CUstream handle) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    if (!copy->WidthInBytes || !copy->Height) return CUDA_SUCCESS;
    copy_op plan = {.width = copy->WidthInBytes, .height = copy->Height};
    side to, from;
    if (!read_side(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstXInBytes, copy->dstY, copy->dstPitch,
                   copy, &plan.to_pitch, &to) ||
        !read_side(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes, copy->srcY, copy->srcPitch,
                   copy, &plan.from_pitch, &from))
        return CUDA_ERROR_INVALID_VALUE;
    direction way = from.host ? UPLOAD : to.host ? DOWNLOAD : WITHIN;
    if (way == WITHIN) {
        /* Unlike cuMemcpyPeerAsync it goes by the stream's context, which must reach both. */
        const sim_block *written = sim_table_find(driver->memory, to.address);
        const sim_block *read = sim_table_find(driver->memory, from.address);
        if (!written || !read || !sim_block_visible(written, stream->context) ||
            !sim_block_visible(read, stream->context))
            return CUDA_ERROR_INVALID_VALUE;
        if (written->device && read->device && written->device != read->device) way = PEER;
    }
    return issue(stream, plan, to, from, way, false);
}

static CUresult issue_rows(sim_driver *driver, CUdeviceptr to, size_t pitch, unsigned value, unsigned width,
                           size_t count, size_t rows, CUstream handle) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (stream->capture) return sim_capture_refuse(stream);
    if (!count || !rows) return CUDA_SUCCESS;
    size_t bytes;
    if (to % width || __builtin_mul_overflow(count, (size_t)width, &bytes) || (rows > 1 && pitch < bytes) ||
        !mapped(driver, to, bytes, rows, pitch, true, true))
        return CUDA_ERROR_INVALID_VALUE;
    fill_op *fill = (fill_op *)sim_op_create(sizeof *fill, run_fill, sim_op_release);
    if (!fill) return CUDA_ERROR_OUT_OF_MEMORY;
    fill->to = to;
    fill->count = count;
    fill->rows = rows;
    fill->pitch = pitch;
    fill->value = value;
    fill->width = width;
    fill->op.counted = true;
    return sim_enqueue(stream, &fill->op, false);
}

static CUresult issue_fill(sim_driver *driver, CUdeviceptr to, unsigned value, unsigned width, size_t count,
                           CUstream handle) {
    return issue_rows(driver, to, 0, value, width, count, 1, handle);
}

CUresult sim_do_memset_d2d8_async(sim_driver *driver, CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                  size_t height, CUstream stream) {
    return issue_rows(driver, to, pitch, value, 1, width, height, stream);
}

CUresult sim_do_memset_d8_async(sim_driver *driver, CUdeviceptr to, unsigned char value, size_t count,
                                CUstream stream) {
    return issue_fill(driver, to, value, 1, count, stream);
}

CUresult sim_do_memset_d16_async(sim_driver *driver, CUdeviceptr to, unsigned short value, size_t count,
                                 CUstream stream) {
    return issue_fill(driver, to, value, 2, count, stream);
}

CUresult sim_do_memset_d32_async(sim_driver *driver, CUdeviceptr to, unsigned int value, size_t count,
                                 CUstream stream) {
    return issue_fill(driver, to, value, 4, count, stream);
}

CUresult sim_do_stream_write_value32(sim_driver *driver, CUstream handle, CUdeviceptr to, unsigned int value,
                                     unsigned int flags) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (stream->capture) return sim_capture_refuse(stream);
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || to % sizeof value ||
        !mapped(driver, to, sizeof value, 1, 0, true, true))
        return CUDA_ERROR_INVALID_VALUE;
    if (driver->null_mode) { /* what precedes has run */
        atomic_store_explicit((_Atomic uint32_t *)(uintptr_t)to, value, memory_order_release);
        return CUDA_SUCCESS;
    }
    word_op *word = (word_op *)sim_op_create(sizeof *word, run_word, sim_op_release);
    if (!word) return CUDA_ERROR_OUT_OF_MEMORY;
    word->to = to;
    word->value = value;
    word->op.counted = true;
    return sim_enqueue(stream, &word->op, false);
}
