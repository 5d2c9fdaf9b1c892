/* What a simulated machine looks like: read from JSON (sim_config.c), documented in docs/simulator.md. */
#ifndef MUSTER_DEVICE_SIM_SIM_CONFIG_H
#define MUSTER_DEVICE_SIM_SIM_CONFIG_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "muster.h"

enum { SIM_MAX_DEVICES = 32 };

typedef struct sim_device_config {
    char name[96];
    int major, minor; /* compute capability */
    int sms, warp_size;
    int threads_per_sm, blocks_per_sm;
    int registers_per_sm, registers_per_block;
    int shared_per_block, shared_per_block_optin, shared_per_sm, shared_reserved; /* bytes */
    int l2_bytes, clock_khz, memory_clock_khz, bus_bits, copy_engines;
    bool cooperative;
    uint64_t memory_bytes;
    uint64_t context_bytes; /* what each context costs */
    uint64_t other_bytes;   /* what another process has taken from the start */
    /* The model of time. */
    uint64_t launch_ns;
    double upload_gbps, download_gbps, peer_gbps, local_gbps; /* 1e9 bytes a second */
    double instructions_per_ns;                               /* thread instructions, over the whole device */
} sim_device_config;

typedef enum sim_plan_kind {
    SIM_PLAN_FAIL,    /* a call returns `code` */
    SIM_PLAN_LOSE,    /* the device is lost after `nth` launches; with an entry, at the nth call of it */
    SIM_PLAN_FAULT,   /* the nth kernel faults with `code` */
    SIM_PLAN_SHRINK,  /* another process takes `bytes`, at the nth call of `entry` */
    SIM_PLAN_CORRUPT, /* the nth copy has bit `bit` flipped */
    SIM_PLAN_DELAY    /* a call takes `delay_ns` longer */
} sim_plan_kind;

typedef struct sim_plan_item {
    sim_plan_kind kind;
    int entry;       /* sim_entry, for FAIL, SHRINK, DELAY and LOSE; SIM_ENTRY_COUNT: any (LOSE) */
    int device;      /* ordinal, -1: any */
    uint64_t nth;    /* 1 is the first */
    uint64_t repeat; /* so many in a row; UINT64_MAX: from then on */
    CUresult code;
    uint64_t bytes, bit, delay_ns;
} sim_plan_item;

typedef struct sim_config {
    uint32_t device_count;
    sim_device_config devices[SIM_MAX_DEVICES];
    uint64_t peers[SIM_MAX_DEVICES]; /* bit p of peers[d]: device d can access device p */
    uint64_t seed;
    uint32_t workers;
    uint64_t watchdog_instructions;
    bool report_uninitialised, null_mode, virtual_time;
    int driver_version;
    sim_plan_item *plan; /* mu_alloc */
    size_t plan_count;
} sim_config;

/* Fills `config` from a spec as mu_sim_driver_create takes it. On failure nothing needs freeing. */
muster_status sim_config_read(const char *spec, sim_config *config, muster_error *error);
void sim_config_free(sim_config *config);

/* A CUresult by number or name, with or without its prefix: "OUT_OF_MEMORY". False when there is none. */
bool sim_error_code(const char *name, CUresult *code);

#endif
