/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a program and as JSON. Labels stand where they are said to stand, in order; those with a
 * version are taken apart; stable JSON is made of itself.
 */
#include <ejkernel/labels.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, ejk_last_error());
    abort();
}

static void check_match(const char *text, size_t size, const ejk_label_match *match) {
    require(match->offset <= size && match->length <= size - match->offset, "within the text");
    if (match->json) {
        require(strlen(match->text) <= match->length, "unescaped is not longer");
        return;
    }
    require(strlen(match->text) == match->length &&
                memcmp(match->text, text + match->offset, match->length) == 0,
            "the same text");
    ejk_label_parts parts;
    if (ejk_parse_label(match->text, EJK_LABEL_PREFIX, &parts) != EJK_OK) return;
    char op[512], *again = NULL;
    if (parts.op_id_length >= sizeof op) return;
    memcpy(op, parts.op_id, parts.op_id_length);
    op[parts.op_id_length] = '\0';
    require(ejk_label_ex(op, parts.key, EJK_LABEL_PREFIX, &again) == EJK_OK, "write again");
    require(strcmp(again, match->text) == 0, "the same label");
    ejk_free(again);
}

static void find(const char *text, size_t size) {
    const char *const prefixes[] = {EJK_LABEL_PREFIX, "e", "a#"};
    const ejk_label_options options = {
        .prefixes = prefixes, .prefix_count = 3, .json_stamps = true};
    ejk_labels *labels = NULL, *plain = NULL;
    require(ejk_extract_labels_from_hlo_text(text, size, &plain) == EJK_OK, "find");
    require(ejk_extract_labels_from_hlo_text_ex(text, size, &options, &labels) == EJK_OK, "find");
    size_t before = 0;
    for (int64_t i = 0; i < ejk_labels_count(labels); i++) {
        const ejk_label_match *match = ejk_labels_get(labels, i);
        require(match->offset >= before, "in order");
        before = match->offset;
        check_match(text, size, match);
    }
    for (int64_t i = 0; i < ejk_labels_count(plain); i++)
        check_match(text, size, ejk_labels_get(plain, i));
    ejk_labels_free(plain);
    ejk_labels_free(labels);
}

static void canonical(const char *text) {
    char *once = NULL, *twice = NULL;
    if (ejk_stable_json_text(text, &once) != EJK_OK) return;
    for (const char *c = once; *c != '\0'; c++) require(*c >= ' ' && *c <= '~', "printable ASCII");
    require(ejk_stable_json_text(once, &twice) == EJK_OK, "read again");
    require(strcmp(once, twice) == 0, "made of itself");
    ejk_free(once);
    ejk_free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (text == NULL) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    find(text, size);
    canonical(text);
    free(text);
    return 0;
}
