/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parallel loops over a pthreadpool that starts with the first loop that needs it, or over the caller's
 * own loop.
 *
 * A loop inside a task runs on the task's thread. pthreadpool holds a lock while a loop runs, so entering
 * the same pool again would wait for itself, and two pools entered in both orders would wait for each
 * other; a caller's loop may be built like that too.
 *
 * In the child of a fork the pool's threads do not exist. The first loop there starts a pool anew; the parent's
 * is left as it is, since destroying it would wait for its threads.
 */
#include "base/base.h"
#include "device/device.h"
#include "device/fork.h"
#include "device/threads.h"

#include <pthread.h>
#include <pthreadpool.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(THREAD_SANITIZER)
/* pthreadpool hands loops over with futexes: the sanitizer does not see them, as it is built without. */
#include <sanitizer/tsan_interface.h>
#define HAPPENS_BEFORE(address) __tsan_release(address)
#define HAPPENS_AFTER(address)  __tsan_acquire(address)
#else
#define HAPPENS_BEFORE(address) ((void)(address))
#define HAPPENS_AFTER(address)  ((void)(address))
#endif

enum { MOST_THREADS = 1024 };

struct ejk_threads {
    int32_t count;
    ejk_parallel_for_fn parallel_for; /* the caller's; NULL: our own pool */
    void *user;
    atomic_uint process; /* that `pool` belongs to, as this_process() names it; 0: none yet */
    pthreadpool_t pool;  /* NULL although it has a process: the threads cannot be had */
    uint32_t flags;      /* of its loops */
};

struct loop {
    ejk_task_fn task;
    void *argument;
};

static _Thread_local bool inside_task;

/* Runs this thread's loops in place of a pool. */
static _Thread_local struct {
    ejk_parallel_for_fn parallel_for;
    void *user;
} borrowed;

void ejki_threads_borrow(ejk_parallel_for_fn parallel_for, void *user) {
    borrowed.parallel_for = parallel_for;
    borrowed.user = user;
}

/* EJKERNEL_NUM_THREADS if it is digits only and at least 1, limited to MOST_THREADS; else 0. */
static int32_t environment_count(void) {
    const char *text = getenv("EJKERNEL_NUM_THREADS");
    if (!text) return 0;
    int32_t count = 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return 0;
        count = (int32_t)ejki_min(count * 10 + (*text - '0'), MOST_THREADS);
    }
    return count;
}

int32_t ejk_threads_default(void) {
    int32_t count = environment_count();
    return count ? count : (int32_t)ejki_min(ejki_allowed_cpus(), MOST_THREADS);
}

/* Never 0, and another number in each child. */
static unsigned this_process(void) {
    return 1 + atomic_load_explicit(&ejki_forks, memory_order_relaxed);
}

static ejk_status create(const ejk_threads *shape, ejk_threads **out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "out is NULL; expected where to put the threads");
    EJKI_TRY(ejki_forks_watch());
    ejk_threads *threads = malloc(sizeof *threads);
    if (!threads) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a set of threads");
    *threads = *shape;
    *out = threads;
    return EJK_OK;
}

ejk_status ejk_threads_create(int32_t count, ejk_threads **out) {
    if (count < 0 || count > MOST_THREADS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "count is %d; expected 0 (default) to %d",
                         count, MOST_THREADS);
    return create(&(ejk_threads){.count = count ? count : ejk_threads_default()}, out);
}

ejk_status ejk_threads_wrap(ejk_parallel_for_fn parallel_for, void *user, int32_t count,
                            ejk_threads **out) {
    if (!parallel_for)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "parallel_for is NULL; expected a function");
    if (count < 1 || count > MOST_THREADS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "count is %d; expected 1 to %d", count,
                         MOST_THREADS);
    return create(&(ejk_threads){.count = count, .parallel_for = parallel_for, .user = user}, out);
}

void ejk_threads_destroy(ejk_threads *threads) {
    if (!threads) return;
    if (threads->pool && atomic_load(&threads->process) == this_process())
        pthreadpool_destroy(threads->pool);
    free(threads);
}

int32_t ejk_threads_count(const ejk_threads *threads) {
    return threads ? threads->count : 1;
}

static void *pass_gate(void *gate) {
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/*
 * Whether `count` more threads can exist at once, found out by starting them. pthreadpool_create does
 * not look whether its threads came to be, and then waits for them for ever.
 */
static bool can_start(int32_t count) {
    pthread_t *trial = malloc((size_t)count * sizeof *trial);
    if (!trial) return false;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&gate);
    int32_t started = 0;
    while (started < count && pthread_create(&trial[started], NULL, pass_gate, &gate) == 0)
        started++;
    pthread_mutex_unlock(&gate);
    for (int32_t i = 0; i < started; i++) pthread_join(trial[i], NULL);
    pthread_mutex_destroy(&gate);
    free(trial);
    return started == count;
}

static pthreadpool_t start_pool(int32_t count) {
    if (!can_start(count - 1)) return NULL;
    pthreadpool_t pool = pthreadpool_create((size_t)count);
    if (pool && pthreadpool_get_threads_count(pool) < (size_t)count) {
        pthreadpool_destroy(pool);
        pool = NULL;
    }
    return pool;
}

static void start_own_pool(ejk_threads *threads) {
    ejki_fork_lock();
    if (atomic_load_explicit(&threads->process, memory_order_relaxed) != this_process()) {
        threads->pool = start_pool(threads->count);
        /* Threads that share a CPU must not spin where another has work: a loop took 10 ms. */
        threads->flags = threads->count > ejki_allowed_cpus() ? PTHREADPOOL_FLAG_YIELD_WORKERS : 0;
        atomic_store_explicit(&threads->process, this_process(), memory_order_release);
    }
    ejki_fork_unlock();
}

/* The pool, started if this process has none yet; NULL if its threads cannot be had. */
static pthreadpool_t own_pool(ejk_threads *threads) {
    if (atomic_load_explicit(&threads->process, memory_order_acquire) != this_process())
        start_own_pool(threads);
    return threads->pool;
}

static void run_task(void *loop_, int64_t index) {
    struct loop *loop = loop_;
    HAPPENS_AFTER(loop);
    bool outside = !inside_task;
    inside_task = true;
    loop->task(loop->argument, index);
    if (outside) inside_task = false;
    HAPPENS_BEFORE(loop);
}

static void run_pool_task(void *loop, size_t index) {
    run_task(loop, (int64_t)index);
}

static void run_here(int64_t count, ejk_task_fn task, void *argument) {
    for (int64_t i = 0; i < count; i++) task(argument, i);
}

void ejk_parallel_for(ejk_threads *threads, int64_t count, ejk_task_fn task, void *argument) {
    if (count <= 1 || inside_task || ejk_threads_count(threads) == 1) {
        run_here(count, task, argument);
        return;
    }
    struct loop loop = {task, argument};
    HAPPENS_BEFORE(&loop);
    pthreadpool_t pool;
    if (borrowed.parallel_for)
        borrowed.parallel_for(borrowed.user, run_task, &loop, count);
    else if (threads->parallel_for)
        threads->parallel_for(threads->user, run_task, &loop, count);
    else if ((pool = own_pool(threads)))
        pthreadpool_parallelize_1d(pool, run_pool_task, &loop, (size_t)count, threads->flags);
    else
        run_here(count, task, argument);
    HAPPENS_AFTER(&loop);
}
