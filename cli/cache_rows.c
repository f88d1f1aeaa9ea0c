/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rows.h"

#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *store_path(const char *wish) {
    char *path;
    return succeeded(ejk_persistent_cache_locate(wish, &path)) ? path : NULL;
}

/* ---- Opening ---------------------------------------------------------------------------------------- */

/* "ejk: cache row rejected: op_id OPERATION@v0, reason …" */
static void tell(void *user, const char *event, const char *fields) {
    (void)user;
    json_t *object = json_loads(fields, 0, NULL);
    const char *name, *mark = ": ";
    json_t *value;
    item_text line = {.text = NULL};
    item_text_add(&line, "%s", event);
    for (char *c = line.text; c && *c; c++)
        if (*c == '_') *c = ' ';
    json_object_foreach(object, name, value) {
        char *text = json_is_string(value) ? strdup(json_string_value(value))
                                           : json_dumps(value, JSON_ENCODE_ANY);
        item_text_add(&line, "%s%s %s", mark, name, text ? text : "");
        free(text);
        mark = ", ";
    }
    if (line.text) report_error("%s", line.text);
    free(line.text);
    json_decref(object);
}

bool store_open(const char *wish, bool create, config_store *out) {
    *out = (config_store){.path = store_path(wish)};
    if (!out->path) return false;
    if (!create && access(out->path, F_OK) != 0) return true;
    const ejk_persistent_options options = {.path = out->path, .on_event = tell};
    if (succeeded(ejk_persistent_cache_open(&options, &out->cache))) return true;
    store_close(out);
    return false;
}

bool store_verify(const char *path, bool *exists, ejk_persistent_report *report) {
    const ejk_persistent_options options = {.path = path, .on_event = tell};
    *report = (ejk_persistent_report){.sound = true};
    *exists = access(path, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR);
    return !*exists || succeeded(ejk_persistent_file_verify(&options, report));
}

void store_close(config_store *store) {
    ejk_persistent_cache_close(store->cache);
    ejk_free(store->path);
    store->cache = NULL;
    store->path = NULL;
}

/* ---- Rows ------------------------------------------------------------------------------------------- */

json_t *store_key_json(const ejk_config_key *key) {
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:s}", "device", key->device, "op_id", key->op_id,
                     "call_key", key->call_key, "layout", key->layout, "threads", (int)key->threads,
                     "direction", key->direction == EJK_BACKWARD ? "backward" : "forward");
}

static json_t *measurement_json(const ejk_config_measurement *m) {
    if (m->median_s <= 0 && m->unix_time == 0) return json_null();
    return json_pack("{s:f, s:f, s:f, s:I, s:i}", "median_s", m->median_s, "spread_s", m->spread_s,
                     "reference_s", m->reference_s, "unix_time", (json_int_t)m->unix_time,
                     "repetitions", (int)m->repetitions);
}

static bool add_row(void *user, const ejk_config_key *key, const ejk_config_entry *entry) {
    json_t *row = store_key_json(key);
    json_t *rest = json_pack(
        "{s:o, s:s, s:i, s:s, s:o}", "config", json_loads(entry->config, JSON_DECODE_ANY, NULL),
        "implementation", entry->implementation, "implementation_version",
        (int)entry->implementation_version, "library_version", entry->library_version,
        "measurement", measurement_json(&entry->measurement));
    bool whole = row && rest && json_object_update(row, rest) == 0;
    json_decref(rest);
    if (whole) return json_array_append_new(user, row) == 0;
    json_decref(row);
    return false;
}

json_t *store_rows(const config_store *store, const char *op_id, const char *device) {
    json_t *rows = json_array();
    const ejk_config_filter filter = {
        .op_id = op_id,
        .device = device && strcmp(device, "here") == 0 ? ejk_device_fingerprint() : device};
    if (!store->cache) return rows;
    if (succeeded(ejk_persistent_cache_each(store->cache, &filter, add_row, rows))) return rows;
    json_decref(rows);
    return NULL;
}

const char *store_text(const json_t *row, const char *name) {
    const char *text = json_string_value(json_object_get(row, name));
    return text ? text : "";
}

ejk_config_key store_row_key(const json_t *row) {
    return (ejk_config_key){.device = store_text(row, "device"),
                            .op_id = store_text(row, "op_id"),
                            .call_key = store_text(row, "call_key"),
                            .layout = store_text(row, "layout"),
                            .threads = (int32_t)json_integer_value(json_object_get(row, "threads")),
                            .direction = strcmp(store_text(row, "direction"), "backward") == 0
                                             ? EJK_BACKWARD
                                             : EJK_FORWARD};
}

/* ---- Configurations --------------------------------------------------------------------------------- */

typedef struct writer {
    char *out;
    size_t room, used;
} writer;

/* Names of nested records are left out where there is one of them. */
static void write_fields(writer *w, const json_t *object, const char *prefix) {
    const char *name;
    json_t *value;
    int nested = 0;
    json_object_foreach((json_t *)object, name, value) nested += json_is_object(value);
    json_object_foreach((json_t *)object, name, value) {
        char path[256];
        snprintf(path, sizeof path, "%s%s%s", prefix, name, json_is_object(value) ? "." : "");
        if (json_is_object(value)) {
            write_fields(w, value, nested > 1 || *prefix ? path : "");
            continue;
        }
        char *text = json_is_string(value) ? strdup(json_string_value(value))
                                           : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        if (w->used < w->room)
            w->used += (size_t)snprintf(w->out + w->used, w->room - w->used, "%s%s=%s",
                                        w->used ? " " : "", path, text ? text : "");
        free(text);
    }
}

const char *store_config_text(const json_t *config, char *out, size_t room) {
    writer w = {.out = out, .room = room};
    *out = '\0';
    write_fields(&w, config, "");
    return *out ? out : "-";
}
