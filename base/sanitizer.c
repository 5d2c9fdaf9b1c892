/* What ThreadSanitizer is told about ck, in builds with it only. */
#include "base/sanitizer.h"

#if MU_TSAN
/* ck's atomics are inline assembly: the sanitizer sees its plain stores but not the compare-and-swap that publishes them.
 * Our wrappers annotate publication and observation (MU_TSAN_RELEASE, MU_TSAN_ACQUIRE); a store between the two, such as the
 * link that a push writes, can only be left out. Nothing but ck's own functions belongs here. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);

const char *__tsan_default_suppressions(void) { return "race:ck_stack_push_upmc\n"; }
#else
typedef int mu_sanitizer_unit_is_not_empty;
#endif
