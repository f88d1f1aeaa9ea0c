/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are wrong in one thing: they fail, and what they would have written is as it was. */
#include "conformance/suite.h"
#include "record/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum fault { TYPE, LENGTH, RANK, LAYOUT, ADDRESS, MISSING, FAULTS };
static const char *const fault_names[FAULTS] = {"type",   "length",  "rank",
                                                "layout", "address", "missing tensor"};

static bool same_text(const ejki_length *a, const ejki_length *b) {
    return a->size == b->size && memcmp(a->text, b->text, (size_t)a->size) == 0;
}

/* True if an axis' symbol is also one of another tensor that is present, so that its length has to agree. */
static bool is_shared(const ejk_record *record, const void *args, const ejk_field *field,
                      int32_t axis) {
    ejki_unit own, other;
    const ejk_tensor *t = field_tensor(field, args);
    if (ejki_unit_read(field, &own) != EJK_OK || own.shape[0].rank != t->rank) return false;
    const ejki_axis *mine = &own.shape[0].axis[axis];
    if (mine->count != 1 || !ejki_length_plain(&mine->length[0])) return false;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *f = &record->fields[i];
        if (f == field || f->kind != EJK_FIELD_TENSOR || f->role == EJK_OPTIONAL ||
            f->role == EJK_OUTPUT || ejki_unit_read(f, &other) != EJK_OK)
            continue;
        const ejki_shape *shape = &other.shape[0];
        if (field_tensor(f, args)->rank != shape->rank) continue;
        for (int32_t a = 0; a < shape->rank; a++)
            if (shape->axis[a].count == 1 && same_text(&shape->axis[a].length[0], &mine->length[0]))
                return true;
    }
    return false;
}

/* Makes a tensor wrong; false if this one cannot be wrong in this way. */
static bool spoil(const ejk_record *record, const void *args, const ejk_field *field, ejk_tensor *t,
                  enum fault fault, struct random *r) {
    const int32_t last = t->rank - 1;
    const int32_t axis = t->rank ? (int32_t)random_int(r, 0, last) : 0;
    switch (fault) {
    case TYPE:
        t->dtype = t->dtype == EJK_DTYPE_I16 ? EJK_DTYPE_F64 : EJK_DTYPE_I16;
        return strstr(field->unit, " index") == NULL;
    case LENGTH:
        if (t->rank == 0 || !is_shared(record, args, field, axis) || t->shape[axis] < 2)
            return false;
        t->shape[axis] -= 1;
        return true;
    case RANK:
        if (t->rank < 1 || t->rank > 6) return false;
        t->rank = 7;
        for (int32_t i = 0; i < 7; i++) t->shape[i] = 1;
        return true;
    case LAYOUT:
        if (t->rank == 0 || t->shape[last] < 2) return false;
        t->strides[last] = 2;
        return true;
    case ADDRESS:
        t->data = NULL;
        for (int32_t i = 0; i < t->rank; i++)
            if (t->shape[i] == 0) return false;
        return true;
    default:
        if (!ejk_field_is_required(field)) return false;
        *t = (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
        return true;
    }
}

static void try_fault(struct trial *t, void *args, const ejk_field *field, enum fault fault) {
    struct taken taken;
    char why[200], where[300];
    trial_begin(t, REFUSAL);
    if (!t->suite->context && ejk_context_create(NULL, &t->suite->context) != EJK_OK) abort();
    const ejk_status status = ejk_call(t->suite->context, t->line->kernel, args);
    snprintf(why, sizeof why, "%s of %s was wrong", fault_names[fault], field->name);
    if (status == EJK_OK) trial_fail(t, REFUSAL, why);
    if (!placement_take(t->placement, &taken, where, sizeof where)) trial_fail(t, REFUSAL, where);
    for (int32_t i = 0; i < MOST_FIELDS; i++) {
        if (!taken.bytes[i]) continue;
        const ejk_field *result = &t->line->kernel->args->fields[i];
        const ejk_tensor *out = field_tensor(result, t->call->args);
        const size_t size = ejk_dtype_size(out->dtype);
        bool untouched = true;
        for (int64_t n = 0; n < ejk_tensor_count(out); n++)
            untouched =
                untouched && is_untouched(result, out, n, taken.bytes[i] + (size_t)n * size);
        if (untouched) continue;
        snprintf(where, sizeof where, "%.180s, and a result was written", why);
        trial_fail(t, REFUSAL, where);
    }
    taken_close(&taken);
}

void check_refusal(struct trial *t, struct random *r) {
    const ejk_record *record = t->line->kernel->args;
    const struct placement *p = t->placement;
    void *args = malloc(record->size);
    if (!args) abort();
    for (int n = 0; n < 3; n++) {
        const ejk_field *field = p->place[random_int(r, 0, p->count - 1)].field;
        const enum fault fault = (enum fault)random_int(r, 0, FAULTS - 1);
        memcpy(args, p->args, record->size);
        if (spoil(record, p->args, field, field_tensor(field, args), fault, r))
            try_fault(t, args, field, fault);
    }
    free(args);
}
