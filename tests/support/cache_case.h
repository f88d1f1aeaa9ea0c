/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of caches on disk share: a folder of their own, recorded events, entries by number. */
#ifndef TESTS_CACHE_CASE_H
#define TESTS_CACHE_CASE_H

#include <ejkernel/config.h>
#include <pthread.h>

/* Events in the order they came, "name fields" a line. Any thread may add to it. */
typedef struct cache_events {
    pthread_mutex_t lock;
    char text[65536];
    int count;
} cache_events;

extern cache_events events;

void events_clear(void);
/* A hook for options.on_event. */
void events_add(void *user, const char *event, const char *fields);
/* How many events of a name came; the fields of the last of them, or "". */
int events_of(const char *name);
const char *events_fields(const char *name);

/* A new empty folder and its end, with all that is in it. Exits the process if it cannot be had. */
const char *folder_make(void);
void folder_remove(void);
/* The path of a file in it; valid until the eighth next call. */
const char *in_folder(const char *name);

/* Opens a cache whose events are recorded. Exits the process if even that is refused. */
ejk_persistent_cache *cache_open(const char *path);

/* Puts {"n":number} under {.device = "d|v", .op_id = "k@v0", .call_key = name}. */
ejk_status cache_put(ejk_persistent_cache *cache, const char *name, int number);
/* The number that is kept there; -1 if there is none, -2 if it is no such entry. */
int cache_get(ejk_persistent_cache *cache, const char *name);

#endif
