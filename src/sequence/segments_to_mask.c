/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From segment ids to a mask. A task writes some rows; a row is computed only when its id differs from that of the
 * row before, so packed sequences cost little more than writing.
 */
#include "sequence/sequence.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Padding on either side: equal to nothing. */
enum { Q_PADDING = -1, KV_PADDING = -2 };

typedef struct expansion {
    int64_t *q_ids, *kv_ids; /* [B,Q], [B,K] */
    ejk_tensor mask;         /* [B,Q,K] */
    int64_t rows_a_task, tasks;
    unsigned char *truth; /* a row of bool for each task */
    unsigned char *rows;  /* the same in the type of the mask */
} expansion;

static void compute_row(const expansion *e, int64_t b, int64_t id, unsigned char *truth,
                        const ejk_tensor *row) {
    int64_t keys = e->mask.shape[2];
    const int64_t *kv_ids = e->kv_ids + b * keys;
    for (int64_t j = 0; j < keys; j++) truth[j] = kv_ids[j] == id;
    ejk_tensor bools = ejk_tensor_1d(truth, EJK_DTYPE_BOOL, keys);
    if (ejk_tensor_copy(&bools, row) != EJK_OK) memset(truth, 0, (size_t)keys); /* never */
}

static void expand_rows(void *argument, int64_t index) {
    const expansion *e = argument;
    int64_t queries = e->mask.shape[1], keys = e->mask.shape[2];
    int64_t start = index * e->rows_a_task;
    int64_t end = ejki_min(start + e->rows_a_task, e->mask.shape[0] * queries);
    unsigned char *truth = e->truth + index * keys;
    ejk_tensor row = ejk_tensor_1d(e->rows + index * keys * (int64_t)ejk_dtype_size(e->mask.dtype),
                                   e->mask.dtype, keys);
    for (int64_t r = start; r < end; r++) {
        int64_t b = r / queries;
        if (r == start || r % queries == 0 || e->q_ids[r] != e->q_ids[r - 1]) {
            compute_row(e, b, e->q_ids[r], truth, &row);
        }
        ejk_tensor target = ejki_tensor_at(ejki_tensor_at(e->mask, b), r % queries);
        if (ejk_tensor_copy(&row, &target) != EJK_OK) return; /* never: all was checked */
    }
}

/* ---- Arguments --------------------------------------------------------------------------------------- */

typedef struct arguments {
    const ejk_tensor *q_ids, *kv_ids, *q_mask, *kv_mask, *mask;
    int64_t first_id;
} arguments;

static ejk_status check_ids(const ejk_tensor *ids, const char *name) {
    EJKI_TRY(ejki_sequence_input(ids, name, EJKI_INDICES));
    if (ids->rank == 2) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %" PRId32 ", expected 2", name,
                     ids->rank);
}

static ejk_status check_side(const ejk_tensor *out, const char *name, const ejk_tensor *ids,
                             const arguments *a) {
    if (!out) return EJK_OK;
    EJKI_TRY(ejki_sequence_output(out, name, EJKI_ANY_DTYPE, 2, ids->shape));
    EJKI_TRY(ejki_argument_apart(out, name, a->q_ids, "q_ids"));
    EJKI_TRY(ejki_argument_apart(out, name, a->kv_ids, "kv_ids"));
    return ejki_argument_apart(out, name, a->mask, "mask_out");
}

static ejk_status check_arguments(const arguments *a) {
    EJKI_TRY(ejki_sequence_first_id(a->first_id));
    EJKI_TRY(check_ids(a->q_ids, "q_ids"));
    EJKI_TRY(check_ids(a->kv_ids, "kv_ids"));
    int64_t batch = a->q_ids->shape[0], queries = a->q_ids->shape[1], keys = a->kv_ids->shape[1];
    if (a->kv_ids->shape[0] != batch) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "kv_ids has a batch of %" PRId64 ", expected %" PRId64 " of q_ids",
                         a->kv_ids->shape[0], batch);
    }
    bool heads = a->mask && a->mask->rank == 4;
    int64_t shapes[2][4] = {{batch, queries, keys}, {batch, 1, queries, keys}};
    EJKI_TRY(ejki_sequence_output(a->mask, "mask_out", EJKI_ANY_DTYPE, 3 + heads, shapes[heads]));
    EJKI_TRY(ejki_argument_apart(a->mask, "mask_out", a->q_ids, "q_ids"));
    EJKI_TRY(ejki_argument_apart(a->mask, "mask_out", a->kv_ids, "kv_ids"));
    EJKI_TRY(check_side(a->q_mask, "q_mask_out", a->q_ids, a));
    EJKI_TRY(check_side(a->kv_mask, "kv_mask_out", a->kv_ids, a));
    if (!a->q_mask || !a->kv_mask) return EJK_OK;
    return ejki_argument_apart(a->kv_mask, "kv_mask_out", a->q_mask, "q_mask_out");
}

/* ---- The call ---------------------------------------------------------------------------------------- */

/* Copies ids, and makes every id below `first_id` the one for padding. */
static ejk_status read_ids(const ejk_tensor *ids, int64_t first_id, int64_t padding, int64_t *out) {
    ejk_tensor copy = ejk_tensor_2d(out, EJK_DTYPE_I64, ids->shape[0], ids->shape[1]);
    EJKI_TRY(ejk_tensor_copy(ids, &copy));
    int64_t count = ejk_tensor_count(ids);
    for (int64_t i = 0; i < count; i++) {
        if (out[i] < first_id) out[i] = padding;
    }
    return EJK_OK;
}

/* Whether each position is no padding. `truth` has room for a bool for each id. */
static ejk_status write_side(const ejk_tensor *out, const int64_t *ids, unsigned char *truth) {
    if (!out) return EJK_OK;
    int64_t count = ejk_tensor_count(out);
    for (int64_t i = 0; i < count; i++) truth[i] = ids[i] >= 0;
    ejk_tensor view = ejk_tensor_2d(truth, EJK_DTYPE_BOOL, out->shape[0], out->shape[1]);
    return ejk_tensor_copy(&view, out);
}

static void plan(ejk_threads *threads, expansion *e) {
    int64_t rows = e->mask.shape[0] * e->mask.shape[1], keys = e->mask.shape[2];
    /* At least 64 KiB of mask a task: a small mask does not leave the thread. */
    int64_t least = ejki_cdiv(65536, ejki_max(keys, 1));
    int64_t even = ejki_cdiv(rows, 4 * (int64_t)ejk_threads_count(threads));
    e->rows_a_task = ejki_max(ejki_max(least, even), 1);
    e->tasks = keys ? ejki_cdiv(rows, e->rows_a_task) : 0;
}

static ejk_status expand(ejk_threads *threads, expansion *e, const arguments *a) {
    EJKI_TRY(read_ids(a->q_ids, a->first_id, Q_PADDING, e->q_ids));
    EJKI_TRY(read_ids(a->kv_ids, a->first_id, KV_PADDING, e->kv_ids));
    EJKI_TRY(write_side(a->q_mask, e->q_ids, e->truth));
    EJKI_TRY(write_side(a->kv_mask, e->kv_ids, e->truth));
    ejk_parallel_for(threads, e->tasks, expand_rows, e);
    return EJK_OK;
}

ejk_status ejk_segment_ids_to_mask(ejk_threads *threads, const ejk_tensor *q_ids,
                                   const ejk_tensor *kv_ids, int64_t first_id,
                                   const ejk_tensor *q_mask_out, const ejk_tensor *kv_mask_out,
                                   const ejk_tensor *mask_out) {
    arguments a = {q_ids, kv_ids ? kv_ids : q_ids, q_mask_out, kv_mask_out, mask_out, first_id};
    EJKI_TRY(check_arguments(&a));
    expansion e = {.mask = *mask_out};
    if (e.mask.rank == 4) e.mask = ejki_tensor_at(ejk_tensor_transpose(e.mask, 0, 1), 0);
    plan(threads, &e);
    int64_t q_count = ejk_tensor_count(q_ids), kv_count = ejk_tensor_count(a.kv_ids);
    int64_t room = e.tasks * e.mask.shape[2];
    e.q_ids = ejki_sequence_alloc(q_count, sizeof *e.q_ids);
    e.kv_ids = ejki_sequence_alloc(kv_count, sizeof *e.kv_ids);
    e.truth = ejki_sequence_alloc(ejki_max(room, ejki_max(q_count, kv_count)), 1);
    e.rows = ejki_sequence_alloc(room, ejk_dtype_size(e.mask.dtype));
    ejk_status status = EJK_OK;
    if (e.q_ids && e.kv_ids && e.truth && e.rows)
        status = expand(threads, &e, &a);
    else
        status =
            ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                      "no memory for the segment ids of %" PRId64 " queries and %" PRId64 " keys",
                      q_count, kv_count);
    free(e.q_ids);
    free(e.kv_ids);
    free(e.truth);
    free(e.rows);
    return status;
}
