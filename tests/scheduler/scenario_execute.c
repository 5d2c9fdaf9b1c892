/* Carrying a scenario out through muster.h: graphs, steps, threads. Runs that are stopped are in scenario_stop.c. */
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "device/driver.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/scenario_execution.h"

bool sc_fail(execution *run, bool hang, const char *format, ...) {
    pthread_mutex_lock(&run->lock);
    if (!run->failed) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(run->failure->text, sizeof run->failure->text, format, arguments);
        va_end(arguments);
        run->failed = true;
    }
    run->failure->hang |= hang;
    pthread_cond_broadcast(&run->turned);
    pthread_mutex_unlock(&run->lock);
    return false;
}

void sc_add_count(execution *run, uint64_t *count) {
    pthread_mutex_lock(&run->lock);
    ++*count;
    pthread_mutex_unlock(&run->lock);
}

bool sc_fail_status(execution *run, const char *what, uint32_t index, const muster_error *error) {
    return sc_fail(run, error->status == MUSTER_TIMEOUT, "%s %" PRIu32 ": %s: %s", what, index,
                   muster_status_name(error->status), error->message);
}

/* ----------------------------------------------------------------------------------------------------------- graphs -- */

static muster_arg buffer_argument(execution *run, const sc_job *job, const sc_range *range) {
    muster_arg arg = muster_range_arg(run->buffer[range->buffer], range->access, range->offset, range->bytes);
    if (range->offset + range->bytes == run->scenario->buffer[range->buffer].bytes) arg.bytes = 0;
    static const muster_type types[] = {MUSTER_I32, MUSTER_U32, MUSTER_I64, MUSTER_U64, MUSTER_F32, MUSTER_F64};
    uint32_t type = (uint32_t)(job->op - SC_SUM_I32);
    if (range->cut == MUSTER_CUT_REDUCE && type < sizeof types / sizeof types[0]) { /* sums alone are reduced */
        arg.cut = MUSTER_CUT_REDUCE;
        arg.type = types[type];
    } else if (job->sharded && range->cut == MUSTER_CUT_BLOCK) {
        uint32_t elements = job->count ? range->bytes / job->count : 0;
        arg = muster_block_cut(arg, (uint64_t)job->slice_elements * elements);
    }
    return arg;
}

/* The arguments of a kernel in the order of its parameters (kernels.cu). */
static uint32_t make_arguments(execution *run, const sc_job *job, muster_arg arg[8]) {
    uint32_t n = 0, wide = job->op == SC_MIX32 || job->op == SC_PAIR || job->op == SC_BYTES ? 4 : 8;
    bool sum = job->op >= SC_SUM_I32 && job->op <= SC_SUM_F64;
    bool settle = job->op == SC_SETTLE_F32 || job->op == SC_SETTLE_F64;
    arg[n++] = job->scratch_bytes ? muster_scratch_arg(job->scratch_bytes) : buffer_argument(run, job, &job->range[0]);
    if (sum) arg[n++] = muster_u32_arg(job->extent);
    for (uint32_t r = 1; r < job->range_count; r++) arg[n++] = buffer_argument(run, job, &job->range[r]);
    if (job->op == SC_MIX || job->op == SC_TWIDDLE) arg[n++] = muster_u32_arg(job->extent);
    if (job->op == SC_WEIGHTED)
        arg[n++] = muster_value_arg(job->weights, sizeof job->weights);
    else if (!settle)
        arg[n++] = muster_u32_arg(job->scalar);
    arg[n++] = muster_shard_offset_arg(job->slice_elements, job->count, wide);
    arg[n++] = muster_shard_count_arg(job->slice_elements, job->count, wide);
    return n;
}

/* A host job: what the model does, on the memory that it is given. */
static muster_status call_host(void *user, void *const *pointers, uint32_t count, muster_error *error) {
    const callback *called = user;
    sc_job job = *called->job;
    uint8_t *memory[SC_MAX_BUFFERS] = {NULL};
    (void)error;
    for (uint32_t i = 0; i < count; i++) {
        memory[i] = pointers[i];
        job.range[i].buffer = i;
        job.range[i].offset = 0;
    }
    sc_model_job(&job, memory);
    sc_add_count(called->run, &called->run->executor->counts->host_calls);
    return MUSTER_OK;
}

/* An enqueue job: a copy on the device by a call of the driver's, as a library would make it. */
static muster_status call_enqueue(void *user, const muster_enqueue_context *context, muster_error *error) {
    const callback *called = user;
    const fixture fixture = {.runtime = called->run->executor->runtime};
    CUresult code = fixture_driver(&fixture)->memcpy_dtod_async(context->addresses[0], context->addresses[1],
                                                                called->job->range[0].bytes, (CUstream)context->stream);
    sc_add_count(called->run, &called->run->executor->counts->enqueue_calls);
    if (code == CUDA_SUCCESS) return MUSTER_OK;
    snprintf(error->message, sizeof error->message, "a copy of the callback's: %d", (int)code);
    return MUSTER_INTERNAL;
}

static muster_status add_callback(execution *run, uint32_t g, callback *callback, muster_job *id, muster_error *error) {
    const sc_job *job = callback->job;
    muster_arg arg[SC_MAX_RANGES];
    for (uint32_t r = 0; r < job->range_count; r++) arg[r] = buffer_argument(run, job, &job->range[r]);
    const muster_host_job host = {
        .struct_size = sizeof host, .run = call_host, .user = callback, .arg_count = job->range_count, .args = arg};
    const muster_enqueue_job enqueue = {.struct_size = sizeof enqueue,
                                        .enqueue = call_enqueue,
                                        .user = callback,
                                        .arg_count = job->range_count,
                                        .args = arg,
                                        .pin_device = job->pin >= 0,
                                        .device = job->pin >= 0 ? job->pin : 0};
    return job->op == SC_HOST ? muster_graph_host(run->graph[g], &host, id, error)
                              : muster_graph_enqueue(run->graph[g], &enqueue, id, error);
}

/* Which argument set_argument replaces. */
static uint32_t value_index(const sc_job *job) {
    if (job->op == SC_MIX) return 4;
    if (job->op == SC_TWIDDLE || job->op == SC_PAIR) return 3;
    return job->op >= SC_SUM_I32 && job->op <= SC_SUM_F64 ? 3 : 2;
}

static muster_status add_job(execution *run, uint32_t g, const sc_job *job, muster_job *id, muster_error *error) {
    const sc_range *range = job->range;
    if (job->op == SC_COPY)
        return muster_graph_copy(run->graph[g], run->buffer[range[0].buffer], range[0].offset,
                                 run->buffer[range[1].buffer], range[1].offset, range[0].bytes, id, error);
    if (job->op == SC_HOST || job->op == SC_ENQUEUE) {
        callback *callback = &run->callback[g][job - run->job[g]];
        callback->run = run;
        callback->job = job;
        return add_callback(run, g, callback, id, error);
    }
    if (job->op == SC_PREFETCH)
        return muster_graph_prefetch(run->graph[g], run->buffer[range->buffer], range->offset, range->bytes, job->pin,
                                     id, error);
    if (job->op == SC_READ_BACK)
        return muster_graph_read_back(run->graph[g], run->buffer[range->buffer], range->offset, range->bytes, id,
                                      error);
    if (job->op == SC_FILL)
        return muster_graph_fill(run->graph[g], run->buffer[range[0].buffer], range[0].offset, range[0].bytes,
                                 job->pattern, job->pattern_bytes, id, error);
    muster_arg arg[8];
    muster_job after[SC_MAX_AFTER];
    uint32_t after_count = 0;
    for (uint32_t a = 0; a < job->after_count; a++)
        if (run->job_id[g][job->after[a]] != MUSTER_NO_JOB) after[after_count++] = run->job_id[g][job->after[a]];
    uint32_t threads = job->block.x * job->block.y * job->block.z;
    muster_dispatch dispatch = {
        .struct_size = sizeof dispatch,
        .kernel = run->executor->kernel[job->op],
        .grid = job->grid,
        .block = job->block,
        .dynamic_shared_bytes = job->op == SC_STAGE ? 4 * threads : 0,
        .flags = job->sharded ? MUSTER_DISPATCH_SHARDED : 0,
        .shard_axis = job->axis,
        .max_shards = job->sharded ? job->max_shards : 0,
        .pin_device = job->pin >= 0,
        .device = job->pin >= 0 ? job->pin : 0,
        .arg_count = make_arguments(run, job, arg),
        .args = arg,
        .after_count = after_count,
        .after = after,
    };
    return muster_graph_dispatch(run->graph[g], &dispatch, id, error);
}

bool sc_build_graph(execution *run, uint32_t g) {
    const sc_graph *graph = &run->scenario->graph[g];
    muster_error error;
    muster_job next = 0;
    if (muster_graph_create(run->executor->runtime, &run->graph[g], &error) != MUSTER_OK)
        return sc_fail_status(run, "creating graph", g, &error);
    for (uint32_t j = 0; j < graph->job_count; j++) {
        run->job_id[g][j] = MUSTER_NO_JOB;
        if (graph->job[j].dropped) continue;
        if (add_job(run, g, &run->job[g][j], &run->job_id[g][j], &error) != MUSTER_OK)
            return sc_fail_status(run, "adding job", j, &error);
        if (run->job_id[g][j] != next++)
            return sc_fail(run, false, "job %" PRIu32 " got id %" PRIu32 " instead of %" PRIu32, j, run->job_id[g][j],
                           next - 1);
    }
    for (uint32_t e = 0; e < graph->edge_count; e++) {
        const sc_edge *edge = &graph->edge[e];
        muster_job job = run->job_id[g][edge->job], predecessor = run->job_id[g][edge->predecessor];
        if (edge->dropped || job == MUSTER_NO_JOB || predecessor == MUSTER_NO_JOB) continue;
        if (muster_graph_after(run->graph[g], job, predecessor, &error) != MUSTER_OK)
            return sc_fail_status(run, "adding edge", e, &error);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ steps -- */

bool sc_compare(execution *run, const char *where, uint32_t index, uint32_t offset, const uint8_t *got,
                const uint8_t *wanted, uint32_t bytes) {
    uint32_t wrong = 0, first = 0, last = 0;
    for (uint32_t i = 0; i < bytes; i++)
        if (got[i] != wanted[i]) {
            if (!wrong++) first = i;
            last = i;
        }
    if (!wrong) return true;
    return sc_fail(run, false,
                   "%s %" PRIu32 ": %" PRIu32 " of %" PRIu32 " bytes differ, the first at buffer offset %" PRIu32
                   " (0x%02x instead of 0x%02x), the last at %" PRIu32,
                   where, index, wrong, bytes, first + offset, got[first], wanted[first], last + offset);
}

/* Into an open run that is closed, as it must be refused. */
static bool add_to_closed(execution *run, uint32_t s) {
    const sc_step *step = &run->scenario->step[s];
    muster_error error;
    muster_job first = 12345;
    muster_status status = muster_run_add(run->open[step->into - 1], run->graph[step->graph], &first, &error);
    sc_add_count(run, &run->executor->counts->late_parts);
    if (status == MUSTER_INVALID_STATE && first == 12345) return true;
    return sc_fail(run, false, "step %" PRIu32 " was not refused by a closed run, but %s", s,
                   muster_status_name(status));
}

static bool set_limit(execution *run, uint32_t s) {
    const sc_step *step = &run->scenario->step[s];
    muster_error error;
    if (step->limit == SC_NO_LIMIT) return true;
    sc_add_count(run, &run->executor->counts->limits);
    const uint64_t far_ns = 3600000000000u, near_ns = 2000000000u;
    if (muster_run_set_deadline(run->run[s], step->limit == SC_FAR ? far_ns : near_ns, &error) == MUSTER_OK &&
        (step->limit == SC_FAR || muster_run_set_deadline(run->run[s], MUSTER_FOREVER, &error) == MUSTER_OK))
        return true;
    return sc_fail_status(run, "setting the deadline in step", s, &error);
}

static bool do_submit(execution *run, uint32_t s) {
    const sc_step *step = &run->scenario->step[s];
    muster_error error;
    if (!run->graph[step->graph] && !sc_build_graph(run, step->graph)) return false;
    if (step->into && run->closed[step->into - 1]) return add_to_closed(run, s);
    sc_add_count(run, &run->executor->counts->runs);
    if (step->into) {
        run->run[s] = run->open[step->into - 1];
        sc_add_count(run, &run->executor->counts->open_parts);
        if (muster_run_add(run->run[s], run->graph[step->graph], &run->first[s], &error) == MUSTER_OK) return true;
        return sc_fail_status(run, "adding to an open run in step", s, &error);
    }
    if (muster_submit(run->executor->runtime, run->graph[step->graph], &run->run[s], &error) != MUSTER_OK)
        return sc_fail_status(run, "submitting step", s, &error);
    return set_limit(run, s);
}

static bool close_run(execution *run, uint32_t number) {
    muster_error error;
    if (!number || !run->open[number - 1]) return true;
    run->closed[number - 1] = true;
    return muster_run_close(run->open[number - 1], &error) == MUSTER_OK ||
           sc_fail_status(run, "closing open run", number, &error);
}

static bool do_set(execution *run, uint32_t s) {
    const sc_step *step = &run->scenario->step[s];
    sc_job *job = &run->job[step->graph][step->job];
    sc_set_value(step, job);
    if (!run->graph[step->graph] || job->dropped) return true; /* it is built with the new value */
    bool weighted = job->op == SC_WEIGHTED;
    muster_error error;
    if (muster_graph_set_argument(run->graph[step->graph], run->job_id[step->graph][step->job], value_index(job),
                                  weighted ? (void *)job->weights : (void *)&job->scalar,
                                  weighted ? sizeof job->weights : sizeof job->scalar, &error) != MUSTER_OK)
        return sc_fail_status(run, "setting the argument in step", s, &error);
    return true;
}

static muster_status attempt(execution *run, uint32_t s, uint64_t timeout_ns, muster_error *error) {
    const sc_step *step = &run->scenario->step[s];
    muster_status status = muster_buffer_acquire(run->buffer[step->buffer], step->offset, step->bytes, step->access,
                                                 timeout_ns, &run->pointer[s], error);
    sc_add_count(run, status == MUSTER_OK ? &run->executor->counts->acquisitions : &run->executor->counts->timeouts);
    return status;
}

static bool do_acquire(execution *run, uint32_t s) {
    const sc_step *step = &run->scenario->step[s];
    const sc_buffer *buffer = &run->scenario->buffer[step->buffer];
    muster_error error;
    muster_status status = MUSTER_TIMEOUT;
    for (uint32_t i = 0; i < step->tries && status == MUSTER_TIMEOUT; i++) status = attempt(run, s, 0, &error);
    if (status == MUSTER_TIMEOUT && step->patience_ns) status = attempt(run, s, step->patience_ns, &error);
    if (status == MUSTER_TIMEOUT) status = attempt(run, s, run->executor->timeout_ns, &error);
    if (status != MUSTER_OK) return sc_fail_status(run, "acquiring in step", s, &error);
    if (buffer->host && run->pointer[s] != run->host[step->buffer] + step->offset)
        return sc_fail(run, false, "step %" PRIu32 " acquired %p, not the host memory at %p", s, run->pointer[s],
                       (void *)(run->host[step->buffer] + step->offset));
    return step->access == MUSTER_WRITE || sc_compare(run, "acquired in step", s, step->offset, run->pointer[s],
                                                      run->expected->acquired[s], step->bytes);
}

static bool do_try(execution *run, uint32_t s) {
    const sc_step *step = &run->scenario->step[s];
    sc_counts *counts = run->executor->counts;
    bool held = step->of != SC_NO_STEP && !run->scenario->step[step->of].dropped;
    muster_error error;
    if (step->access != MUSTER_READ && !held) return true; /* shrunk: it might succeed */
    muster_status status = muster_buffer_acquire(run->buffer[step->buffer], step->offset, step->bytes, step->access, 0,
                                                 &run->pointer[s], &error);
    sc_add_count(run, &counts->tries);
    if (status == MUSTER_TIMEOUT) {
        sc_add_count(run, &counts->refused);
        return true;
    }
    if (status != MUSTER_OK) return sc_fail_status(run, "trying to acquire in step", s, &error);
    if (held) return sc_fail(run, false, "step %" PRIu32 " got a buffer that step %" PRIu32 " holds", s, step->of);
    bool same =
        sc_compare(run, "acquired in step", s, step->offset, run->pointer[s], run->expected->acquired[s], step->bytes);
    void *pointer = run->pointer[s];
    run->pointer[s] = NULL;
    if (muster_buffer_release(run->buffer[step->buffer], pointer, &error) != MUSTER_OK)
        return sc_fail_status(run, "releasing in step", s, &error);
    return same;
}

/* Gives Muster's pinned memory back; no buffer is in it any more. */
static bool free_pinned(execution *run, uint32_t b) {
    muster_error error;
    if (!run->host[b] || run->scenario->buffer[b].memory != SC_PINNED) return true;
    void *memory = run->host[b];
    run->host[b] = NULL;
    return muster_host_free(run->executor->runtime, memory, &error) == MUSTER_OK ||
           sc_fail_status(run, "freeing the pinned memory of buffer", b, &error);
}

/* Runs and graphs go on using the buffer; nothing that is built later may name it. */
static bool do_destroy(execution *run, uint32_t s) {
    const sc_step *step = &run->scenario->step[s];
    for (uint32_t g = 0; g < run->scenario->graph_count; g++)
        if (!run->graph[g] && !sc_build_graph(run, g)) return false;
    muster_buffer_destroy(run->buffer[step->buffer]);
    run->buffer[step->buffer] = NULL;
    if (step->seed % 2 && !free_pinned(run, step->buffer)) return false; /* at once, or when all is over */
    sc_add_count(run, &run->executor->counts->destroyed_in_use);
    return true;
}

static bool do_release(execution *run, uint32_t s) {
    const sc_step *acquired = &run->scenario->step[run->scenario->step[s].of];
    void *pointer = run->pointer[run->scenario->step[s].of];
    muster_error error;
    /* The last moment that the range is ours: nothing else may have touched it meanwhile. */
    if (acquired->access != MUSTER_WRITE &&
        !sc_compare(run, "released in step", s, acquired->offset, pointer,
                    run->expected->acquired[run->scenario->step[s].of], acquired->bytes))
        return false;
    if (acquired->access != MUSTER_READ) sc_user_write(acquired, run->scenario->buffer[acquired->buffer].kind, pointer);
    run->pointer[run->scenario->step[s].of] = NULL;
    if (muster_buffer_release(run->buffer[acquired->buffer], pointer, &error) != MUSTER_OK)
        return sc_fail_status(run, "releasing in step", s, &error);
    return true;
}

static bool wait_for(execution *run, uint32_t submit) {
    uint32_t into = run->scenario->step[submit].into;
    muster_error error;
    if (!run->run[submit] || (into && !run->closed[into - 1])) return true; /* it was refused; shrunk */
    if (muster_run_wait(run->run[submit], run->executor->timeout_ns, &error) != MUSTER_OK)
        return sc_fail_status(run, "waiting for the run of step", submit, &error);
    return true;
}

static bool take_turn(execution *run, uint32_t s) {
    pthread_mutex_lock(&run->lock);
    while (run->turn != s && !run->failed) pthread_cond_wait(&run->turned, &run->lock);
    bool ours = !run->failed;
    pthread_mutex_unlock(&run->lock);
    return ours;
}

static void pass_turn(execution *run) {
    pthread_mutex_lock(&run->lock);
    run->turn++;
    pthread_cond_broadcast(&run->turned);
    pthread_mutex_unlock(&run->lock);
}

static bool do_step(execution *run, uint32_t s) {
    switch (run->scenario->step[s].kind) {
        case SC_SUBMIT: return do_submit(run, s);
        case SC_SET: return do_set(run, s);
        case SC_ACQUIRE: return do_acquire(run, s);
        case SC_RELEASE: return do_release(run, s);
        case SC_TRY: return do_try(run, s);
        case SC_DESTROY: return do_destroy(run, s);
        case SC_CLOSE: return close_run(run, run->scenario->step[s].into);
        case SC_STOP: return sc_do_stop(run, s);
        default: return true;
    }
}

static void count_early(execution *run, sc_step_kind kind) {
    sc_counts *counts = run->executor->counts;
    sc_add_count(run, &counts->early);
    if (kind == SC_SUBMIT) sc_add_count(run, &counts->early_submits);
    if (kind == SC_ACQUIRE) sc_add_count(run, &counts->early_acquires);
}

typedef struct worker {
    execution *run;
    uint32_t thread;
} worker;

static void *work(void *argument) {
    const worker *self = argument;
    execution *run = self->run;
    for (uint32_t s = 0; s < run->scenario->step_count; s++) {
        const sc_step *step = &run->scenario->step[s];
        if (step->thread != self->thread) continue;
        if (!take_turn(run, s)) return NULL;
        if (!step->dropped && step->early) {
            count_early(run, step->kind);
            pass_turn(run);
            if (!do_step(run, s)) return NULL;
            continue;
        }
        if (!step->dropped && !do_step(run, s)) return NULL;
        pass_turn(run);
        if (!step->dropped && step->kind == SC_WAIT && !wait_for(run, step->of)) return NULL;
    }
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------- the whole -- */

static bool make_host(execution *run, uint32_t b) {
    const sc_buffer *buffer = &run->scenario->buffer[b];
    muster_runtime *runtime = run->executor->runtime;
    muster_error error;
    void *memory = NULL;
    if (buffer->memory == SC_PINNED) {
        if (muster_host_alloc(runtime, buffer->bytes, &memory, &error) != MUSTER_OK)
            return sc_fail_status(run, "allocating pinned memory for buffer", b, &error);
    } else if (posix_memalign(&memory, 4096, buffer->bytes) != 0) {
        return sc_fail(run, false, "out of memory");
    }
    run->host[b] = memory;
    if (buffer->memory != SC_PAGEABLE) sc_add_count(run, &run->executor->counts->pinned);
    if (buffer->memory == SC_REGISTERED && muster_host_register(runtime, memory, buffer->bytes, &error) != MUSTER_OK) {
        free(memory);
        run->host[b] = NULL;
        return sc_fail_status(run, "registering the memory of buffer", b, &error);
    }
    sc_first_content(buffer, memory);
    return true;
}

static bool make_buffers(execution *run) {
    muster_error error;
    for (uint32_t b = 0; b < run->scenario->buffer_count; b++) {
        const sc_buffer *buffer = &run->scenario->buffer[b];
        if (buffer->host && !make_host(run, b)) return false;
        if (muster_buffer_create(run->executor->runtime, buffer->bytes, run->host[b], &run->buffer[b], &error) !=
            MUSTER_OK)
            return sc_fail_status(run, "creating buffer", b, &error);
    }
    for (uint32_t n = 0; n < run->scenario->open_count; n++)
        if (muster_run_open(run->executor->runtime, &run->open[n], &error) != MUSTER_OK)
            return sc_fail_status(run, "opening run", n, &error);
    return true;
}

/* All that used the buffers is gone. */
static bool free_buffers(execution *run) {
    bool ok = true;
    for (uint32_t b = 0; b < run->scenario->buffer_count; b++) {
        muster_error error;
        muster_buffer_destroy(run->buffer[b]);
        ok &= free_pinned(run, b);
        if (run->host[b] && run->scenario->buffer[b].memory == SC_REGISTERED &&
            muster_host_unregister(run->executor->runtime, run->host[b], &error) != MUSTER_OK)
            ok = sc_fail_status(run, "unregistering the memory of buffer", b, &error);
        free(run->host[b]);
    }
    return ok;
}

static bool run_steps(execution *run) {
    pthread_t thread[SC_MAX_THREADS];
    worker worker[SC_MAX_THREADS];
    uint32_t started = 0;
    for (; started < run->scenario->threads; started++) {
        worker[started].run = run;
        worker[started].thread = started;
        if (started + 1 == run->scenario->threads) { /* the last one is the caller */
            work(&worker[started]);
            break;
        }
        if (pthread_create(&thread[started], NULL, work, &worker[started]) != 0) {
            sc_fail(run, false, "cannot start a thread");
            break;
        }
    }
    for (uint32_t t = 0; t < started; t++) pthread_join(thread[t], NULL);
    return !run->failed;
}

static bool check_results(execution *run, uint32_t s) {
    const sc_step *step = &run->scenario->step[s];
    const sc_graph *graph = &run->scenario->graph[step->graph];
    for (uint32_t j = 0; j < graph->job_count; j++) {
        const sc_job *job = &graph->job[j];
        muster_job_result result = {.struct_size = sizeof result};
        muster_error error;
        if (job->dropped) continue;
        if (muster_run_job_result(run->run[s], run->first[s] + run->job_id[step->graph][j], &result, &error) !=
            MUSTER_OK)
            return sc_fail_status(run, "asking for the result of job", j, &error);
        const uint32_t slices[3] = {job->grid.x, job->grid.y ? job->grid.y : 1, job->grid.z ? job->grid.z : 1};
        /* Unlike devices have up to four parts each, or none. */
        bool cut = job->sharded && sc_op_entry(job->op);
        uint32_t most = !cut ? 1 : job->max_shards ? job->max_shards : 4 * run->scenario->devices;
        if (cut && run->scenario->devices == 1 && !job->max_shards) most = 1;
        if (cut && !job->max_shards && run->executor->tight)
            most = UINT32_MAX; /* waves, to leave something for modules */
        if (cut && most > slices[job->axis]) most = slices[job->axis];
        uint32_t least = cut && job->max_shards ? most : 1;
        if (result.status != MUSTER_OK || (job->pin >= 0 && result.device != job->pin) || result.shards > most ||
            result.shards < least || result.device >= (int)run->scenario->devices)
            return sc_fail(run, false,
                           "the result of job %" PRIu32 " in step %" PRIu32 " is %s on device %d in %" PRIu32 " shards",
                           j, s, muster_status_name(result.status), result.device, result.shards);
    }
    return true;
}

static bool finish(execution *run) {
    const scenario *scenario = run->scenario;
    muster_error error;
    /* Runs keep what they need. */
    for (uint32_t g = 0; g < scenario->graph_count && scenario->seed % 4 == 0; g++) {
        muster_graph_destroy(run->graph[g]);
        run->graph[g] = NULL;
    }
    /* Half of the scenarios read their buffers while runs are unfinished, and so test that acquire waits. */
    for (int late = 0; late < 2; late++) {
        if ((scenario->seed & 1) == (uint64_t)late) {
            for (uint32_t n = 1; n <= scenario->open_count; n++)
                if (!close_run(run, n)) return false;
            for (uint32_t n = 0; n < scenario->open_count; n++)
                if (muster_run_wait(run->open[n], run->executor->timeout_ns, &error) != MUSTER_OK)
                    return sc_fail_status(run, "waiting for open run", n, &error);
            for (uint32_t s = 0; s < scenario->step_count; s++)
                if (run->run[s] && (!wait_for(run, s) || !check_results(run, s))) return false;
        } else {
            for (uint32_t b = 0; b < scenario->buffer_count; b++) {
                void *pointer;
                uint32_t bytes = scenario->buffer[b].bytes;
                if (!run->buffer[b]) continue; /* destroyed */
                if (muster_buffer_acquire(run->buffer[b], 0, bytes, MUSTER_READ, run->executor->timeout_ns, &pointer,
                                          &error) != MUSTER_OK)
                    return sc_fail_status(run, "acquiring at the end buffer", b, &error);
                bool same = sc_compare(run, "at the end buffer", b, 0, pointer, run->expected->final[b], bytes);
                muster_buffer_release(run->buffer[b], pointer, NULL);
                if (!same) return false;
            }
        }
    }
    return true;
}

/* After a failure runs may be unfinished and an acquisition open: give the range back and let them end, so that host
 * memory can be freed. */
static void quiesce(execution *run) {
    for (uint32_t n = 0; n < SC_MAX_OPEN; n++)
        if (run->open[n]) muster_run_close(run->open[n], NULL);
    for (uint32_t s = 0; s < run->scenario->step_count; s++)
        if (run->pointer[s]) muster_buffer_release(run->buffer[run->scenario->step[s].buffer], run->pointer[s], NULL);
    for (uint32_t s = 0; s < run->scenario->step_count; s++) {
        muster_error error;
        muster_status status =
            run->run[s] ? muster_run_wait(run->run[s], run->executor->timeout_ns, &error) : MUSTER_OK;
        size_t used = strlen(run->failure->text);
        if (status == MUSTER_TIMEOUT) run->failure->hang = true;
        if (status != MUSTER_OK)
            snprintf(run->failure->text + used, sizeof run->failure->text - used,
                     "; the run of step %" PRIu32 ": %s: %s", s, muster_status_name(status), error.message);
    }
}

bool scenario_execute(const sc_executor *executor, const scenario *scenario, const sc_expected *expected,
                      sc_failure *failure) {
    execution *run = calloc(1, sizeof *run);
    *failure = (sc_failure){.text = "out of memory"};
    if (!run) return false;
    run->executor = executor;
    run->scenario = scenario;
    run->expected = expected;
    run->failure = failure;
    pthread_mutex_init(&run->lock, NULL);
    pthread_cond_init(&run->turned, NULL);
    for (uint32_t g = 0; g < scenario->graph_count; g++)
        memcpy(run->job[g], scenario->graph[g].job, sizeof run->job[g]);

    bool ok = make_buffers(run) && run_steps(run) && finish(run);
    if (!ok) quiesce(run);
    if (failure->hang) return false; /* everything may still be in use: leak it, the caller stops */
    for (uint32_t s = 0; s < scenario->step_count; s++)
        if (!scenario->step[s].into) muster_run_destroy(run->run[s]);
    for (uint32_t n = 0; n < SC_MAX_OPEN; n++) muster_run_destroy(run->open[n]);
    for (uint32_t g = 0; g < scenario->graph_count; g++) muster_graph_destroy(run->graph[g]);
    ok &= free_buffers(run);
    pthread_cond_destroy(&run->turned);
    pthread_mutex_destroy(&run->lock);
    free(run);
    return ok;
}

bool sc_executor_open(muster_runtime *runtime, uint64_t timeout_ns, sc_counts *counts, sc_executor *executor,
                      sc_failure *failure) {
    muster_error error;
    muster_device_info info = {.struct_size = sizeof info};
    memset(executor, 0, sizeof *executor);
    executor->tight = muster_device_get_info(runtime, 0, &info, &error) == MUSTER_OK && info.budget_bytes < 64 << 20;
    executor->counts = counts;
    executor->runtime = runtime;
    executor->timeout_ns = timeout_ns;
    muster_status status =
        muster_program_from_ptx(runtime, test_kernels_ptx, 0, "test kernels", &executor->program, &error);
    for (int op = 0; status == MUSTER_OK && op < SC_OP_COUNT; op++)
        if (sc_op_entry(op))
            status = muster_program_kernel(executor->program, sc_op_entry(op), &executor->kernel[op], &error);
    if (status == MUSTER_OK) return true;
    *failure = (sc_failure){0};
    snprintf(failure->text, sizeof failure->text, "loading the test kernels: %s: %s", muster_status_name(status),
             error.message);
    sc_executor_close(executor);
    return false;
}

void sc_executor_close(sc_executor *executor) {
    muster_program_destroy(executor->program);
    memset(executor, 0, sizeof *executor);
}
