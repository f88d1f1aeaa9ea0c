/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call's signature as plain numbers at plain offsets, so that comparing it is a few short loops without
 * a look at the record. They read no padding, and nothing of what is unset but the mark that says so.
 * They are stricter than ejk_record_same_signature() (0.0 against -0.0, what lies behind a view's last
 * axis), which therefore has the last word when they find a difference.
 */
#include "ops/core/core.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(bool) == 1 && sizeof(ejk_dtype) == 4 && sizeof(ejk_opt_bool) == 4,
               "widths of the values compared");

/* A view without its data pointer: all that follows, in pairs of 64-bit words. */
enum {
    VIEW = offsetof(ejk_tensor, dtype),
    VIEW_PAIRS = (sizeof(ejk_tensor) - VIEW) / 16,
};
_Static_assert(sizeof(ejk_tensor) == 8 + 16 * (1 + EJK_MAX_RANK) && VIEW == 8,
               "views have no padding and consist of pairs");

/* Values of one call, counted while the lists are NULL, then written: the same walk does both. */
typedef struct walk {
    const char *args;
    ejki_signature *out;
} walk;

static void expect_words(const walk *w, size_t offset, size_t count) {
    for (; count > 0; count--, offset += 4) {
        ejki_expected *e = w->out->words ? &w->out->words[w->out->word_count] : NULL;
        w->out->word_count++;
        if (!e) continue;
        e->offset = (uint32_t)offset;
        memcpy(&e->value, w->args + offset, 4);
    }
}

static void expect_bytes(const walk *w, size_t offset, size_t count) {
    for (; count > 0; count--, offset++) {
        if (w->out->words)
            w->out->bytes[w->out->byte_count] =
                (ejki_expected){(uint32_t)offset, (unsigned char)w->args[offset]};
        w->out->byte_count++;
    }
}

static void expect_tensor(const walk *w, size_t offset) {
    if (((const ejk_tensor *)(const void *)(w->args + offset))->dtype == EJK_DTYPE_UNSET) {
        expect_words(w, offset + offsetof(ejk_tensor, dtype), 1);
        return;
    }
    if (w->out->words) w->out->tensors[w->out->tensor_count] = (uint32_t)offset;
    w->out->tensor_count++;
}

static void expect_optional(const walk *w, size_t offset) {
    size_t mark = offset + offsetof(ejk_opt_int, set);
    expect_bytes(w, mark, 1);
    if (w->args[mark]) expect_words(w, offset, 2);
}

static void expect_record(const walk *w, const ejk_record *record, size_t base) {
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        size_t offset = base + field->offset;
        switch (field->kind) {
        case EJK_FIELD_BOOL: expect_bytes(w, offset, 1); break;
        case EJK_FIELD_INT:
        case EJK_FIELD_FLOAT: expect_words(w, offset, 2); break;
        case EJK_FIELD_OPT_BOOL:
        case EJK_FIELD_DTYPE: expect_words(w, offset, 1); break;
        case EJK_FIELD_OPT_INT:
        case EJK_FIELD_OPT_FLOAT: expect_optional(w, offset); break;
        case EJK_FIELD_WINDOW:
            expect_optional(w, offset + offsetof(ejk_window, left));
            expect_optional(w, offset + offsetof(ejk_window, right));
            break;
        case EJK_FIELD_NAME: expect_bytes(w, offset, strlen(w->args + offset) + 1); break;
        case EJK_FIELD_TENSOR: expect_tensor(w, offset); break;
        case EJK_FIELD_RECORD: expect_record(w, field->record, offset); break;
        }
    }
}

ejk_status ejki_signature_create(const ejk_record *record, const void *args, ejki_signature *out) {
    ejki_signature made = {0};
    walk w = {args, &made};
    expect_record(&w, record, 0);
    size_t values = made.word_count + made.byte_count;
    ejki_expected *words = calloc(values + made.tensor_count + 1, sizeof *words);
    if (!words) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a plan's signature");
    made = (ejki_signature){
        .words = words, .bytes = words + made.word_count, .tensors = &words[values].offset};
    expect_record(&w, record, 0);
    *out = made;
    return EJK_OK;
}

/* In pairs, because compilers leave them alone otherwise; every processor here has such registers. */
typedef uint64_t pair __attribute__((vector_size(16)));

static inline pair view_difference(const char *a, const char *b) {
    pair difference = {0, 0}, x, y;
    for (int i = 0; i < VIEW_PAIRS; i++) {
        memcpy(&x, a + VIEW + i * (int)sizeof x, sizeof x);
        memcpy(&y, b + VIEW + i * (int)sizeof y, sizeof y);
        difference |= x ^ y;
    }
    return difference;
}

bool ejki_plan_fits_exactly(const ejk_plan *plan, const void *args) {
    const ejki_signature *s = &plan->signature;
    const char *given = args, *expected = plan->args;
    pair views = {0, 0};
    for (size_t i = 0; i < s->tensor_count; i++)
        views |= view_difference(given + s->tensors[i], expected + s->tensors[i]);
    uint64_t difference = views[0] | views[1];
#pragma GCC unroll 4
    for (size_t i = 0; i < s->word_count; i++) {
        uint32_t word;
        memcpy(&word, given + s->words[i].offset, sizeof word);
        difference |= word ^ s->words[i].value;
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < s->byte_count; i++)
        difference |= (unsigned char)given[s->bytes[i].offset] ^ s->bytes[i].value;
    return !difference;
}

bool ejki_plan_fits(const ejk_plan *plan, const void *args) {
    return ejki_plan_fits_exactly(plan, args) ||
           ejk_record_same_signature(plan->kernel->args, plan->args, args);
}

ejk_status ejki_signature_explain(const ejk_record *record, const void *expected,
                                  const void *args) {
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        ejk_record alone = {record->name, record->size, field, 1};
        if (ejk_record_same_signature(&alone, expected, args)) continue;
        char *was = NULL, *is = NULL;
        if (ejk_record_to_json(&alone, expected, 0, &was) != EJK_OK) was = NULL;
        if (ejk_record_to_json(&alone, args, 0, &is) != EJK_OK) is = NULL;
        ejk_status status =
            ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                      "%s is not what the plan was made for: given %s, expected %s", field->name,
                      is ? is : "another value", was ? was : "the plan's value");
        ejk_free(was);
        ejk_free(is);
        return status;
    }
    return ejki_fail(EJK_STATUS_INTERNAL, "a call differs from its plan in no field of %s",
                     record->name);
}
