/* Which steps of a scenario can wait for which, and which may happen beside each other. All by buffer, not by range, and
 * runs by what their whole graphs do: that is how Muster orders them. */
#include <string.h>

#include "tests/scheduler/scenario.h"

void sc_graph_uses(const sc_graph *graph, uint8_t uses[SC_MAX_BUFFERS]) {
    memset(uses, 0, SC_MAX_BUFFERS);
    for (uint32_t j = 0; j < graph->job_count; j++)
        for (uint32_t r = 0; r < graph->job[j].range_count; r++)
            uses[graph->job[j].range[r].buffer] |= (uint8_t)graph->job[j].range[r].access;
}

static bool clash(unsigned one, unsigned other) { return one && other && ((one | other) & MUSTER_WRITE); }

static bool any_clash(const uint8_t one[SC_MAX_BUFFERS], const uint8_t other[SC_MAX_BUFFERS]) {
    for (uint32_t b = 0; b < SC_MAX_BUFFERS; b++)
        if (clash(one[b], other[b])) return true;
    return false;
}

/* Whether the acquisition of step `acquire` is released in a step before `index`. */
static bool is_released(const scenario *scenario, uint32_t acquire, uint32_t index) {
    for (uint32_t s = acquire + 1; s < index; s++)
        if (scenario->step[s].kind == SC_RELEASE && scenario->step[s].of == acquire) return true;
    return false;
}

bool sc_is_closed(const scenario *scenario, uint32_t number, uint32_t index) {
    for (uint32_t s = 0; s < index; s++)
        if (scenario->step[s].kind == SC_CLOSE && scenario->step[s].into == number && !scenario->step[s].dropped)
            return true;
    return false;
}

uint32_t sc_stop_index(const scenario *scenario, uint32_t index) {
    uint32_t stops = 0;
    for (uint32_t s = 0; s < index; s++) stops += scenario->step[s].kind == SC_STOP;
    return stops;
}

/* What a step touches of each buffer. */
static void step_uses(const scenario *scenario, uint32_t index, uint8_t uses[SC_MAX_BUFFERS]) {
    const sc_step *step = &scenario->step[index];
    memset(uses, 0, SC_MAX_BUFFERS);
    switch (step->kind) {
        case SC_STOP:
        case SC_SUBMIT: sc_graph_uses(&scenario->graph[step->graph], uses); break;
        case SC_RELEASE: step = &scenario->step[step->of]; /* fallthrough */
        case SC_ACQUIRE:
        case SC_TRY: uses[step->buffer] = (uint8_t)step->access; break;
        case SC_DESTROY: uses[step->buffer] = MUSTER_READ_WRITE; break;
        default: break;
    }
}

bool sc_step_would_block(const scenario *scenario, uint32_t index) {
    uint8_t held_up[SC_MAX_BUFFERS] = {0}; /* accesses that are held or that wait for what is held */
    bool waits[SC_MAX_STEPS] = {false};
    uint8_t uses[SC_MAX_BUFFERS];
    for (uint32_t s = 0; s < index; s++) {
        const sc_step *step = &scenario->step[s];
        if (step->kind == SC_ACQUIRE && !is_released(scenario, s, index))
            held_up[step->buffer] |= (uint8_t)step->access;
        if (step->kind != SC_SUBMIT) continue;
        sc_graph_uses(&scenario->graph[step->graph], uses);
        waits[s] = any_clash(uses, held_up);
        for (uint32_t b = 0; b < SC_MAX_BUFFERS && waits[s]; b++) held_up[b] |= uses[b];
    }
    const sc_step *step = &scenario->step[index];
    if (step->kind == SC_WAIT) {
        uint32_t into = scenario->step[step->of].into;
        bool parts_wait = into && !sc_is_closed(scenario, into, index);
        for (uint32_t s = 0; s < index && into; s++)
            parts_wait |= scenario->step[s].kind == SC_SUBMIT && scenario->step[s].into == into && waits[s];
        return into ? parts_wait : waits[step->of];
    }
    step_uses(scenario, index, uses);
    return (step->kind == SC_ACQUIRE || step->kind == SC_STOP) && any_clash(uses, held_up);
}

uint32_t sc_step_holder(const scenario *scenario, uint32_t index, uint32_t buffer, muster_access access) {
    for (uint32_t s = 0; s < index; s++) {
        const sc_step *step = &scenario->step[s];
        if (step->kind == SC_ACQUIRE && step->buffer == buffer && clash(step->access, access) &&
            !is_released(scenario, s, index))
            return s;
    }
    return SC_NO_STEP;
}

/* Whether `other` could tell whether step `index` has happened. */
static bool steps_clash(const scenario *scenario, uint32_t index, uint32_t other) {
    const sc_step *one = &scenario->step[index], *two = &scenario->step[other];
    uint8_t one_uses[SC_MAX_BUFFERS], two_uses[SC_MAX_BUFFERS];
    if (two->kind == SC_DESTROY) return true; /* builds graphs */
    if (two->kind == SC_CLOSE) return one->kind == SC_SUBMIT && one->into == two->into;
    if (two->kind == SC_WAIT) return two->of == index || (one->into && scenario->step[two->of].into == one->into);
    bool graph = one->kind == SC_SUBMIT || one->kind == SC_SET;
    bool graph_too = two->kind == SC_SUBMIT || two->kind == SC_SET || two->kind == SC_STOP;
    if (graph && graph_too && one->graph == two->graph) return true;
    step_uses(scenario, index, one_uses);
    step_uses(scenario, other, two_uses);
    return any_clash(one_uses, two_uses);
}

bool sc_step_may_be_early(const scenario *scenario, uint32_t index) {
    const sc_step *step = &scenario->step[index];
    if (step->kind == SC_WAIT || step->kind == SC_DESTROY || step->kind == SC_CLOSE || step->kind == SC_STOP ||
        (step->kind == SC_TRY && step->of != SC_NO_STEP))
        return false;
    for (uint32_t s = index + 1; s < scenario->step_count && scenario->step[s].thread != step->thread; s++)
        if (steps_clash(scenario, index, s)) return false;
    return true;
}

static const char *check_buffer_step(const scenario *scenario, uint32_t s, const bool destroyed[SC_MAX_BUFFERS]) {
    const sc_step *step = &scenario->step[s];
    if (step->buffer >= scenario->buffer_count) return "a step names no buffer";
    if (destroyed[step->buffer]) return "a step names a buffer that was destroyed";
    if (step->kind == SC_DESTROY) return NULL;
    if (!step->bytes || (uint64_t)step->offset + step->bytes > scenario->buffer[step->buffer].bytes)
        return "an acquired range is not in its buffer";
    if (step->kind == SC_TRY && step->of != sc_step_holder(scenario, s, step->buffer, step->access))
        return "a try does not know who holds the buffer";
    if (step->kind == SC_TRY && step->of == SC_NO_STEP && step->access != MUSTER_READ)
        return "a try that may succeed writes";
    return NULL;
}

const char *sc_steps_check(const scenario *scenario) {
    bool destroyed[SC_MAX_BUFFERS] = {false};
    uint32_t held = 0, stops = 0;
    for (uint32_t s = 0; s < scenario->step_count; s++) {
        const sc_step *step = &scenario->step[s];
        if (step->thread >= scenario->threads) return "a step names no thread";
        if (sc_step_would_block(scenario, s)) return "a step may wait for a release after it";
        if (step->early && !sc_step_may_be_early(scenario, s)) return "an early step can be told from a late one";
        const char *wrong = NULL;
        if (step->into > (step->kind == SC_STOP ? 1 : scenario->open_count)) return "a step names no open run";
        if (step->kind == SC_STOP) {
            uint8_t uses[SC_MAX_BUFFERS];
            sc_graph_uses(&scenario->graph[step->graph], uses);
            if (stops++ == SC_MAX_STOPS) return "too many runs are stopped";
            for (uint32_t b = 0; b < scenario->buffer_count; b++)
                if (destroyed[b] && uses[b] & MUSTER_WRITE) return "a stopped run writes to what was destroyed";
        }
        if (step->kind == SC_ACQUIRE || step->kind == SC_TRY || step->kind == SC_DESTROY)
            wrong = check_buffer_step(scenario, s, destroyed);
        if (wrong) return wrong;
        if (step->kind == SC_ACQUIRE) held++;
        if (step->kind == SC_DESTROY) {
            if (sc_step_holder(scenario, s, step->buffer, MUSTER_WRITE) != SC_NO_STEP)
                return "a buffer is destroyed while it is held";
            destroyed[step->buffer] = true;
        }
        if (step->kind == SC_RELEASE &&
            (held-- == 0 || step->of >= s || scenario->step[step->of].kind != SC_ACQUIRE ||
             scenario->step[step->of].thread != step->thread || is_released(scenario, step->of, s)))
            return "a release has no acquire";
        if (step->kind == SC_WAIT && (step->of >= s || scenario->step[step->of].kind != SC_SUBMIT))
            return "a wait has no submit";
    }
    return held ? "a buffer is never released" : NULL;
}
