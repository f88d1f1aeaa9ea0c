/* SPDX-License-Identifier: Apache-2.0 */
/* What branches of native_sparse_attention see, and which blocks are chosen. */
#include "conformance/native_sparse.h"

#include <string.h>

#define R(value) call_step(c, order, value)

long double sparse_narrowed(const struct call *c, int order, long double value) {
    double place = 0;
    if (order == EXACT) return value;
    element_store(c->dtype, &place, 0, (double)value);
    return (long double)element_load(c->dtype, &place, 0);
}

int64_t sparse_line(const struct sparse *s, int64_t t, int64_t *row) {
    const struct lines *l = &s->lines;
    *row = 0;
    if (!l->packed) return 0;
    for (int64_t n = 0; n < l->count; n++)
        if (t >= l->begin[n] && t < l->end[n]) {
            *row = l->begin[n] / s->block + n;
            return l->begin[n];
        }
    return -1;
}

/* Tokens of a block of the token's sequence. */
static int64_t block_end(const struct sparse *s, int64_t t, int64_t begin) {
    const struct lines *l = &s->lines;
    int64_t end = begin + ((t - begin) / s->block + 1) * s->block;
    for (int64_t n = 0; l->packed && n < l->count; n++)
        if (t >= l->begin[n] && t < l->end[n] && end > l->end[n]) end = l->end[n];
    return end > s->tokens ? s->tokens : end;
}

static long double *widened(struct call *c, const ejk_tensor *t, int64_t heads, int64_t width) {
    const int64_t rows = ejk_tensor_count(t) / (width ? width : 1), tokens = t->shape[1];
    long double *values = call_memory(c, (size_t)ejk_tensor_count(t) * sizeof *values);
    for (int64_t n = 0; n < rows; n++) {
        const int64_t b = n / heads / tokens, head = n % heads, token = n / heads % tokens;
        for (int64_t d = 0; d < width; d++)
            values[((b * heads + head) * tokens + token) * width + d] =
                (long double)tensor_get(t, n * width + d);
    }
    return values;
}

/* Means, with sums in the precision of the call. */
long double *sparse_means(struct call *c, int order, const long double *from, int64_t width) {
    const struct sparse *s = c->own;
    const int64_t heads = s->batch * s->kv_heads;
    long double *to = call_memory(c, (size_t)(heads * s->rows * width) * sizeof *to);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t t = 0; t < s->tokens; t++) {
            int64_t row;
            const int64_t begin = sparse_line(s, t, &row);
            if (begin < 0) continue;
            const int64_t first = begin + (t - begin) / s->block * s->block;
            const int64_t end = block_end(s, t, begin);
            long double *mean = to + (h * s->rows + row + (t - begin) / s->block) * width;
            for (int64_t d = 0; d < width; d++) {
                mean[d] = R(mean[d] + from[(h * s->tokens + t) * width + d]);
                if (t == end - 1) mean[d] = R(mean[d] / (long double)(end - first));
            }
        }
    return to;
}

void sparse_read(struct call *c) {
    struct sparse *s = c->own;
    if (s->q) return;
    s->q = tensor_values(c, &s->query);
    for (int i = 0; i < BRANCHES; i++) s->g[i] = tensor_values(c, &s->gate[i]);
    s->cotangent = c->gradient ? tensor_values(c, &s->out) : NULL;
    s->token.key = widened(c, &s->key, s->kv_heads, s->dim);
    s->token.value = widened(c, &s->value, s->kv_heads, s->width);
}

int64_t sparse_query_at(const struct sparse *s, const struct row *r) {
    return (r->b * s->tokens + r->t) * s->heads + r->head;
}

void sparse_weigh(struct call *c, int order, const struct row *r, const long double *key) {
    const struct sparse *s = c->own;
    const double *q = s->q + sparse_query_at(s, r) * s->dim;
    const int64_t from = order == EXACT ? 0 : s->dim * order / ORDERS;
    long double most = -(long double)INFINITY, sum = 0;
    for (int64_t i = 0; i < r->count; i++) {
        long double z = 0;
        for (int64_t k = 0; k < s->dim; k++) {
            const int64_t d = (from + k) % s->dim;
            z = R(z + R((long double)q[d] * key[r->seen[i] * s->dim + d]));
        }
        r->weight[i] = R(z * (long double)s->scale);
        most = fmaxl(most, r->weight[i]);
    }
    for (int64_t i = 0; i < r->count; i++)
        sum = R(sum + (r->weight[i] = R(expl(R(r->weight[i] - most)))));
    for (int64_t i = 0; i < r->count; i++) r->weight[i] = R(r->weight[i] / sum);
}

static void see_blocks(const struct sparse *s, struct row *r) {
    r->count = (r->t - r->begin + 1) / s->block;
    for (int64_t i = 0; i < r->count; i++) r->seen[i] = r->first + i;
}

void sparse_see(const struct sparse *s, struct row *r, int branch) {
    const int64_t n = (r->b * s->tokens + r->t) * s->kv_heads + r->kv;
    if (branch == COMPRESSED) {
        see_blocks(s, r);
        return;
    }
    r->count = 0;
    for (int64_t u = r->begin; u <= r->t; u++) {
        bool sees = branch == WINDOW && u > r->t - s->window;
        for (int64_t i = 0; branch == SELECTED && i < s->count[n]; i++)
            sees = sees || (u - r->begin) / s->block == s->chosen[n * s->slots + i];
        if (sees) r->seen[r->count++] = u;
    }
}

struct row sparse_row(struct call *c) {
    const struct sparse *s = c->own;
    const size_t most = (size_t)(s->tokens + s->rows + 1);
    return (struct row){.seen = call_memory(c, most * sizeof(int64_t)),
                        .weight = call_memory(c, most * sizeof(long double)),
                        .own = call_memory(c, most * sizeof(long double))};
}

/* ---- Which blocks ------------------------------------------------------------------------------------ */

static int64_t limit_of(const struct sparse *s, int64_t n) {
    const int64_t own =
        ejk_tensor_present(&s->counts) ? (int64_t)tensor_get(&s->counts, n) : s->slots;
    return own < s->slots ? own : s->slots;
}

static void add_block(const struct sparse *s, int64_t n, int64_t block) {
    int64_t *list = s->chosen + n * s->slots, at = s->count[n];
    for (int64_t i = 0; i < at; i++)
        if (list[i] == block) return;
    for (; at > 0 && list[at - 1] > block; at--) list[at] = list[at - 1];
    list[at] = block;
    s->count[n]++;
}

/* How far what is chosen is from what is not, of the larger one; 1: there is no choice, or all are the same. */
static long double choose(struct call *c, struct row *r, int64_t n, long double *importance) {
    const struct sparse *s = c->own;
    const int64_t own = (r->t - r->begin) / s->block, limit = limit_of(s, n);
    long double last = 0;
    memset(importance, 0, (size_t)(own + 1) * sizeof *importance);
    s->count[n] = 0;
    for (int64_t g = 0; g < s->group; g++) {
        r->head = r->kv * s->group + g;
        see_blocks(s, r);
        sparse_weigh(c, EXACT, r, s->mean.key + (r->b * s->kv_heads + r->kv) * s->rows * s->dim);
        for (int64_t i = 0; i < own; i++) importance[i] += r->weight[i];
    }
    if (limit > 0) add_block(s, n, own);
    for (int64_t k = 1; k <= limit && k <= own; k++) {
        int64_t best = 0;
        for (int64_t i = 1; i < own; i++)
            if (importance[i] > importance[best]) best = i;
        if (k == limit) {
            const long double other = importance[best];
            return k == 1 || last == other ? 1 : (last - other) / last;
        }
        last = importance[best];
        importance[best] = -1;
        add_block(s, n, best);
    }
    return 1;
}

/* Queries whose choice is a matter of rounding become others; some are 0, for which all blocks are equal. */
static void settle(struct call *c, struct row *r, int64_t n, long double *importance) {
    struct sparse *s = c->own;
    struct random *random = &c->random;
    bool zero = random_chance(random, 0.03);
    for (int tries = 0; zero || choose(c, r, n, importance) < 1e-3L; tries++) {
        const int64_t at = ((r->b * s->tokens + r->t) * s->heads + r->kv * s->group) * s->dim;
        const double deviation = zero || tries > 20 ? 0 : 1;
        zero = false;
        for (int64_t i = at; i < at + s->group * s->dim; i++) {
            tensor_put(&s->query, i, deviation * random_normal(random));
            s->q[i] = tensor_get(&s->query, i);
        }
        if (deviation != 0) continue;
        choose(c, r, n, importance);
        return;
    }
}

static void collect(const struct sparse *s, const struct row *r, int64_t n) {
    const int64_t own = (r->t - r->begin) / s->block, slots = s->indices.shape[3];
    for (int64_t i = 0; i < limit_of(s, n); i++) {
        const int64_t block = (int64_t)tensor_get(&s->indices, n * slots + i);
        if (block >= 0 && block <= own) add_block(s, n, block);
    }
}

void sparse_choose(struct call *c) {
    struct sparse *s = c->own;
    const int64_t rows = s->batch * s->tokens * s->kv_heads;
    s->chosen = call_memory(c, (size_t)(rows * (s->slots + 1)) * sizeof *s->chosen);
    s->count = call_memory(c, (size_t)rows * sizeof *s->count);
    struct row r = sparse_row(c);
    long double *importance = call_memory(c, (size_t)(s->rows + 1) * sizeof *importance);
    s->mean.key = sparse_means(c, EXACT, s->token.key, s->dim);
    for (int64_t n = 0; n < rows; n++) {
        r.b = n / s->kv_heads / s->tokens;
        r.t = n / s->kv_heads % s->tokens;
        r.kv = n % s->kv_heads;
        r.begin = sparse_line(s, r.t, &r.first);
        if (r.begin < 0) continue;
        if (ejk_tensor_present(&s->indices))
            collect(s, &r, n);
        else
            settle(c, &r, n, importance);
    }
}

void sparse_hide_unseen(struct call *c) {
    const struct sparse *s = c->own;
    if (s->window > 0 || ejk_tensor_present(&s->gate[COMPRESSED])) return;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t kv = 0; kv < s->kv_heads; kv++)
            for (int64_t u = 0; u < s->tokens; u++) {
                int64_t first;
                const int64_t begin = sparse_line(s, u, &first);
                bool seen = false;
                if (begin < 0) continue;
                for (int64_t t = u; t < s->tokens && sparse_line(s, t, &first) == begin; t++) {
                    const int64_t n = (b * s->tokens + t) * s->kv_heads + kv;
                    for (int64_t i = 0; i < s->count[n]; i++)
                        seen = seen || (u - begin) / s->block == s->chosen[n * s->slots + i];
                }
                if (seen) continue;
                const int64_t row = (b * s->tokens + u) * s->kv_heads + kv;
                tensor_hide(&s->key, row * s->dim, s->dim);
                tensor_hide(&s->value, row * s->width, s->width);
            }
}
