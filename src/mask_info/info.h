/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this room share. An object is what its mask is made of (elements or ids, and limits),
 * and slots: forms that were given or have been read. A slot is filled once, under the lock, and then read
 * without it.
 */
#ifndef EJKI_MASK_INFO_H
#define EJKI_MASK_INFO_H

#include "base/base.h"
#include "tensor/argument.h"

#include <ejkernel/mask_info.h>
#include <pthread.h>
#include <stdatomic.h>

/* A contiguous tensor with a count of references; bool (0 and 1) or int32 where nothing else is said. */
typedef struct ejki_info_array {
    atomic_int_fast64_t references;
    ejk_owned_tensor owned;
} ejki_info_array;

/* Kinds of forms; those from MASK on are in any element type, the others have one. */
typedef enum ejki_form {
    FORM_Q_IDS,
    FORM_KV_IDS,
    FORM_Q_HEAD_IDS, /* computed per head */
    FORM_KV_HEAD_IDS,
    FORM_Q_POSITIONS,
    FORM_KV_POSITIONS,
    FORM_Q_VALID,
    FORM_Q_RUN,
    FORM_MASK,
    FORM_BIAS,
    FORM_SEGMENT_Q_MASK,
    FORM_SEGMENT_KV_MASK,
    FORM_SEGMENT_MASK,
    FORMS
} ejki_form;

enum { DTYPES = EJK_DTYPE_BOOL + 1 };

/*
 * Limits of a row's columns: from row + low to row + high, one number per batch, and within the row's chunk.
 * Numbers are cut to ±FAR, which stands for no limit.
 */
#define FAR (INT64_C(1) << 61)
typedef struct ejki_band {
    int64_t *low, *high; /* [B], in one block that starts at low; NULL = no limit at all */
    int64_t chunk;       /* 0 = none */
} ejki_band;

/* A view's copy on a GPU. */
typedef struct ejki_copy {
    struct ejki_copy *next;
    const void *source;
    ejk_owned_tensor there;
} ejki_copy;

struct ejk_mask_info {
    atomic_int_fast64_t references;
    pthread_mutex_t lock;
    bool known; /* the four lengths are */
    int64_t batch, heads, q, kv;
    ejki_info_array *elements;             /* bool [B,H,Q,K]; NULL: ids say */
    ejki_info_array *q_source, *kv_source; /* int32 [B,Q], [B,K] */
    ejki_band band;
    bool mask_stored; /* counts as a form of its own, not only as read from ids */
    ejk_dtype dtype;
    ejk_mask_axes axes;
    bool stored[FORM_MASK]; /* of the ids and positions */
    _Atomic(ejki_info_array *) slots[FORMS][DTYPES];
    ejki_copy *copies; /* under the lock */
};

/* ---- Arrays ------------------------------------------------------------------------------------------ */

ejk_status ejki_info_array_create(ejk_dtype dtype, int32_t rank, const int64_t *shape,
                                  ejki_info_array **out);
ejki_info_array *ejki_info_array_retain(ejki_info_array *array);
void ejki_info_array_release(ejki_info_array *array);

static inline uint8_t *ejki_bytes(const ejki_info_array *array) {
    return array->owned.tensor.data;
}
static inline int32_t *ejki_ids(const ejki_info_array *array) {
    return array->owned.tensor.data;
}

void ejki_copies_close(ejki_copy *copies);

/* ---- Arguments: copies of what callers give, with a sentence where they are wrong ---------------------- */

/* Whole numbers as int32. */
ejk_status ejki_read_ids(const ejk_tensor *tensor, const char *name, ejki_info_array **out);

/* Whole numbers as int64; the caller frees. */
ejk_status ejki_read_numbers(const ejk_tensor *tensor, const char *name, int64_t **out);

/* Whatever is not zero as 1; a mask [B,Q,K] becomes [B,1,Q,K]. */
ejk_status ejki_read_truth(const ejk_tensor *tensor, const char *name, ejki_info_array **out);

/* One number per batch from a tensor [1] or [B]; NULL means 0. The caller frees. */
ejk_status ejki_read_per_batch(const ejk_tensor *tensor, const char *name, int64_t batch,
                               int64_t **out);

/* ---- Objects ----------------------------------------------------------------------------------------- */

/* One of nothing, in bool and with default names. */
ejk_status ejki_info_create(const ejk_mask_axes *axes, ejk_mask_info **out);

/* One of the same sources, limits, stored forms and names. */
ejk_status ejki_info_copy(const ejk_mask_info *info, ejk_mask_info **out);

/* Takes the array over as a stored form. */
void ejki_info_store(ejk_mask_info *info, ejki_form form, ejki_info_array *array);

/* Settles lengths from what is there and checks that all agree; on failure the object is released. */
ejk_status ejki_info_finish(ejk_mask_info *info, ejk_mask_info **out);

/* Reads the positions of options into a new object. */
ejk_status ejki_info_positions(ejk_mask_info *info, const ejk_tensor *q, const ejk_tensor *kv);

ejk_status ejki_info_require(const ejk_mask_info *info, const char *call);

/* ---- Forms ------------------------------------------------------------------------------------------- */

/* The form, computed if it has to be. Borrowed from the object. */
ejk_status ejki_info_form(const ejk_mask_info *info, ejki_form form, ejk_dtype dtype,
                          ejki_info_array **out);

/* Computes one, with the lock held. */
ejk_status ejki_info_produce(ejk_mask_info *info, ejki_form form, ejk_dtype dtype,
                             ejki_info_array **out);

/* The same for others that it needs, with the lock held. */
ejk_status ejki_info_locked(ejk_mask_info *info, ejki_form form, ejk_dtype dtype,
                            ejki_info_array **out);

/* Columns [column, column + count) of a row of the mask as 0 and 1, limits included. */
void ejki_info_row(const ejk_mask_info *info, int64_t b, int64_t h, int64_t row, int64_t column,
                   int64_t count, uint8_t *out);

/* ---- Limits ------------------------------------------------------------------------------------------ */

ejk_status ejki_band_copy(const ejki_band *from, int64_t batch, ejki_band *out);

/* The columns of a row that the limits allow, [*first, *last), within [0, columns). */
void ejki_band_columns(const ejki_band *band, int64_t b, int64_t row, int64_t columns,
                       int64_t *first, int64_t *last);

/* Frees them: no limit at all. */
void ejki_band_close(ejki_band *band);

/* Gives an object that has none yet limits that limit nothing. */
ejk_status ejki_band_open(ejk_mask_info *info);

/* Narrows: columns up to row + offset + right and from row + offset − left, where set. */
void ejki_band_narrow(ejki_band *band, int64_t b, int64_t offset, ejk_window window);

/* ---- Cuts -------------------------------------------------------------------------------------------- */

/* Rows and columns of every batch that stay. */
typedef struct ejki_cut {
    const int64_t *row, *column; /* first ones, [B] */
    int64_t rows, columns;
    const int64_t *lengths; /* [B]: columns from there on are off; NULL = none are */
    bool cut_kv;            /* whether columns were cut, and key ids with them */
} ejki_cut;

ejk_status ejki_info_cut(const ejk_mask_info *info, const ejki_cut *cut, ejk_mask_info **out);

/* ---- Trace ------------------------------------------------------------------------------------------- */

void ejki_info_trace(const char *what, const char *name, const char *end);
#define TRACE_CALL(name)     ejki_info_trace("Calling MaskInfo.", name, "()")
#define TRACE_FUNCTION(name) ejki_info_trace("Calling ", name, "()")
#define TRACE_READ(name)     ejki_info_trace("Property access: ", name, "")

#define NEED(pointer)                                                                              \
    do {                                                                                           \
        if ((pointer) == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, #pointer " is NULL"); \
    } while (0)

#endif
