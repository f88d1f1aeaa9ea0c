/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1 /* nftw */
#include "support/cache_case.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

cache_events events = {.lock = PTHREAD_MUTEX_INITIALIZER};

void events_clear(void) {
    events.count = 0;
    events.text[0] = '\0';
}

void events_add(void *user, const char *event, const char *fields) {
    cache_events *list = user;
    pthread_mutex_lock(&list->lock);
    size_t used = strlen(list->text);
    snprintf(list->text + used, sizeof list->text - used, "%s %s\n", event, fields);
    list->count++;
    pthread_mutex_unlock(&list->lock);
}

/* The next line of an event, NULL if there is none; `name` is followed by a space. */
static const char *next_line(const char *text, const char *name) {
    size_t length = strlen(name);
    for (; text && *text; text = strchr(text, '\n'), text += text != NULL)
        if (strncmp(text, name, length) == 0 && text[length] == ' ') return text;
    return NULL;
}

int events_of(const char *name) {
    int count = 0;
    for (const char *line = events.text; (line = next_line(line, name)); line = strchr(line, '\n'))
        count++;
    return count;
}

const char *events_fields(const char *name) {
    static char fields[4096];
    const char *last = "";
    for (const char *line = events.text; (line = next_line(line, name)); line = strchr(line, '\n'))
        last = line + strlen(name) + 1;
    snprintf(fields, sizeof fields, "%.*s", (int)strcspn(last, "\n"), last);
    return fields;
}

static char folder[256];

const char *folder_make(void) {
    const char *where = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/ejkernel-XXXXXX", where && *where ? where : P_tmpdir);
    if (mkdtemp(folder)) return folder;
    perror(folder);
    exit(EXIT_FAILURE);
}

static int remove_one(const char *path, const struct stat *facts, int type, struct FTW *walk) {
    (void)facts;
    (void)walk;
    if (type == FTW_DNR) chmod(path, 0700);
    return remove(path);
}

void folder_remove(void) {
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *in_folder(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

ejk_persistent_cache *cache_open(const char *path) {
    ejk_persistent_cache *cache;
    const ejk_persistent_options options = {
        .path = path, .on_event = events_add, .on_event_user = &events};
    if (ejk_persistent_cache_open(&options, &cache) == EJK_OK) return cache;
    printf("no cache at %s: %s\n", path, ejk_last_error());
    exit(EXIT_FAILURE);
}

ejk_status cache_put(ejk_persistent_cache *cache, const char *name, int number) {
    char config[32];
    snprintf(config, sizeof config, "{\"n\":%d}", number);
    const ejk_config_key key = {.device = "d|v", .op_id = "k@v0", .call_key = name};
    return ejk_persistent_cache_put(cache, &key, &(ejk_config_entry){.config = config});
}

int cache_get(ejk_persistent_cache *cache, const char *name) {
    ejk_config_entry entry;
    bool found;
    int number = -2;
    const ejk_config_key key = {.device = "d|v", .op_id = "k@v0", .call_key = name};
    if (ejk_persistent_cache_get(cache, &key, &entry, &found) != EJK_OK) return -2;
    if (!found) return -1;
    if (sscanf(entry.config, "{\"n\":%d}", &number) != 1) number = -2;
    ejk_config_entry_release(&entry);
    return number;
}
