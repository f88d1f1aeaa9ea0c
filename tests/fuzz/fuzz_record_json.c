/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a record's JSON. What is read must come out as a text that reads back as an equal record,
 * with an equal hash, and is written as the same text again.
 */
#include "../support/sample_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, ejk_last_error());
    abort();
}

static void round_trip(const sample *object, int flags) {
    char *first = NULL, *second = NULL;
    sample again;
    require(ejk_record_to_json(&sample_record, object, flags, &first) == EJK_OK, "write");
    require(ejk_record_from_json(&sample_record, first, &again) == EJK_OK, "read back");
    require(ejk_record_equal(&sample_record, object, &again), "equal");
    require(ejk_record_hash(&sample_record, object) == ejk_record_hash(&sample_record, &again),
            "equal hash");
    require(ejk_record_to_json(&sample_record, &again, flags, &second) == EJK_OK, "write again");
    require(strcmp(first, second) == 0, "same text");
    ejk_free(first);
    ejk_free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *json = malloc(size + 1);
    if (json == NULL) return 0;
    memcpy(json, data, size);
    json[size] = '\0';
    sample object, untouched;
    memset(&object, 0xa5, sizeof object);
    untouched = object;
    if (ejk_record_from_json(&sample_record, json, &object) == EJK_OK) {
        round_trip(&object, 0);
        round_trip(&object, EJK_JSON_SET_ONLY | EJK_JSON_INDENT);
    } else {
        require(memcmp(&object, &untouched, sizeof object) == 0, "untouched on failure");
    }
    free(json);
    return 0;
}
