/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/states.h>

#include "base/base.h"
#include "ops/execution/operands.h"
#include "record/tensors.h"

#include <stdlib.h>

typedef struct state {
    ejk_tensor at; /* the call's own */
    ejk_owned_tensor kept;
} state;

struct ejk_states {
    state *list;
    int32_t count;
};

static bool is_state(const ejk_field *field, const ejk_tensor *tensor) {
    return ejk_field_is_input(field) && ejk_field_is_output(field) && ejk_tensor_present(tensor) &&
           ejk_tensor_count(tensor) != 0;
}

/* Counts while there is no list, then copies. */
static ejk_status visit(const ejk_record *record, const void *args, ejk_states *out) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, args);
        if (!is_state(w.field, tensor)) continue;
        if (out->list) {
            state *s = &out->list[out->count];
            s->at = *tensor;
            EJKI_TRY(ejk_tensor_check(&s->at, w.field->name));
            const ejki_device where = {s->at.device_type, s->at.device_index};
            EJKI_TRY(ejki_tensor_create_at(where, s->at.dtype, s->at.rank, s->at.shape, &s->kept));
        }
        out->count++; /* from here on it is closed with the others */
        if (out->list)
            EJKI_TRY(ejki_tensor_move(&out->list[out->count - 1].at,
                                      &out->list[out->count - 1].kept.tensor));
    }
    return EJK_OK;
}

ejk_status ejk_states_save(const ejk_record *record, const void *args, ejk_states **out) {
    if (!record || !args || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !record ? "record"
                         : !args ? "args"
                                 : "out");
    ejk_states *states = calloc(1, sizeof *states);
    if (!states) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for copies of states");
    ejk_status status = visit(record, args, states);
    states->list = calloc((size_t)states->count + 1, sizeof *states->list);
    states->count = 0;
    if (!states->list)
        status = ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for copies of states");
    if (status == EJK_OK) status = visit(record, args, states);
    if (status == EJK_OK)
        *out = states;
    else
        ejk_states_destroy(states);
    return status;
}

ejk_status ejk_states_restore(const ejk_states *states) {
    if (!states) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "states is NULL, expected one");
    for (int32_t i = 0; i < states->count; i++)
        EJKI_TRY(ejki_tensor_move(&states->list[i].kept.tensor, &states->list[i].at));
    return EJK_OK;
}

void ejk_states_destroy(ejk_states *states) {
    if (!states) return;
    for (int32_t i = 0; states->list && i < states->count; i++)
        ejk_owned_tensor_close(&states->list[i].kept);
    free(states->list);
    free(states);
}
