/* SPDX-License-Identifier: Apache-2.0 */
/* flash_mla. */
#include "conformance/cases.h"

#include <stdlib.h>

#define FOR(index, count) for (int64_t index = 0; index < (count); index++)

struct mla {
    int64_t batch, tokens, heads, kv_heads, latent, dim, rope, value_dim;
    int64_t ends[6], sequences; /* packed ones; 0: none */
    double *q, *c, *wk, *wv, *bq, *bk;
};

static ejk_tensor filled(struct call *c, int32_t rank, const int64_t *shape, double size) {
    ejk_tensor t = call_tensor(c, c->dtype, rank, shape);
    FOR(n, ejk_tensor_count(&t)) tensor_put(&t, n, size * random_normal(&c->random));
    return t;
}
#define FILLED(c, size, ...)                                                                       \
    filled(c, (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                       \
           (const int64_t[]){__VA_ARGS__}, size)

static void pack(struct call *c, struct mla *m, ejk_flash_mla_args *a) {
    struct random *r = &c->random;
    m->batch = 1;
    m->sequences = random_int(r, 1, 4);
    a->cu_seqlens = CALL_TENSOR(c, EJK_DTYPE_I32, m->sequences + 1);
    FOR(n, m->sequences) {
        m->ends[n + 1] = random_int(r, m->ends[n], m->tokens);
        tensor_put(&a->cu_seqlens, n + 1, (double)m->ends[n + 1]);
    }
}

static bool generate(struct call *c) {
    static const int64_t tokens[] = {0, 1, 5, 17, 40, 70}, sizes[] = {1, 8, 16, 24, 33};
    struct random *r = &c->random;
    ejk_flash_mla_args *a = c->args;
    struct mla *m = call_memory(c, sizeof *m);
    c->own = m;
    m->batch = random_int(r, 1, 2);
    m->tokens = RANDOM_OF(r, tokens);
    m->kv_heads = random_int(r, 1, 2);
    m->heads = m->kv_heads * random_int(r, 1, 3);
    m->latent = RANDOM_OF(r, sizes);
    m->dim = RANDOM_OF(r, sizes);
    m->value_dim = RANDOM_OF(r, sizes);
    m->rope = random_chance(r, 0.7) ? 8 * random_int(r, 1, 2) : 0;
    const int64_t kind = m->rope ? random_int(r, 0, 2) : 0; /* fused, per head, shared */
    if (random_chance(r, 0.4)) pack(c, m, a);
    a->query = FILLED(c, 1, m->batch, m->tokens, m->heads, m->dim + (kind == 0 ? m->rope : 0));
    a->key_value = FILLED(c, 1, m->batch, m->tokens, m->latent);
    a->w_kc = FILLED(c, 0.3, m->latent, m->kv_heads, m->dim);
    a->w_vc = FILLED(c, 0.3, m->latent, m->kv_heads, m->value_dim);
    if (m->rope) a->b_k = FILLED(c, 1, m->batch, m->tokens, m->rope);
    if (kind == 1) a->b_q = FILLED(c, 1, m->batch, m->tokens, m->heads, m->rope);
    if (kind == 2) a->b_q = FILLED(c, 1, m->batch, m->tokens, m->rope);
    a->causal = random_chance(r, 0.6);
    if (a->causal && random_chance(r, 0.3)) a->sliding_window = ejk_int(random_int(r, 1, 20));
    if (random_chance(r, 0.3)) a->logits_soft_cap = ejk_float(3 + random_real(r));
    a->out = CALL_TENSOR(c, c->dtype, m->batch, m->tokens, m->heads, m->value_dim);
    if (random_chance(r, 0.5))
        a->lse = CALL_TENSOR(c, EJK_DTYPE_F32, m->batch, m->heads, m->tokens);
    return true;
}

/* One sum over the latent. */
static long double product(const struct mla *m, const double *w, int64_t token, int64_t column,
                           int64_t columns) {
    long double sum = 0;
    FOR(k, m->latent)
    sum += (long double)m->c[token * m->latent + k] * (long double)w[k * columns + column];
    return sum;
}

struct keys {
    long double *k, *v; /* [B·T,Hkv,Dn], [B·T,Hkv,Dv] */
};

static long double score(const struct call *c, const struct mla *m, const struct keys *keys,
                         int64_t i, int64_t j, int64_t h) {
    const ejk_flash_mla_args *a = c->args;
    const int64_t width = a->query.shape[3];
    const double *q = m->q + (i * m->heads + h) * width, *tail = q + m->dim;
    if (m->bq) tail = m->bq + (a->b_q.rank == 4 ? i * m->heads + h : i) * m->rope;
    long double z = 0;
    FOR(d, m->dim)
    z += (long double)q[d] * keys->k[(j * m->kv_heads + h * m->kv_heads / m->heads) * m->dim + d];
    FOR(d, m->rope) z += (long double)tail[d] * (long double)m->bk[j * m->rope + d];
    z /= sqrtl((long double)(m->dim + m->rope));
    if (!a->logits_soft_cap.set) return z;
    const long double cap = (long double)a->logits_soft_cap.value;
    return cap * tanhl(z / cap);
}

/* Token i of those from first to end - 1, which are numbers of all tokens. */
static void attend(struct call *c, const struct keys *keys, int64_t i, int64_t h, int64_t first,
                   int64_t end) {
    const struct mla *m = c->own;
    const ejk_flash_mla_args *a = c->args;
    const int64_t group = m->heads / m->kv_heads, window = a->sliding_window.value;
    if (a->causal) end = i + 1;
    if (a->sliding_window.set && i + 1 - window > first) first = i + 1 - window;
    double *out = call_result(c, "out", EXACT, ELEMENT) + (i * m->heads + h) * m->value_dim;
    double *spread = call_result(c, "out", SPREAD, ELEMENT) + (i * m->heads + h) * m->value_dim;
    long double sum = 0, most = -(long double)INFINITY;
    for (int64_t j = first; j < end; j++) most = fmaxl(most, score(c, m, keys, i, j, h));
    for (int64_t j = first; j < end; j++) {
        const long double w = expl(score(c, m, keys, i, j, h) - most);
        sum += w;
        FOR(d, m->value_dim) {
            const long double v = keys->v[(j * m->kv_heads + h / group) * m->value_dim + d];
            out[d] += (double)(w * v);
            spread[d] += (double)fabsl(w * v);
        }
    }
    FOR(d, m->value_dim) out[d] /= (double)sum, spread[d] /= (double)sum;
    if (ejk_tensor_present(&a->lse))
        call_result(c, "lse", EXACT,
                    LOG_SUM)[(i / m->tokens * m->heads + h) * m->tokens + i % m->tokens] =
            (double)(most + logl(sum));
}

static void exact(struct call *c) {
    struct mla *m = c->own;
    const ejk_flash_mla_args *a = c->args;
    const int64_t tokens = m->batch * m->tokens, keys_row = m->kv_heads * m->dim,
                  values_row = m->kv_heads * m->value_dim;
    m->q = tensor_values(c, &a->query);
    m->c = tensor_values(c, &a->key_value);
    m->wk = tensor_values(c, &a->w_kc);
    m->wv = tensor_values(c, &a->w_vc);
    m->bq = tensor_values(c, &a->b_q);
    m->bk = tensor_values(c, &a->b_k);
    struct keys keys = {call_memory(c, (size_t)(tokens * keys_row + 1) * sizeof *keys.k),
                        call_memory(c, (size_t)(tokens * values_row + 1) * sizeof *keys.v)};
    FOR(n, tokens * keys_row) keys.k[n] = product(m, m->wk, n / keys_row, n % keys_row, keys_row);
    FOR(n, tokens * values_row)
    keys.v[n] = product(m, m->wv, n / values_row, n % values_row, values_row);
    call_result(c, "out", EXACT, ELEMENT);
    double *lse = ejk_tensor_present(&a->lse) ? call_result(c, "lse", EXACT, LOG_SUM) : NULL;
    FOR(n, tokens * m->heads) if (lse) lse[n] = -(double)INFINITY;
    c->scarce = true; /* sums of sums: eps counts relative to their terms */
    FOR(n, tokens * m->heads) {
        const int64_t i = n / m->heads;
        int64_t first = i / m->tokens * m->tokens, end = first + m->tokens, s = 0;
        if (m->sequences > 0) {
            while (s < m->sequences && m->ends[s + 1] <= i) s++;
            if (s == m->sequences) continue;
            first = m->ends[s], end = m->ends[s + 1];
        }
        attend(c, &keys, i, n % m->heads, first, end);
    }
    c->magnitude = 2;
}

const struct operation flash_mla_case = {
    .op = "flash_mla", .cases = 16, .generate = generate, .exact = exact};
