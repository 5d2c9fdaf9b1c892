/* The bursts of one device: which shapes there are, which of them serves a backlog best, and which of several equal ones holds most of
 * it already.
 *
 * Chains are for launches that depend on each other. Independent launches have bursts of their own. Where these can be in launch order
 * (mu_burst_overlaps), a few shapes serve all: the launches run side by side in any of them. Elsewhere only chains do: four or eight where
 * launching is all there is, more for kernels that take long and leave room for others (measured, see mu_burst_known). What nearly
 * every program needs is instantiated when the device starts; the rest, and more of what turned out to be scarce, when the device has
 * nothing to do, for instantiation waits for a busy device. By the actor's worker. */
#ifndef MUSTER_SCHEDULER_ACTOR_BURST_POOL_H
#define MUSTER_SCHEDULER_ACTOR_BURST_POOL_H

#include "device/burst.h"
#include "scheduler/graph/graph.h"

typedef struct mu_actor mu_actor;

enum {
    MU_BURST_LONGEST = 256,  /* launches of a burst */
    MU_BURST_KINDS = 28,     /* shapes */
    MU_BURST_COPIES = 16,    /* of one shape, at most */
    MU_BURST_KNOWN = 64,     /* launch shapes that are remembered */
    MU_BURST_SEEN = 256,     /* tags and contents of bursts that are remembered; a power of two */
    MU_BURST_LONG_NS = 3000, /* against what such a kernel takes, launching it is little */
    MU_BURST_SAMPLES = 2,    /* measurements in flight */
    MU_BURST_SAMPLED = 4     /* launches that are enough to measure; a few more are taken */
};

/* What a burst is recognised by, from its first launch. */
typedef struct mu_burst_sign {
    uint64_t tag; /* of graph and node: most often the same when a graph is submitted again. Not 0 */
    uint64_t
        content; /* of the buffers and values it is given: those of another graph are likely to be the same from there on too */
    uint32_t key; /* mu_launch_key */
} mu_burst_sign;

typedef struct mu_burst_kind {
    struct {
        mu_burst *burst;
        mu_burst_sign sign; /* of what it launched last; tag 0: nothing yet */
    } copies[MU_BURST_COPIES];
    uint32_t count;
    bool wanted; /* one more would have been of use */
} mu_burst_kind;

/* What is known of launches with one key (mu_launch_key). */
typedef struct mu_burst_known {
    uint32_t key;   /* 0: empty */
    uint32_t fit;   /* how many such launches fit the device together; 1 or more */
    uint32_t ns;    /* what one takes beyond being launched, measured now and then; 0: not known */
    uint32_t looks; /* until the next measurement */
} mu_burst_known;

typedef struct mu_burst_sample {
    mu_event begin, end;   /* NULL until first used */
    uint64_t epoch;        /* done when this one is; 0: not in flight */
    uint32_t keys[4];      /* of some of its launches, 0 behind the last */
    uint64_t launching_ns; /* what of the time is no kernel's */
    uint32_t rounds;       /* so many of its launches ran one after the other */
} mu_burst_sample;

typedef struct mu_burst_pool {
    mu_burst_kind kinds[MU_BURST_KINDS];
    mu_burst_known known[MU_BURST_KNOWN];
    mu_burst_sample samples[MU_BURST_SAMPLES];
    uint64_t seen[MU_BURST_SEEN]; /* tags and contents, by their low bits */
    uint64_t random;
    uint64_t grown_bytes; /* fixed memory of what was made beyond the start */
    bool refused;         /* the driver made none when asked last: it is not asked again */
    bool launch_order;    /* bursts of independent launches are in launch order */
} mu_burst_pool;

/* A driver that cannot make them is no failure: then there are none. OUT_OF_HOST_MEMORY, or the device's loss. */
muster_status mu_burst_pool_create(mu_actor *actor, muster_error *error);
void mu_burst_pool_destroy(mu_actor *actor);
/* The device has nothing to do: renews one burst (mu_burst_renew), or makes one that was wanted. Whether there was any. */
bool mu_burst_pool_grow(mu_actor *actor);
muster_status mu_burst_pool_forget(mu_actor *actor, mu_function function, muster_error *error);

uint32_t mu_burst_kind_capacity(const mu_burst_pool *pool, const mu_burst_kind *kind);
uint32_t mu_burst_kind_branches(const mu_burst_pool *pool, const mu_burst_kind *kind);

/* The longest chain of at most `limit` launches; NULL: there is none. */
mu_burst_kind *mu_burst_pool_chain(mu_burst_pool *pool, uint32_t limit);
/* The kind that serves `count` independent launches best, where each takes `ns` (0: not known, which says "next to nothing") and so many fit
 * the device together; `more`: others follow, so that a chain would be filled up. NULL: a chain does, or a launch by itself. In launch
 * order, a kind that serves best for 0 ns serves best whatever they take, but for a few microseconds where some fill the device. */
mu_burst_kind *mu_burst_pool_branches(mu_burst_pool *pool, uint32_t count, uint32_t ns, uint32_t fit, bool more);
/* In launch order: a kind of more than `count` launches, where running all of these together, and nothing on the other nodes, is quicker than
 * several bursts one after the other. NULL: there is none. */
mu_burst_kind *mu_burst_pool_rounded(mu_burst_pool *pool, uint32_t count, uint32_t ns, uint32_t fit);
/* Any kind of 2 to `limit` launches, chains or for independent ones. NULL: there is none. */
mu_burst_kind *mu_burst_pool_any(mu_burst_pool *pool, uint32_t limit, bool independent);

/* One of the kind: if possible one that launched that content, and for that graph, else one that launched for it, one that launched nothing
 * yet, or one that began with the key. When one more would have been of use, because tag or content has been seen before, that is noted. */
mu_burst *mu_burst_pool_take(mu_burst_pool *pool, mu_burst_kind *kind, const mu_burst_sign *sign);

/* What launches of the key are known to take; 0: that is not known. */
uint32_t mu_burst_pool_ns(const mu_burst_pool *pool, uint32_t key);
/* What is known of a dispatch's launches, begun when it is seen for the first time. Until the next call. */
mu_burst_known *mu_burst_pool_known(mu_actor *actor, const mu_node *node, uint32_t key);

/* Whether it is time to measure launches like these, and that is possible now: then some of them should go out as a chain, or in launch
 * order. */
bool mu_burst_pool_is_due(mu_burst_pool *pool, mu_burst_known *known);
/* Around the sending of a burst of `count` launches, a chain or in launch order: measures what they take, if it is time to for one of `keys`,
 * 0 at the end. */
mu_burst_sample *mu_burst_pool_sample(mu_actor *actor, const mu_burst_kind *kind, uint32_t count,
                                      const uint32_t keys[4]);
void mu_burst_pool_sampled(mu_actor *actor, mu_burst_sample *sample);
/* Takes in what has been measured. */
void mu_burst_pool_learn(mu_actor *actor);

#endif
