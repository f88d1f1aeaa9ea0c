/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/config/entry.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

static ejk_status out_of_memory(void) {
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a configuration");
}

/* That a text ends within `size` bytes and is UTF-8. */
static ejk_status check_text(const char *name, const char *text, size_t size) {
    size_t length = strnlen(text, size);
    if (length == size)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%s has no closing zero within %zu bytes; expected a shorter text", name,
                         size);
    json_t *checked = json_stringn(text, length);
    json_t *unchecked = checked ? NULL : json_stringn_nocheck(text, length);
    json_decref(checked);
    json_decref(unchecked);
    if (checked) return EJK_OK;
    if (!unchecked) return out_of_memory();
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s has %zu bytes that are not UTF-8", name,
                     length);
}

ejk_status ejki_config_key_check(const ejk_config_key *key, ejk_config_key *out) {
    if (!key) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "key is NULL; expected one");
    if (!key->call_key || !*key->call_key)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "key.call_key is %s; expected a text",
                         key->call_key ? "\"\"" : "NULL");
    ejk_config_key filled = *key;
    if (!filled.device) filled.device = "";
    if (!filled.op_id) filled.op_id = "";
    if (!filled.layout) filled.layout = "";
    EJKI_TRY(check_text("key.device", filled.device, EJK_CONFIG_KEY_SIZE));
    EJKI_TRY(check_text("key.op_id", filled.op_id, EJK_CONFIG_KEY_SIZE));
    EJKI_TRY(check_text("key.call_key", filled.call_key, EJK_CONFIG_KEY_SIZE));
    EJKI_TRY(check_text("key.layout", filled.layout, EJK_CONFIG_KEY_SIZE));
    if (key->threads < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "key.threads is %d; expected 0 (any) or more",
                         (int)key->threads);
    if (key->direction != EJK_FORWARD && key->direction != EJK_BACKWARD)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "key.direction is %d; expected EJK_FORWARD or EJK_BACKWARD",
                         (int)key->direction);
    *out = filled;
    return EJK_OK;
}

bool ejki_config_key_equal(const ejk_config_key *a, const ejk_config_key *b) {
    return a->threads == b->threads && a->direction == b->direction &&
           strcmp(a->call_key, b->call_key) == 0 && strcmp(a->op_id, b->op_id) == 0 &&
           strcmp(a->device, b->device) == 0 && strcmp(a->layout, b->layout) == 0;
}

uint64_t ejki_config_key_hash(const ejk_config_key *key) {
    uint64_t hash = ejki_hash_text(EJKI_HASH_START, key->device);
    hash = ejki_hash_text(hash, key->op_id);
    hash = ejki_hash_text(hash, key->call_key);
    hash = ejki_hash_text(hash, key->layout);
    hash = ejki_hash_number(hash, (uint64_t)key->threads);
    return ejki_hash_number(hash, (uint64_t)key->direction);
}

static ejk_status check_config(const char *config) {
    if (!config) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "entry.config is NULL");
    if (strnlen(config, EJK_CONFIG_SIZE) == EJK_CONFIG_SIZE)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "entry.config has no closing zero within %d bytes", EJK_CONFIG_SIZE);
    json_error_t error;
    json_t *json = json_loads(config, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    json_decref(json);
    if (json) return EJK_OK;
    /* The parser has no words for want of memory. */
    if (error.text[0] == '\0') return out_of_memory();
    return ejki_fail(EJK_STATUS_MALFORMED, "entry.config: JSON line %d, column %d: %s", error.line,
                     error.column, error.text);
}

static ejk_status check_seconds(const char *name, double seconds) {
    if (isfinite(seconds) && seconds >= 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "entry.measurement.%s is %g; expected a finite number of at least 0", name,
                     seconds);
}

static ejk_status check_count(const char *name, int64_t count) {
    if (count >= 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "entry.%s is %lld; expected 0 or more", name,
                     (long long)count);
}

ejk_status ejki_config_entry_check(const ejk_config_entry *entry) {
    if (!entry) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "entry is NULL; expected one");
    EJKI_TRY(check_config(entry->config));
    EJKI_TRY(
        check_text("entry.implementation", entry->implementation, sizeof entry->implementation));
    EJKI_TRY(
        check_text("entry.library_version", entry->library_version, sizeof entry->library_version));
    EJKI_TRY(check_count("implementation_version", entry->implementation_version));
    const ejk_config_measurement *m = &entry->measurement;
    EJKI_TRY(check_seconds("median_s", m->median_s));
    EJKI_TRY(check_seconds("spread_s", m->spread_s));
    EJKI_TRY(check_seconds("reference_s", m->reference_s));
    EJKI_TRY(check_count("measurement.unix_time", m->unix_time));
    return check_count("measurement.repetitions", m->repetitions);
}

ejk_status ejki_config_entry_copy(const ejk_config_entry *entry, ejk_config_entry *out) {
    char *config = strdup(entry->config);
    if (!config) return out_of_memory();
    *out = *entry;
    out->config = config;
    return EJK_OK;
}

void ejk_config_entry_release(ejk_config_entry *entry) {
    if (!entry) return;
    free(entry->config);
    *entry = (ejk_config_entry){0};
}
