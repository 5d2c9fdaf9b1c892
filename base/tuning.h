/* Every limit and tuned constant, with what it was chosen from. Figures: NVIDIA H200, driver 580 (docs/performance.md). */
#ifndef MUSTER_BASE_TUNING_H
#define MUSTER_BASE_TUNING_H

enum {
    MU_MAX_DEVICES = 32, /* actors of one runtime; a location mask of 64 bits holds them, the host and room */
    MU_MAX_SHARES = 16,  /* actors of one device: each costs a context, some 500 MB on an H200 */
    MU_CACHE_LINE = 64,

    /* Jobs enqueued on the dispatch stream and not known complete. The driver blocks a caller at its 1,021st
     * outstanding call on a stream; half of it leaves room for copies and events. */
    MU_ENQUEUE_AHEAD_CALLS = 512,
    /* Jobs likewise: in bursts a call holds many, and some 2 ms of short kernels are enough to hide the worker's pauses. What
     * is not enqueued can still be placed elsewhere or cancelled. */
    MU_ENQUEUE_AHEAD_TASKS = 4096,

    /* However long they take, so many: the one that runs, and others that are on the stream while the worker looks away. */
    MU_ENQUEUE_AHEAD_LEAST = 4,

    /* Ready tasks that an actor looks at when another asks for work: 0.2 to 0.5 us each, with the locks of their buffers. */
    MU_STEAL_LOOKS = 256,

    /* So many tasks in a row that pass others of lower priority, which are ready too; then one of those goes first. What the others lose is
     * nothing beside it: a few milliseconds of short kernels for each. */
    MU_PRIORITY_PASSES_MAX = 4096,

    /* What an enqueue callback is taken to put on the stream, which nobody counts: a library call is some launches. */
    MU_CALLBACK_CALLS = 32,

    /* Epochs of one dispatch lane that can be open or in flight. Each holds at least one call, so enqueue-ahead ends
     * before the ring does. */
    MU_EPOCH_RING = 1024,

    /* The driver aligns allocations so; offsets in a buffer mean the same alignment in every device copy. A power of two. */
    MU_ALIGNMENT_BYTES = 256,

    /* A buffer up to this size, and to this part of the smallest device's budget, gets one device copy of the whole, so that accesses
     * to parts of it never move it. So a job with a few small buffers fits also where the budget is tiny. */
    MU_WHOLE_COPY_BYTES = 32 << 20,
    MU_WHOLE_COPY_PART = 16,

    /* Ranges of a buffer that lie in one array of its range table (scheduler/memory/ranges.h). To cut 100,000 out in any order costs 0.3 us each
     * with their jobs' dependencies, 0.7 us with a million; in one array it was 36 us. */
    MU_RANGES_CHUNK_ITEMS = 64,

    /* Content that moves within a device takes along what lies between two parts of it, up to this: 0.6 us at 3 TB/s, against 2 us of
     * another call. */
    MU_COPY_GAP_BYTES = 1 << 20,

    /* Parts of one dispatch, and how many of them should fit on a device at once when all of it does not: one that arrives, one that
     * runs, one that is written back, and room for the three to be of different lengths. */
    MU_MAX_SHARDS = 65536,
    MU_WAVE_DEPTH = 4,
    /* The part of what a device can give that a cut leaves for modules loaded after it, 1/64: 2 GB of an H200. */
    MU_CUT_RESERVE = 64,
    /* Launches of one job: its shards times its iterations. */
    MU_JOB_LAUNCHES_MAX = 1 << 20,

    /* Devices whose paces are further apart than this (1/1000 of the quicker) get shards in proportion to them. Repeated launches
     * on equal H200s differ by 2 to 5 %. */
    MU_UNLIKE_PERMILLE = 100,
    /* Shards of each device then, so that some can go elsewhere when a device is slower than was thought; fewer when they would
     * be shorter than this, for each costs a launch (3.6 us) and some a hop (6 us). */
    MU_SPREAD_SHARDS = 4,
    MU_SPREAD_LEAST_NS = 50000,
    /* What giving a device a part costs: its launch, and a hop for what follows elsewhere. A device that saves less gets none. */
    MU_PART_NS = 10000,
    /* A shard goes to another device only if it ends so much (1/8) earlier there. */
    MU_SPREAD_MARGIN = 8,
    /* Of so many chances to leave a device nothing, one is not taken, so that it is measured again. */
    MU_SPREAD_LOOKS = 8,
    /* A launch is compared with those on other devices if it took this many times what launching costs. */
    MU_WIDE_LAUNCHES = 4,

    /* Reservations that may pass a job which waits for memory before it gets the next one. */
    MU_OVERTAKES_MAX = 64,
    /* Jobs that need no memory may pass it more often: they cost it nothing unless they keep in use what it needs. About a
     * millisecond of short kernels for each swap of data. */
    MU_PASSES_MAX = 1024,

    /* What placement assumes before it knows better: a queued job is one launch, and data moves at pinned PCIe speed. */
    MU_QUEUED_JOB_NS = 3600,
    MU_TRANSFER_BYTES_PER_NS = 55,
    /* Following a job on another device: event, wait and the empty pipeline in between. */
    MU_HOP_NS = 6000,
    /* A job leaves the device that has most of its data only to end so much earlier, beyond what moving costs (scheduler/placement/
     * locality.c): some five launches, about what the estimate of a queue is worth. */
    MU_SPILL_NS = 20000,

    /* Budget of a device in 1/1000 of its memory (mechanisms: nine tenths). */
    MU_BUDGET_PERMILLE = 900,

    /* The driver's stream-ordered pool reserves in steps of 32 MiB. */
    MU_POOL_STEP_BYTES = 32 << 20,

    /* Pinned memory that the application has freed is kept up to so much, and given back beyond it at an idle moment: pinning costs
     * 0.5 s a GiB, and unpinning stalls a busy device. */
    MU_PINNED_KEEP_BYTES = 1 << 30,

    /* Copying pageable memory. A device takes 2 MiB in 38 us (55 GB/s), against which the 2 us of enqueueing a piece are little; while
     * some slots are on the lane others are filled, and a copy thread or the worker needs 30 us to wake. One thread copies 6 to 10
     * GB/s: eight upload 1 GiB at 48 GB/s, four at 31 (H200, 16 cores). Eight slots rather than four: copies of 1 MiB, which take a
     * slot each, at 27 GB/s rather than 16. */
    MU_STAGING_SLOTS = 8, /* of a device, for each direction */
    MU_STAGING_SLOT_BYTES = 2 << 20,
    MU_COPY_PART_BYTES = 512 << 10,
    MU_COPY_THREADS_MAX = 8,
    /* Up to this size the driver copies pageable memory into its command buffer and returns, and the worker moves a piece itself
     * (7 us) rather than wake a thread (30 us). */
    MU_STAGING_SMALL_BYTES = 64 << 10,
};

/* What ends within this time is waited for on the stream; for anything longer a job is held back, so that what is ready behind it
 * goes first. Holding costs a look at an event (1.5 us) and the launch after it, so a few hundred microseconds are noise. */
#define MU_SOON_NS 200000u
/* The same for an upload while other jobs are ready: what it would keep the device from doing. */
#define MU_JOIN_BUSY_NS 20000u
/* Where several devices share the work, what a device is handed ahead ends with a job that exceeds this, by what jobs are estimated to
 * take: what waits behind it can still be placed elsewhere, overtaken or cancelled. Some 25 looks at a device of a parked worker. */
#define MU_ENQUEUE_AHEAD_NS 2000000u
/* A job goes to another device when that saves more than this, about what waking the worker there takes. */
#define MU_STEAL_GAIN_NS 30000u
/* An actor with work that waits looks no more often than this whether others have registered for some: 256 looks at tasks are less than a
 * tenth of it. */
#define MU_STEAL_LOOK_NS 500000u
/* A futex wake costs the waker 2 us and the sleeper runs 27 us later: spinning for about one such wake pays. */
#define MU_SPIN_NS 30000u
/* So many times that while the device has work, for 64 kernels of 20 us that overlap are through after 80 us; and where a pause just before
 * was ended within that time: an application that sets the arguments of its next graph takes as long. */
#define MU_SPIN_LONGER 4u
/* A thread that waits for a run looks so many times as long as a worker does before it sleeps. */
#define MU_WAIT_SPINS 3u
/* A parked worker with work in flight looks at the device so often that it takes this part of a core in the long run, and after a rest up
 * to the second, until it has used up the credit: 9 ms (scheduler/actor/vigil.h). A timed wake and a look cost 4.5 to 7 us. */
#define MU_POLL_PERMILLE 45u
#define MU_POLL_PERMILLE_MAX 100u
#define MU_POLL_CREDIT_NS 500000u
#define MU_POLL_REST_NS 20000000u /* fills the credit */
#define MU_POLL_LOOK_NS 6000u     /* until it has been measured */
#define MU_POLL_INTERVAL_MIN_NS 40000u
#define MU_POLL_INTERVAL_MAX_NS 250000u
/* When the kernels in flight are expected to end, it has been awake for so long, and goes on looking so often for as long again. */
#define MU_VIGIL_NS 200000u
#define MU_VIGIL_INTERVAL_NS 15000u
/* Unpinning host memory stalls a busy device, so it waits this long for an idle moment. */
#define MU_UNPIN_WAIT_NS 1000000000u
/* A sample of live memory (6 us) serves this long before a job that finds no memory takes another. */
#define MU_MEMORY_SAMPLE_AGE_NS 10000000u
/* An enqueue callback only puts calls on a stream, 4 us each: after so long it waits for something, and its device with it. */
#define MU_ENQUEUE_LIMIT_NS 100000000u
/* A job waits at most this long for memory that nothing of ours can free. */
#define MU_ADMISSION_WAIT_NS 10000000000u

#endif
