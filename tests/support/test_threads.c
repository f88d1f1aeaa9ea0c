/* SPDX-License-Identifier: Apache-2.0 */
#include "support/test_threads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 8 };

/* What one thread does of a loop: the indices that leave its own as remainder. */
struct share {
    ejk_task_fn task;
    void *argument;
    int64_t own, threads, count;
};

static void *work(void *argument) {
    const struct share *s = argument;
    const int64_t last = s->count - 1 - (s->count - 1 - s->own) % s->threads;
    for (int64_t index = last; index >= 0; index -= s->threads) s->task(s->argument, index);
    return NULL;
}

static void loop(void *user, ejk_task_fn task, void *argument, int64_t count) {
    pthread_t threads[MOST];
    struct share shares[MOST];
    (void)user;
    const int64_t used = count < MOST ? count : MOST;
    for (int64_t i = used - 1; i >= 0; i--) {
        shares[i] = (struct share){task, argument, i, used, count};
        if (pthread_create(&threads[i], NULL, work, &shares[i]) == 0) continue;
        perror("pthread_create");
        exit(EXIT_FAILURE);
    }
    for (int64_t i = 0; i < used; i++) pthread_join(threads[i], NULL);
}

ejk_threads *test_threads_create(int32_t count) {
    ejk_threads *threads;
    if (ejk_threads_wrap(loop, NULL, count, &threads) == EJK_OK) return threads;
    printf("no threads: %s\n", ejk_last_error());
    exit(EXIT_FAILURE);
}
