/* The sequential model: steps in their order, jobs in theirs. Knows nothing of devices, shards, edges or threads. */
#include <stdlib.h>
#include <string.h>

#include "tests/scheduler/scenario.h"

void sc_first_content(const sc_buffer *buffer, uint8_t *bytes) {
    if (!buffer->host) {
        memset(bytes, 0, buffer->bytes);
        return;
    }
    sc_step whole = {.access = MUSTER_WRITE, .bytes = buffer->bytes, .seed = buffer->seed};
    sc_user_write(&whole, buffer->kind, bytes);
}

void sc_user_write(const sc_step *step, sc_kind kind, uint8_t *bytes) {
    uint64_t state = step->seed;
    uint32_t width = kind == SC_RAW ? 1 : kind == SC_F32 ? 4 : 8;
    for (uint32_t at = 0; at + width <= step->bytes; at += width) {
        uint64_t random = sc_random(&state);
        if (step->access == MUSTER_READ_WRITE && random & 256) continue;
        float f32 = (float)(random & 255);
        double f64 = (double)(random & 255);
        uint8_t raw = (uint8_t)random;
        memcpy(bytes + at, kind == SC_RAW ? (void *)&raw : kind == SC_F32 ? (void *)&f32 : (void *)&f64, width);
    }
}

void sc_stop_write(const sc_step *step, const sc_buffer *buffer, uint32_t index, uint8_t *bytes) {
    sc_step whole = {.access = MUSTER_WRITE, .bytes = buffer->bytes, .seed = step->seed + index};
    sc_user_write(&whole, buffer->kind, bytes);
}

void sc_set_value(const sc_step *step, sc_job *job) {
    uint64_t state = step->seed;
    if (job->op == SC_WEIGHTED)
        for (int k = 0; k < SC_WEIGHTS; k++) job->weights[k] = (uint32_t)sc_random(&state);
    else
        job->scalar = (uint32_t)sc_random(&state);
}

static bool allocate_stopped(const scenario *scenario, const sc_step *step, uint8_t *stopped[SC_MAX_BUFFERS]) {
    uint8_t uses[SC_MAX_BUFFERS];
    sc_graph_uses(&scenario->graph[step->graph], uses);
    for (uint32_t b = 0; b < scenario->buffer_count; b++)
        if (uses[b] && !(stopped[b] = malloc(scenario->buffer[b].bytes))) return false;
    return true;
}

static bool allocate(const scenario *scenario, sc_expected *expected) {
    uint32_t stops = 0;
    for (uint32_t b = 0; b < scenario->buffer_count; b++)
        if (!(expected->final[b] = malloc(scenario->buffer[b].bytes))) return false;
    for (uint32_t s = 0; s < scenario->step_count; s++) {
        const sc_step *step = &scenario->step[s];
        if (step->kind == SC_STOP && !allocate_stopped(scenario, step, expected->stopped[stops++])) return false;
        bool reads = step->kind == SC_ACQUIRE ? step->access != MUSTER_WRITE : step->kind == SC_TRY;
        if (reads && !step->dropped)
            if (!(expected->acquired[s] = malloc(step->bytes))) return false;
    }
    return true;
}

/* What comes of a stopped run is known to those who see which of its jobs ran; afterwards it is what the host has written. */
static void model_stop(const scenario *state, uint32_t s, sc_expected *expected) {
    const sc_step *step = &state->step[s];
    uint8_t uses[SC_MAX_BUFFERS];
    sc_graph_uses(&state->graph[step->graph], uses);
    uint8_t **before = expected->stopped[sc_stop_index(state, s)];
    for (uint32_t b = 0; b < state->buffer_count; b++) {
        if (uses[b]) memcpy(before[b], expected->final[b], state->buffer[b].bytes);
        if (uses[b] & MUSTER_WRITE) sc_stop_write(step, &state->buffer[b], b, expected->final[b]);
    }
}

static void model_step(scenario *state, uint32_t s, sc_expected *expected) {
    const sc_step *step = &state->step[s];
    sc_graph *graph = &state->graph[step->graph];
    uint8_t *range = expected->final[step->buffer] + step->offset;
    switch (step->kind) {
        case SC_STOP: model_stop(state, s, expected); break;
        case SC_SUBMIT:
            if (step->into && sc_is_closed(state, step->into, s)) break;
            for (uint32_t j = 0; j < graph->job_count; j++)
                if (!graph->job[j].dropped) sc_model_job(&graph->job[j], expected->final);
            break;
        case SC_SET: sc_set_value(step, &graph->job[step->job]); break;
        case SC_ACQUIRE:
            /* What is written until the release is what every later step sees, so it may be written at once. */
            if (step->access != MUSTER_WRITE) memcpy(expected->acquired[s], range, step->bytes);
            if (step->access != MUSTER_READ) sc_user_write(step, state->buffer[step->buffer].kind, range);
            break;
        case SC_TRY: memcpy(expected->acquired[s], range, step->bytes); break;
        default: break;
    }
}

bool scenario_model(const scenario *scenario, sc_expected *expected) {
    memset(expected, 0, sizeof *expected);
    struct scenario *state = malloc(sizeof *state); /* set steps change it */
    if (!state || !allocate(scenario, expected)) {
        free(state);
        sc_expected_free(expected);
        return false;
    }
    memcpy(state, scenario, sizeof *state);
    for (uint32_t b = 0; b < state->buffer_count; b++) sc_first_content(&state->buffer[b], expected->final[b]);
    for (uint32_t s = 0; s < state->step_count; s++)
        if (!state->step[s].dropped) model_step(state, s, expected);
    free(state);
    return true;
}

void sc_expected_free(sc_expected *expected) {
    for (uint32_t b = 0; b < SC_MAX_BUFFERS; b++) free(expected->final[b]);
    for (uint32_t s = 0; s < SC_MAX_STEPS; s++) free(expected->acquired[s]);
    for (uint32_t n = 0; n < SC_MAX_STOPS; n++)
        for (uint32_t b = 0; b < SC_MAX_BUFFERS; b++) free(expected->stopped[n][b]);
    memset(expected, 0, sizeof *expected);
}
