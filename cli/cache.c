/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk cache`: what is kept on disk, and what may be done with it. */
#include "file.h"
#include "options.h"
#include "cache_rows.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What is asked for, and the cache it is asked of. */
typedef struct cache_request {
    texts names; /* keys or files */
    const char *path, *op, *device;
    bool all, json, help;
    config_store store;
} cache_request;

/* ---- Tables ------------------------------------------------------------------------------------------ */

static double number_of(const json_t *row, const char *name) {
    return json_number_value(json_object_get(json_object_get(row, "measurement"), name));
}

/* "5 m", "3 h", "12 d" ago. */
static void add_age(text_table *table, const json_t *row) {
    static const struct {
        double seconds;
        const char *name;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "m"}, {1, "s"}};
    double then = number_of(row, "unix_time"), age = (double)time(NULL) - then;
    size_t i = 0;
    while (i < 3 && age < units[i].seconds) i++;
    if (then > 0 && age >= 0)
        table_add(table, "%.0f %s", age / units[i].seconds, units[i].name);
    else
        table_add(table, "-");
}

static void add_row(text_table *table, const json_t *row) {
    char config[512];
    const char *device = store_text(row, "device");
    bool backward = strcmp(store_text(row, "direction"), "backward") == 0;
    double ratio = number_of(row, "median_s") / number_of(row, "reference_s");
    table_add(table, "%s%s", store_text(row, "op_id"), backward ? " backward" : "");
    table_add(table, "%s", strcmp(device, ejk_device_fingerprint()) == 0 ? "here" : device);
    table_add(table, "%s", store_text(row, "call_key"));
    table_add(table, "%s",
              store_config_text(json_object_get(row, "config"), config, sizeof config));
    table_add_time(table, number_of(row, "median_s"));
    if (ratio > 0 && number_of(row, "reference_s") > 0)
        table_add(table, "%.2fx", ratio);
    else
        table_add(table, "-");
    add_age(table, row);
    table_add(table, "%s", store_text(row, "implementation"));
}

static bool print_rows(const json_t *rows) {
    static const char *const titles[] = {"op",   "device",    "call key", "configuration",
                                         "time", "reference", "age",      "implementation"};
    text_table table = {.align = "llllrrrl"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) table_add(&table, "%s", titles[i]);
    for (size_t i = 0; i < json_array_size(rows); i++) add_row(&table, json_array_get(rows, i));
    return table_print(&table, 0);
}

/* Everything about a row, a line for each member. */
static void add_members(text_table *table, const json_t *row, const char *prefix) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)row, name, value) {
        char *text =
            json_is_string(value)
                ? strdup(json_string_value(value))
                : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
        bool measured = strcmp(name, "measurement") == 0 && json_is_object(value);
        if (measured) {
            add_members(table, value, "measurement ");
        } else {
            table_add(table, "%s%s", prefix, name);
            table_add(table, "%s", text ? text : "");
        }
        free(text);
    }
}

/* ---- Rows by key ------------------------------------------------------------------------------------- */

static bool begins(const json_t *row, const char *key) {
    return strncmp(store_text(row, "call_key"), key, strlen(key)) == 0;
}

/* Adds the rows whose call key is, or begins with, `key`: those of one call key only. */
static bool pick(const cache_request *request, const json_t *rows, const char *key, json_t *out) {
    const json_t *first = NULL;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        if (!*key || !begins(row, key)) continue;
        if (first && strcmp(store_text(first, "call_key"), store_text(row, "call_key")) != 0)
            return report_error("'%s' begins the call keys %s and %s, expected one", key,
                                store_text(first, "call_key"), store_text(row, "call_key"));
        first = row;
        if (json_array_append(out, row) != 0)
            return report_error("no memory for the rows of a cache");
    }
    return first || report_error("no call key in %s begins with '%s'", request->store.path, key);
}

/* The rows that the keys mean; without keys all that --op and --device leave. A new reference. */
static json_t *chosen_rows(const cache_request *request) {
    json_t *rows = store_rows(&request->store, request->op, request->device);
    if (!rows || request->names.count == 0) return rows;
    json_t *picked = json_array();
    bool done = picked != NULL;
    for (int i = 0; done && i < request->names.count; i++)
        done = pick(request, rows, request->names.items[i], picked);
    json_decref(rows);
    if (done) return picked;
    json_decref(picked);
    return NULL;
}

/* ---- What can be done -------------------------------------------------------------------------------- */

static int list(cache_request *request) {
    json_t *rows = chosen_rows(request);
    if (!rows) return FAILED;
    bool done = true;
    if (request->json)
        done = print_json(json_pack("{s:s, s:O}", "path", request->store.path, "rows", rows));
    else if (json_array_size(rows) > 0)
        done = print_rows(rows);
    else
        printf("%s has no configurations%s.\n", request->store.path,
               request->op || request->device ? " of that kind" : "");
    json_decref(rows);
    return done ? DONE : FAILED;
}

static int show(cache_request *request) {
    if (request->names.count == 0) {
        report_error("show needs a call key, or what it begins with; `ejk cache ls` lists them");
        return FAILED;
    }
    json_t *rows = chosen_rows(request);
    if (!rows) return FAILED;
    bool done = true;
    if (request->json)
        done = print_json(json_pack("{s:s, s:O}", "path", request->store.path, "rows", rows));
    for (size_t i = 0; !request->json && i < json_array_size(rows); i++) {
        text_table table = {.align = "ll"};
        if (i > 0) putchar('\n');
        add_members(&table, json_array_get(rows, i), "");
        done &= table_print(&table, 0);
    }
    json_decref(rows);
    return done ? DONE : FAILED;
}

static bool remove_rows(cache_request *request, const json_t *rows, int64_t *count) {
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const ejk_config_key key = store_row_key(json_array_get(rows, i));
        bool found;
        if (!succeeded(ejk_persistent_cache_remove(request->store.cache, &key, &found)))
            return false;
        *count += found;
    }
    return true;
}

/* All rows, also those that make no sense. */
static bool remove_all(cache_request *request, int64_t *count) {
    return !request->store.cache ||
           (succeeded(ejk_persistent_cache_size(request->store.cache, count)) &&
            succeeded(ejk_persistent_cache_clear(request->store.cache)));
}

static bool remove_chosen(cache_request *request, int64_t *count) {
    json_t *rows = chosen_rows(request);
    bool done = rows && remove_rows(request, rows, count);
    json_decref(rows);
    return done;
}

static int rm(cache_request *request) {
    bool some = request->names.count > 0 || request->op || request->device;
    if (some == request->all) {
        report_error(some ? "rm is given --all and what to remove, expected one of them"
                          : "rm needs call keys, --op, --device or --all");
        return FAILED;
    }
    int64_t count = 0;
    if (!(request->all ? remove_all(request, &count) : remove_chosen(request, &count)))
        return FAILED;
    if (request->json)
        return print_json(json_pack("{s:s, s:I}", "path", request->store.path, "removed",
                                    (json_int_t)count))
                   ? DONE
                   : FAILED;
    printf("%lld removed from %s\n", (long long)count, request->store.path);
    return DONE;
}

static int export(cache_request *request) {
    const char *device = request->device;
    const ejk_config_filter filter = {
        .op_id = request->op,
        .device = device && strcmp(device, "here") == 0 ? ejk_device_fingerprint() : device};
    char *text = NULL;
    if (request->names.count > 1) {
        report_error("export takes one file, %d are given", request->names.count);
        return FAILED;
    }
    if (request->store.cache &&
        !succeeded(ejk_persistent_cache_export_json(request->store.cache, &filter, &text)))
        return FAILED;
    const char *file = request->names.count ? request->names.items[0] : "-";
    bool done = true;
    if (strcmp(file, "-") == 0)
        puts(text ? text : "{}");
    else
        done = file_write(file, text ? text : "{}");
    ejk_free(text);
    return done ? DONE : FAILED;
}

static bool import_file(cache_request *request, const char *path, ejk_config_import *sum) {
    char *text;
    size_t size;
    ejk_config_import counts;
    if (!file_read(path, &text, &size)) return false;
    bool done = strlen(text) == size;
    if (!done)
        report_error("%s has a zero byte, expected JSON", path);
    else if (ejk_persistent_cache_import_json(request->store.cache, text, &counts) != EJK_OK)
        done = report_error("%s: %s", path, ejk_last_error());
    free(text);
    if (!done) return false;
    sum->added += counts.added;
    sum->replaced += counts.replaced;
    sum->kept += counts.kept;
    sum->rejected += counts.rejected;
    return true;
}

static int import(cache_request *request) {
    ejk_config_import sum = {0};
    if (request->names.count == 0) {
        report_error("import needs a file as `ejk cache export` writes it, or -");
        return FAILED;
    }
    for (int i = 0; i < request->names.count; i++)
        if (!import_file(request, request->names.items[i], &sum)) return FAILED;
    if (ejk_persistent_cache_is_memory_only(request->store.cache)) {
        report_error("%s cannot be written", request->store.path);
        return FAILED;
    }
    if (request->json)
        return print_json(json_pack("{s:s, s:I, s:I, s:I, s:I}", "path", request->store.path,
                                    "added", (json_int_t)sum.added, "replaced",
                                    (json_int_t)sum.replaced, "kept", (json_int_t)sum.kept,
                                    "rejected", (json_int_t)sum.rejected))
                   ? DONE
                   : FAILED;
    printf("%lld added, %lld replaced, %lld kept as measured later, %lld rejected in %s\n",
           (long long)sum.added, (long long)sum.replaced, (long long)sum.kept,
           (long long)sum.rejected, request->store.path);
    return DONE;
}

static int verify(cache_request *request) {
    ejk_persistent_report report;
    bool exists;
    if (!store_verify(request->store.path, &exists, &report)) return FAILED;
    if (request->json) {
        if (!print_json(json_pack("{s:s, s:b, s:I, s:I, s:I, s:b}", "path", request->store.path,
                                  "exists", (int)exists, "rows", (json_int_t)report.rows,
                                  "rejected", (json_int_t)report.rejected, "stale",
                                  (json_int_t)report.stale, "sound", (int)report.sound)))
            return FAILED;
    } else if (!exists) {
        printf("%s does not exist\n", request->store.path);
    } else {
        printf("%s: %lld rows, %lld of them damaged, %lld stale: %s\n", request->store.path,
               (long long)report.rows, (long long)report.rejected, (long long)report.stale,
               report.sound ? "sound" : "damaged");
    }
    return report.sound ? DONE : DIFFERS;
}

static int path(cache_request *request) {
    if (request->json)
        return print_json(json_pack("{s:s}", "path", request->store.path)) ? DONE : FAILED;
    puts(request->store.path);
    return DONE;
}

/* ---- The command ------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *takes, *doc;
    int (*run)(cache_request *request);
    bool filters, names, creates, opens;
} actions[] = {
    {"ls", "", "what is kept", list, true, false, false, true},
    {"show", "KEY...", "all about the rows of call keys, which may be cut short", show, true, true,
     false, true},
    {"rm", "KEY... | --op | --device | --all", "remove rows", rm, true, true, false, true},
    {"export", "[FILE]", "write rows as JSON", export, true, true, false, true},
    {"import", "FILE...", "add the rows of such JSON; what was measured later stays", import, false,
     true, true, true},
    {"verify", "", "check the file and all of its rows; 1 if something is damaged", verify, false,
     false, false, false},
    {"path", "", "where the file lies", path, false, false, false, false},
};

enum { ACTIONS = sizeof actions / sizeof *actions };

static int print_help(const option *own) {
    text_table table = {.align = "lll"};
    puts("usage: ejk cache ACTION [--flag value]...\n\n"
         "Shows and changes the configurations kept on disk.\n");
    for (int i = 0; i < ACTIONS; i++) {
        table_add(&table, "%s", actions[i].name);
        table_add(&table, "%s", actions[i].takes);
        table_add(&table, "%s", actions[i].doc);
    }
    if (!table_print(&table, 2)) return FAILED;
    putchar('\n');
    if (!options_help(own)) return FAILED;
    puts("\nOnly import makes a file that is not there.");
    return DONE;
}

static bool check(const cache_request *request, int action) {
    const char *name = actions[action].name;
    if (!actions[action].names && request->names.count > 0)
        return report_error("%s takes no words, '%s' given", name, request->names.items[0]);
    if (!actions[action].filters && (request->op || request->device))
        return report_error("%s takes no --%s", name, request->op ? "op" : "device");
    return !request->all || strcmp(name, "rm") == 0 || report_error("%s takes no --all", name);
}

static int act(cache_request *request, int action) {
    if (!actions[action].opens) {
        request->store.path = store_path(request->path);
        if (!request->store.path) report_error("no memory for the path of a cache");
    } else if (!store_open(request->path, actions[action].creates, &request->store)) {
        return FAILED;
    }
    int status = request->store.path ? actions[action].run(request) : FAILED;
    store_close(&request->store);
    return status;
}

static int find_and_act(int count, char **words, const option *own, cache_request *request) {
    if (options_ask_help(count, words)) return print_help(own);
    int i = 0;
    while (count > 0 && i < ACTIONS && strcmp(actions[i].name, words[0]) != 0) i++;
    if (count == 0 || i == ACTIONS) {
        report_error("cache needs to be told what to do, expected ls, show, rm, export, import, "
                     "verify or path");
        return FAILED;
    }
    return options_parse(count - 1, words + 1, own, NULL) && check(request, i) ? act(request, i)
                                                                               : FAILED;
}

int cache_command(int count, char **words) {
    cache_request request = {.path = NULL};
    const option own[] = {
        {"", OPTION_TEXTS, &request.names, "", ""},
        {"cache", OPTION_TEXT, &request.path, "PATH",
         "a .db file, or the folder of one; default EJKERNEL_CACHE_DIR or ~/.cache/ejkernel"},
        {"op", OPTION_TEXT, &request.op, "NAME", "of one operation only, with or without version"},
        {"device", OPTION_TEXT, &request.device, "TEXT",
         "of one device only: its fingerprint, or here"},
        {"all", OPTION_ALONE, &request.all, "", "rm: everything"},
        {"json", OPTION_ALONE, &request.json, "", "the answer as JSON"},
        {"help", OPTION_ALONE, &request.help, "", "this text"},
        {.name = NULL}};
    if (!options_texts(count, &request.names)) return FAILED;
    int status = find_and_act(count, words, own, &request);
    free(request.names.items);
    return status;
}
