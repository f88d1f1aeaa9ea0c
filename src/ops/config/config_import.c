/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries from JSON. The text comes from anywhere: what is no document is refused as a whole, an entry that
 * makes no sense is left out and told. Where entries stand under "$ejkernel", the documented ones of the
 * same keys are only there for those who read no further.
 */
#include "ops/config/document.h"
#include "ops/config/persistent.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct import {
    json_t *document;
    ejk_config_import counts;
};

/* An entry on its way, with the texts it needs. The first fault stays. */
struct arrival {
    ejki_row row;
    char parts[EJKI_DOCUMENT_KEY_SIZE];
    char fault[256];
};

static void fault(struct arrival *arrival, const char *words, const char *name) {
    if (arrival->row.fault) return;
    snprintf(arrival->fault, sizeof arrival->fault, "%s%s", words, name);
    arrival->row.fault = arrival->fault;
}

/* ---- Members of an extended entry; what is missing is 0 or "" ---------------------------------------- */

static const char *text_of(struct arrival *arrival, const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    if (value && !json_is_string(value)) fault(arrival, "no text: ", name);
    return json_is_string(value) ? json_string_value(value) : "";
}

static void words_of(struct arrival *arrival, const json_t *object, const char *name, char *out,
                     size_t size) {
    const char *text = text_of(arrival, object, name);
    if (strlen(text) >= size) fault(arrival, "too long: ", name);
    snprintf(out, size, "%s", text);
}

static int64_t int_of(struct arrival *arrival, const json_t *object, const char *name,
                      int64_t most) {
    const json_t *value = json_object_get(object, name);
    json_int_t number = json_integer_value(value);
    if (!value) return 0;
    if (json_is_integer(value) && number >= 0 && number <= most) return number;
    fault(arrival, "no number of that range: ", name);
    return 0;
}

static double seconds_of(struct arrival *arrival, const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    if (value && !json_is_number(value)) fault(arrival, "no number: ", name);
    return json_number_value(value);
}

static void read_measurement(struct arrival *arrival, const json_t *object) {
    ejk_config_measurement *m = &arrival->row.entry.measurement;
    if (object && !json_is_object(object)) fault(arrival, "no object: ", "measurement");
    m->median_s = seconds_of(arrival, object, "median_s");
    m->spread_s = seconds_of(arrival, object, "spread_s");
    m->reference_s = seconds_of(arrival, object, "reference_s");
    m->unix_time = int_of(arrival, object, "unix_time", INT64_MAX);
    m->repetitions = (int32_t)int_of(arrival, object, "repetitions", INT32_MAX);
}

static void read_extended(struct arrival *arrival, const json_t *object) {
    ejk_config_key *key = &arrival->row.key;
    ejk_config_entry *entry = &arrival->row.entry;
    if (!json_is_object(object)) fault(arrival, "no object: ", "entry");
    key->device = text_of(arrival, object, "device");
    key->op_id = text_of(arrival, object, "op_id");
    key->call_key = text_of(arrival, object, "call_key");
    key->layout = text_of(arrival, object, "layout");
    key->threads = (int32_t)int_of(arrival, object, "threads", INT32_MAX);
    const char *direction = text_of(arrival, object, "direction");
    if (strcmp(direction, "backward") == 0)
        key->direction = EJK_BACKWARD;
    else if (*direction && strcmp(direction, "forward") != 0)
        fault(arrival, "neither forward nor backward: ", "direction");
    words_of(arrival, object, "implementation", entry->implementation,
             sizeof entry->implementation);
    entry->implementation_version =
        (int32_t)int_of(arrival, object, "implementation_version", INT32_MAX);
    words_of(arrival, object, "library_version", entry->library_version,
             sizeof entry->library_version);
    read_measurement(arrival, json_object_get(object, "measurement"));
}

/* ---- Storing ------------------------------------------------------------------------------------------ */

/* True if the row that is there was measured later than the one that comes. */
static bool is_later(const ejk_persistent_cache *cache, const ejki_row *there,
                     const ejki_row *coming) {
    return !there->fault &&
           !ejki_outdated(cache->fixed, there->key.op_id, there->entry.library_version) &&
           there->entry.measurement.unix_time > coming->entry.measurement.unix_time;
}

static int store(ejk_persistent_cache *cache, const ejki_row *row, ejk_config_import *counts) {
    ejki_row there;
    int rc = ejki_store_get(&cache->store, &row->key, &there);
    bool exists = rc == SQLITE_ROW;
    bool stays = exists && is_later(cache, &there, row);
    if (exists) ejki_store_reset(&cache->store);
    if (stays) {
        counts->kept++;
        return SQLITE_OK;
    }
    if (rc == SQLITE_ROW || rc == SQLITE_DONE)
        rc = ejki_store_put(&cache->store, &row->key, &row->entry);
    if (rc == SQLITE_OK) ++*(exists ? &counts->replaced : &counts->added);
    return rc;
}

/* An arrival whose key and numbers were read: its configuration is taken, and all of it checked. */
static int resolve(ejk_persistent_cache *cache, struct arrival *arrival, const json_t *config,
                   ejk_config_import *counts) {
    ejki_row *row = &arrival->row;
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (!stream) return SQLITE_NOMEM;
    bool written = !config || json_dumpf(config, stream,
                                         JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII |
                                             JSON_ENCODE_ANY) == 0;
    if (fclose(stream) != 0 || !written) {
        free(text);
        return SQLITE_NOMEM;
    }
    row->entry.config = text;
    ejki_stamp(&row->entry);
    if (!config) fault(arrival, "missing: ", "config");
    if (!row->fault && (ejki_config_key_check(&row->key, &row->key) != EJK_OK ||
                        ejki_config_entry_check(&row->entry) != EJK_OK))
        fault(arrival, "", ejk_last_error());
    int rc = SQLITE_OK;
    if (row->fault) {
        ejki_persistent_note_row(cache, row);
        counts->rejected++;
    } else {
        rc = store(cache, row, counts);
    }
    free(text);
    return rc;
}

static int import_extended(ejk_persistent_cache *cache, const json_t *entries, json_t *taken,
                           ejk_config_import *counts) {
    char text[EJKI_DOCUMENT_KEY_SIZE];
    int rc = SQLITE_OK;
    for (size_t i = 0; i < json_array_size(entries) && rc == SQLITE_OK; i++) {
        const json_t *object = json_array_get(entries, i);
        struct arrival arrival = {.fault = ""};
        read_extended(&arrival, object);
        ejki_document_key_join(&arrival.row.key, text);
        /* A text that was cut may end within a letter; then no documented key is the same. */
        if (json_object_set_new(taken, text, json_true()) != 0 && strlen(text) < sizeof text - 4)
            return SQLITE_NOMEM;
        rc = resolve(cache, &arrival, json_object_get(object, "config"), counts);
    }
    return rc;
}

static int import_documented(ejk_persistent_cache *cache, json_t *document, const json_t *taken,
                             ejk_config_import *counts) {
    const char *text;
    json_t *config;
    int rc = SQLITE_OK;
    json_object_foreach(document, text, config) {
        if (strcmp(text, EJKI_DOCUMENT_MORE) == 0 || json_object_get(taken, text)) continue;
        struct arrival arrival = {.fault = ""};
        ejki_row *row = &arrival.row;
        if (ejki_document_key_split(text, arrival.parts, &row->key) != EJK_OK) {
            fault(&arrival, "", ejk_last_error());
            row->key = (ejk_config_key){.call_key = text};
        }
        rc = resolve(cache, &arrival, config, counts);
        if (rc != SQLITE_OK) break;
    }
    return rc;
}

static int import(ejk_persistent_cache *cache, void *import_) {
    struct import *import = import_;
    const json_t *more = json_object_get(import->document, EJKI_DOCUMENT_MORE);
    json_t *taken = json_object();
    if (!taken) return SQLITE_NOMEM;
    import->counts = (ejk_config_import){0};
    int rc = import_extended(cache, json_object_get(more, "entries"), taken, &import->counts);
    if (rc == SQLITE_OK) rc = import_documented(cache, import->document, taken, &import->counts);
    json_decref(taken);
    return rc;
}

/* ---- The text ----------------------------------------------------------------------------------------- */

static ejk_status check_more(const json_t *more) {
    if (!more) return EJK_OK;
    json_int_t form = json_integer_value(json_object_get(more, "form"));
    if (form == EJKI_DOCUMENT_FORM && json_is_array(json_object_get(more, "entries")))
        return EJK_OK;
    return ejki_fail(EJK_STATUS_MALFORMED,
                     "text: \"" EJKI_DOCUMENT_MORE "\" has form %lld%s; expected form %d with a "
                     "list of entries",
                     (long long)form, form == EJKI_DOCUMENT_FORM ? " and no list" : "",
                     EJKI_DOCUMENT_FORM);
}

static ejk_status parse(const char *text, json_t **out) {
    json_error_t error;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    /* The parser has no words for want of memory. */
    if (!json && error.text[0] == '\0')
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the JSON of a cache");
    if (!json)
        return ejki_fail(EJK_STATUS_MALFORMED, "text: JSON line %d, column %d: %s", error.line,
                         error.column, error.text);
    ejk_status status =
        json_is_object(json)
            ? check_more(json_object_get(json, EJKI_DOCUMENT_MORE))
            : ejki_fail(EJK_STATUS_MALFORMED, "text is a JSON array; expected an object");
    if (status == EJK_OK)
        *out = json;
    else
        json_decref(json);
    return status;
}

ejk_status ejk_persistent_cache_import_json(ejk_persistent_cache *cache, const char *text,
                                            ejk_config_import *out) {
    if (!cache || !text)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL; expected one",
                         cache ? "text" : "cache");
    struct import job = {.document = NULL};
    EJKI_TRY(parse(text, &job.document));
    ejk_status status = ejki_persistent_do(cache, true, import, &job);
    json_decref(job.document);
    if (status == EJK_OK && out) *out = job.counts;
    return status;
}
