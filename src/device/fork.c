/* SPDX-License-Identifier: Apache-2.0 */
#include "device/fork.h"

#include "base/base.h"

#include <pthread.h>

atomic_uint ejki_forks;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool watching;

void ejki_fork_lock(void) {
    pthread_mutex_lock(&lock);
}

void ejki_fork_unlock(void) {
    pthread_mutex_unlock(&lock);
}

static void begin_child(void) {
    atomic_fetch_add_explicit(&ejki_forks, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

static void watch(void) {
    watching = pthread_atfork(ejki_fork_lock, ejki_fork_unlock, begin_child) == 0;
}

ejk_status ejki_forks_watch(void) {
    pthread_once(&once, watch);
    return watching ? EJK_OK
                    : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a handler of forks");
}
