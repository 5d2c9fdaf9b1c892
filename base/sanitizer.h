/* Telling the sanitizers what they cannot see. Each macro is nothing in an ordinary build. */
#ifndef MUSTER_BASE_SANITIZER_H
#define MUSTER_BASE_SANITIZER_H

#if defined(__SANITIZE_THREAD__)
#define MU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MU_TSAN 1
#endif
#endif
#ifndef MU_TSAN
#define MU_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define MU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MU_ASAN 1
#endif
#endif
#ifndef MU_ASAN
#define MU_ASAN 0
#endif

#if MU_TSAN
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_read_range(void *address, unsigned long bytes);
void __tsan_write_range(void *address, unsigned long bytes);
/* A happens-before edge from release(address) to a later acquire(address): ck's fences are inline assembly, which
 * ThreadSanitizer does not model, so our wrappers around ck publish and observe here. */
#define MU_TSAN_RELEASE(address) __tsan_release((void *)(address))
#define MU_TSAN_ACQUIRE(address) __tsan_acquire((void *)(address))
#else
#define MU_TSAN_RELEASE(address) ((void)(address))
#define MU_TSAN_ACQUIRE(address) ((void)(address))
#endif

#endif
