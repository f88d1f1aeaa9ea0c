/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "ops/execution/json.h"

#include <ejkernel/tuning.h>
#include <stdio.h>
#include <stdlib.h>

const char *ejk_tune_verdict_name(ejk_tune_verdict verdict) {
    static const ejki_named verdicts[] = {EJK_TUNE_VERDICT_LIST(EJKI_NAMED)};
    return EJKI_NAMED_OF(verdicts, verdict, "unknown").text;
}

const char *ejk_tune_phase_name(ejk_tune_phase phase) {
    static const ejki_named phases[] = {EJK_TUNE_PHASE_LIST(EJKI_NAMED)};
    return EJKI_NAMED_OF(phases, phase, "unknown").text;
}

bool ejk_tune_report_is_settled(const ejk_tune_report *report) {
    if (!report) return false;
    if (report->backward && !ejk_tune_report_is_settled(report->backward)) return false;
    if (report->chosen != report->default_index || report->count == 1) return true;
    return report->rounds > 0 && !report->cancelled;
}

void ejk_tune_report_destroy(ejk_tune_report *report) {
    if (report == NULL) return;
    for (int32_t i = 0; report->candidates != NULL && i < report->count; i++) {
        free((char *)report->candidates[i].description);
        free((char *)report->candidates[i].sentence);
    }
    free(report->candidates);
    ejk_tune_report_destroy(report->backward);
    free(report);
}

static bool add_candidate(json_t *list, const ejk_tune_candidate *candidate) {
    json_t *o = json_object();
    bool whole =
        ejki_json_set(o, "verdict", json_string(ejk_tune_verdict_name(candidate->verdict)));
    whole &= ejki_json_set(o, "status", json_string(ejk_status_name(candidate->status)));
    whole &= ejki_json_set(o, "sentence", ejki_json_words(candidate->sentence));
    whole &= ejki_json_set(o, "description", ejki_json_words(candidate->description));
    whole &= ejki_json_set(o, "difference", ejki_json_number(candidate->difference));
    whole &= ejki_json_set(o, "first_s", ejki_json_number(candidate->first_s));
    whole &= ejki_json_set(o, "median_s", ejki_json_number(candidate->median_s));
    whole &= ejki_json_set(o, "spread_s", ejki_json_number(candidate->spread_s));
    whole &= ejki_json_set(o, "samples", json_integer(candidate->samples));
    return (json_array_append_new(list, o) == 0) & whole;
}

/* Writes into `o`; false if memory ran out. */
static bool write_report(json_t *o, const ejk_tune_report *report) {
    json_t *candidates = json_array();
    bool whole = true;
    for (int32_t i = 0; i < report->count; i++)
        whole &= add_candidate(candidates, &report->candidates[i]);
    whole &= ejki_json_set(o, "candidates", candidates);
    whole &= ejki_json_set(o, "default_index", json_integer(report->default_index));
    whole &= ejki_json_set(o, "chosen", json_integer(report->chosen));
    whole &= ejki_json_set(o, "ratio", ejki_json_number(report->ratio));
    whole &= ejki_json_set(o, "noise", ejki_json_number(report->noise));
    whole &= ejki_json_set(o, "pairs", json_integer(report->pairs));
    whole &= ejki_json_set(o, "rounds", json_integer(report->rounds));
    whole &= ejki_json_set(o, "elapsed_s", ejki_json_number(report->elapsed_s));
    whole &= ejki_json_set(o, "budget_s", ejki_json_number(report->budget_s));
    /* As text: not every reader of JSON keeps 64 bits. */
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)report->seed);
    whole &= ejki_json_set(o, "seed", json_string(seed));
    whole &= ejki_json_set(o, "cancelled", json_boolean(report->cancelled));
    whole &= ejki_json_set(o, "out_of_time", json_boolean(report->out_of_time));
    if (!report->backward) return whole;
    json_t *backward = json_object();
    whole &= write_report(backward, report->backward);
    return ejki_json_set(o, "backward", backward) & whole;
}

ejk_status ejk_tune_report_to_json(const ejk_tune_report *report, int flags, char **out) {
    if (report == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_tune_report_to_json: report or out is NULL");
    json_t *o = json_object();
    const bool whole = write_report(o, report);
    return ejki_json_print(o, whole, flags, out);
}
