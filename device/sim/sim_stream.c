/* Streams: making them, putting operations on them, and waiting for them. */
#include "device/sim/sim_queue.h"

#include "device/sim/sim_graph.h"
#include "device/sim/sim_pool.h"

sim_op *sim_op_create(size_t bytes, CUresult (*run)(sim_op *), void (*release)(sim_op *)) {
    sim_op *op = mu_alloc_zeroed(1, bytes);
    if (!op) return NULL;
    op->run = run;
    op->release = release;
    return op;
}

void sim_op_release(sim_op *op) { sim_free_unordered(op); }

/* ------------------------------------------------------------------------------------------------------- waiting -- */

void sim_wait(sim_driver *driver) {
    driver->waiters++;
    pthread_cond_wait(&driver->done, &driver->lock);
    driver->waiters--;
}

void sim_wake(sim_driver *driver) {
    if (driver->waiters) pthread_cond_broadcast(&driver->done);
    for (uint32_t i = 0; i < driver->config.device_count; i++)
        if (driver->devices[i].idle) pthread_cond_signal(&driver->devices[i].work);
}

static void host_saw(sim_driver *driver, uint64_t virtual_ns) {
    if (driver->host_ns < virtual_ns) driver->host_ns = virtual_ns;
}

CUresult sim_stream_drain(sim_stream *stream) {
    sim_context *context = stream->context;
    uint64_t target = stream->enqueued;
    CUresult code = sim_context_error(context);
    stream->pins++;
    while (code == CUDA_SUCCESS && stream->completed < target) {
        sim_wait(context->driver);
        code = sim_context_error(context);
    }
    stream->pins--;
    if (code == CUDA_SUCCESS) {
        host_saw(context->driver, stream->virtual_ns);
        MU_TSAN_ACQUIRE(&stream->order); /* pairs with take_turn's release */
    }
    if (sim_stream_is_over(stream)) sim_stream_free(stream);
    return code;
}

/* Streams may be freed while this waits, so it looks for one that has work from before, waits, and looks again. */
static CUresult drain_streams(sim_device *device, sim_context *waiter, const sim_context *only) {
    CUresult code = sim_context_error(waiter);
    uint64_t targets_set = 0;
    for (sim_stream *stream = device->streams; stream; stream = stream->next) {
        if (only && stream->context != only) continue;
        stream->drain_target = stream->enqueued;
        targets_set += stream->drain_target > stream->completed;
    }
    while (code == CUDA_SUCCESS && targets_set) {
        sim_wait(device->driver);
        targets_set = 0;
        for (sim_stream *stream = device->streams; stream; stream = stream->next)
            if (!only || stream->context == only) targets_set += stream->drain_target > stream->completed;
        code = sim_context_error(waiter);
    }
    for (sim_stream *stream = device->streams; stream; stream = stream->next)
        if (!only || stream->context == only) host_saw(device->driver, stream->virtual_ns);
    MU_TSAN_ACQUIRE(&device->order); /* pairs with take_turn's release; streams that are gone included */
    return code;
}

CUresult sim_context_drain(sim_context *context) { return drain_streams(context->device, context, context); }

CUresult sim_device_drain(sim_context *context) {
    sim_driver *driver = context->driver;
    if (driver->null_mode) return sim_context_error(context);
    atomic_fetch_add_explicit(&context->device->stalls, 1, memory_order_relaxed);
    context->draining++;
    CUresult code = drain_streams(context->device, context, NULL);
    if (--context->draining == 0) sim_wake(driver);
    return code;
}

/* ------------------------------------------------------------------------------------------------------- streams -- */

sim_stream *sim_stream_create(sim_context *context, bool blocking) {
    sim_driver *driver = context->driver;
    sim_stream *stream = mu_alloc_zeroed(1, sizeof *stream);
    if (!stream) return NULL;
    stream->context = context;
    stream->blocking = blocking;
    if (!sim_handle_add(driver, &stream->object, SIM_TAG_STREAM, context)) {
        mu_free(stream);
        return NULL;
    }
    stream->strand = driver->null_mode ? NULL : sim_strand_create();
    sim_lock(driver);
    stream->next = context->device->streams;
    context->device->streams = stream;
    sim_unlock(driver);
    return stream;
}

void sim_stream_free(sim_stream *stream) {
    sim_stream **link = &stream->context->device->streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    for (sim_op *op = stream->head; op;) {
        sim_op *next = op->next;
        if (op->waits_for) sim_record_drop(op->waits_for);
        if (op->records) sim_record_drop(op->records);
        op->release(op);
        op = next;
    }
    for (size_t i = 0; i < stream->lane_count; i++) sim_strand_destroy(stream->lanes[i]);
    sim_free_unordered(stream->lanes);
    sim_strand_destroy(stream->strand);
    sim_free_unordered(stream);
}

CUresult sim_stream_find(sim_driver *driver, CUstream handle, sim_stream **stream) {
    sim_stream *found;
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        sim_context *context;
        CUresult code = sim_current(driver, &context);
        if (code != CUDA_SUCCESS) return code;
        found = context->legacy;
    } else {
        found = sim_find(driver, SIM_TAG_STREAM, handle);
        if (!found) return CUDA_ERROR_INVALID_HANDLE;
        CUresult code = sim_context_error(found->context);
        if (code != CUDA_SUCCESS) return code;
        if (!sim_current_raw(driver)) return CUDA_ERROR_INVALID_CONTEXT;
    }
    *stream = found;
    return CUDA_SUCCESS;
}

CUresult sim_do_stream_create(sim_driver *driver, CUstream *stream, unsigned int flags) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    if (!stream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    sim_stream *made = sim_stream_create(context, flags == CU_STREAM_DEFAULT);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *stream = SIM_HANDLE(CUstream, made);
    return CUDA_SUCCESS;
}

/* What is queued still runs; the stream goes when it has. */
CUresult sim_do_stream_destroy(sim_driver *driver, CUstream handle) {
    sim_stream *stream = sim_find(driver, SIM_TAG_STREAM, handle);
    if (!stream || stream == stream->context->legacy) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = sim_context_error(stream->context);
    sim_capture_abandon(stream);
    sim_lock(driver);
    sim_handle_remove(driver, &stream->object);
    stream->destroyed = true;
    if (sim_stream_is_over(stream)) sim_stream_free(stream);
    sim_unlock(driver);
    return code;
}

CUresult sim_do_stream_query(sim_driver *driver, CUstream handle) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (stream->capture) return sim_capture_refuse(stream);
    sim_lock(driver);
    bool done = stream->completed == stream->enqueued;
    if (done) MU_TSAN_ACQUIRE(&stream->order);
    sim_unlock(driver);
    /* The entry looked before the work was done: a fault in it shows now at the latest. */
    return done ? sim_fault_observe(stream->context) : CUDA_ERROR_NOT_READY;
}

CUresult sim_do_stream_synchronize(sim_driver *driver, CUstream handle) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (stream->capture) return sim_capture_refuse(stream);
    sim_device *device = stream->context->device;
    sim_lock(driver);
    code = sim_stream_drain(stream);
    sim_pools_synchronised(device);
    sim_unlock(driver);
    return code;
}

CUresult sim_do_ctx_synchronize(sim_driver *driver) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    sim_lock(driver);
    code = sim_context_drain(context);
    sim_pools_synchronised(context->device);
    sim_unlock(driver);
    return code;
}

/* ---------------------------------------------------------------------------------------------------- enqueueing -- */

static void append(sim_stream *stream, sim_op *op) {
    op->issued_ns = stream->context->driver->host_ns;
    if (stream->tail)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    stream->enqueued++;
    if (op->counted) {
        stream->outstanding++;
        sim_device *device = stream->context->device;
        if (stream->outstanding > device->outstanding_highest) device->outstanding_highest = stream->outstanding;
    }
}

/* Everything enqueued on `stream` from now on runs after what is on `prior`. */
static bool order_after(sim_stream *stream, sim_stream *prior) {
    if (prior->completed == prior->enqueued) return true;
    sim_record *record = sim_record_create();
    sim_op *mark = sim_op_create(sizeof *mark, NULL, sim_op_release);
    sim_op *wait = sim_op_create(sizeof *wait, NULL, sim_op_release);
    if (!record || !mark || !wait) {
        mu_free(record);
        mu_free(mark);
        mu_free(wait);
        return false;
    }
    record->references++;
    mark->records = record;
    wait->waits_for = record;
    mark->stream = prior;
    wait->stream = stream;
    append(prior, mark);
    append(stream, wait);
    return true;
}

/* The default stream runs after all blocking streams of its context, and they after it. */
static CUresult order_with_legacy(sim_stream *stream) {
    sim_stream *legacy = stream->context->legacy;
    bool ordered = true;
    if (stream == legacy) {
        for (sim_stream *other = stream->context->device->streams; other && ordered; other = other->next) {
            if (other->context != stream->context || !other->blocking || other == legacy) continue;
            if (other->capture) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            ordered = order_after(legacy, other);
        }
    } else if (stream->blocking && stream->legacy_seen < legacy->enqueued) {
        ordered = order_after(stream, legacy);
        stream->legacy_seen = legacy->enqueued;
    }
    return ordered ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult enqueue_locked(sim_stream *stream, sim_op *op, bool wait) {
    sim_context *context = stream->context;
    sim_driver *driver = context->driver;
    CUresult code = sim_context_error(context);
    while (code == CUDA_SUCCESS && op->counted && (stream->outstanding >= SIM_OUTSTANDING_MAX || context->draining)) {
        sim_wait(driver);
        code = sim_context_error(context);
    }
    if (code == CUDA_SUCCESS && (stream->blocking || stream == context->legacy)) code = order_with_legacy(stream);
    if (code == CUDA_SUCCESS &&
        (!sim_executor_start(context->device) || (op->on_host && !sim_host_executor_start(driver))))
        code = CUDA_ERROR_OPERATING_SYSTEM;
    if (code != CUDA_SUCCESS) {
        if (op->waits_for) sim_record_drop(op->waits_for);
        if (op->records) sim_record_drop(op->records);
        op->release(op);
        return code;
    }
    append(stream, op);
    if (context->device->idle) pthread_cond_signal(&context->device->work);
    return wait ? sim_stream_drain(stream) : CUDA_SUCCESS;
}

CUresult sim_enqueue(sim_stream *stream, sim_op *op, bool wait) {
    sim_driver *driver = stream->context->driver;
    if (driver->null_mode) return sim_execute_inline(stream, op);
    op->stream = stream;
    MU_TSAN_RELEASE(&op->order); /* pairs with take_turn's acquire */
    sim_lock(driver);
    CUresult code = enqueue_locked(stream, op, wait);
    sim_unlock(driver);
    return code;
}

/* ------------------------------------------------------------------------------------------------ host functions -- */

typedef struct host_op {
    sim_op op;
    CUhostFn function;
    void *user;
} host_op;

static CUresult run_host(sim_op *op) {
    host_op *host = (host_op *)op;
    sim_host_function_begin();
    host->function(host->user);
    sim_host_function_end();
    return CUDA_SUCCESS;
}

CUresult sim_do_launch_host_func(sim_driver *driver, CUstream handle, CUhostFn function, void *user) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return sim_capture_refuse(stream);
    host_op *host = (host_op *)sim_op_create(sizeof *host, run_host, sim_op_release);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    host->function = function;
    host->user = user;
    host->op.counted = host->op.on_host = true;
    return sim_enqueue(stream, &host->op, false);
}
