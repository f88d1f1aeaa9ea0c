/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/paged.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#define FOR(index, count) for (int64_t index = 0; index < (count); index++)

static int64_t cdiv(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

/* ---- Sizes ------------------------------------------------------------------------------------------- */

static int64_t some_length(struct random *r, int64_t page, int64_t most) {
    const int64_t around[] = {0, 1, page - 1, page, page + 1, 2 * page, 63, 64, 65, 129, 200};
    const int64_t length = random_chance(r, 0.6) ? RANDOM_OF(r, around) : random_int(r, 0, most);
    return length > most ? most : length;
}

static void choose_sizes(struct call *c, struct paged *p) {
    static const int64_t pages[] = {1, 3, 8, 16, 64, 128}, tiled_pages[] = {8, 16, 64, 128};
    static const int64_t dims[] = {1, 8, 16, 17, 32, 40, 64, 64, 96, 128, 128};
    static const int64_t groups[] = {1, 1, 2, 3, 4, 5, 8}, tiled_dims[] = {64, 96, 128, 128};
    struct random *r = &c->random;
    p->sequences = p->options.one_sequence ? 1 : random_int(r, 0, 5);
    p->page = c->tiled ? RANDOM_OF(r, tiled_pages) : RANDOM_OF(r, pages);
    p->kv_heads = random_int(r, 1, 3);
    p->group = RANDOM_OF(r, groups);
    p->heads = p->group * p->kv_heads;
    p->dim = c->tiled ? RANDOM_OF(r, tiled_dims) : RANDOM_OF(r, dims);
    p->value_dim = p->options.narrow || random_chance(r, 0.6) ? p->dim : RANDOM_OF(r, dims);
    const int64_t most = p->page == 1 ? 70 : p->page == 3 ? 200 : 320;
    int64_t budget = c->budget * (c->tiled ? 10 : 1) / (p->heads * (p->dim + p->value_dim));
    FOR(n, p->sequences) {
        p->keys[n] = some_length(r, p->page, most);
        if (p->options.firsts)
            p->first[n] = random_chance(r, 0.4) ? 0 : random_int(r, 0, p->keys[n] + 3);
        int64_t rows = random_chance(r, 0.5) ? random_int(r, 0, 4) : random_int(r, 0, 70);
        if (p->options.writes && rows > p->keys[n]) rows = p->keys[n];
        while (rows > 2 && rows * p->keys[n] > budget) rows /= 2;
        budget -= rows * p->keys[n];
        if (budget < 100) budget = 100;
        p->begin[n + 1] = p->begin[n] + (p->options.one_row ? 1 : rows);
        if (p->width < cdiv(p->keys[n], p->page)) p->width = cdiv(p->keys[n], p->page);
    }
    p->counted = p->options.few ? random_int(r, 0, p->sequences) : p->sequences;
    if (p->options.form == FORM_PACKED && p->kv_heads > 2) p->kv_heads = 2, p->heads = 2 * p->group;
    if (p->options.form == FORM_LATENT) {
        static const int64_t latents[] = {8, 32, 64, 128, 128, 256}, tails[] = {8, 16, 24, 64};
        p->kv_heads = 1;
        p->heads = p->group;
        p->latent = p->value_dim = RANDOM_OF(r, latents);
        p->dim = p->latent + RANDOM_OF(r, tails);
        p->tail_at = random_chance(r, 0.5) ? p->latent : (p->latent + 127) / 128 * 128;
    }
    const int64_t beyond = p->options.one_row || p->options.one_sequence ? 0 : random_int(r, 0, 2);
    p->tokens = p->begin[p->sequences] + beyond;
    p->width += random_int(r, p->width == 0, 2);
    if (p->options.form == FORM_OWN) {
        FOR(n, p->sequences) if (p->keys[n] > p->page) p->page = p->keys[n];
        p->width = 1;
        p->pages = p->sequences;
        return;
    }
    p->pages =
        p->options.writes ? p->sequences * p->width + random_int(r, 1, 4) : random_int(r, 1, 24);
}

static int64_t low_of(const struct paged *p, int64_t n, int64_t row) {
    const int64_t rows = p->begin[n + 1] - p->begin[n], at = p->keys[n] - rows + row - p->left;
    return p->left < 0 || at < p->first[n] ? p->first[n] : at;
}
static int64_t high_of(const struct paged *p, int64_t n, int64_t row) {
    const int64_t high = p->keys[n] - (p->begin[n + 1] - p->begin[n]) + row + 1;
    return high < 0 ? 0 : high;
}

/* ---- Tables ------------------------------------------------------------------------------------------ */

static int64_t unused(struct random *r, ejk_dtype dtype) {
    const int64_t values[] = {-1, INT32_MAX, INT32_MIN, dtype == EJK_DTYPE_I64 ? INT64_MAX : -7};
    return RANDOM_OF(r, values);
}

static ejk_dtype some_int(struct random *r) {
    return random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64;
}

static void put_int(const ejk_tensor *t, int64_t index, int64_t value) {
    if (t->dtype == EJK_DTYPE_I64)
        ((int64_t *)t->data)[index] = value;
    else
        ((int32_t *)t->data)[index] = (int32_t)value;
}

static int64_t common_factor(int64_t a, int64_t b) {
    return b == 0 ? a : common_factor(b, a % b);
}

/* Pages in random order; unless the cache is written, shared and repeated ones. */
static void deal(struct call *c, struct paged *p) {
    struct random *r = &c->random;
    const int64_t first = p->pages > 0 ? random_int(r, 0, p->pages - 1) : 0;
    int64_t step = random_int(r, 1, 9), next = 0;
    while (p->pages > 0 && common_factor(p->pages, step) > 1) step++;
    FOR(n, p->sequences) FOR(j, p->width) {
        if (p->options.form == FORM_OWN) {
            p->table[n][j] = n;
            continue;
        }
        p->table[n][j] = (first + next++ * step) % p->pages;
        if (!p->options.writes && random_chance(r, 0.1))
            p->table[n][j] = random_int(r, 0, p->pages - 1);
    }
}

/* Sequences with rows have their first keys in common. */
static void share_prefix(struct call *c, struct paged *p) {
    int64_t first = -1, most = 0;
    FOR(n, p->sequences) {
        if (p->begin[n + 1] == p->begin[n]) continue;
        if (first < 0) first = n;
        most = first == n || p->keys[n] < most ? p->keys[n] : most;
    }
    p->prefix = ejk_int(random_chance(&c->random, 0.3) ? most : random_int(&c->random, 0, most));
    FOR(n, p->sequences)
    for (int64_t j = 0;
         first >= 0 && p->begin[n + 1] > p->begin[n] && j * p->page < p->prefix.value; j++)
        p->table[n][j] = p->table[first][j];
}

/* True if page j of sequence n has to be known. */
static bool is_read(const struct paged *p, int64_t n, int64_t j) {
    const int64_t rows = p->begin[n + 1] - p->begin[n];
    if (rows == 0 || n >= p->counted) return false;
    int64_t low = low_of(p, n, 0);
    if (p->options.writes && low > p->keys[n] - rows) low = p->keys[n] - rows;
    return (j + 1) * p->page > low && j * p->page < p->keys[n];
}

static void put_tables(struct call *c, struct paged *p) {
    struct random *r = &c->random;
    const ejk_dtype type = some_int(r);
    p->by_lists = p->options.lists && random_chance(r, 0.4);
    p->lens = CALL_TENSOR(c, some_int(r), p->sequences);
    p->starts = CALL_TENSOR(c, some_int(r), p->sequences + 1);
    if (p->options.firsts) p->firsts = CALL_TENSOR(c, p->lens.dtype, p->sequences);
    FOR(n, p->sequences) {
        put_int(&p->lens, n, n < p->counted ? p->keys[n] : unused(r, p->lens.dtype));
        put_int(&p->starts, n + 1, n < p->counted ? p->begin[n + 1] : unused(r, p->starts.dtype));
        if (p->options.firsts) put_int(&p->firsts, n, p->first[n]);
    }
    if (!p->by_lists) {
        p->tables = CALL_TENSOR(c, type, p->sequences, p->width);
        for (int64_t at = 0; at < p->sequences * p->width; at++) {
            const int64_t n = at / p->width, j = at % p->width;
            put_int(&p->tables, at, is_read(p, n, j) ? p->table[n][j] : unused(r, type));
        }
        return;
    }
    int64_t total = 0;
    p->indptr = CALL_TENSOR(c, some_int(r), p->sequences + 1);
    FOR(n, p->sequences) put_int(&p->indptr, n + 1, total += cdiv(p->keys[n], p->page));
    p->indices = CALL_TENSOR(c, type, total);
    total = 0;
    FOR(n, p->sequences)
    FOR(j, cdiv(p->keys[n], p->page))
    put_int(&p->indices, total++, is_read(p, n, j) ? p->table[n][j] : unused(r, type));
}

/* ---- Contents ---------------------------------------------------------------------------------------- */

static void fill(struct call *c, const ejk_tensor *t, double size) {
    const int64_t count = ejk_tensor_count(t);
    FOR(n, count) tensor_put(t, n, size * random_normal(&c->random));
}

int64_t paged_at(const struct paged *p, int64_t page, int64_t row, int64_t head, int which) {
    const int64_t width = which ? p->value_dim : p->dim;
    switch (p->options.form) {
    case FORM_HND: return ((page * p->kv_heads + head) * p->page + row) * width;
    case FORM_HEADS: return ((head * p->pages + page) * p->page + row) * width;
    case FORM_LATENT: return (page * p->page + row) * p->key_cache.shape[2];
    case FORM_INTERLEAVED:
        return ((page * p->page + row) * 2 * p->kv_heads + 2 * head + which) * width;
    case FORM_PACKED: {
        const int64_t *s = p->key_cache.shape;
        return (page * p->page + row) * s[2] * s[3] * s[4] + (2 * head + which) * s[4];
    }
    default: return ((page * p->page + row) * p->kv_heads + head) * width;
    }
}

static ejk_tensor cache(struct call *c, const struct paged *p, ejk_dtype type, int64_t width) {
    switch (p->options.form) {
    case FORM_HND: return CALL_TENSOR(c, type, p->pages, p->kv_heads, p->page, width);
    case FORM_HEADS: return CALL_TENSOR(c, type, p->kv_heads, p->pages, p->page, width);
    case FORM_INTERLEAVED: return CALL_TENSOR(c, type, p->pages, p->page, 2 * p->kv_heads, width);
    case FORM_LATENT:
        return CALL_TENSOR(c, type, p->pages, p->page, p->tail_at + p->dim - p->latent);
    case FORM_SLOTS: return CALL_TENSOR(c, type, p->pages * p->page, p->kv_heads, width);
    case FORM_PACKED: {
        const int64_t pack = 4 / (int64_t)ejk_dtype_size(type);
        const int64_t lanes = (width + 127) / 128 * 128;
        return CALL_TENSOR(c, type, p->pages, p->page, cdiv(2 * p->kv_heads, pack ? pack : 1),
                           pack ? pack : 1, lanes);
    }
    default: return CALL_TENSOR(c, type, p->pages, p->page, p->kv_heads, width);
    }
}

static ejk_tensor scale(struct call *c, const struct paged *p, double size) {
    struct random *r = &c->random;
    const bool rows = !p->options.writes && p->options.form != FORM_SLOTS;
    const int64_t kind = random_int(r, 0, rows ? 2 : 1);
    ejk_tensor t = kind == 0   ? CALL_TENSOR(c, EJK_DTYPE_F32, 1)
                   : kind == 1 ? CALL_TENSOR(c, EJK_DTYPE_F32, p->kv_heads)
                               : CALL_TENSOR(c, EJK_DTYPE_F32, p->pages, p->page, p->kv_heads);
    FOR(n, ejk_tensor_count(&t)) tensor_put(&t, n, (0.5 + random_real(r)) * size);
    return t;
}

static void fill_caches(struct call *c, struct paged *p) {
    static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16,   EJK_DTYPE_F16,
                                      EJK_DTYPE_I8,  EJK_DTYPE_F8E4M3, EJK_DTYPE_F8E5M2};
    struct random *r = &c->random;
    const bool same = p->options.same_type || random_chance(r, c->tiled ? 0.8 : 0.4);
    const ejk_dtype type = same ? c->dtype : RANDOM_OF(r, types);
    const double size = type == EJK_DTYPE_I8 ? 40 : 1;
    p->key_cache = cache(c, p, type, p->dim);
    fill(c, &p->key_cache, size);
    const bool one = p->options.form == FORM_INTERLEAVED || p->options.form == FORM_PACKED ||
                     p->options.form == FORM_LATENT;
    if (!one) p->value_cache = cache(c, p, type, p->value_dim);
    if (!one) fill(c, &p->value_cache, size);
    if (p->options.factors && (size > 1 || random_chance(r, 0.4))) {
        p->k_factor = ejk_float((float)((0.5 + random_real(r)) / size));
        p->v_factor = p->options.form == FORM_LATENT
                          ? p->k_factor
                          : ejk_float((float)((0.5 + random_real(r)) / size));
        if (random_chance(r, 0.5)) p->q_scale = ejk_float(type == EJK_DTYPE_I8 ? 0.03125 : 0.5);
    }
    if (p->options.scales && (size > 1 || random_chance(r, 0.3))) {
        p->k_scale = scale(c, p, 1 / size);
        p->v_scale = scale(c, p, 1 / size);
    }
}

/* Rows that are written. */
static void fill_new(struct call *c, struct paged *p) {
    if (!p->options.writes) return;
    const int64_t width = p->latent ? p->latent : p->dim;
    p->new_key = p->latent ? CALL_TENSOR(c, c->dtype, p->tokens, width)
                           : CALL_TENSOR(c, c->dtype, p->tokens, p->kv_heads, width);
    fill(c, &p->new_key, 1);
    if (p->latent) {
        p->new_tail = CALL_TENSOR(c, c->dtype, p->tokens, p->dim - width);
        fill(c, &p->new_tail, 1);
        return;
    }
    p->new_value = CALL_TENSOR(c, c->dtype, p->tokens, p->kv_heads, p->value_dim);
    fill(c, &p->new_value, 1);
}

static void fill_scores(struct call *c, struct paged *p) {
    struct random *r = &c->random;
    if (random_chance(r, 0.3)) p->scale = ejk_float(random_real(r));
    if (p->options.cap && random_chance(r, 0.3)) p->cap = ejk_float(0.5 + 30 * random_real(r));
    if (p->options.alibi && random_chance(r, c->tiled ? 0.1 : 0.3)) {
        p->alibi = CALL_TENSOR(c, EJK_DTYPE_F32, p->heads);
        fill(c, &p->alibi, 0.1);
    }
    if (p->options.bias && random_chance(r, c->tiled ? 0.1 : 0.4)) {
        int64_t most = 1;
        FOR(n, p->sequences)
        if (p->begin[n + 1] - p->begin[n] > most) most = p->begin[n + 1] - p->begin[n];
        p->bias = CALL_TENSOR(c, EJK_DTYPE_F32, most, most);
        fill(c, &p->bias, 1);
        FOR(n, most * most) if (random_chance(r, 0.1)) tensor_put(&p->bias, n, -(double)INFINITY);
    }
    if (p->options.sinks && random_chance(r, 0.4)) {
        const int64_t count = random_int(r, 1, 3);
        p->sinks =
            !p->options.sink_heads || random_chance(r, 0.5)
                ? CALL_TENSOR(c, c->dtype, count)
                : CALL_TENSOR(c, c->dtype, random_chance(r, 0.5) ? p->heads : p->kv_heads, count);
        fill(c, &p->sinks, 2);
        FOR(n, ejk_tensor_count(&p->sinks))
        if (random_chance(r, 0.15)) tensor_put(&p->sinks, n, -(double)INFINITY);
    }
}

struct paged *paged_create(struct call *c, struct paged_options options) {
    struct random *r = &c->random;
    struct paged *p = call_memory(c, sizeof *p);
    c->own = p;
    p->options = options;
    p->left = -1;
    choose_sizes(c, p);
    if (options.form == FORM_OWN && random_chance(r, 0.4)) p->left = random_int(r, 0, 60);
    if (options.window && random_chance(r, 0.4)) {
        p->window = ejk_int(random_chance(r, 0.3) ? 1 : random_int(r, 1, 90));
        p->left = p->window.value - 1;
    }
    deal(c, p);
    if (options.prefix && p->left < 0 && random_chance(r, 0.4)) share_prefix(c, p);
    put_tables(c, p);
    p->query = CALL_TENSOR(c, c->dtype, p->tokens, p->heads, p->latent ? p->latent : p->dim);
    fill(c, &p->query, 1);
    if (p->latent)
        p->query_tail = CALL_TENSOR(c, c->dtype, p->tokens, p->heads, p->dim - p->latent);
    if (p->latent) fill(c, &p->query_tail, 1);
    fill_new(c, p);
    fill_caches(c, p);
    fill_scores(c, p);
    p->scale_is = p->scale.set ? p->scale.value : 1 / sqrt((double)p->dim);
    p->out = CALL_TENSOR(c, c->dtype, p->tokens, p->heads, p->value_dim);
    if (random_chance(r, 0.5))
        p->lse = options.own_lse ? CALL_TENSOR(c, EJK_DTYPE_F32, p->tokens, p->heads)
                                 : CALL_TENSOR(c, EJK_DTYPE_F32, p->heads, p->tokens);
    return p;
}

/* ---- What nobody sees -------------------------------------------------------------------------------- */

/* Where element d of a row lies in it. */
static int64_t lane(const struct paged *p, int64_t d) {
    return p->latent && d >= p->latent ? p->tail_at + d - p->latent : d;
}

static void hide(const struct paged *p, const ejk_tensor *t, int which, const uint8_t *seen) {
    if (!ejk_tensor_present(t)) return;
    const int64_t width = which ? p->value_dim : p->dim;
    FOR(page, p->pages) FOR(row, p->page) FOR(head, p->kv_heads) {
        if (seen[page * p->page + row]) continue;
        FOR(d, width)
        tensor_put(t, paged_at(p, page, row, head, which) + lane(p, d),
                   t->dtype == EJK_DTYPE_I8 ? 127 : (double)NAN);
    }
}

static void hide_scales(const struct paged *p, const ejk_tensor *t, const uint8_t *seen) {
    if (!ejk_tensor_present(t) || t->rank != 3) return;
    FOR(n, p->pages * p->page * p->kv_heads)
    if (!seen[n / p->kv_heads]) tensor_put(t, n, (double)NAN);
}

/* Keys that are read and not written before. */
static int64_t end_of(const struct paged *p, int64_t n) {
    return p->options.writes ? p->keys[n] - (p->begin[n + 1] - p->begin[n]) : p->keys[n];
}

void paged_finish(struct call *c) {
    struct paged *p = c->own;
    uint8_t *seen = call_memory(c, (size_t)(p->pages * p->page) + 1);
    FOR(n, p->counted) {
        const int64_t end = p->begin[n + 1] > p->begin[n] ? end_of(p, n) : 0;
        for (int64_t t = low_of(p, n, 0); t < end; t++)
            seen[p->table[n][t / p->page] * p->page + t % p->page] = 1;
    }
    hide(p, &p->key_cache, 0, seen);
    hide(p, ejk_tensor_present(&p->value_cache) ? &p->value_cache : &p->key_cache, 1, seen);
    hide_scales(p, &p->k_scale, seen);
    hide_scales(p, &p->v_scale, seen);
    const int64_t width = p->query.shape[2] * p->heads;
    for (int64_t n = p->begin[p->counted] * width; n < p->tokens * width; n++)
        tensor_put(&p->query, n, (double)NAN);
}

/* ---- The model --------------------------------------------------------------------------------------- */

/* One row of a head; orders sum backwards, the later ones multiply each element of a key by its scale. */
struct row {
    struct call *c;
    const struct paged *p;
    int order;
    int64_t n, r, h, low, high;
    long double *z;
};

static long double step(const struct row *w, long double value) {
    if (w->order == EXACT) return value;
    return w->c->dtype == EJK_DTYPE_F64 ? (long double)(double)value : (long double)(float)value;
}

static long double narrow(const struct row *w, long double value) {
    if (w->order == EXACT || w->c->dtype == EJK_DTYPE_F64 || w->c->dtype == EJK_DTYPE_F32)
        return value;
    double place;
    element_store(w->c->dtype, &place, 0, (double)value);
    return (long double)element_load(w->c->dtype, &place, 0);
}

static long double factor(const struct paged *p, const double *scales, const ejk_tensor *t,
                          int64_t page, int64_t row, int64_t head) {
    if (!scales) return 1;
    if (t->rank == 3) return (long double)scales[(page * p->page + row) * p->kv_heads + head];
    return (long double)scales[t->shape[0] == 1 ? 0 : head];
}

static long double score(const struct row *w, int64_t t) {
    const struct paged *p = w->p;
    const int64_t rows = p->begin[w->n + 1] - p->begin[w->n], context = p->keys[w->n] - rows;
    const int64_t page = p->table[w->n][t / p->page], head = w->h / p->group;
    const double *q = p->q + ((p->begin[w->n] + w->r) * p->heads + w->h) * p->dim;
    const double *k = p->k + paged_at(p, page, t % p->page, head, 0);
    const long double constant = p->k_factor.set ? (long double)p->k_factor.value : 1;
    const long double unit = constant * factor(p, p->ks, &p->k_scale, page, t % p->page, head);
    const bool first = w->order >= ORDERS / 2;
    long double z = 0, size = 0;
    FOR(i, p->dim) {
        const int64_t d = w->order > 0 && w->order % 2 ? p->dim - 1 - i : i;
        const long double element = (long double)k[lane(p, d)];
        const long double value = first ? step(w, element * unit) : element;
        z = step(w, z + step(w, (long double)q[d] * value));
        size += fabsl((long double)q[d] * value);
    }
    const long double by = (long double)p->scale_is * (first ? 1 : unit);
    z = step(w, z * step(w, by));
    if (p->cap.set)
        z = step(w, (long double)p->cap.value * step(w, tanhl(z / (long double)p->cap.value)));
    if (p->slope)
        z = step(w, z + step(w, (long double)p->slope[w->h] * (long double)(t - context)));
    if (p->qq && t >= context)
        z = step(w, z + (long double)p->qq[w->r * p->bias.shape[1] + t - context]);
    size *= fabsl(by);
    if (isfinite(size)) w->c->magnitude = fmax(w->c->magnitude, (double)size);
    return z;
}

static void attend(const struct row *w, double *out, double *spread, double *lse) {
    const struct paged *p = w->p;
    const int64_t head = w->h / p->group, sinks = p->sink ? p->sinks.shape[p->sinks.rank - 1] : 0;
    const int64_t share = p->sink && p->sinks.rank == 2 ? p->heads / p->sinks.shape[0] : 0;
    const double *sink = p->sink + (share ? w->h / share * sinks : 0);
    long double most = -(long double)INFINITY, sum = 0;
    for (int64_t t = w->low; t < w->high; t++) {
        w->z[t] = score(w, t);
        if (w->z[t] > most) most = w->z[t];
    }
    FOR(i, sinks) most = fmaxl(most, (long double)sink[i]);
    FOR(i, w->high - w->low) {
        const int64_t t = w->order > 0 && w->order % 4 >= 2 ? w->high - 1 - i : w->low + i;
        w->z[t] = isinf(w->z[t]) && w->z[t] < 0 ? 0 : step(w, expl(step(w, w->z[t] - most)));
        sum = step(w, sum + w->z[t]);
    }
    FOR(i, isinf(most) ? 0 : sinks) sum = step(w, sum + step(w, expl((long double)sink[i] - most)));
    FOR(d, p->value_dim) {
        long double total = 0, size = 0;
        for (int64_t t = w->low; t < w->high; t++) {
            const int64_t page = p->table[w->n][t / p->page], row = t % p->page;
            const long double v = (long double)p->v[paged_at(p, page, row, head, 1) + d] *
                                  factor(p, p->vs, &p->v_scale, page, row, head) *
                                  (p->v_factor.set ? (long double)p->v_factor.value : 1);
            if (w->z[t] == 0) continue;
            total = step(w, total + narrow(w, w->z[t]) * step(w, v));
            size += fabsl(w->z[t] * v);
        }
        if (out) out[d] = sum == 0 ? 0 : (double)(total / sum);
        if (spread) spread[d] = sum == 0 ? 0 : (double)(size / sum);
    }
    if (lse) *lse = sum == 0 ? -(double)INFINITY : (double)(most + logl(sum));
}

/* What a cache holds of a value, rounded once; element_store() would round to float32 first. */
static double stored(const struct call *c, int order, ejk_dtype type, double value, double scale) {
    double place = 0;
    double element = order == EXACT || c->dtype == EJK_DTYPE_F64
                         ? value / scale
                         : (double)((float)value / (float)scale);
    if (type == EJK_DTYPE_I8) return fmax(-128, fmin(127, nearbyint(element)));
    const ejk_tensor from = ejk_tensor_contiguous(&element, EJK_DTYPE_F64, 0, NULL),
                     to = ejk_tensor_contiguous(&place, type, 0, NULL);
    if (ejk_tensor_copy(&from, &to) != EJK_OK) abort();
    return element_load(type, &place, 0);
}

/* New rows where they go; `which` is 1 for values, 2 for second parts. */
static void write_rows(struct call *c, const struct paged *p, int which, const ejk_tensor *rows,
                       const ejk_tensor *scales, ejk_opt_float constant, int order, double *cache) {
    if (!ejk_tensor_present(rows)) return;
    const int64_t width = rows->shape[rows->rank - 1];
    FOR(n, p->counted) FOR(r, p->begin[n + 1] - p->begin[n]) FOR(h, p->kv_heads) FOR(d, width) {
        const int64_t t = p->keys[n] - (p->begin[n + 1] - p->begin[n]) + r;
        const int64_t token = p->begin[n] + r, page = p->table[n][t / p->page], row = t % p->page;
        double scale = constant.set ? constant.value : 1;
        if (ejk_tensor_present(scales)) scale *= tensor_get(scales, scales->shape[0] == 1 ? 0 : h);
        const double value = tensor_get(rows, (token * p->kv_heads + h) * width + d);
        cache[paged_at(p, page, row, h, which == 1) + (which == 2 ? p->tail_at : 0) + d] =
            stored(c, order, p->key_cache.dtype, value, scale);
    }
}

static double *queries(struct call *c, const struct paged *p) {
    const int64_t first = p->query.shape[2], rows = p->tokens * p->heads;
    double *q = call_memory(c, (size_t)(rows * p->dim + 1) * sizeof *q);
    FOR(n, rows) FOR(d, p->dim) {
        double value = d < first ? tensor_get(&p->query, n * first + d)
                                 : tensor_get(&p->query_tail, n * (p->dim - first) + d - first);
        if (p->q_scale.set)
            value =
                stored(c, EXACT, p->key_cache.dtype, value, p->q_scale.value) * p->q_scale.value;
        q[n * p->dim + d] = value;
    }
    return q;
}

/* New rows in the caches, quotients rounded as the order has them. */
static void write(struct call *c, struct paged *p, int order) {
    write_rows(c, p, 0, &p->new_key, &p->k_scale, p->k_factor, order, p->k);
    write_rows(c, p, 1, &p->new_value, &p->v_scale, p->v_factor, order, p->v);
    write_rows(c, p, 2, &p->new_tail, &p->k_scale, p->k_factor, order, p->k);
    if (order != EXACT) return;
    const bool two = ejk_tensor_present(&p->value_cache);
    double *key = call_result(c, p->options.key_name, EXACT, ELEMENT);
    FOR(n, ejk_tensor_count(&p->key_cache)) key[n] = p->k[n];
    double *value = two ? call_result(c, p->options.value_name, EXACT, ELEMENT) : NULL;
    FOR(n, two ? ejk_tensor_count(&p->value_cache) : 0) value[n] = p->v[n];
}

static void prepare(struct call *c, struct paged *p) {
    if (p->q) return;
    p->q = queries(c, p);
    p->k = tensor_values(c, &p->key_cache);
    p->v = ejk_tensor_present(&p->value_cache) ? tensor_values(c, &p->value_cache) : p->k;
    p->ks = tensor_values(c, &p->k_scale);
    p->vs = tensor_values(c, &p->v_scale);
    p->sink = tensor_values(c, &p->sinks);
    p->slope = tensor_values(c, &p->alibi);
    p->qq = tensor_values(c, &p->bias);
}

void paged_naive(struct call *c, int order) {
    struct paged *p = c->own;
    prepare(c, p);
    if (p->options.writes) write(c, p, order);
    if (!ejk_tensor_present(&p->out)) return;
    double *out = call_result(c, "out", order, ELEMENT);
    double *spread = order == EXACT ? call_result(c, "out", SPREAD, ELEMENT) : NULL;
    double *lse = ejk_tensor_present(&p->lse) ? call_result(c, "lse", order, LOG_SUM) : NULL;
    if (ejk_tensor_present(&p->status)) call_result(c, "status", order, ELEMENT);
    long double *z = calloc(PAGED_WIDTH * 64, sizeof *z);
    if (!z) abort();
    FOR(n, p->tokens * p->heads) if (lse) lse[n] = -(double)INFINITY;
    FOR(n, p->counted) FOR(r, p->begin[n + 1] - p->begin[n]) FOR(h, p->heads) {
        const int64_t token = p->begin[n] + r, at = (token * p->heads + h) * p->value_dim;
        const struct row w = {c, p, order, n, r, h, low_of(p, n, r), high_of(p, n, r), z};
        struct row seen = w;
        if (seen.high < seen.low) seen.high = seen.low;
        const int64_t place = p->options.own_lse ? token * p->heads + h : h * p->tokens + token;
        attend(&seen, out ? out + at : NULL, spread ? spread + at : NULL, lse ? lse + place : NULL);
    }
    c->scarce = p->tokens * p->heads < 16;
    free(z);
}

void paged_exact(struct call *c) {
    paged_naive(c, EXACT);
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

static ejk_tensor shifted(struct call *c, const ejk_tensor *t, int64_t a, int64_t b) {
    ejk_tensor own = CALL_TENSOR(c, t->dtype, b - a + 1);
    FOR(i, b - a + 1) put_int(&own, i, (int64_t)tensor_get(t, a + i) - (int64_t)tensor_get(t, a));
    return own;
}

static void range(struct slice *s, const char *symbol, int64_t first, int64_t end) {
    s->range[s->count].symbol = symbol;
    s->range[s->count].first = first;
    s->range[s->count++].end = end;
}

bool paged_slice(const struct call *c, struct random *r, struct slice *s, const char *tokens,
                 ejk_tensor *lens, ejk_tensor *tables, ejk_tensor *starts, ejk_tensor *indptr,
                 ejk_tensor *indices) {
    struct paged *p = c->own;
    struct call *call = (struct call *)(uintptr_t)c;
    if (p->counted < 1 || p->counted < p->sequences) return false;
    const int64_t a = random_int(r, 0, p->counted - 1), b = random_int(r, a + 1, p->counted);
    if (p->begin[b] == p->begin[a]) return false;
    const int64_t head = random_int(r, 0, p->kv_heads - 1),
                  end = random_int(r, head + 1, p->kv_heads);
    range(s, tokens, p->begin[a], p->begin[b]);
    if (p->options.form == FORM_NHD || p->options.form == FORM_HND) {
        range(s, "Hkv", head, end);
        range(s, "Hq", head * p->group, end * p->group);
    }
    *lens = ejk_tensor_slice(*lens, 0, a, b - a);
    if (tables && ejk_tensor_present(tables)) *tables = ejk_tensor_slice(*tables, 0, a, b - a);
    if (starts) *starts = shifted(call, &p->starts, a, b);
    if (!indptr || !p->by_lists) return true;
    const int64_t first = (int64_t)tensor_get(&p->indptr, a);
    *indptr = shifted(call, &p->indptr, a, b);
    *indices = ejk_tensor_slice(*indices, 0, first, p->indices.shape[0] - first);
    return true;
}
