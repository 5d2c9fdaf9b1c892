/* Names, texts and recovery groups of the statuses, all from MUSTER_STATUS_MAP. */
#include "muster.h"

const char *muster_status_name(muster_status status) {
    switch (status) {
#define STATUS_NAME(name, id, group, text)                                                                             \
    case MUSTER_##name: return "MUSTER_" #name;
        MUSTER_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    }
    return "MUSTER_UNKNOWN_STATUS";
}

const char *muster_status_text(muster_status status) {
    switch (status) {
#define STATUS_TEXT(name, id, group, text)                                                                             \
    case MUSTER_##name: return text;
        MUSTER_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "not a status of this version";
}

muster_recovery muster_status_recovery(muster_status status) {
    switch (status) {
#define STATUS_GROUP(name, id, group, text)                                                                            \
    case MUSTER_##name: return MUSTER_RECOVERY_##group;
        MUSTER_STATUS_MAP(STATUS_GROUP)
#undef STATUS_GROUP
    }
    return MUSTER_RECOVERY_FATAL;
}

const char *muster_recovery_name(muster_recovery recovery) {
    switch (recovery) {
        case MUSTER_RECOVERY_NONE: return "none";
        case MUSTER_RECOVERY_FIX_CALL: return "fix your call";
        case MUSTER_RECOVERY_TRY_LATER: return "try later";
        case MUSTER_RECOVERY_JOB_FAILED: return "job failed";
        case MUSTER_RECOVERY_DEVICE_LOST: return "device lost";
        case MUSTER_RECOVERY_FATAL: return "fatal";
    }
    return "unknown";
}
