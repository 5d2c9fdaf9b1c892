#include "device/ledger.h"

#include <inttypes.h>

#include "base/error.h"

typedef unsigned __int128 wide;

/* ----------------------------------------------------------------------------------------------- pure arithmetic -- */

uint64_t mu_budget_fraction(uint64_t bytes, uint32_t permille) { return (uint64_t)((wide)bytes * permille / 1000); }

uint64_t mu_accounted_headroom(uint64_t budget, uint64_t resident, uint64_t pool) {
    wide used = (wide)resident + pool;
    return used >= budget ? 0 : budget - (uint64_t)used;
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t mu_effective_budget(uint64_t total, uint64_t live, uint64_t resident, uint64_t pool, uint32_t permille) {
    return smaller(mu_accounted_headroom(mu_budget_fraction(total, permille), resident, pool),
                   mu_budget_fraction(live, permille));
}

uint64_t mu_resident_limit(uint64_t total, uint64_t live, uint64_t resident, uint32_t permille) {
    uint64_t growth = mu_budget_fraction(live, permille), reach;
    if (__builtin_add_overflow(resident, growth, &reach)) reach = UINT64_MAX;
    return smaller(mu_budget_fraction(total, permille), reach);
}

bool mu_power_of_two_bucket(uint64_t bytes, uint64_t *bucket) {
    if (bytes > (uint64_t)1 << 63) return false;
    *bucket = bytes <= 1 ? 1 : (uint64_t)1 << (64 - __builtin_clzll(bytes - 1));
    return true;
}

muster_status mu_allocation_bucket(uint64_t bytes, uint64_t *bucket, muster_error *error) {
    if (bytes <= MU_BUCKET_LIMIT_BYTES) {
        mu_power_of_two_bucket(bytes, bucket);
        return MUSTER_OK;
    }
    uint64_t mask = MU_BUCKET_LIMIT_BYTES - 1, padded;
    if (__builtin_add_overflow(bytes, mask, &padded))
        return mu_fail(error, MUSTER_LIMIT_REACHED,
                       "an allocation of %" PRIu64
                       " bytes cannot be rounded up to %d bytes in 64 bits; shard the "
                       "dispatch so that each part is smaller",
                       bytes, (int)MU_BUCKET_LIMIT_BYTES);
    *bucket = padded & ~mask;
    return MUSTER_OK;
}

static muster_status binding_length(const mu_binding *binding, const uint64_t *inputs, size_t input_count,
                                    size_t *next_input, uint64_t *bytes, muster_error *error) {
    if (binding->takes_input) {
        if (*next_input >= input_count)
            return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                           "binding %" PRIu32
                           " takes input %zu but %zu inputs were given; supply one input for each "
                           "binding that reads",
                           binding->slot, *next_input, input_count);
        *bytes = inputs[(*next_input)++];
        return MUSTER_OK;
    }
    if (!binding->has_length)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "binding %" PRIu32
                       " is written but has no length; declare its length in bytes or give it an "
                       "input of the size of the output",
                       binding->slot);
    *bytes = binding->length_bytes;
    return MUSTER_OK;
}

static muster_status sum_overflow(size_t count, muster_error *error) {
    return mu_fail(error, MUSTER_LIMIT_REACHED,
                   "the memory of %zu bindings and their parameters exceeds 64 bits; shard the dispatch so that each "
                   "part needs less",
                   count);
}

muster_status mu_required_bytes(const mu_binding *bindings, size_t count, const uint64_t *input_bytes,
                                size_t input_count, uint64_t parameter_words, uint64_t *bytes, muster_error *error) {
    uint64_t sum;
    size_t next_input = 0;
    if (__builtin_mul_overflow(parameter_words, (uint64_t)4, &sum)) return sum_overflow(count, error);
    for (size_t i = 0; i < count; i++) {
        uint64_t length = 0, bucket = 0;
        if (bindings[i].shared) continue;
        if (bindings[i].resident && !bindings[i].takes_input) continue;
        muster_status status = binding_length(&bindings[i], input_bytes, input_count, &next_input, &length, error);
        if (status) return status;
        if (bindings[i].resident) continue;
        status = mu_allocation_bucket(length, &bucket, error);
        if (status) return status;
        if (__builtin_add_overflow(sum, bucket, &sum)) return sum_overflow(count, error);
    }
    *bytes = sum;
    return MUSTER_OK;
}

/* -------------------------------------------------------------------------------------------------------- ledger --
 * Every access is relaxed: the counts are the data, nothing is published through them. What a reservation permits is
 * ordered by the driver (memory) and by the mailboxes (jobs). */

#define LOAD(member) atomic_load_explicit(&(member), memory_order_relaxed)
#define STORE(member, value) atomic_store_explicit(&(member), (value), memory_order_relaxed)

muster_status mu_ledger_init(mu_ledger *ledger, uint64_t total, uint64_t budget_bytes, uint32_t permille,
                             muster_error *error) {
    if (permille > 1000)
        return mu_fail(error, MUSTER_INVALID_CONFIG,
                       "a memory budget of %" PRIu32 " thousandths exceeds the device; give 1 to 1000", permille);
    if (permille == 0) permille = MU_BUDGET_PERMILLE;
    ledger->total = total;
    ledger->budget = budget_bytes ? smaller(budget_bytes, total) : mu_budget_fraction(total, permille);
    ledger->live_permille = permille;
    ledger->shared = NULL;
    atomic_init(&ledger->held, 0);
    atomic_init(&ledger->committed, 0);
    atomic_init(&ledger->in_use, 0);
    atomic_init(&ledger->fixed, 0);
    atomic_init(&ledger->underflows, 0);
    atomic_init(&ledger->ceiling, UINT64_MAX);
    atomic_init(&ledger->sampled_free, 0);
    atomic_init(&ledger->sampled_at_ns, 0);
    return MUSTER_OK;
}

void mu_ledger_device_init(mu_ledger_device *device) {
    atomic_init(&device->committed, 0);
    atomic_init(&device->held, 0);
    atomic_init(&device->fixed, 0);
    atomic_init(&device->ceiling, UINT64_MAX);
}

void mu_ledger_share(mu_ledger *ledger, mu_ledger_device *device, uint32_t count) {
    ledger->budget /= count;
    ledger->shared = device;
}

/* Live memory when `committed` bytes are taken: of a share, by all of them. */
static uint64_t live_bytes(const mu_ledger *ledger, uint64_t committed) {
    uint64_t ceiling = ledger->shared ? LOAD(ledger->shared->ceiling) : LOAD(ledger->ceiling);
    if (ceiling == UINT64_MAX) return UINT64_MAX;
    return ceiling > committed ? ceiling - committed : 0;
}

/* How much of the live memory may be taken. */
static uint64_t live_headroom(const mu_ledger *ledger, uint64_t committed) {
    uint64_t live = live_bytes(ledger, committed);
    return live == UINT64_MAX ? UINT64_MAX : mu_budget_fraction(live, ledger->live_permille);
}

static uint64_t committed_on_device(const mu_ledger *ledger) {
    return ledger->shared ? LOAD(ledger->shared->committed) : LOAD(ledger->committed);
}

uint64_t mu_ledger_available(const mu_ledger *ledger) {
    return smaller(mu_accounted_headroom(ledger->budget, LOAD(ledger->committed), 0),
                   live_headroom(ledger, committed_on_device(ledger)));
}

uint64_t mu_ledger_capacity(const mu_ledger *ledger) {
    return mu_accounted_headroom(ledger->budget, LOAD(ledger->fixed), 0);
}

/* Subtracts, but never below zero: a count that wrapped would refuse every later job. How much it was. */
static uint64_t subtract(mu_ledger *ledger, atomic_uint_fast64_t *counter, uint64_t bytes) {
    uint_fast64_t value = LOAD(*counter);
    uint64_t taken;
    do {
        taken = smaller(bytes, value);
    } while (!atomic_compare_exchange_weak_explicit(counter, &value, value - taken, memory_order_relaxed,
                                                    memory_order_relaxed));
    if (taken < bytes) atomic_fetch_add_explicit(&ledger->underflows, 1, memory_order_relaxed);
    return taken;
}

/* Charges what cannot be refused; saturates. */
static void add(atomic_uint_fast64_t *counter, uint64_t bytes) {
    uint_fast64_t value = LOAD(*counter);
    uint64_t sum;
    do {
        if (__builtin_add_overflow((uint64_t)value, bytes, &sum)) sum = UINT64_MAX;
    } while (!atomic_compare_exchange_weak_explicit(counter, &value, sum, memory_order_relaxed, memory_order_relaxed));
}

/* Of a share, the device's sum follows by as much as its own count went down. */
static void give_back(mu_ledger *ledger, uint64_t bytes) {
    uint64_t taken = subtract(ledger, &ledger->committed, bytes);
    if (ledger->shared) subtract(ledger, &ledger->shared->committed, taken);
}

/* Both take `bytes` off what is left, or nothing. The room is recomputed from the value that the exchange compares with, so that two
 * threads cannot both take the rest. */
static bool take_of_budget(mu_ledger *ledger, uint64_t bytes) {
    uint_fast64_t committed = LOAD(ledger->committed);
    do {
        uint64_t room = mu_accounted_headroom(ledger->budget, committed, 0);
        if (!ledger->shared) room = smaller(room, live_headroom(ledger, committed));
        if (bytes > room) return false;
    } while (!atomic_compare_exchange_weak_explicit(&ledger->committed, &committed, committed + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

static bool take_of_device(mu_ledger *ledger, uint64_t bytes) {
    uint_fast64_t committed = LOAD(ledger->shared->committed);
    do {
        if (bytes > live_headroom(ledger, committed)) return false;
    } while (!atomic_compare_exchange_weak_explicit(&ledger->shared->committed, &committed, committed + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

mu_grant mu_ledger_reserve(mu_ledger *ledger, uint64_t bytes) {
    if (bytes == 0) return MU_GRANTED;
    if (bytes > mu_ledger_capacity(ledger)) return MU_NEVER;
    if (!take_of_budget(ledger, bytes)) return MU_NOT_NOW;
    if (!ledger->shared || take_of_device(ledger, bytes)) return MU_GRANTED;
    subtract(ledger, &ledger->committed, bytes);
    return MU_NOT_NOW;
}

void mu_ledger_release(mu_ledger *ledger, uint64_t bytes) { give_back(ledger, bytes); }

void mu_ledger_use(mu_ledger *ledger, uint64_t bytes) { add(&ledger->in_use, bytes); }

void mu_ledger_unuse(mu_ledger *ledger, uint64_t bytes) {
    subtract(ledger, &ledger->in_use, bytes);
    give_back(ledger, bytes);
}

void mu_ledger_fix(mu_ledger *ledger, uint64_t bytes) {
    add(&ledger->fixed, bytes);
    add(&ledger->committed, bytes);
    if (!ledger->shared) return;
    add(&ledger->shared->fixed, bytes);
    add(&ledger->shared->committed, bytes);
}

void mu_ledger_unfix(mu_ledger *ledger, uint64_t bytes) {
    uint64_t taken = subtract(ledger, &ledger->fixed, bytes);
    if (ledger->shared) subtract(ledger, &ledger->shared->fixed, taken);
    give_back(ledger, bytes);
}

void mu_ledger_hold(mu_ledger *ledger, uint64_t pool_bytes) {
    uint64_t before = atomic_exchange_explicit(&ledger->held, pool_bytes, memory_order_relaxed);
    if (!ledger->shared) return;
    /* By any number of threads: the sum is that of what each share's ledger says, whatever the order. */
    if (pool_bytes >= before)
        atomic_fetch_add_explicit(&ledger->shared->held, pool_bytes - before, memory_order_relaxed);
    else
        atomic_fetch_sub_explicit(&ledger->shared->held, before - pool_bytes, memory_order_relaxed);
}

uint64_t mu_ledger_cached(const mu_ledger *ledger) {
    return mu_accounted_headroom(LOAD(ledger->held), LOAD(ledger->in_use), 0);
}

uint64_t mu_ledger_others(const mu_ledger *ledger) {
    if (!ledger->shared) return 0;
    return mu_accounted_headroom(LOAD(ledger->shared->held), LOAD(ledger->held), 0) +
           mu_accounted_headroom(LOAD(ledger->shared->fixed), LOAD(ledger->fixed), 0);
}

void mu_ledger_sample_beside(mu_ledger *ledger, uint64_t free_bytes, uint64_t pool_bytes, uint64_t others_bytes,
                             uint64_t now_ns) {
    wide sum = (wide)free_bytes + pool_bytes + LOAD(ledger->fixed) + others_bytes;
    uint64_t ceiling = sum < UINT64_MAX ? (uint64_t)sum : UINT64_MAX - 1;
    mu_ledger_hold(ledger, pool_bytes);
    STORE(ledger->sampled_free, free_bytes);
    STORE(ledger->ceiling, ceiling);
    STORE(ledger->sampled_at_ns, now_ns ? now_ns : 1);
    if (ledger->shared) STORE(ledger->shared->ceiling, ceiling);
}

void mu_ledger_sample(mu_ledger *ledger, uint64_t free_bytes, uint64_t pool_bytes, uint64_t now_ns) {
    mu_ledger_sample_beside(ledger, free_bytes, pool_bytes, mu_ledger_others(ledger), now_ns);
}

uint64_t mu_ledger_sample_age_ns(const mu_ledger *ledger, uint64_t now_ns) {
    uint64_t at = LOAD(ledger->sampled_at_ns);
    if (at == 0) return UINT64_MAX;
    return now_ns > at ? now_ns - at : 0;
}

mu_ledger_view mu_ledger_read(const mu_ledger *ledger) {
    uint64_t committed = LOAD(ledger->committed), in_use = LOAD(ledger->in_use), fixed = LOAD(ledger->fixed);
    return (mu_ledger_view){.total = ledger->total,
                            .budget = ledger->budget,
                            .in_use = in_use,
                            .reserved = mu_accounted_headroom(committed, in_use, fixed),
                            .fixed = fixed,
                            .live = live_bytes(ledger, committed_on_device(ledger))};
}
