#include "scheduler/graph/fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"

/* What an argument is, for the fields that it uses. */
enum {
    WHOLE = 1u << 0, /* a buffer that every shard sees */
    BLOCK = 1u << 1,
    REDUCE = 1u << 2,
    HALO = 1u << 3,
    VALUE = 1u << 4,
    SHARD = 1u << 5,
    SCRATCH = 1u << 6,
    BUFFER = WHOLE | BLOCK | REDUCE | HALO
};

#define FIELD(name, users)                                                                                             \
    { #name, offsetof(muster_arg, name), sizeof(((muster_arg *)0)->name), users }
static const struct {
    const char *name;
    size_t offset, bytes;
    unsigned users;
} fields[] = {
    FIELD(access, BUFFER),
    FIELD(cut, BUFFER),
    FIELD(type, REDUCE),
    FIELD(reduction, REDUCE),
    FIELD(buffer, BUFFER),
    FIELD(offset_bytes, BUFFER),
    FIELD(bytes, BUFFER | SCRATCH),
    FIELD(slice_bytes, BLOCK | HALO),
    FIELD(halo_before, HALO),
    FIELD(halo_after, HALO),
    FIELD(rows, BLOCK | HALO),
    FIELD(pitch_bytes, BLOCK | HALO),
    FIELD(slice_elements, SHARD),
    FIELD(total_elements, SHARD),
    FIELD(value_bytes, VALUE | SHARD),
};

static const char *const names[] = {"a buffer that is not cut",
                                    "a buffer that is cut in blocks",
                                    "a buffer that is reduced",
                                    "a buffer with a halo",
                                    "a value",
                                    "a shard offset or count",
                                    "scratch memory"};

/* The bit of the argument's class, as a number; -1: none. */
static int class_of(const muster_arg *arg) {
    switch (arg->kind) {
        case MUSTER_ARG_BUFFER:
            switch (arg->cut) {
                case MUSTER_CUT_REPLICATE: return 0;
                case MUSTER_CUT_BLOCK: return 1;
                case MUSTER_CUT_REDUCE: return 2;
                case MUSTER_CUT_HALO: return 3;
            }
            return -1;
        case MUSTER_ARG_VALUE: return 4;
        case MUSTER_ARG_SHARD_OFFSET:
        case MUSTER_ARG_SHARD_COUNT: return 5;
        case MUSTER_ARG_SCRATCH: return 6;
    }
    return -1;
}

static uint64_t value_of(const muster_arg *arg, size_t offset, size_t bytes) {
    uint64_t wide = 0;
    uint32_t narrow = 0;
    if (bytes == sizeof wide) memcpy(&wide, (const char *)arg + offset, sizeof wide);
    if (bytes == sizeof narrow) memcpy(&narrow, (const char *)arg + offset, sizeof narrow);
    return wide | narrow;
}

muster_status mu_arg_check_fields(const muster_arg *arg, uint32_t index, muster_error *error) {
    if (mu_arg_is_plain(arg)) return MUSTER_OK;
    int class = class_of(arg);
    if (class < 0 && arg->kind == MUSTER_ARG_BUFFER)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: %d is not a cut", index, (int)arg->cut);
    if (class < 0)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "argument %u: %d is not a kind of argument", index,
                       (int)arg->kind);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        uint64_t value = value_of(arg, fields[i].offset, fields[i].bytes);
        if (value == 0 || fields[i].users >> class & 1) continue;
        if (fields[i].offset == offsetof(muster_arg, buffer))
            return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                           "argument %u is %s, and names a buffer; make it with one of the muster_..._arg functions",
                           index, names[class]);
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "argument %u is %s, which has no use for %s, and that is %llu; make it with the muster_..._arg "
                       "and _cut functions, or leave it 0",
                       index, names[class], fields[i].name, (unsigned long long)value);
    }
    return MUSTER_OK;
}

muster_status mu_check_pin(int pin_device, int device, uint32_t device_count, muster_error *error) {
    if (pin_device == 1) {
        if (device >= 0 && device < (int)device_count) return MUSTER_OK;
        return mu_fail(error, MUSTER_OUT_OF_RANGE, "device %d: the runtime has %u", device, device_count);
    }
    if (pin_device)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "pin_device is 1 or 0, not %d; the device to pin to is named by `device`", pin_device);
    if (device != 0 && device != MUSTER_ANY_DEVICE)
        return mu_fail(
            error, MUSTER_INVALID_ARGUMENT,
            "device is %d, but pin_device is 0, so Muster would place the job; set pin_device to 1, or leave "
            "device 0",
            device);
    return MUSTER_OK;
}

muster_status mu_dispatch_check_fields(const muster_dispatch *dispatch, muster_error *error) {
    bool sharded = dispatch->flags & MUSTER_DISPATCH_SHARDED;
    const muster_dim3 *cluster = &dispatch->cluster;
    if (dispatch->shard_axis > 2)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "shard_axis is 0, 1 or 2, not %u", dispatch->shard_axis);
    if (!sharded && dispatch->max_shards > 1)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "max_shards is %u without MUSTER_DISPATCH_SHARDED; set the flag, or leave it 0",
                       dispatch->max_shards);
    if (cluster->x == 0 && (cluster->y || cluster->z))
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "a cluster of 0 x %u x %u blocks; give at least 1 along x, or leave it all 0 for no clusters",
                       cluster->y, cluster->z);
    return MUSTER_OK;
}
