/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock between processes: flock() on "<database>-lock", which holds nothing and stays. The system lets go
 * of it when its holder dies. It is asked for again and again rather than waited for: a holder that was
 * stopped must not stop everybody else.
 */
#include "ops/config/persistent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { YIELDS = 8, SHORTEST_US = 100, LONGEST_US = 3000 };

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int wait_for(int file, int64_t end_us) {
    int64_t pause_us = 0;
    for (int tries = 0; flock(file, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR) return errno;
        if (now_us() >= end_us) return EBUSY;
        nanosleep(&(struct timespec){.tv_nsec = (long)pause_us * 1000}, NULL);
        if (tries >= YIELDS) pause_us = ejki_min(ejki_max(2 * pause_us, SHORTEST_US), LONGEST_US);
    }
    return 0;
}

/* True if the open file is the one that others find by the name. */
static bool is_current(int file, const char *name) {
    struct stat own, others;
    return fstat(file, &own) == 0 && stat(name, &others) == 0 && own.st_ino == others.st_ino &&
           own.st_dev == others.st_dev;
}

static int take(const char *name, int64_t end_us, int *file) {
    for (;;) {
        if (*file < 0) *file = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (*file < 0) return errno;
        int error = wait_for(*file, end_us);
        if (error != 0 || is_current(*file, name)) return error;
        close(*file);
        *file = -1;
    }
}

int ejki_lock_take(const char *path, int busy_ms, int *file) {
    char *name = ejki_compose("%s-lock", path);
    if (!name) return ENOMEM;
    int error = take(name, now_us() + (int64_t)busy_ms * 1000, file);
    free(name);
    return error;
}

void ejki_lock_give(int file) {
    flock(file, LOCK_UN);
}
