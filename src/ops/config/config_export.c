/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries to JSON. The documented object holds one configuration under each "<device>|<op_id>|<call_key>";
 * an entry that is more than that is written once more under "$ejkernel", with all that it has.
 */
#include "ops/config/document.h"
#include "ops/config/persistent.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* jansson answers -1 and NULL for want of memory only, as every text here was checked. */
static ejk_status out_of_memory(void) {
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the JSON of a cache");
}

static bool set_text(json_t *object, const char *name, const char *text) {
    return !*text || json_object_set_new(object, name, json_string(text)) == 0;
}

static bool set_int(json_t *object, const char *name, int64_t number) {
    return number == 0 || json_object_set_new(object, name, json_integer(number)) == 0;
}

static bool set_seconds(json_t *object, const char *name, double seconds) {
    return seconds == 0 || json_object_set_new(object, name, json_real(seconds)) == 0;
}

static bool has_measurement(const ejk_config_measurement *m) {
    return m->median_s > 0 || m->spread_s > 0 || m->reference_s > 0 || m->unix_time > 0 ||
           m->repetitions > 0;
}

static json_t *measurement_json(const ejk_config_measurement *m) {
    json_t *object = json_object();
    if (set_seconds(object, "median_s", m->median_s) &&
        set_seconds(object, "spread_s", m->spread_s) &&
        set_seconds(object, "reference_s", m->reference_s) &&
        set_int(object, "unix_time", m->unix_time) &&
        set_int(object, "repetitions", m->repetitions))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *config_json(const struct ejki_kept_row *row) {
    return json_loads(row->entry.config, JSON_DECODE_ANY, NULL);
}

static json_t *entry_json(const struct ejki_kept_row *row) {
    const ejk_config_key *key = &row->key;
    const ejk_config_entry *entry = &row->entry;
    json_t *object = json_object();
    bool done = set_text(object, "device", key->device) && set_text(object, "op_id", key->op_id) &&
                set_text(object, "call_key", key->call_key) &&
                set_text(object, "layout", key->layout) &&
                set_int(object, "threads", key->threads) &&
                set_text(object, "direction", key->direction == EJK_BACKWARD ? "backward" : "") &&
                json_object_set_new(object, "config", config_json(row)) == 0 &&
                set_text(object, "implementation", entry->implementation) &&
                set_int(object, "implementation_version", entry->implementation_version) &&
                set_text(object, "library_version", entry->library_version);
    if (done && has_measurement(&entry->measurement))
        done =
            json_object_set_new(object, "measurement", measurement_json(&entry->measurement)) == 0;
    if (done) return object;
    json_decref(object);
    return NULL;
}

/* True if the documented form says all there is; its key has to lead back to the same triple. */
static bool is_plain(const struct ejki_kept_row *row, const char *text) {
    char parts[EJKI_DOCUMENT_KEY_SIZE];
    ejk_config_key again;
    const ejk_config_key *key = &row->key;
    return !*key->layout && key->threads == 0 && key->direction == EJK_FORWARD &&
           !*row->entry.implementation && row->entry.implementation_version == 0 &&
           !has_measurement(&row->entry.measurement) &&
           ejki_document_key_split(text, parts, &again) == EJK_OK &&
           ejki_config_key_equal(key, &again);
}

/* Every row under its text, the first one of a text counting, and how many there are of each. */
static bool add_documented(const ejki_rows *rows, json_t *document, json_t *counts) {
    char text[EJKI_DOCUMENT_KEY_SIZE];
    for (size_t i = 0; i < rows->count; i++) {
        ejki_document_key_join(&rows->rows[i].key, text);
        json_int_t count = json_integer_value(json_object_get(counts, text));
        if (json_object_set_new(counts, text, json_integer(count + 1)) != 0) return false;
        if (count == 0 && json_object_set_new(document, text, config_json(&rows->rows[i])) != 0)
            return false;
    }
    return true;
}

static bool add_extended(const ejki_rows *rows, const json_t *counts, json_t *entries) {
    char text[EJKI_DOCUMENT_KEY_SIZE];
    for (size_t i = 0; i < rows->count; i++) {
        ejki_document_key_join(&rows->rows[i].key, text);
        bool alone = json_integer_value(json_object_get(counts, text)) == 1;
        if (alone && is_plain(&rows->rows[i], text)) continue;
        if (json_array_append_new(entries, entry_json(&rows->rows[i])) != 0) return false;
    }
    return true;
}

static bool fill(const ejki_rows *rows, json_t *document) {
    json_t *counts = json_object(), *entries = json_array();
    bool done = counts && entries && add_documented(rows, document, counts) &&
                add_extended(rows, counts, entries);
    if (done && json_array_size(entries) > 0)
        done = json_object_set_new(document, EJKI_DOCUMENT_MORE,
                                   json_pack("{s:i, s:s, s:O}", "form", EJKI_DOCUMENT_FORM,
                                             "library", ejk_version(), "entries", entries)) == 0;
    json_decref(counts);
    json_decref(entries);
    return done;
}

/* Through a stream of our own: jansson's allocator may be the application's, ejk_free() is free(). */
static ejk_status print(const json_t *json, char **out) {
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (!stream) return out_of_memory();
    bool written = json_dumpf(json, stream, JSON_SORT_KEYS | JSON_ENSURE_ASCII) == 0;
    if (fclose(stream) != 0 || !written) {
        free(text);
        return out_of_memory();
    }
    *out = text;
    return EJK_OK;
}

ejk_status ejk_persistent_cache_export_json(ejk_persistent_cache *cache,
                                            const ejk_config_filter *filter, char **out) {
    if (!cache || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL; expected one",
                         cache ? "out" : "cache");
    ejki_rows rows;
    EJKI_TRY(ejki_persistent_collect(cache, filter, &rows));
    json_t *document = json_object();
    ejk_status status = document && fill(&rows, document) ? print(document, out) : out_of_memory();
    json_decref(document);
    ejki_rows_free(&rows);
    return status;
}
