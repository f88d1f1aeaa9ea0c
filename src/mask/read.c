/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of masks: one, a row, a rectangle. */
#include "mask/mask.h"

#include <string.h>

/* Offsets and windows may be any int64: sums of them are made in twice the width, then cut. */
__extension__ typedef __int128 wide;

static int64_t cut(wide value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : (int64_t)value;
}

static int64_t floor_to(int64_t value, int64_t step) {
    int64_t rest = value % step;
    return value - (rest < 0 ? rest + step : rest);
}

void ejki_mask_interval(const ejk_splash_mask *mask, int64_t q, int64_t *low, int64_t *high) {
    wide first = 0, last = mask->kv - 1, centre = (wide)q + mask->offset;
    if (mask->kind == EJK_SPLASH_MASK_CAUSAL) {
        last = centre;
    } else if (mask->kind == EJK_SPLASH_MASK_LOCAL) {
        if (mask->window.left.set) first = centre - mask->window.left.value;
        if (mask->window.right.set) last = centre + mask->window.right.value;
    } else {
        /* Positions are int32 or rows, so that the chunk's start cannot overflow unless it is huge. */
        first = q >= 0 ? floor_to(q, mask->chunk_size) : -1;
        last = q;
    }
    *low = cut(first, 0, mask->kv);
    *high = cut(last, -1, mask->kv - 1);
}

/* a + b, cut to what int64 holds. */
static ejk_opt_int sum_of(int64_t a, int64_t b) {
    int64_t sum;
    return ejk_int(ejki_add(a, b, &sum) ? sum : a < 0 ? INT64_MIN : INT64_MAX);
}

bool ejk_splash_mask_interval(const ejk_splash_mask *mask, ejk_window *interval,
                              int64_t *chunk_size) {
    if (mask == NULL || interval == NULL || chunk_size == NULL || !ejki_mask_is_interval(mask))
        return false;
    ejk_window out = {.left = {.set = false}};
    if (mask->kind == EJK_SPLASH_MASK_CAUSAL) {
        out.right = ejk_int(mask->offset);
    } else if (mask->kind == EJK_SPLASH_MASK_LOCAL) {
        const ejk_window window = mask->window;
        if (window.left.set)
            out.left =
                sum_of(window.left.value, mask->offset == INT64_MIN ? INT64_MAX : -mask->offset);
        if (window.right.set) out.right = sum_of(window.right.value, mask->offset);
    } else {
        out.right = ejk_int(0);
    }
    *interval = out;
    *chunk_size = mask->kind == EJK_SPLASH_MASK_CHUNKED_CAUSAL ? mask->chunk_size : 0;
    return true;
}

bool ejk_splash_mask_computable(const ejk_splash_mask *mask) {
    return mask != NULL && (ejki_mask_is_interval(mask) || mask->kind == EJK_SPLASH_MASK_FUNCTION);
}

bool ejk_splash_mask_call(const ejk_splash_mask *mask, int64_t q, int64_t kv) {
    if (!ejk_splash_mask_computable(mask)) return false;
    if (mask->kind == EJK_SPLASH_MASK_FUNCTION) return mask->function(mask->user, q, kv);
    wide column = kv, centre = (wide)q + mask->offset;
    if (mask->kind == EJK_SPLASH_MASK_CAUSAL) return centre >= column;
    if (mask->kind == EJK_SPLASH_MASK_LOCAL)
        return (!mask->window.left.set || centre - mask->window.left.value <= column) &&
               (!mask->window.right.set || centre + mask->window.right.value >= column);
    int64_t rest_q = q % mask->chunk_size, rest_kv = kv % mask->chunk_size;
    wide chunk_q = (wide)q - rest_q - (rest_q < 0 ? mask->chunk_size : 0);
    wide chunk_kv = (wide)kv - rest_kv - (rest_kv < 0 ? mask->chunk_size : 0);
    return chunk_q == chunk_kv && q >= kv;
}

static void interval_row(const ejk_splash_mask *mask, int64_t row, int64_t column, int64_t count,
                         uint8_t *out) {
    int64_t low, high;
    ejki_mask_interval(mask, ejki_mask_position(mask, row), &low, &high);
    int64_t first = ejki_min(ejki_max(low - column, 0), count);
    int64_t stop = ejki_max(ejki_min(high + 1 - column, count), first);
    memset(out, 0, (size_t)first);
    memset(out + first, 1, (size_t)(stop - first));
    memset(out + stop, 0, (size_t)(count - stop));
}

static void function_row(const ejk_splash_mask *mask, int64_t row, int64_t column, int64_t count,
                         uint8_t *out) {
    int64_t q = ejki_mask_position(mask, row);
    for (int64_t j = 0; j < count; j++) out[j] = mask->function(mask->user, q, column + j);
}

/* In pieces, so that a walk into depth needs little of the stack. */
static void pair_row(const ejk_splash_mask *mask, int64_t row, int64_t column, int64_t count,
                     uint8_t *out) {
    enum { PIECE = 512 };
    uint8_t right[PIECE] = {0};
    ejki_mask_row(mask->parts[0], row, column, count, out);
    for (int64_t done = 0; done < count; done += PIECE, out += PIECE) {
        int64_t length = ejki_min(count - done, PIECE);
        ejki_mask_row(mask->parts[1], row, column + done, length, right);
        if (mask->kind == EJK_SPLASH_MASK_LOGICAL_AND)
            for (int64_t j = 0; j < length; j++) out[j] &= right[j];
        else
            for (int64_t j = 0; j < length; j++) out[j] |= right[j];
    }
}

void ejki_mask_row(const ejk_splash_mask *mask, int64_t row, int64_t column, int64_t count,
                   uint8_t *out) {
    switch (mask->kind) {
    case EJK_SPLASH_MASK_FULL: memset(out, 1, (size_t)count); break;
    case EJK_SPLASH_MASK_CAUSAL:
    case EJK_SPLASH_MASK_LOCAL:
    case EJK_SPLASH_MASK_CHUNKED_CAUSAL: interval_row(mask, row, column, count, out); break;
    case EJK_SPLASH_MASK_FUNCTION: function_row(mask, row, column, count, out); break;
    case EJK_SPLASH_MASK_NUMPY: {
        const uint8_t *from = mask->elements + row * mask->row_stride + column;
        for (int64_t j = 0; j < count; j++) out[j] = from[j] != 0;
        break;
    }
    case EJK_SPLASH_MASK_LOGICAL_AND:
    case EJK_SPLASH_MASK_LOGICAL_OR: pair_row(mask, row, column, count, out); break;
    case EJK_SPLASH_MASK_LOGICAL_NOT:
        ejki_mask_row(mask->parts[0], row, column, count, out);
        for (int64_t j = 0; j < count; j++) out[j] ^= 1;
        break;
    case EJK_SPLASH_MASK_MULTI_HEAD: memset(out, 0, (size_t)count); break; /* has no rows itself */
    }
}

void ejki_mask_block(const ejk_splash_mask *mask, int64_t row, int64_t column, int64_t rows,
                     int64_t columns, uint8_t *out) {
    for (int64_t i = 0; i < rows; i++)
        ejki_mask_row(mask, row + i, column, columns, out + i * columns);
}

/* ---- Public reads ---------------------------------------------------------------------------------- */

ejk_splash_mask_kind ejk_splash_mask_kind_of(const ejk_splash_mask *mask) {
    return mask->kind;
}

int32_t ejk_splash_mask_shape(const ejk_splash_mask *mask, int64_t shape[3]) {
    int32_t rank = 0;
    if (mask->kind == EJK_SPLASH_MASK_MULTI_HEAD) shape[rank++] = mask->part_count;
    shape[rank++] = mask->q;
    shape[rank++] = mask->kv;
    return rank;
}

const ejk_splash_mask *ejk_splash_mask_head(const ejk_splash_mask *mask, int64_t head) {
    if (mask == NULL || mask->kind != EJK_SPLASH_MASK_MULTI_HEAD || head < 0 ||
        head >= mask->part_count)
        return NULL;
    return mask->parts[head];
}

static int64_t magnitude(int64_t step) {
    return step < 0 ? -step : step;
}

/* Whether no row of a result meets another: its other axes step over all that the narrower ones reach. */
static bool rows_apart(const ejk_tensor *out) {
    int32_t axis[2] = {out->rank - 2, 0}, axes = out->rank - 1;
    int64_t reach = out->shape[out->rank - 1];
    if (ejk_tensor_count(out) == 0) return true;
    if (axes == 2 && magnitude(out->strides[0]) < magnitude(out->strides[1])) {
        axis[0] = 0;
        axis[1] = 1;
    }
    for (int32_t i = 0; i < axes; i++) {
        int64_t length = out->shape[axis[i]], step = magnitude(out->strides[axis[i]]);
        if (length > 1 && step < reach) return false;
        if (length > 1) reach += (length - 1) * step;
    }
    return true;
}

ejk_status ejki_mask_read_check(const ejk_splash_mask *mask, const int64_t *start,
                                const int64_t *stop, const ejk_tensor *out) {
    int64_t shape[3];
    int32_t rank = ejk_splash_mask_shape(mask, shape);
    for (int32_t i = 0; i < rank; i++)
        if (start[i] < 0 || stop[i] > shape[i] || start[i] > stop[i])
            return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                          "the slice of axis %d is %lld to %lld, expected a part of 0 to %lld",
                          (int)i, (long long)start[i], (long long)stop[i], (long long)shape[i]);
    ejki_splash_reason_set(EJK_SPLASH_REASON_INVALID_ARGUMENT);
    EJKI_TRY(ejk_tensor_check(out, "out"));
    if (out->device_type != EJK_DEVICE_CPU)
        return REFUSE(UNAVAILABLE, INVALID_ARGUMENT, "out lies on device type %d, expected the CPU",
                      (int)out->device_type);
    if (out->dtype != EJK_DTYPE_BOOL)
        return REFUSE(INVALID_DTYPE, INVALID_ARGUMENT, "out is of %s, expected bool",
                      ejk_dtype_name(out->dtype));
    if (out->rank != rank)
        return REFUSE(INVALID_SHAPE, INVALID_ARGUMENT, "out has %d axes, expected %d",
                      (int)out->rank, (int)rank);
    for (int32_t i = 0; i < rank; i++)
        if (out->shape[i] != stop[i] - start[i])
            return REFUSE(INVALID_SHAPE, INVALID_ARGUMENT,
                          "axis %d of out has the length %lld, expected that of the slice, %lld",
                          (int)i, (long long)out->shape[i], (long long)(stop[i] - start[i]));
    if (out->shape[rank - 1] > 1 && out->strides[rank - 1] != 1)
        return REFUSE(INVALID_LAYOUT, INVALID_ARGUMENT,
                      "out has a step of %lld within its rows, expected 1",
                      (long long)out->strides[rank - 1]);
    if (!rows_apart(out))
        return REFUSE(INVALID_LAYOUT, INVALID_ARGUMENT,
                      "out has rows that meet by its strides, expected each at a place of its own");
    return EJK_OK;
}

ejk_status ejk_splash_mask_read(const ejk_splash_mask *mask, const int64_t *start,
                                const int64_t *stop, const ejk_tensor *out) {
    if (mask == NULL || start == NULL || stop == NULL || out == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "ejk_splash_mask_read: mask, start, stop or out is NULL");
    EJKI_TRY(ejki_mask_read_check(mask, start, stop, out));
    if (ejk_tensor_count(out) == 0) return EJK_OK;
    int32_t rank = out->rank;
    int64_t heads = rank == 3 ? stop[0] - start[0] : 1;
    const int64_t *from = start + rank - 2, *to = stop + rank - 2;
    int64_t row_step = out->strides[rank - 2], head_step = rank == 3 ? out->strides[0] : 0;
    for (int64_t h = 0; h < heads; h++) {
        const ejk_splash_mask *part = rank == 3 ? mask->parts[start[0] + h] : mask;
        uint8_t *plane = (uint8_t *)out->data + h * head_step;
        for (int64_t i = from[0]; i < to[0]; i++)
            ejki_mask_row(part, i, from[1], to[1] - from[1], plane + (i - from[0]) * row_step);
    }
    return EJK_OK;
}

ejk_status ejki_mask_expect_work(const ejk_splash_mask *mask, int64_t rows, int64_t columns,
                                 int64_t max_bytes) {
    int64_t work, most = ejki_mask_most_work(max_bytes);
    if (ejki_mul(rows, ejki_mask_row_work(mask, columns), &work) && work <= most) return EJK_OK;
    return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                  "%lld x %lld elements of a mask with %lld parts are asked for, more than the "
                  "limit of %lld elements that are evaluated",
                  (long long)rows, (long long)columns, (long long)mask->leaves, (long long)most);
}

/* Whether a row sees a column, read in pieces; false, too, where no `work` is left. */
static bool row_sees(const ejk_splash_mask *mask, int64_t row, int64_t *work) {
    uint8_t piece[4096];
    if (ejki_mask_is_interval(mask)) {
        int64_t low, high;
        ejki_mask_interval(mask, ejki_mask_position(mask, row), &low, &high);
        return low <= high;
    }
    for (int64_t column = 0; column < mask->kv; column += (int64_t)sizeof piece) {
        int64_t count = ejki_min(mask->kv - column, (int64_t)sizeof piece);
        *work -= ejki_mask_row_work(mask, count);
        if (*work < 0) return false;
        ejki_mask_row(mask, row, column, count, piece);
        if (memchr(piece, 1, (size_t)count) != NULL) return true;
    }
    return false;
}

/* The first row that sees no column; q if all see one. */
static int64_t first_empty_row(const ejk_splash_mask *mask, int64_t *work) {
    int64_t row = 0, last = mask->q;
    if (mask->kind == EJK_SPLASH_MASK_FULL) return last;
    if (!ejki_mask_is_interval(mask) || mask->q_sequence != NULL) {
        while (row < mask->q && row_sees(mask, row, work)) row++;
        return row;
    }
    /* Intervals move to the right with the rows: once they have left the columns, they do not come back. */
    if (!row_sees(mask, 0, work)) return 0;
    while (last - row > 1) {
        int64_t middle = row + (last - row) / 2;
        if (row_sees(mask, middle, work))
            row = middle;
        else
            last = middle;
    }
    return last;
}

ejk_status ejk_splash_mask_check(const ejk_splash_mask *mask) {
    return ejki_mask_check(mask, INT64_MAX);
}

ejk_status ejki_mask_check(const ejk_splash_mask *mask, int64_t most_work) {
    if (mask == NULL || mask->kind == EJK_SPLASH_MASK_MULTI_HEAD)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "mask is %s, expected a mask of two axes",
                      mask == NULL ? "NULL" : "a multi-head mask");
    int64_t work = most_work, row = first_empty_row(mask, &work);
    if (work < 0)
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "whether rows from %lld of %lld on see a column takes more than the limit of "
                      "%lld elements that are evaluated",
                      (long long)row, (long long)mask->q, (long long)most_work);
    if (row == mask->q) return EJK_OK;
    return REFUSE(INVALID_ARGUMENT, EMPTY_ROW,
                  "row %lld of the mask sees no column, so that its softmax is undefined; "
                  "expected one at least",
                  (long long)row);
}
