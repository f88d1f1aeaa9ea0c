/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call's signature as masked blocks of bytes at plain offsets, so that comparing it is a short loop
 * without a look at the record. Padding and what is unset count for nothing but the mark that says so. It
 * is stricter than ejk_record_same_signature() (0.0 against -0.0), which therefore has the last word when it
 * finds a difference.
 */
#include "ops/core/core.h"
#include "record/kinds.h"

#include <stdlib.h>
#include <string.h>

/* Blocks come in steps, the last of which has some where nothing counts. */
enum { BLOCK = sizeof(((ejki_expected *)0)->value), STEP = 4 };

/* Marks the bytes that count, in a record as large as the arguments. */
typedef struct walk {
    const char *args;
    unsigned char *counts;
} walk;

static void count_record(const walk *w, const ejk_record *record, size_t base) {
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        const size_t offset = base + field->offset;
        if (field->kind == EJK_FIELD_RECORD)
            count_record(w, field->record, offset);
        else
            ejki_kind_of(field->kind)->counts(w->args + offset, w->counts + offset);
    }
}

#define INLINE static inline __attribute__((always_inline))

/* By address: vectors are not passed the same way everywhere. */
INLINE bool is_zero(const ejki_bytes *b) {
    return !((*b)[0] | (*b)[1] | (*b)[2] | (*b)[3]);
}

/* As few blocks as cover all that counts, those that must be `zero` or the others. The last one may have to begin
 * earlier, to end with the record. */
static void list_blocks(const walk *w, size_t size, bool zero, ejki_signature *out) {
    for (size_t at = 0; at < size; at++) {
        if (!w->counts[at]) continue;
        ejki_expected e = {.offset = at + BLOCK <= size ? at : size - BLOCK};
        memcpy(&e.counts, w->counts + e.offset, BLOCK);
        memcpy(&e.value, w->args + e.offset, BLOCK);
        e.value &= e.counts;
        if (is_zero(&e.value) == zero) out->blocks[out->count++] = e;
        at = e.offset + BLOCK - 1;
    }
    while (out->count % STEP != 0) out->blocks[out->count++] = (ejki_expected){.offset = 0};
}

/* Most of a call is left at its default, 0: for that, one operation less and nothing to compare with. */
INLINE void add_differences(const ejki_expected *e, const char *args, bool zero, ejki_bytes *sum) {
#pragma GCC unroll 4
    for (int i = 0; i < STEP; i++) {
        ejki_bytes given;
        memcpy(&given, args + e[i].offset, BLOCK);
        given &= e[i].counts;
        *sum |= zero ? given : given ^ e[i].value;
    }
}

INLINE bool fits(const ejki_signature *s, const char *args) {
    const ejki_expected *e = s->blocks, *zeros = e + s->values, *end = e + s->count;
    ejki_bytes sum = {0};
    for (; e < zeros; e += STEP) add_differences(e, args, false, &sum);
    for (; e < end; e += STEP) add_differences(e, args, true, &sum);
    return is_zero(&sum);
}

static bool fits_never(const ejki_signature *s, const void *args) {
    (void)s;
    (void)args;
    return false;
}
static bool fits_anywhere(const ejki_signature *s, const void *args) {
    return fits(s, args);
}
#ifdef __x86_64__
__attribute__((target("avx2"))) static bool fits_avx2(const ejki_signature *s, const void *args) {
    return fits(s, args);
}
__attribute__((target("avx2,avx512f,avx512vl"))) static bool fits_avx512(const ejki_signature *s,
                                                                         const void *args) {
    return fits(s, args);
}
static ejki_fits fits_of(ejk_isa isa) {
    const ejk_features features = ejk_isa_features(isa);
    return features & EJK_FEATURE_AVX512 ? fits_avx512
           : features & EJK_FEATURE_AVX2 ? fits_avx2
                                         : fits_anywhere;
}
#else
static ejki_fits fits_of(ejk_isa isa) {
    (void)isa;
    return fits_anywhere;
}
#endif

ejk_status ejki_signature_create(const ejk_record *record, const void *args, ejk_isa isa,
                                 ejki_signature *out) {
    *out = (ejki_signature){.fits = fits_never};
    if (record->size < BLOCK) return EJK_OK;
    unsigned char *counts = calloc(record->size, 1);
    const size_t most = record->size / BLOCK + 1 + 2 * STEP;
    ejki_expected *blocks = aligned_alloc(BLOCK, most * sizeof *blocks);
    if (!counts || !blocks) {
        free(counts);
        free(blocks);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a plan's signature");
    }
    walk w = {args, counts};
    *out = (ejki_signature){.blocks = blocks, .fits = fits_of(isa)};
    count_record(&w, record, 0);
    list_blocks(&w, record->size, false, out);
    out->values = out->count;
    list_blocks(&w, record->size, true, out);
    free(counts);
    return EJK_OK;
}

bool ejki_plan_fits(const ejk_plan *plan, const void *args) {
    return ejki_plan_fits_exactly(plan, args) ||
           ejk_record_same_signature(plan->kernel->args, plan->args, args);
}

ejk_status ejki_signature_explain(const ejk_record *record, const void *expected,
                                  const void *args) {
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        const ejk_record alone = {
            .name = record->name, .size = record->size, .fields = field, .count = 1};
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
