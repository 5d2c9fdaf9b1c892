/* The tables: one set of functions for each possible instance, so that every call knows its instance, and what every
 * call does first: count, refuse before init and inside host functions, and ask the fault plan. */
#include <string.h>

#include "device/sim/sim_internal.h"

enum { COUNTER_SHARDS = 16 };

/* Threads count in different shards, so that counting shares no line in the common case. */
struct sim_counters {
    struct {
        _Alignas(64) atomic_uint_fast64_t calls[SIM_ENTRY_COUNT];
    } shards[COUNTER_SHARDS];
};

/* Written only by creating and destroying an instance, while no call on its table can be in progress. */
static sim_driver *instances[MU_SIM_MAX_INSTANCES];

static const char *const entry_names[SIM_ENTRY_COUNT] = {
#define ENTRY_NAME(member, device, parameters, arguments) #member,
#define ENTRY_NAME_VOID(member) #member,
    SIM_ENTRIES(ENTRY_NAME, ENTRY_NAME_VOID)
#undef ENTRY_NAME
#undef ENTRY_NAME_VOID
};

#define COUNT_ENTRY(member, symbol, parameters) +1
_Static_assert(SIM_ENTRY_COUNT == 0 MU_DRIVER_ENTRIES(COUNT_ENTRY, COUNT_ENTRY), "an entry has no simulation");
#undef COUNT_ENTRY

sim_entry sim_entry_find(const char *name) {
    sim_entry entry = 0;
    while (entry < SIM_ENTRY_COUNT && strcmp(entry_names[entry], name) != 0) entry++;
    return entry;
}

/* ------------------------------------------------------------------------------------------------------ counting -- */

static atomic_uint next_shard;
static _Thread_local unsigned thread_shard; /* + 1; 0: not chosen yet */

static unsigned choose_shard(void) {
    unsigned shard = atomic_fetch_add_explicit(&next_shard, 1, memory_order_relaxed) % COUNTER_SHARDS;
    thread_shard = shard + 1;
    return shard;
}

bool sim_counters_init(sim_driver *driver) {
    driver->counters = mu_alloc_aligned(64, sizeof *driver->counters);
    if (driver->counters) memset(driver->counters, 0, sizeof *driver->counters);
    return driver->counters != NULL;
}

void sim_counters_close(sim_driver *driver) { mu_free_aligned(driver->counters); }

static inline void count(sim_driver *driver, sim_entry entry) {
    unsigned shard = __builtin_expect(thread_shard != 0, 1) ? thread_shard - 1 : choose_shard();
    /* Relaxed: only sums are read, when the callers are quiet. */
    atomic_fetch_add_explicit(&driver->counters->shards[shard].calls[entry], 1, memory_order_relaxed);
}

uint64_t sim_counters_sum(const sim_driver *driver, sim_entry entry) {
    uint64_t sum = 0;
    for (int i = 0; i < COUNTER_SHARDS; i++)
        sum += atomic_load_explicit(&driver->counters->shards[i].calls[entry], memory_order_relaxed);
    return sum;
}

/* ---------------------------------------------------------------------------------------------- before each call -- */

static _Thread_local bool in_host_function;

void sim_host_function_begin(void) { in_host_function = true; }
void sim_host_function_end(void) { in_host_function = false; }

static bool always_allowed(sim_entry entry) {
    return entry == SIM_ENTRY_init || entry == SIM_ENTRY_driver_get_version || entry == SIM_ENTRY_get_error_name ||
           entry == SIM_ENTRY_get_error_string;
}

static CUresult enter_slowly(sim_driver *driver, sim_entry entry, CUdevice device) {
    if (in_host_function && entry != SIM_ENTRY_get_error_name && entry != SIM_ENTRY_get_error_string)
        return CUDA_ERROR_NOT_PERMITTED;
    if (atomic_load_explicit(&driver->planned, memory_order_acquire)) {
        sim_device *named = device >= 0 ? sim_find_device(driver, device) : NULL;
        sim_context *current = named ? NULL : sim_current_raw(driver);
        CUresult code = sim_plan_call(driver, entry, named ? named->ordinal : current ? current->device->ordinal : -1);
        if (code != CUDA_SUCCESS) return code;
    }
    if (!atomic_load_explicit(&driver->initialised, memory_order_acquire) && !always_allowed(entry))
        return CUDA_ERROR_NOT_INITIALIZED;
    return CUDA_SUCCESS;
}

static inline CUresult enter(sim_driver *driver, sim_entry entry, CUdevice device) {
    count(driver, entry);
    if (__builtin_expect(!in_host_function && atomic_load_explicit(&driver->initialised, memory_order_acquire) &&
                             !atomic_load_explicit(&driver->planned, memory_order_relaxed),
                         1))
        return CUDA_SUCCESS;
    return enter_slowly(driver, entry, device);
}

/* ------------------------------------------------------------------------------------------------------- entries -- */

#define ENTER(member, named_device, parameters, arguments)                                                             \
    static __attribute__((noinline)) CUresult enter_##member(SIM_UNPACK parameters, uint32_t slot) {                   \
        sim_driver *sim_instance_of_call = instances[slot];                                                            \
        CUresult code = enter(sim_instance_of_call, SIM_ENTRY_##member, named_device);                                 \
        if (code != CUDA_SUCCESS) return code;                                                                         \
        return sim_do_##member(sim_instance_of_call, SIM_UNPACK arguments);                                            \
    }
#define ENTER_VOID(member)                                                                                             \
    static __attribute__((noinline)) CUresult enter_##member(uint32_t slot) {                                          \
        CUresult code = enter(instances[slot], SIM_ENTRY_##member, -1);                                                \
        return code != CUDA_SUCCESS ? code : sim_do_##member(instances[slot]);                                         \
    }
SIM_ENTRIES(ENTER, ENTER_VOID)

/* Slots are numbered in octal, so that two digits can be pasted together: 00 to 077. */
#define TIMES_8(X, high, ...)                                                                                          \
    X(high##0, __VA_ARGS__)                                                                                            \
    X(high##1, __VA_ARGS__)                                                                                            \
    X(high##2, __VA_ARGS__)                                                                                            \
    X(high##3, __VA_ARGS__)                                                                                            \
    X(high##4, __VA_ARGS__) X(high##5, __VA_ARGS__) X(high##6, __VA_ARGS__) X(high##7, __VA_ARGS__)
#define TIMES_64(X, ...)                                                                                               \
    TIMES_8(X, 0, __VA_ARGS__)                                                                                         \
    TIMES_8(X, 01, __VA_ARGS__)                                                                                        \
    TIMES_8(X, 02, __VA_ARGS__)                                                                                        \
    TIMES_8(X, 03, __VA_ARGS__)                                                                                        \
    TIMES_8(X, 04, __VA_ARGS__) TIMES_8(X, 05, __VA_ARGS__) TIMES_8(X, 06, __VA_ARGS__) TIMES_8(X, 07, __VA_ARGS__)
_Static_assert(MU_SIM_MAX_INSTANCES == 64, "one slot function for each instance");

#define SLOT_FUNCTION(n, member, parameters, arguments)                                                                \
    static CUresult CUDAAPI slot_##member##_##n parameters { return enter_##member(SIM_UNPACK arguments, n); }
#define SLOT_FUNCTION_VOID(n, member)                                                                                  \
    static CUresult CUDAAPI slot_##member##_##n(void) { return enter_##member(n); }
#define SLOT_NAME(n, member) slot_##member##_##n,

#define SLOTS(member, device, parameters, arguments)                                                                   \
    TIMES_64(SLOT_FUNCTION, member, parameters, arguments)                                                             \
    static CUresult(CUDAAPI *const slots_##member[]) parameters = {TIMES_64(SLOT_NAME, member)};
#define SLOTS_VOID(member)                                                                                             \
    TIMES_64(SLOT_FUNCTION_VOID, member)                                                                               \
    static CUresult(CUDAAPI *const slots_##member[])(void) = {TIMES_64(SLOT_NAME, member)};
SIM_ENTRIES(SLOTS, SLOTS_VOID)

void sim_entry_fill(mu_driver *table, uint32_t slot) {
#define FILL(member, device, parameters, arguments) table->member = slots_##member[slot];
#define FILL_VOID(member) table->member = slots_##member[slot];
    SIM_ENTRIES(FILL, FILL_VOID)
#undef FILL
#undef FILL_VOID
}

void sim_entry_bind(uint32_t slot, sim_driver *driver) { instances[slot] = driver; }
