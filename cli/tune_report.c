/* SPDX-License-Identifier: Apache-2.0 */
/* The closing table of `ejk tune`. */
#include "tune.h"

#include "table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CONFIG_ROOM = 512 };

static const char *config_of(const ejk_tune_candidate *candidate, char room[CONFIG_ROOM]) {
    json_t *config = json_loads(candidate->description, 0, NULL);
    const char *text = store_config_text(config, room, CONFIG_ROOM);
    json_decref(config);
    return text;
}

/* Fastest first, those without a time last, otherwise in the order of the candidates. */
static int by_time(const void *left, const void *right) {
    const ejk_tune_candidate *a = *(const ejk_tune_candidate *const *)left;
    const ejk_tune_candidate *b = *(const ejk_tune_candidate *const *)right;
    bool none_a = isnan(a->median_s), none_b = isnan(b->median_s);
    if (none_a != none_b) return none_a ? 1 : -1;
    if (!none_a && a->median_s < b->median_s) return -1;
    if (!none_a && a->median_s > b->median_s) return 1;
    return a < b ? -1 : a > b;
}

static void add_row(text_table *table, const ejk_tune_report *report,
                    const ejk_tune_candidate *candidate) {
    const ejk_tune_candidate *reference = &report->candidates[report->default_index];
    char config[CONFIG_ROOM];
    table_add(table, "%s", candidate == &report->candidates[report->chosen] ? "*" : "");
    table_add(table, "%d", (int)(candidate - report->candidates));
    table_add(table, "%s", config_of(candidate, config));
    table_add_time(table, candidate->median_s);
    double ratio = candidate->median_s / reference->median_s;
    if (candidate == reference)
        table_add(table, "default");
    else if (isfinite(ratio))
        table_add(table, "%.2fx", ratio);
    else
        table_add(table, "-");
    table_add(table, "%s", ejk_tune_verdict_name(candidate->verdict));
    table_add(table, "%s", candidate->sentence);
}

static bool print_candidates(const ejk_tune_report *report) {
    static const char *const titles[] = {"",        "", "configuration", "time", "against default",
                                         "verdict", ""};
    const ejk_tune_candidate **order = calloc((size_t)report->count, sizeof *order);
    if (!order) return report_error("no memory for a table");
    text_table table = {.align = "lrlrrll"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) table_add(&table, "%s", titles[i]);
    for (int32_t i = 0; i < report->count; i++) order[i] = &report->candidates[i];
    qsort(order, (size_t)report->count, sizeof *order, by_time);
    for (int32_t i = 0; i < report->count; i++) add_row(&table, report, order[i]);
    free(order);
    return table_print(&table, 0);
}

static void print_choice(const ejk_tune_report *report) {
    char room[CONFIG_ROOM];
    const char *config = config_of(&report->candidates[report->chosen], room);
    if (report->chosen == report->default_index)
        printf("The default stays: %s", config);
    else
        printf("Chosen: %s, %.2fx of the default's time (noise %.1f %%, %d pairs)", config,
               report->ratio, 100 * report->noise, (int)report->pairs);
    printf("; %d rounds in %.1f s%s.\n", (int)report->rounds, report->elapsed_s,
           report->cancelled     ? ", interrupted"
           : report->out_of_time ? ", out of time"
                                 : "");
}

bool tune_report_print(const tune_outcome *outcome) {
    const ejk_tuned_call *call = outcome->call;
    printf("%s\n\n", call->problem ? call->problem : call->key->op_id);
    if (!print_candidates(call->report)) return false;
    putchar('\n');
    print_choice(call->report);
    if (outcome->path)
        printf("Stored under %s in %s.\n", call->key->call_key, outcome->path);
    else
        printf("Not stored: %s.\n", outcome->unstored);
    return true;
}

json_t *tune_report_json(const tune_outcome *outcome) {
    const ejk_tuned_call *call = outcome->call;
    const ejk_tune_report *report = call->report;
    char *text;
    if (!succeeded(ejk_tune_report_to_json(report, 0, &text))) return NULL;
    json_t *object = json_pack("{s:s?, s:o, s:o, s:o, s:b, s:s?, s:s?}", "problem", call->problem,
                               "key", store_key_json(call->key), "config",
                               json_loads(report->candidates[report->chosen].description, 0, NULL),
                               "report", json_loads(text, 0, NULL), "stored", outcome->path != NULL,
                               "cache", outcome->path, "not_stored", outcome->unstored);
    ejk_free(text);
    if (!object) report_error("no memory for the report");
    return object;
}
