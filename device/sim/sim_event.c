/* Events. Recording makes a fresh record: a wait holds on to the record that was the last when it was issued. */
#include "device/sim/sim_graph.h"
#include "device/sim/sim_pool.h"
#include "device/sim/sim_queue.h"

sim_record *sim_record_create(void) {
    sim_record *record = mu_alloc_zeroed(1, sizeof *record);
    if (record) record->references = 1;
    return record;
}

void sim_record_drop(sim_record *record) {
    if (record && --record->references == 0) sim_free_unordered(record);
}

CUresult sim_record_await(sim_record *record, sim_context *context) {
    sim_driver *driver = context->driver;
    record->references++;
    CUresult code = sim_context_error(context);
    while (code == CUDA_SUCCESS && !record->done) {
        sim_wait(driver);
        code = sim_context_error(context);
    }
    if (code == CUDA_SUCCESS) {
        if (driver->host_ns < record->virtual_ns) driver->host_ns = record->virtual_ns;
        MU_TSAN_ACQUIRE(&record->order); /* pairs with take_turn's release */
    }
    sim_record_drop(record);
    return code;
}

static CUresult find_event(sim_driver *driver, CUevent handle, sim_event **event) {
    sim_event *found = sim_find(driver, SIM_TAG_EVENT, handle);
    if (!found) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = sim_context_error(found->context);
    if (code == CUDA_SUCCESS) *event = found;
    return code;
}

CUresult sim_do_event_create(sim_driver *driver, CUevent *handle, unsigned int flags) {
    sim_context *context;
    CUresult code = sim_current(driver, &context);
    if (code != CUDA_SUCCESS) return code;
    if (!handle || flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    sim_event *event = mu_alloc_zeroed(1, sizeof *event);
    if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
    event->context = context;
    event->timing = !(flags & CU_EVENT_DISABLE_TIMING);
    if (!sim_handle_add(driver, &event->object, SIM_TAG_EVENT, context)) {
        mu_free(event);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = SIM_HANDLE(CUevent, event);
    return CUDA_SUCCESS;
}

void sim_event_free(sim_event *event) {
    sim_lock(event->context->driver);
    sim_record_drop(event->last);
    sim_fork_free(event->fork);
    sim_unlock(event->context->driver);
    mu_free(event);
}

CUresult sim_do_event_destroy(sim_driver *driver, CUevent handle) {
    sim_event *event = sim_find(driver, SIM_TAG_EVENT, handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    CUresult code = sim_context_error(event->context);
    sim_handle_remove(driver, &event->object);
    sim_event_free(event);
    return code;
}

/* The event stands for `record` from now on; either may be NULL. Takes the reference. */
static void set_record(sim_event *event, sim_record *record) {
    sim_record_drop(event->last);
    event->last = record;
    sim_fork_free(event->fork);
    event->fork = NULL;
}

/* Null mode: what precedes has run. Only the first record of an event takes memory and the lock. */
static CUresult record_at_once(sim_event *event) {
    sim_driver *driver = event->context->driver;
    if (!event->last) {
        sim_record *record = sim_record_create();
        if (!record) return CUDA_ERROR_OUT_OF_MEMORY;
        record->done = true;
        sim_lock(driver);
        set_record(event, record);
        sim_unlock(driver);
    }
    if (event->timing) event->last->real_ns = mu_now_ns();
    return CUDA_SUCCESS;
}

CUresult sim_do_event_record(sim_driver *driver, CUevent handle, CUstream stream_handle) {
    sim_event *event;
    CUresult code = find_event(driver, handle, &event);
    if (code != CUDA_SUCCESS) return code;
    sim_stream *stream;
    code = sim_stream_find(driver, stream_handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return sim_capture_record(event, stream);
    if (driver->null_mode && !event->fork) return record_at_once(event);
    sim_record *record = sim_record_create();
    sim_op *op = sim_op_create(sizeof *op, NULL, sim_op_release);
    if (!record || !op) {
        mu_free(record);
        mu_free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->records = record;
    sim_lock(driver);
    record->references++;
    set_record(event, record);
    sim_unlock(driver);
    return sim_enqueue(stream, op, false);
}

CUresult sim_do_stream_wait_event(sim_driver *driver, CUstream stream_handle, CUevent handle, unsigned int flags) {
    sim_stream *stream;
    CUresult code = sim_stream_find(driver, stream_handle, &stream);
    if (code != CUDA_SUCCESS) return code;
    sim_event *event;
    code = find_event(driver, handle, &event);
    if (code != CUDA_SUCCESS) return code;
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (event->fork || stream->capture) return sim_capture_wait(stream, event);
    if (driver->null_mode) return CUDA_SUCCESS; /* every record is done */
    sim_lock(driver);
    sim_record *record = event->last;
    if (record) record->references++;
    sim_unlock(driver);
    if (!record) return CUDA_SUCCESS; /* as the real driver: nothing was recorded, so there is nothing to wait for */
    sim_op *op = sim_op_create(sizeof *op, NULL, sim_op_release);
    if (!op) {
        sim_lock(driver);
        sim_record_drop(record);
        sim_unlock(driver);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->waits_for = record;
    return sim_enqueue(stream, op, false);
}

CUresult sim_do_event_query(sim_driver *driver, CUevent handle) {
    sim_event *event;
    CUresult code = find_event(driver, handle, &event);
    if (code != CUDA_SUCCESS) return code;
    if (sim_capture_forbids(driver)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    sim_lock(driver);
    if (event->fork) {
        code = CUDA_ERROR_CAPTURED_EVENT;
    } else if (event->last && !event->last->done) {
        code = CUDA_ERROR_NOT_READY;
    } else if (event->last) {
        if (driver->host_ns < event->last->virtual_ns) driver->host_ns = event->last->virtual_ns;
        MU_TSAN_ACQUIRE(&event->last->order); /* pairs with take_turn's release */
        /* The entry looked before the event was done: a fault in what came before it shows now at the latest. */
        code = sim_fault_observe(event->context);
    }
    sim_unlock(driver);
    return code;
}

uint64_t sim_event_kernel_ns(mu_driver *table, CUevent handle) {
    sim_driver *driver = table->instance;
    sim_event *event = sim_find(driver, SIM_TAG_EVENT, handle);
    if (!event) return 0;
    sim_lock(driver);
    uint64_t kernel_ns = event->last ? event->last->kernel_ns : 0;
    /* Whoever asks knows that the event has completed, perhaps by a value that the stream wrote: for the host that is now. */
    if (event->last && driver->host_ns < event->last->virtual_ns) driver->host_ns = event->last->virtual_ns;
    sim_unlock(driver);
    return kernel_ns;
}

CUresult sim_do_event_synchronize(sim_driver *driver, CUevent handle) {
    sim_event *event;
    CUresult code = find_event(driver, handle, &event);
    if (code != CUDA_SUCCESS) return code;
    sim_device *device = event->context->device;
    sim_lock(driver);
    if (event->fork)
        code = CUDA_ERROR_CAPTURED_EVENT;
    else if (event->last)
        code = sim_record_await(event->last, event->context);
    sim_pools_synchronised(device);
    sim_unlock(driver);
    return code;
}

CUresult sim_do_event_elapsed_time(sim_driver *driver, float *milliseconds, CUevent start_handle, CUevent end_handle) {
    sim_event *start, *end;
    CUresult code = find_event(driver, start_handle, &start);
    if (code != CUDA_SUCCESS) return code;
    code = find_event(driver, end_handle, &end);
    if (code != CUDA_SUCCESS) return code;
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    if (start->context != end->context || !start->timing || !end->timing) return CUDA_ERROR_INVALID_HANDLE;
    sim_lock(driver);
    if (!start->last || !end->last) {
        code = CUDA_ERROR_INVALID_HANDLE;
    } else if (!start->last->done || !end->last->done) {
        code = CUDA_ERROR_NOT_READY;
    } else {
        bool modelled = driver->config.virtual_time;
        uint64_t from = modelled ? start->last->virtual_ns : start->last->real_ns;
        uint64_t to = modelled ? end->last->virtual_ns : end->last->real_ns;
        *milliseconds = (float)((double)(int64_t)(to - from) / 1e6);
    }
    sim_unlock(driver);
    return code;
}
