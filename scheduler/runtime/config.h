/* The configuration with every default filled in: code over the JSON file over the environment over the defaults. */
#ifndef MUSTER_SCHEDULER_RUNTIME_CONFIG_H
#define MUSTER_SCHEDULER_RUNTIME_CONFIG_H

#include "base/tuning.h"
#include "muster.h"

typedef enum mu_burst_mode { MU_BURSTS_AUTO, MU_BURSTS_OFF, MU_BURSTS_ALWAYS, MU_BURSTS_RANDOM } mu_burst_mode;

typedef struct mu_config {
    char *driver;
    char *sim; /* NULL: the driver's own default */
    int ordinals[MU_MAX_DEVICES];
    uint32_t ordinal_count; /* 0: the first device_count */
    uint32_t device_count;  /* 0: all */
    uint32_t flags;
    uint32_t actors_per_device; /* 1 or more */
    uint64_t budget_bytes;
    uint32_t budget_permille;
    uint32_t max_queued_jobs;
    uint64_t admission_wait_ns;
    uint64_t spin_ns;
    uint64_t enqueue_limit_ns;
    uint64_t enqueue_ahead_ns;
    char *placement;
    muster_placement_policy
        policy; /* the application's, or the one `placement` names; with a name, which is policy_name if not NULL */
    char *policy_name;
    mu_burst_mode bursts;
    uint64_t seed;
    muster_log_fn log;
    void *log_user;
    muster_log_level log_level;
    char *cache_dir;            /* NULL: the environment decides, as for the two dump settings */
    uint64_t cache_bytes;       /* 0: the default */
    uint64_t host_budget_bytes; /* 0: no limit */
    char *dump_ptx, *dump_dir;
} mu_config;

/* `user` may be NULL. INVALID_CONFIG names the field or the JSON key; FILE_UNREADABLE the file. */
muster_status mu_config_resolve(const muster_config *user, mu_config *config, muster_error *error);
void mu_config_free(mu_config *config);

#endif
