/* SPDX-License-Identifier: Apache-2.0 */
#include "tune.h"

#include <stdlib.h>

/* All objects of all texts in one list; a new reference. */
static json_t *read_all(const texts *given) {
    json_t *all = json_array();
    for (int i = 0; i < given->count; i++) {
        json_error_t error;
        json_t *value = json_loads(given->items[i], 0, &error);
        if (json_is_array(value) && json_array_size(value) > 0) {
            json_array_extend(all, value);
            json_decref(value);
        } else if (json_is_object(value)) {
            json_array_append_new(all, value);
        } else {
            report_error(
                "--candidates is '%.60s', expected a configuration or a list of them as JSON%s%s",
                given->items[i], value ? "" : ": ", value ? "" : error.text);
            json_decref(value);
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static bool fill(const json_t *all, const ejk_kernel *kernel, char *configs) {
    for (size_t i = 0; i < json_array_size(all); i++) {
        char *text = json_dumps(json_array_get(all, i), JSON_ENCODE_ANY);
        ejk_status status =
            ejk_record_from_json(kernel->config, text, configs + i * kernel->config->size);
        free(text);
        if (status != EJK_OK)
            return report_error("--candidates, configuration %zu: %s", i + 1, ejk_last_error());
    }
    return true;
}

bool tune_candidates(const texts *given, const ejk_kernel *kernel, void **configs, int32_t *count) {
    if (given->count == 0 || !kernel->config) return true;
    json_t *all = read_all(given);
    if (!all) return false;
    size_t size = json_array_size(all);
    bool read = size < EJK_TUNE_MOST_CANDIDATES ||
                report_error("--candidates has %zu configurations, expected at most %d", size,
                             EJK_TUNE_MOST_CANDIDATES - 1);
    char *room = read ? calloc(size, kernel->config->size) : NULL;
    if (read && !room) report_error("no memory for %zu configurations", size);
    read = room && fill(all, kernel, room);
    json_decref(all);
    if (read) {
        *configs = room;
        *count = (int32_t)size;
    } else {
        free(room);
    }
    return read;
}
