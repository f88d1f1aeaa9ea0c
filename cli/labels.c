/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk labels`: which calls a lowered program has, and what is known for them. */
#include "file.h"
#include "options.h"
#include "cache_rows.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct labels_request {
    texts files;
    const char *cache;
    bool stamps, json, help;
} labels_request;

/* The rows of this device for a call, as one that runs here would look for them; a new reference. */
static json_t *known(const json_t *rows, const char *op_id, const char *key) {
    json_t *matches = json_array();
    for (size_t i = 0; *key && i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        if (strcmp(store_text(row, "op_id"), op_id) == 0 &&
            strcmp(store_text(row, "call_key"), key) == 0)
            json_array_append(matches, row);
    }
    return matches;
}

/* Operation with version, and key, as far as they can be told; each a copy. */
static void take_apart(const ejk_label_match *match, char op_id[256], char key[64]) {
    ejk_label_parts parts;
    *op_id = *key = '\0';
    if (match->json) {
        const char *brace = strchr(match->text, '{');
        json_t *stamp = brace ? json_loads(brace, 0, NULL) : NULL;
        snprintf(op_id, 256, "%s", store_text(stamp, "op_id"));
        json_decref(stamp);
    } else if (ejk_parse_label(match->text, NULL, &parts) == EJK_OK) {
        snprintf(op_id, 256, "%.*s", (int)parts.op_id_length, parts.op_id);
        snprintf(key, 64, "%s", parts.key);
    }
}

static json_t *label_json(const ejk_label_match *match, size_t line, const json_t *rows) {
    char op_id[256], key[64];
    take_apart(match, op_id, key);
    char *version = strstr(op_id, "@v");
    json_t *label = json_pack("{s:s%, s:s, s:I, s:I, s:I, s:s?, s:s?}", "op", op_id,
                              version ? (size_t)(version - op_id) : strlen(op_id), "text",
                              match->text, "line", (json_int_t)line, "offset",
                              (json_int_t)match->offset, "length", (json_int_t)match->length,
                              "version", version ? version + 2 : NULL, "key", *key ? key : NULL);
    if (label) json_object_set_new(label, "known", known(rows, op_id, key));
    return label;
}

static json_t *labels_json(const ejk_labels *labels, const char *text, const json_t *rows) {
    json_t *list = json_array();
    size_t line = 1, at = 0;
    for (int64_t i = 0; i < ejk_labels_count(labels); i++) {
        const ejk_label_match *match = ejk_labels_get(labels, i);
        for (; at < match->offset; at++) line += text[at] == '\n';
        json_array_append_new(list, label_json(match, line, rows));
    }
    return list;
}

/* ---- Printing ---------------------------------------------------------------------------------------- */

static void add_row(text_table *table, const json_t *label) {
    char config[512];
    const json_t *rows = json_object_get(label, "known");
    size_t count = json_array_size(rows);
    const json_t *first = json_object_get(json_array_get(rows, 0), "config");
    table_add(table, "%lld", (long long)json_integer_value(json_object_get(label, "line")));
    table_add(table, "%lld", (long long)json_integer_value(json_object_get(label, "offset")));
    table_add(table, "%s", store_text(label, *store_text(label, "op") ? "op" : "text"));
    table_add(table, "%s", *store_text(label, "version") ? store_text(label, "version") : "-");
    table_add(table, "%s", *store_text(label, "key") ? store_text(label, "key") : "-");
    if (count == 0)
        table_add(table, "none");
    else if (count == 1)
        table_add(table, "%s", store_config_text(first, config, sizeof config));
    else
        table_add(table, "%s, and %zu more", store_config_text(first, config, sizeof config),
                  count - 1);
}

static bool print_labels(const json_t *list) {
    static const char *const titles[] = {"line",    "offset",   "op",
                                         "version", "call key", "configuration"};
    text_table table = {.align = "rrllll"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) table_add(&table, "%s", titles[i]);
    for (size_t i = 0; i < json_array_size(list); i++) add_row(&table, json_array_get(list, i));
    return table_print(&table, 0);
}

static bool print_all(const labels_request *request, const json_t *list, int64_t cut) {
    const char *file = request->files.items[0];
    if (request->json)
        return print_json(
            json_pack("{s:s, s:O, s:I}", "file", file, "labels", list, "cut", (json_int_t)cut));
    bool done = true;
    if (json_array_size(list) > 0)
        done = print_labels(list);
    else
        printf("%s has no labels\n", file);
    if (cut > 0)
        printf("cut short by XLA: %lld; StableHLO with debug information has them whole\n",
               (long long)cut);
    return done;
}

/* ---- The command ------------------------------------------------------------------------------------- */

static bool find(const labels_request *request, const char *text, size_t size, const json_t *rows) {
    const char *prefix = ejk_label_prefix(NULL);
    const ejk_label_options options = {
        .prefixes = &prefix, .prefix_count = 1, .json_stamps = request->stamps};
    ejk_labels *labels;
    if (!succeeded(ejk_extract_labels_from_hlo_text_ex(text, size, &options, &labels)))
        return false;
    json_t *list = labels_json(labels, text, rows);
    bool done = list ? print_all(request, list, ejk_labels_cut(labels))
                     : report_error("no memory for the labels of a program");
    json_decref(list);
    ejk_labels_free(labels);
    return done;
}

static bool answer(const labels_request *request) {
    char *text;
    size_t size;
    config_store store;
    if (request->files.count != 1)
        return report_error("labels needs one file of HLO or StableHLO as text, %d are given",
                            request->files.count);
    if (!file_read(request->files.items[0], &text, &size)) return false;
    bool done = store_open(request->cache, false, &store);
    if (done) {
        json_t *rows = store_rows(&store, NULL, "here");
        done = rows && find(request, text, size, rows);
        json_decref(rows);
        store_close(&store);
    }
    free(text);
    return done;
}

static bool print_help(const option *own) {
    puts("usage: ejk labels FILE [--flag value]...\n\n"
         "Lists the labels in a program that was lowered to HLO or StableHLO text, and the\n"
         "configurations kept for these calls on this machine. EJKERNEL_OPS_PREFIX is what labels\n"
         "begin with, ejkernel_ops# unless it is set.\n");
    return options_help(own);
}

int labels_command(int count, char **words) {
    labels_request request = {.cache = NULL};
    const option own[] = {
        {"", OPTION_TEXTS, &request.files, "", ""},
        {"cache", OPTION_TEXT, &request.cache, "PATH", "where to look; see `ejk cache path`"},
        {"stamps", OPTION_ALONE, &request.stamps, "", "JSON stamps of calls, too"},
        {"json", OPTION_ALONE, &request.json, "", "the answer as JSON"},
        {"help", OPTION_ALONE, &request.help, "", "this text"},
        {.name = NULL}};
    if (!options_texts(count, &request.files)) return FAILED;
    bool done = options_ask_help(count, words)
                    ? print_help(own)
                    : options_parse(count, words, own, NULL) && answer(&request);
    free(request.files.items);
    return done ? DONE : FAILED;
}
