/* Instances: their lives, and the calls for tests. */
#include <string.h>

#include "device/sim/sim_code.h"
#include "device/sim/sim_graph.h"
#include "device/sim/sim_heap.h"
#include "device/sim/sim_pool.h"
#include "device/sim/sim_queue.h"

/* Guards which slots are taken. */
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static sim_driver *slots[MU_SIM_MAX_INSTANCES];
static uint64_t next_serial = 1;

static bool take_slot(sim_driver *driver) {
    bool taken = false;
    pthread_mutex_lock(&slots_lock);
    for (uint32_t i = 0; i < MU_SIM_MAX_INSTANCES && !taken; i++) {
        if (slots[i]) continue;
        slots[i] = driver;
        driver->slot = i;
        driver->serial = next_serial++;
        sim_entry_bind(i, driver);
        taken = true;
    }
    pthread_mutex_unlock(&slots_lock);
    return taken;
}

static void leave_slot(sim_driver *driver) {
    pthread_mutex_lock(&slots_lock);
    slots[driver->slot] = NULL;
    sim_entry_bind(driver->slot, NULL);
    pthread_mutex_unlock(&slots_lock);
}

static void init_devices(sim_driver *driver) {
    for (uint32_t i = 0; i < driver->config.device_count; i++) {
        sim_device *device = &driver->devices[i];
        device->driver = driver;
        device->ordinal = (int)i;
        device->config = &driver->config.devices[i];
        device->random = driver->config.seed + i;
        atomic_init(&device->other_bytes, device->config->other_bytes);
        pthread_cond_init(&device->work, NULL);
    }
}

/* In the reverse order of creation; every executor is gone. */
static void free_objects(sim_driver *driver) {
    uint32_t cursor = 0;
    sim_object *object;
    while ((object = sim_handle_next(driver, NULL, SIM_TAG_CONTEXT, &cursor)) != NULL)
        sim_context_free((sim_context *)object);
    cursor = 0;
    while ((object = sim_handle_next(driver, NULL, SIM_TAG_GRAPH, &cursor)) != NULL)
        sim_graph_free((sim_graph *)object);
    for (uint32_t i = 0; i < driver->config.device_count; i++) pthread_cond_destroy(&driver->devices[i].work);
    sim_heap_destroy(driver->heap);
    cursor = 0;
    while ((object = sim_handle_next(driver, NULL, SIM_TAG_POOL, &cursor)) != NULL)
        sim_pool_close((struct sim_pool *)object);
    sim_pool_free_orphans(driver);
}

/* Unseen by ThreadSanitizer: the interpreter reads it at any time, and how soon does not matter. */
static SIM_UNSEEN void set_closing(sim_driver *driver) { driver->closing = true; }

static void destroy(mu_driver *table) {
    sim_driver *driver = table->instance;
    set_closing(driver);
    sim_executor_stop(driver);
    for (uint32_t i = 0; i < driver->config.device_count; i++)
        MU_TSAN_ACQUIRE(&driver->devices[i].order); /* pairs with take_turn's release: all strands are idle */
    free_objects(driver);
    leave_slot(driver);
    sim_table_destroy(driver->memory);
    sim_handles_close(&driver->handles);
    sim_plan_close(driver);
    sim_counters_close(driver);
    sim_config_free(&driver->config);
    pthread_mutex_destroy(&driver->message_lock);
    pthread_mutex_destroy(&driver->primary_lock);
    pthread_cond_destroy(&driver->host_work);
    pthread_cond_destroy(&driver->done);
    pthread_mutex_destroy(&driver->lock);
    mu_free(driver);
}

static bool make_parts(sim_driver *driver) {
    driver->memory = sim_table_create();
    driver->heap = driver->memory ? sim_heap_create(driver) : NULL;
    return driver->heap && sim_counters_init(driver) && sim_plan_init(driver);
}

static void free_parts(sim_driver *driver) {
    sim_plan_close(driver);
    if (driver->counters) sim_counters_close(driver);
    sim_heap_destroy(driver->heap);
    sim_table_destroy(driver->memory);
    sim_config_free(&driver->config);
    mu_free(driver);
}

static void fill_table(sim_driver *driver) {
    mu_driver *table = &driver->table;
    sim_entry_fill(table, driver->slot);
    table->kind = MU_DRIVER_SIM;
    table->version = driver->config.driver_version;
    table->name = "sim";
    table->destroy = destroy;
    if (!driver->null_mode) table->event_kernel_ns = sim_event_kernel_ns; /* which runs no kernel */
    table->instance = driver;
    atomic_init(&table->references, 1);
}

muster_status mu_sim_driver_create(const char *spec, mu_driver **out, muster_error *error) {
    if (!out) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "no place for the driver was given");
    sim_driver *driver = mu_alloc_zeroed(1, sizeof *driver);
    if (!driver) return mu_fail_host_memory(error, "a simulated driver", sizeof *driver);
    muster_status status = sim_config_read(spec, &driver->config, error);
    if (status != MUSTER_OK) {
        mu_free(driver);
        return status;
    }
    driver->null_mode = driver->config.null_mode;
    if (!make_parts(driver)) {
        free_parts(driver);
        return mu_fail_host_memory(error, "a simulated driver", sizeof *driver);
    }
    if (!take_slot(driver)) {
        free_parts(driver);
        return mu_fail(error, MUSTER_LIMIT_REACHED, "%d simulated drivers exist already; release one first",
                       MU_SIM_MAX_INSTANCES);
    }
    sim_handles_init(&driver->handles);
    pthread_mutex_init(&driver->lock, NULL);
    pthread_mutex_init(&driver->primary_lock, NULL);
    pthread_mutex_init(&driver->message_lock, NULL);
    pthread_cond_init(&driver->done, NULL);
    pthread_cond_init(&driver->host_work, NULL);
    init_devices(driver);
    fill_table(driver);
    *out = &driver->table;
    return MUSTER_OK;
}

/* ----------------------------------------------------------------------------------------------------- for tests -- */

static sim_device *device_at(mu_driver *table, int ordinal) {
    sim_driver *driver = table->instance;
    return ordinal >= 0 && (uint32_t)ordinal < driver->config.device_count ? &driver->devices[ordinal] : NULL;
}

void mu_sim_hold(mu_driver *table, int ordinal, bool held) {
    sim_device *device = device_at(table, ordinal);
    if (!device) return;
    sim_lock(device->driver);
    device->held = held;
    sim_wake(device->driver);
    sim_unlock(device->driver);
}

uint64_t mu_sim_calls(const mu_driver *table, const char *entry) {
    sim_entry found = sim_entry_find(entry);
    return found < SIM_ENTRY_COUNT ? sim_counters_sum(table->instance, found) : UINT64_MAX;
}

void mu_sim_get_statistics(mu_driver *table, int ordinal, mu_sim_statistics *statistics) {
    sim_device *device = device_at(table, ordinal);
    *statistics = (mu_sim_statistics){0};
    if (!device) return;
    sim_lock(device->driver);
    statistics->outstanding_highest = device->outstanding_highest;
    sim_unlock(device->driver);
    statistics->kernels = atomic_load_explicit(&device->kernels, memory_order_relaxed);
    statistics->instructions = atomic_load_explicit(&device->instructions, memory_order_relaxed);
    statistics->stalls = atomic_load_explicit(&device->stalls, memory_order_relaxed);
    statistics->memory_used_bytes = atomic_load_explicit(&device->used_bytes, memory_order_relaxed);
}

uint64_t mu_sim_now_ns(const mu_driver *table) {
    sim_driver *driver = table->instance;
    if (!driver->config.virtual_time) return mu_now_ns();
    sim_lock(driver);
    uint64_t latest_ns = driver->finished_ns;
    sim_unlock(driver);
    return latest_ns;
}

void mu_sim_slow_down(mu_driver *table, int ordinal, uint32_t percent) {
    sim_device *device = device_at(table, ordinal);
    if (device) atomic_store_explicit(&device->slowness_percent, percent, memory_order_relaxed);
}

void mu_sim_set_other_memory(mu_driver *table, int ordinal, uint64_t bytes) {
    sim_device *device = device_at(table, ordinal);
    if (device) atomic_store_explicit(&device->other_bytes, bytes, memory_order_relaxed);
}
