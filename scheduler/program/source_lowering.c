/* Programs from a lowering: callbacks of a compiler back end, which are asked only when no cache has the text. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/image.h"
#include "scheduler/program/source.h"
#include "scheduler/runtime/runtime.h"

_Static_assert((int)MUSTER_FEATURE_SUBGROUP == (int)MU_FEATURE_SUBGROUP &&
                   (int)MUSTER_FEATURE_F16 == (int)MU_FEATURE_F16 && (int)MUSTER_FEATURE_BF16 == (int)MU_FEATURE_BF16 &&
                   (int)MUSTER_FEATURE_TENSOR_CORES == (int)MU_FEATURE_TENSOR_CORES &&
                   (int)MUSTER_FEATURE_ASYNC_COMPUTE == (int)MU_FEATURE_ASYNC_COMPUTE,
               "features are public as they are");

/* ------------------------------------------------------------------------------------------------------ the text -- */

#define MAX_TEXT_BYTES ((size_t)1 << 30)

struct muster_ptx {
    char *text;
    size_t bytes, capacity;
    muster_status failure; /* the first; it stays */
};

muster_status muster_ptx_append(muster_ptx *ptx, const char *text, size_t bytes) {
    if (!ptx || (!text && bytes)) return MUSTER_INVALID_ARGUMENT;
    if (ptx->failure) return ptx->failure;
    if (bytes > MAX_TEXT_BYTES - ptx->bytes) return ptx->failure = MUSTER_LIMIT_REACHED;
    if (!mu_grow(&ptx->text, &ptx->capacity, ptx->bytes + bytes + 1, 1))
        return ptx->failure = MUSTER_OUT_OF_HOST_MEMORY;
    if (bytes) memcpy(ptx->text + ptx->bytes, text, bytes);
    ptx->bytes += bytes;
    ptx->text[ptx->bytes] = '\0';
    return MUSTER_OK;
}

/* ------------------------------------------------------------------------------------------------- the callbacks -- */

typedef struct lowered_program {
    const muster_lowering *lowering;
    const char *name;
    mu_source given;
    mu_key given_identity; /* once for the program, not once for each target */
    muster_target target;
    muster_lowering_source result;
} lowered_program;

/* Makes whatever a callback left in its error a line of ours. */
static muster_status callback_failed(const lowered_program *l, const char *what, muster_status status,
                                     muster_error *told, muster_error *error) {
    told->message[sizeof told->message - 1] = '\0';
    for (char *c = told->message; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
    if (status == MUSTER_OUT_OF_HOST_MEMORY)
        return mu_fail(error, status, "%s program %.64s for sm_%d: out of host memory", what, l->name, l->target.sm);
    if (!told->message[0])
        return mu_fail(error, MUSTER_PROGRAM_INVALID,
                       "%s program %.64s for sm_%d failed with status %d and without a message", what, l->name,
                       l->target.sm, (int)status);
    return mu_fail(error, MUSTER_PROGRAM_INVALID, "%s program %.64s for sm_%d failed: %s", what, l->name, l->target.sm,
                   told->message);
}

static const char *what_is_wrong(const muster_lowering_source *source) {
    if (source->bytes && !source->content) return "content is NULL";
    if (source->option_count && !source->options) return "options is NULL";
    if (source->option_count > 65536) return "there are more than 65536 options";
    for (uint32_t i = 0; i < source->option_count; i++)
        if (!source->options[i]) return "an option is NULL";
    if (source->required_features >= 2 * (uint32_t)MU_FEATURE_ASYNC_COMPUTE)
        return "required_features has bits this version does not know";
    return NULL;
}

static mu_source described(const muster_lowering_source *source) {
    return (mu_source){
        .kind = MU_SOURCE_LOWERING,
        .content = source->content,
        .bytes = source->bytes,
        .options = source->options,
        .option_count = source->option_count,
        .required_features = source->required_features,
    };
}

static muster_status prepare(lowered_program *l, bool *unchanged, muster_error *error) {
    const muster_lowering *lowering = l->lowering;
    l->result = lowering->source;
    *unchanged = true;
    if (!lowering->prepare) return MUSTER_OK;
    int reported = 0;
    muster_error told = {0};
    muster_status status =
        lowering->prepare(lowering->user, &lowering->source, &l->target, &l->result, &reported, &told);
    if (status) return callback_failed(l, "preparing", status, &told, error);
    const char *wrong = what_is_wrong(&l->result);
    if (wrong)
        return mu_fail(error, MUSTER_PROGRAM_INVALID, "preparing program %.64s for sm_%d gave no valid source: %s",
                       l->name, l->target.sm, wrong);
    *unchanged = reported != 0;
    return MUSTER_OK;
}

static muster_status write_ptx(void *user, char **text, size_t *bytes, muster_error *error) {
    const lowered_program *l = user;
    muster_ptx ptx = {0};
    muster_error told = {0};
    mu_image_kind kind;
    muster_status status = l->lowering->lower(l->lowering->user, &l->result, &l->target, &ptx, &told);
    if (status)
        status = callback_failed(l, "lowering", status, &told, error);
    else if (ptx.failure == MUSTER_LIMIT_REACHED)
        status = mu_fail(error, MUSTER_LIMIT_REACHED, "lowering program %.64s for sm_%d wrote more than %zu bytes",
                         l->name, l->target.sm, MAX_TEXT_BYTES);
    else if (ptx.failure)
        status = mu_fail_host_memory(error, "the PTX of a lowering", ptx.bytes);
    else if (ptx.bytes == 0)
        status =
            mu_fail(error, MUSTER_PROGRAM_INVALID,
                    "lowering program %.64s for sm_%d wrote no PTX; append it with muster_ptx_append, or return why "
                    "there is none",
                    l->name, l->target.sm);
    if (!status) status = mu_image_classify(ptx.text, ptx.bytes, l->name, &kind, error);
    if (!status && kind != MU_IMAGE_PTX)
        status = mu_fail(error, MUSTER_PROGRAM_INVALID, "lowering program %.64s for sm_%d wrote an image, not PTX text",
                         l->name, l->target.sm);
    if (status) {
        mu_free(ptx.text);
        return status;
    }
    *text = ptx.text;
    *bytes = ptx.bytes;
    return MUSTER_OK;
}

/* -------------------------------------------------------------------------------------------------------- making -- */

static muster_status check_features(const lowered_program *l, mu_device *device, muster_error *error) {
    static const char *const names[] = {"subgroup", "f16", "bf16", "tensor cores", "async compute"};
    uint32_t missing = l->result.required_features & ~l->target.features;
    char list[96] = "";
    if (!missing) return MUSTER_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (missing >> i & 1) {
            if (list[0]) strcat(list, ", ");
            strcat(list, names[i]);
        }
    mu_fail(error, MUSTER_CAPABILITY_MISSING,
            "program %.64s requires %s, which device %d (%.64s) has not; leave the device out, or lower without it",
            l->name, list, mu_device_index(device), mu_device_capability(device)->name);
    if (error) error->device = mu_device_index(device);
    return MUSTER_CAPABILITY_MISSING;
}

static muster_status code_of_lowering(void *user, muster_runtime *runtime, mu_device *device, const char *name,
                                      mu_code *code, muster_error *error) {
    lowered_program *l = user;
    const mu_capability *capability = mu_device_capability(device);
    bool unchanged;
    l->target = (muster_target){
        .struct_size = sizeof l->target,
        .warp_size = capability->warp_size,
        .features = mu_capability_features(capability, l->lowering->flags & MUSTER_LOWERING_TENSOR_CORES),
    };
    muster_status status = mu_device_target(device, &l->target.sm, error);
    if (status || (status = prepare(l, &unchanged, error)) || (status = check_features(l, device, error)))
        return status;
    mu_source result = described(&l->result);
    mu_ptx_fields fields = {
        .identity = mu_identity_after_lowering(&l->given, &l->given_identity, &result, unchanged),
        .policy = l->lowering->policy,
        .policy_bytes = l->lowering->policy_bytes,
        .target_sm = (uint32_t)l->target.sm,
        .warp_size = (uint32_t)l->target.warp_size,
        .features = l->target.features,
    };
    bool persistent = !(l->lowering->flags & MUSTER_LOWERING_VOLATILE);
    return mu_code_from_writer(runtime, device, name, &fields, persistent, write_ptx, l, code, error);
}

static muster_status check_lowering(const muster_lowering *lowering, muster_error *error) {
    if (lowering->struct_size != sizeof *lowering)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "lowering->struct_size is %zu; set it to sizeof(muster_lowering), %zu", lowering->struct_size,
                       sizeof *lowering);
    if (lowering->source.struct_size != sizeof lowering->source)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "lowering->source.struct_size is %zu; set it to sizeof(muster_lowering_source), %zu",
                       lowering->source.struct_size, sizeof lowering->source);
    if (!lowering->lower) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "lowering->lower is NULL");
    /* The disk is shared by every application of the user: bytes alone do not say whose language they are. */
    if (!lowering->policy || lowering->policy_bytes == 0)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT,
                       "lowering->policy is empty; name the back end and its version, for its texts outlive it");
    const uint32_t known = MUSTER_LOWERING_VOLATILE | MUSTER_LOWERING_TENSOR_CORES;
    if (lowering->flags & ~known)
        return mu_fail(error, MUSTER_INVALID_ARGUMENT, "lowering->flags 0x%x has bits this version does not know",
                       lowering->flags);
    const char *wrong = what_is_wrong(&lowering->source);
    if (wrong) return mu_fail(error, MUSTER_INVALID_ARGUMENT, "lowering->source: %s", wrong);
    return MUSTER_OK;
}

muster_status muster_program_from_lowering(muster_runtime *runtime, const muster_lowering *lowering,
                                           muster_program **program, muster_error *error) {
    muster_status status = mu_program_check_make(runtime, lowering, "lowering", program, error);
    if (status || (status = check_lowering(lowering, error))) return status;
    lowered_program l = {
        .lowering = lowering,
        .name = lowering->name ? lowering->name : "program",
        .given = described(&lowering->source),
    };
    l.given_identity = mu_source_identity(&l.given);
    return mu_program_make(runtime, lowering->name, code_of_lowering, &l, program, error);
}
