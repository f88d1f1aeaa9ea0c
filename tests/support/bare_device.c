/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels and their tests need of the device room, for builds without its libraries: the caller's
 * own loop as threads, and a processor with the tiers that every machine of its kind has.
 */
#include <ejkernel/device.h>
#include <stdlib.h>

struct ejk_threads {
    ejk_parallel_for_fn parallel_for;
    void *user;
    int32_t count;
};

ejk_status ejk_threads_wrap(ejk_parallel_for_fn parallel_for, void *user, int32_t count,
                            ejk_threads **out) {
    ejk_threads *threads = malloc(sizeof *threads);
    if (!threads) return EJK_STATUS_OUT_OF_MEMORY;
    *threads = (ejk_threads){.parallel_for = parallel_for, .user = user, .count = count};
    *out = threads;
    return EJK_OK;
}

void ejk_threads_destroy(ejk_threads *threads) {
    free(threads);
}

int32_t ejk_threads_count(const ejk_threads *threads) {
    return threads ? threads->count : 1;
}

void ejk_parallel_for(ejk_threads *threads, int64_t count, ejk_task_fn task, void *argument) {
    if (threads)
        threads->parallel_for(threads->user, task, argument, count);
    else
        for (int64_t index = 0; index < count; index++) task(argument, index);
}

const ejk_cpu_info *ejk_cpu(void) {
    static const ejk_cpu_info cpu = {
        .tiers =
            {
                [EJK_ISA_SCALAR] = true,
#if defined(__aarch64__)
                [EJK_ISA_NEON] = true,
#endif
            },
    };
    return &cpu;
}
