/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/config/persistent.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Through a stream of our own: jansson's allocator may be the application's. */
static char *print(const json_t *json) {
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (!stream) return NULL;
    bool written = json_dumpf(json, stream, JSON_COMPACT | JSON_ENSURE_ASCII) == 0;
    if (fclose(stream) == 0 && written) return text;
    free(text);
    return NULL;
}

char *ejki_persistent_shown(const char *text) {
    char *copy = strdup(text);
    json_t *checked = json_string(text);
    for (char *c = copy; c && *c && !checked; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    json_decref(checked);
    return copy;
}

void ejki_persistent_note(ejk_persistent_cache *cache, const char *name, const char *format, ...) {
    if (!cache->on_event) return;
    va_list values;
    va_start(values, format);
    json_t *fields = json_vpack_ex(NULL, 0, format, values);
    va_end(values);
    ejki_event *event = malloc(sizeof *event);
    char *text = fields ? print(fields) : NULL;
    json_decref(fields);
    if (!event || !text) {
        free(event);
        free(text);
        return;
    }
    *event = (ejki_event){.name = name, .fields = text};
    *cache->events_end = event;
    cache->events_end = &event->next;
}

/* A damaged row's texts may be anything: what is not UTF-8 is left out. */
static json_t *text_of(const char *text) {
    json_t *json = json_string(text ? text : "");
    return json ? json : json_null();
}

void ejki_persistent_note_row(ejk_persistent_cache *cache, const ejki_row *row) {
    ejki_persistent_note(cache, "cache_row_rejected", "{s:o, s:o, s:o, s:o}", "device",
                         text_of(row->key.device), "op_id", text_of(row->key.op_id), "call_key",
                         text_of(row->key.call_key), "reason", text_of(row->fault));
}

bool ejki_persistent_accepts(ejk_persistent_cache *cache, const ejki_row *row) {
    if (row->fault) {
        ejki_persistent_note_row(cache, row);
        return false;
    }
    const char *library_version = row->entry.library_version;
    const ejki_fixed_since *rule = ejki_outdated(cache->fixed, row->key.op_id, library_version);
    if (!rule) return true;
    ejki_persistent_note(cache, "cache_row_stale", "{s:s, s:s, s:s, s:s, s:s}", "device",
                         row->key.device, "op_id", row->key.op_id, "call_key", row->key.call_key,
                         "library_version", library_version, "reason", rule->reason);
    return false;
}

void ejki_persistent_emit(const ejk_persistent_cache *cache, ejki_event *events) {
    while (events) {
        ejki_event *next = events->next;
        cache->on_event(cache->on_event_user, events->name, events->fields);
        free(events->fields);
        free(events);
        events = next;
    }
}
