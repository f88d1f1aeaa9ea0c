/* SPDX-License-Identifier: Apache-2.0 */
/* Giving a chosen problem its memory: layouts, values, and NaN where nothing may be read or matter. */
#include "support/flash_case.h"

#include <stdlib.h>
#include <string.h>

double flash_load(ejk_dtype dtype, const void *data, int64_t index) {
    double wide;
    float narrow;
    uint16_t bits;
    switch (dtype) {
    case EJK_DTYPE_F64: memcpy(&wide, (const char *)data + index * 8, sizeof wide); return wide;
    case EJK_DTYPE_BF16:
    case EJK_DTYPE_F16:
        memcpy(&bits, (const char *)data + index * 2, sizeof bits);
        return (double)(dtype == EJK_DTYPE_BF16 ? ejk_bf16_to_f32(bits) : ejk_f16_to_f32(bits));
    default: memcpy(&narrow, (const char *)data + index * 4, sizeof narrow); return (double)narrow;
    }
}

void flash_store(ejk_dtype dtype, void *data, int64_t index, double value) {
    const float narrow = (float)value;
    uint16_t bits;
    switch (dtype) {
    case EJK_DTYPE_F64: memcpy((char *)data + index * 8, &value, sizeof value); return;
    case EJK_DTYPE_BF16:
    case EJK_DTYPE_F16:
        bits = dtype == EJK_DTYPE_BF16 ? ejk_f32_to_bf16(narrow) : ejk_f32_to_f16(narrow);
        memcpy((char *)data + index * 2, &bits, sizeof bits);
        return;
    default: memcpy((char *)data + index * 4, &narrow, sizeof narrow);
    }
}

/* What is finite stays so in f16. */
static void put(ejk_dtype dtype, void *data, int64_t index, double value) {
    if (dtype == EJK_DTYPE_F16 && isfinite(value)) value = fmax(-65504, fmin(65504, value));
    flash_store(dtype, data, index, value);
}

/* ---- Layout --------------------------------------------------------------------------------------- */

/*
 * Three axes of contiguous rows. `stored` is how much of an axis there is: 1 where it is broadcast, and
 * then its stride is 0.
 */
struct layout {
    int64_t stored[3], strides[3];
    bool broadcast[3], eights;
    int64_t row;
};

/* Chooses strides: axes in any order, gaps, backwards; multiples of eight only forwards. Returns elements; *origin is that of (0, 0, 0). */
static int64_t choose_strides(struct layout *l, struct random *r, int64_t *origin) {
    int order[3] = {0, 1, 2};
    for (int i = 2; i > 0; i--) {
        const int64_t other = random_chance(r, 0.5) ? random_int(r, 0, i) : i;
        const int kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    const bool gaps = random_chance(r, 0.4);
    const int64_t unit = l->eights ? 8 : 1;
    int64_t extent = (l->row + unit - 1) / unit * unit;
    *origin = 0;
    bool empty = l->row == 0;
    for (int i = 2; i >= 0; i--) {
        const int axis = order[i];
        const int64_t stride = extent + unit * (gaps ? random_int(r, 0, 5) : 0);
        l->strides[axis] = stride;
        if (l->stored[axis] > 1) extent = stride * (l->stored[axis] - 1) + extent;
        if (l->stored[axis] == 0) empty = true;
        if (l->stored[axis] > 1 && !l->eights && random_chance(r, 0.05)) {
            *origin += stride * (l->stored[axis] - 1);
            l->strides[axis] = -stride;
        }
        /* Nobody multiplies the stride of an axis of one by anything but 0. */
        if (l->stored[axis] == 1 && random_chance(r, 0.1)) l->strides[axis] = INT64_C(1) << 40;
        if (l->broadcast[axis]) l->strides[axis] = 0;
    }
    return empty ? 0 : extent;
}

/* Memory for a layout. An empty one may have no address at all. */
static void *place(struct flash_case *c, enum flash_tensor tensor, struct layout *l, size_t element,
                   struct random *r) {
    int64_t origin;
    const int64_t count = choose_strides(l, r, &origin);
    if (count == 0) origin = 0;
    if (count == 0 && random_chance(r, 0.5)) return NULL;
    const enum guarded_side side = random_chance(r, 0.7) ? GUARDED_END : GUARDED_START;
    size_t slack = random_chance(r, 0.3) ? element * (size_t)random_int(r, 1, 15) : 0;
    /* Most of what is in eights begins at a multiple of 16 bytes. */
    if (l->eights && random_chance(r, 0.85))
        slack = (16 - (size_t)count * element % 16) % 16 + 16 * (size_t)random_int(r, 0, 1);
    if (c->traits.odd_addresses) slack += (size_t)random_int(r, 0, (int64_t)element - 1);
    guarded_create(&c->memory[tensor], (size_t)count * element, side, slack);
    return c->memory[tensor].data + (size_t)origin * element;
}

static struct layout layout_of(int64_t n0, int64_t n1, int64_t n2, int64_t row) {
    return (struct layout){.stored = {n0, n1, n2}, .row = row};
}

static void place_bthd(struct flash_case *c, enum flash_tensor tensor, ejki_bthd *view,
                       ejk_dtype dtype, struct layout l, struct random *r) {
    l.eights = (c->seed & FLASH_TILED) != 0;
    view->data = place(c, tensor, &l, ejk_dtype_size(dtype), r);
    view->stride_b = l.strides[0];
    view->stride_t = l.strides[1];
    view->stride_h = l.strides[2];
}

static struct layout place_bhts(struct flash_case *c, enum flash_tensor tensor, ejki_bhts *view,
                                size_t element, struct layout l, struct random *r) {
    for (int i = 0; i < 3; i++)
        if (l.broadcast[i]) l.stored[i] = 1;
    view->data = place(c, tensor, &l, element, r);
    view->stride_b = l.strides[0];
    view->stride_h = l.strides[1];
    view->stride_t = l.strides[2];
    return l;
}

static void place_rows(struct flash_case *c, enum flash_tensor tensor, ejki_bht *view,
                       struct random *r) {
    const ejki_flash_problem *p = &c->problem;
    struct layout l = layout_of(p->batch, p->query_heads, p->queries, 1);
    view->data = place(c, tensor, &l, sizeof(float), r);
    view->stride_b = l.strides[0];
    view->stride_h = l.strides[1];
    view->stride_t = l.strides[2];
}

/* ---- Values --------------------------------------------------------------------------------------- */

#define FOR(index, count) for (int64_t index = 0; index < (count); index++)

static int64_t at(const ejki_bthd *view, int64_t b, int64_t t, int64_t h) {
    return b * view->stride_b + t * view->stride_t + h * view->stride_h;
}

/* What coordinate 0 of key j adds to its score. */
static double slope(const struct flash_case *c, int64_t j) {
    switch (c->traits.pattern) {
    case FLASH_RISING: return 0.7 * (double)j;
    case FLASH_FALLING: return -0.7 * (double)j;
    case FLASH_JUMP: return j >= c->problem.keys / 2 ? 190 : 0;
    case FLASH_ONE_HOT: return j == c->problem.keys / 3 ? 60 : 0;
    case FLASH_NORMAL:
    case FLASH_LARGE:
    case FLASH_EQUAL:
    case FLASH_TINY:
    case FLASH_PATTERNS: break;
    }
    return 0;
}

static void fill_query(struct flash_case *c, struct random *r) {
    const ejki_flash_problem *p = &c->problem;
    const enum flash_pattern pattern = c->traits.pattern;
    const bool sloped = pattern >= FLASH_ONE_HOT && pattern <= FLASH_JUMP;
    const double tiny = p->dtype == EJK_DTYPE_F16 ? 1e-6 : 1e-20;
    const double size = pattern == FLASH_TINY ? tiny : 1;
    FOR(b, p->batch) FOR(t, p->queries) FOR(h, p->query_heads) FOR(d, p->head_dim) {
        double value = size * random_normal(r);
        if (sloped && d == 0 && fabs(p->scale) > 1e-6) value = 1 / p->scale;
        put(p->dtype, p->query.data, at(&p->query, b, t, h) + d, value);
    }
}

static void fill_key(struct flash_case *c, struct random *r) {
    const ejki_flash_problem *p = &c->problem;
    const enum flash_pattern pattern = c->traits.pattern;
    const double large = 1e4 / (1e-6 + fabs(p->scale) * sqrt((double)p->head_dim));
    const double size = pattern == FLASH_LARGE ? large : 1;
    FOR(b, p->batch) FOR(j, p->keys) FOR(h, p->kv_heads) FOR(d, p->head_dim) {
        double value =
            pattern == FLASH_EQUAL ? 0.25 * (double)(d % 5 + 1) : size * random_normal(r);
        if (d == 0) value += slope(c, j);
        put(p->dtype, p->key.data, at(&p->key, b, j, h) + d, value);
    }
}

static void fill_value(struct flash_case *c, struct random *r) {
    static const double sizes[] = {1, 1, 1, 1e3, 1e-3}, offsets[] = {0, 0, 5};
    const ejki_flash_problem *p = &c->problem;
    double size = RANDOM_OF(r, sizes), offset = RANDOM_OF(r, offsets);
    /* Subnormal results, and with dropout some that overflow. */
    if (p->dtype == EJK_DTYPE_F16 && random_chance(r, 0.2))
        size = random_chance(r, 0.5) ? 1e-6 : 2e4;
    FOR(b, p->batch)
    FOR(j, p->keys)
    FOR(h, p->kv_heads)
    FOR(d, p->value_dim)
    put(p->dtype, p->value.data, at(&p->value, b, j, h) + d, size * (offset + random_normal(r)));
}

static double hostile(struct random *r) {
    static const double values[] = {NAN, -NAN, INFINITY, -INFINITY};
    return RANDOM_OF(r, values);
}

static void fill_bias(struct flash_case *c, const struct layout *l, struct random *r) {
    const ejki_flash_problem *p = &c->problem;
    const bool infinite = c->traits.infinite_bias;
    const double size = random_chance(r, 0.3) && c->traits.poison <= FLASH_IN_HIDDEN ? 10 : 1;
    const double poisoned = c->traits.poison != FLASH_IN_BIAS ? 0
                            : random_chance(r, 0.2)           ? 0.5
                                                              : 0.01;
    /* As masks of floats are: of all rows the same keys, from one on or some. */
    const bool columns = infinite && random_chance(r, 0.5);
    const int64_t from = random_chance(r, 0.5) ? p->keys : random_int(r, 0, p->keys);
    FOR(b, l->stored[0]) FOR(h, l->stored[1]) FOR(t, l->stored[2]) FOR(j, p->keys) {
        const bool hides =
            columns ? j >= from || (j * 7 + 3) % 5 == 0 : infinite && random_chance(r, 0.3);
        double value = hides ? -INFINITY : size * random_normal(r);
        if (random_chance(r, poisoned)) value = hostile(r);
        put(p->dtype, (void *)(uintptr_t)p->bias.data,
            b * p->bias.stride_b + h * p->bias.stride_h + t * p->bias.stride_t + j, value);
    }
}

static void fill_mask(struct flash_case *c, const struct layout *l, struct random *r) {
    const ejki_flash_problem *p = &c->problem;
    unsigned char *mask = (unsigned char *)(uintptr_t)p->mask.data;
    /* Runs of equal entries meet whole tiles that are hidden or not. */
    const int64_t run = random_chance(r, 0.5) ? 1 : random_int(r, 8, 80);
    FOR(b, l->stored[0]) FOR(h, l->stored[1]) FOR(t, l->stored[2]) {
        unsigned char allowed = 0;
        FOR(j, p->keys) {
            if (j % run == 0)
                allowed = random_chance(r, c->traits.mask_density)
                              ? (unsigned char)random_int(r, 1, 255)
                              : 0;
            mask[b * p->mask.stride_b + h * p->mask.stride_h + t * p->mask.stride_t + j] = allowed;
        }
    }
}

/* Ids that differ in their upper half only would be equal to whoever reads 32 of 64 bits. */
static void fill_ids(struct flash_case *c, ejki_ids *ids, enum flash_tensor tensor, int64_t length,
                     struct random *r) {
    const ejki_flash_problem *p = &c->problem;
    const bool wide = p->segments_are_i64;
    struct layout l = layout_of(p->batch, 1, 1, length);
    char *data = place(c, tensor, &l, wide ? 8 : 4, r);
    ids->data = data;
    ids->stride_b = l.strides[0];
    const bool packed = random_chance(r, 0.5);
    FOR(b, p->batch) FOR(t, length) {
        const int64_t index = b * ids->stride_b + t;
        int64_t id = packed ? t * 3 / length : random_int(r, -1, 2);
        if (wide && random_chance(r, 0.1)) id += INT64_C(1) << 32;
        if (random_chance(r, 0.05)) id = wide ? INT64_MIN : INT32_MIN;
        const int32_t narrow = (int32_t)(wide ? 0 : id);
        if (wide)
            memcpy(data + index * 8, &id, 8);
        else
            memcpy(data + index * 4, &narrow, 4);
    }
}

static void fill_sinks(struct flash_case *c, struct random *r) {
    ejki_flash_problem *p = &c->problem;
    const int64_t heads[] = {1, p->kv_heads, p->query_heads};
    const int64_t rows = heads[c->traits.sink_heads], last = (rows - 1) * p->sink_stride_h;
    struct layout l = layout_of(1, 1, 1, rows == 0 ? 0 : last + p->sink_count);
    void *sinks = place(c, FLASH_SINKS, &l, ejk_dtype_size(p->dtype), r);
    p->sinks = sinks;
    FOR(row, rows) FOR(n, p->sink_count) {
        double value = random_normal(r);
        if (c->traits.wide_sinks) value = random_chance(r, 0.2) ? -INFINITY : 5e3 * value;
        put(p->dtype, sinks, row * p->sink_stride_h + n, value);
    }
}

/* ---- Visibility and poison ------------------------------------------------------------------------ */

static int64_t id_at(const ejki_flash_problem *p, const ejki_ids *ids, int64_t b, int64_t t) {
    const char *data = ids->data;
    int64_t wide;
    int32_t narrow;
    if (p->segments_are_i64) {
        memcpy(&wide, data + (b * ids->stride_b + t) * 8, sizeof wide);
        return wide;
    }
    memcpy(&narrow, data + (b * ids->stride_b + t) * 4, sizeof narrow);
    return narrow;
}

/* Whatever the bias is. */
static bool allowed(const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    bool sees = j >= i + p->first_offset && j <= i + p->last_offset;
    if (p->has_mask)
        sees =
            sees && ((const unsigned char *)
                         p->mask.data)[b * p->mask.stride_b + h / p->mask_group * p->mask.stride_h +
                                       i * p->mask.stride_t + j] != 0;
    if (p->has_segments) {
        const int64_t q = id_at(p, &p->query_segments, b, i), k = id_at(p, &p->key_segments, b, j);
        sees = sees && q >= 0 && k >= 0 && q == k;
    }
    return sees;
}

bool flash_visible(const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    return allowed(p, b, h, i, j) &&
           !(p->has_bias && flash_load(p->dtype, p->bias.data,
                                       b * p->bias.stride_b + h * p->bias.stride_h +
                                           i * p->bias.stride_t + j) == -INFINITY);
}

/* Which keys any query sees, and which elements of the bias count. */
struct seen {
    unsigned char *keys; /* [B, Hkv, S] */
    unsigned char *bias; /* stored axes, S */
};

static void look(const ejki_flash_problem *p, const struct layout *l, struct seen *seen) {
    FOR(b, p->batch) FOR(h, p->query_heads) FOR(i, p->queries) FOR(j, p->keys) {
        if (!allowed(p, b, h, i, j)) continue;
        if (flash_visible(p, b, h, i, j))
            seen->keys[(b * p->kv_heads + h / p->group) * p->keys + j] = 1;
        if (!p->has_bias) continue;
        const int64_t bb = l->broadcast[0] ? 0 : b, bh = l->broadcast[1] ? 0 : h;
        const int64_t bt = l->broadcast[2] ? 0 : i;
        seen->bias[((bb * l->stored[1] + bh) * l->stored[2] + bt) * p->keys + j] = 1;
    }
}

static void poison_hidden(struct flash_case *c, const struct layout *l, struct random *r) {
    const ejki_flash_problem *p = &c->problem;
    const int64_t keys = p->batch * p->kv_heads * p->keys;
    const int64_t biases = p->has_bias ? l->stored[0] * l->stored[1] * l->stored[2] * p->keys : 0;
    struct seen seen = {.keys = calloc((size_t)keys + 1, 1), .bias = calloc((size_t)biases + 1, 1)};
    if (!seen.keys || !seen.bias) abort();
    look(p, l, &seen);
    FOR(b, p->batch) FOR(h, p->kv_heads) FOR(j, p->keys) {
        if (seen.keys[(b * p->kv_heads + h) * p->keys + j]) continue;
        FOR(d, p->head_dim) put(p->dtype, p->key.data, at(&p->key, b, j, h) + d, hostile(r));
        FOR(d, p->value_dim) put(p->dtype, p->value.data, at(&p->value, b, j, h) + d, hostile(r));
    }
    if (p->has_bias) FOR(b, l->stored[0])
    FOR(h, l->stored[1])
    FOR(t, l->stored[2])
    FOR(j, p->keys)
    if (!seen.bias[((b * l->stored[1] + h) * l->stored[2] + t) * p->keys + j])
        put(p->dtype, (void *)(uintptr_t)p->bias.data,
            b * p->bias.stride_b + h * p->bias.stride_h + t * p->bias.stride_t + j, hostile(r));
    free(seen.keys);
    free(seen.bias);
}

/* One hostile element in a few rows of K or V, or a NaN in each of them; in some rows of V, too, if `values`. */
static void poison_some(const ejki_flash_problem *p, const ejki_bthd *view, int64_t row,
                        bool values, struct random *r) {
    const int64_t rows = p->batch * p->keys * p->kv_heads;
    if (rows == 0 || row == 0) return;
    const bool all = random_chance(r, 0.2);
    FOR(n, all ? rows : random_int(r, 1, 3)) {
        const int64_t index = all ? n : random_int(r, 0, rows - 1), heads = p->kv_heads;
        const int64_t b = index / heads / p->keys, j = index / heads % p->keys, h = index % heads;
        put(p->dtype, view->data, at(view, b, j, h) + random_int(r, 0, row - 1),
            all ? NAN : hostile(r));
        /* Where the product is -inf, the value does not count. */
        if (values && p->value_dim > 0 && random_chance(r, 0.5))
            put(p->dtype, p->value.data,
                at(&p->value, b, j, h) + random_int(r, 0, p->value_dim - 1), hostile(r));
    }
}

void flash_case_fill(struct flash_case *c, struct random *r) {
    ejki_flash_problem *p = &c->problem;
    const struct flash_traits *t = &c->traits;
    const ejk_dtype out_dtype = p->normalize ? p->dtype : EJK_DTYPE_F32;
    place_bthd(c, FLASH_QUERY, &p->query, p->dtype,
               layout_of(p->batch, p->queries, p->query_heads, p->head_dim), r);
    place_bthd(c, FLASH_KEY, &p->key, p->dtype,
               layout_of(p->batch, p->keys, p->kv_heads, p->head_dim), r);
    place_bthd(c, FLASH_VALUE, &p->value, p->dtype,
               layout_of(p->batch, p->keys, p->kv_heads, p->value_dim), r);
    place_bthd(c, FLASH_OUT, &p->out, out_dtype,
               layout_of(p->batch, p->queries, p->query_heads, p->value_dim), r);
    if (t->wants_lse) place_rows(c, FLASH_LSE, &p->lse, r);
    if (t->wants_row_max) place_rows(c, FLASH_ROW_MAX, &p->row_max, r);
    if (t->wants_row_sum) place_rows(c, FLASH_ROW_SUM, &p->row_sum, r);
    fill_query(c, r);
    fill_key(c, r);
    fill_value(c, r);
    struct layout bias = layout_of(p->batch, p->query_heads, p->queries, p->keys), mask = bias;
    if (p->has_bias) {
        bias.broadcast[0] = !t->bias_batch;
        bias.broadcast[1] = !t->bias_heads;
        bias.broadcast[2] = !t->bias_queries;
        bias = place_bhts(c, FLASH_BIAS, &p->bias, ejk_dtype_size(p->dtype), bias, r);
        fill_bias(c, &bias, r);
    }
    if (p->has_mask) {
        mask.stored[1] = t->mask_heads == 1 ? p->kv_heads : p->query_heads;
        mask.broadcast[0] = !t->mask_batch;
        mask.broadcast[1] = t->mask_heads == 0;
        mask.broadcast[2] = !t->mask_queries;
        mask = place_bhts(c, FLASH_MASK, &p->mask, 1, mask, r);
        fill_mask(c, &mask, r);
    }
    if (p->has_segments) {
        fill_ids(c, &p->query_segments, FLASH_QUERY_IDS, p->queries, r);
        fill_ids(c, &p->key_segments, FLASH_KEY_IDS, p->keys, r);
    }
    if (p->has_sinks) fill_sinks(c, r);
    if (t->poison == FLASH_IN_HIDDEN) poison_hidden(c, &bias, r);
    if (t->poison == FLASH_IN_KEY) poison_some(p, &p->key, p->head_dim, true, r);
    if (t->poison == FLASH_IN_VALUE) poison_some(p, &p->value, p->value_dim, false, r);
    for (int i = 0; i < FLASH_FIRST_OUTPUT; i++) guarded_protect(&c->memory[i]);
}
