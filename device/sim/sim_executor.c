/* The executor thread of a device: takes operations off the heads of its streams, in an order drawn from the seed, and
 * runs them one at a time; and the one thread for host functions. */
#include "device/sim/sim_queue.h"

/* ---------------------------------------------------------------------------------------------------- one by one -- */

typedef struct turn {
    sim_stream *stream;
    sim_op *op;
    bool dropped; /* its context has failed: it does nothing, and is over */
    uint64_t begin_ns, cost_ns, kernel_ns;
} turn;

/* On the stream's strand. Unseen, so that the turn passes between threads without a word. */
static SIM_UNSEEN void take_turn(void *argument) {
    turn *taken = argument;
    sim_op *op = taken->op;
    MU_TSAN_ACQUIRE(&op->order); /* pairs with the release in sim_enqueue: what the caller did happened before */
    if (op->waits_for) MU_TSAN_ACQUIRE(&op->waits_for->order); /* pairs with the release below, on the other stream */
    op->begin_ns = taken->begin_ns;
    if (op->run && !taken->dropped) op->run(op);
    taken->cost_ns = op->cost_ns;
    taken->kernel_ns = op->kernel_ns;
    if (op->records) MU_TSAN_RELEASE(&op->records->order);
    MU_TSAN_RELEASE(&taken->stream->order);                  /* pairs with the acquire of who synchronises with it, */
    MU_TSAN_RELEASE(&taken->stream->context->device->order); /* or with the whole device */
}

/* What the operation cost in virtual time, and what its kernels took together. One that is dropped passes here too: what waits for it on another device, whose
 * context may not have failed yet, comes after what this stream did before. */
static SIM_UNSEEN turn run_as_stream(sim_stream *stream, sim_op *op, bool dropped, uint64_t begin_ns) {
    turn taken = {stream, op, dropped, begin_ns, 0, 0};
    sim_strand_run(stream->strand, take_turn, &taken);
    return taken;
}

/* ----------------------------------------------------------------------------------------------------- execution -- */

/* Virtual time: an operation begins when its stream, what it waits for, its engine and its caller allow. */
static uint64_t begin_virtual(const sim_stream *stream, const sim_op *op) {
    uint64_t begin = stream->virtual_ns > op->issued_ns ? stream->virtual_ns : op->issued_ns;
    if (op->waits_for && op->waits_for->virtual_ns > begin) begin = op->waits_for->virtual_ns;
    if (op->engine_ns && *op->engine_ns > begin) begin = *op->engine_ns;
    return begin;
}

static void end_virtual(sim_stream *stream, sim_op *op, uint64_t end_ns) {
    stream->virtual_ns = end_ns;
    if (op->engine_ns && *op->engine_ns < stream->virtual_ns) *op->engine_ns = stream->virtual_ns;
    sim_driver *driver = stream->context->driver;
    if (driver->finished_ns < stream->virtual_ns) driver->finished_ns = stream->virtual_ns;
}

static void finish_record(sim_stream *stream, sim_record *record) {
    record->kernel_ns = stream->kernel_ns;
    record->virtual_ns = stream->virtual_ns;
    record->real_ns = mu_now_ns();
    record->done = true;
}

/* Runs the head of a stream, which is marked as running; locked, but not while it runs. */
static void run_head(sim_driver *driver, sim_stream *stream) {
    sim_op *op = stream->head;
    uint64_t time_ns = begin_virtual(stream, op);
    sim_unlock(driver);
    bool dropped = sim_fault_drops(stream->context);
    turn taken = run_as_stream(stream, op, dropped, time_ns);
    if (!dropped) {
        time_ns += taken.cost_ns;
        op->ran = true;
    }
    if (op->finish) op->finish(op);
    sim_lock(driver);
    if (op->ran) stream->kernel_ns += taken.kernel_ns;
    end_virtual(stream, op, time_ns);
    if (op->records) finish_record(stream, op->records);
    stream->head = op->next;
    if (!stream->head) stream->tail = NULL;
    stream->completed++;
    if (op->counted) stream->outstanding--;
    stream->running = false;
    if (op->waits_for) sim_record_drop(op->waits_for);
    if (op->records) sim_record_drop(op->records);
    if (sim_stream_is_over(stream)) sim_stream_free(stream);
    sim_wake(driver);
    sim_unlock(driver);
    op->release(op);
    sim_lock(driver);
}

/* One thread runs the host functions of all devices, as in the real driver: one that blocks holds up its stream and
 * other host functions, but no kernel. */
static void *host_executor(void *argument) {
    sim_driver *driver = argument;
    sim_lock(driver);
    while (!driver->host_stopping) {
        sim_stream *stream = driver->host_head;
        if (!stream) {
            pthread_cond_wait(&driver->host_work, &driver->lock);
            continue;
        }
        driver->host_head = stream->next_host;
        if (!driver->host_head) driver->host_tail = NULL;
        run_head(driver, stream);
    }
    sim_unlock(driver);
    return NULL;
}

static void pass_to_host(sim_driver *driver, sim_stream *stream) {
    stream->next_host = NULL;
    if (driver->host_tail)
        driver->host_tail->next_host = stream;
    else
        driver->host_head = stream;
    driver->host_tail = stream;
    pthread_cond_signal(&driver->host_work);
}

static bool ready(const sim_stream *stream) {
    const sim_op *op = stream->head;
    if (!op || stream->running) return false;
    return !op->waits_for || op->waits_for->done || sim_fault_drops(stream->context);
}

static sim_stream *choose(sim_device *device) {
    uint32_t count = 0;
    for (sim_stream *stream = device->streams; stream; stream = stream->next) count += ready(stream);
    if (!count) return NULL;
    uint32_t chosen = count > 1 ? (uint32_t)(sim_random(&device->random) % count) : 0;
    sim_stream *stream = device->streams;
    while (!ready(stream) || chosen-- > 0) stream = stream->next;
    return stream;
}

static void *executor(void *argument) {
    sim_device *device = argument;
    sim_driver *driver = device->driver;
    sim_lock(driver);
    while (!device->stopping) {
        /* What is left on a lost device is dropped, held or not: others may wait for its events. */
        bool held = device->held && atomic_load_explicit(&device->error, memory_order_relaxed) == CUDA_SUCCESS;
        sim_stream *stream = held ? NULL : choose(device);
        if (stream) {
            stream->running = true;
            if (stream->head->on_host)
                pass_to_host(driver, stream);
            else
                run_head(driver, stream);
            continue;
        }
        device->idle = true;
        pthread_cond_wait(&device->work, &driver->lock);
        device->idle = false;
    }
    sim_unlock(driver);
    return NULL;
}

bool sim_host_executor_start(sim_driver *driver) {
    if (!driver->host_started)
        driver->host_started = pthread_create(&driver->host_executor, NULL, host_executor, driver) == 0;
    return driver->host_started;
}

bool sim_executor_start(sim_device *device) {
    if (device->started) return true;
    device->started = pthread_create(&device->executor, NULL, executor, device) == 0;
    return device->started;
}

void sim_executor_stop(sim_driver *driver) {
    sim_lock(driver);
    driver->host_stopping = true;
    pthread_cond_signal(&driver->host_work);
    for (uint32_t i = 0; i < driver->config.device_count; i++) {
        driver->devices[i].stopping = true;
        pthread_cond_signal(&driver->devices[i].work);
    }
    sim_unlock(driver);
    for (uint32_t i = 0; i < driver->config.device_count; i++)
        if (driver->devices[i].started) pthread_join(driver->devices[i].executor, NULL);
    if (driver->host_started) pthread_join(driver->host_executor, NULL);
}

/* ----------------------------------------------------------------------------------------------------- null mode -- */

CUresult sim_execute_inline(sim_stream *stream, sim_op *op) {
    CUresult code = sim_context_error(stream->context);
    if (code == CUDA_SUCCESS) {
        op->stream = stream;
        op->ran = true;
        if (op->run) code = op->run(op);
        if (op->finish) op->finish(op);
        if (op->records) {
            sim_lock(stream->context->driver);
            finish_record(stream, op->records);
            sim_unlock(stream->context->driver);
        }
    }
    sim_lock(stream->context->driver);
    if (op->waits_for) sim_record_drop(op->waits_for);
    if (op->records) sim_record_drop(op->records);
    sim_unlock(stream->context->driver);
    op->release(op);
    return code;
}
