/* SPDX-License-Identifier: Apache-2.0 */
/* flash_mla and its gradient. */
#include "conformance/cases.h"

#include <stdlib.h>

#define FOR(index, count) for (int64_t index = 0; index < (count); index++)

struct mla {
    int64_t batch, tokens, heads, kv_heads, latent, dim, rope, value_dim;
    int64_t ends[6], sequences; /* packed ones; 0: none */
    double *q, *c, *wk, *wv, *bq, *bk, *sinks, *d_out, *d_lse;
    ejk_flash_mla_args call; /* its inputs */
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

static struct mla *make(struct call *c) {
    static const int64_t tokens[] = {0, 1, 5, 17, 40, 70}, sizes[] = {1, 8, 16, 24, 33};
    struct random *r = &c->random;
    struct mla *m = c->own = call_memory(c, sizeof *m);
    ejk_flash_mla_args *a = &m->call;
    m->batch = random_int(r, 1, 2);
    m->tokens = RANDOM_OF(r, tokens);
    m->kv_heads = random_int(r, 1, 2);
    m->heads = m->kv_heads * random_int(r, 1, 3);
    m->latent = RANDOM_OF(r, sizes);
    m->dim = RANDOM_OF(r, sizes);
    m->value_dim = RANDOM_OF(r, sizes);
    m->rope = random_chance(r, 0.7) ? 8 * random_int(r, 1, 2) : 0;
    if (random_chance(r, 0.05)) { /* more than a panel of keys */
        m->batch = m->heads = m->kv_heads = 1;
        m->tokens = 530, m->dim = m->value_dim = m->latent = 8;
    }
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
    if (random_chance(r, 0.3)) a->softmax_scale = ejk_float(random_real(r) / 2);
    if (random_chance(r, 0.3)) a->logits_soft_cap = ejk_float(3 + random_real(r));
    if (random_chance(r, 0.3)) a->softmax_aux = FILLED(c, 1, m->heads, 2);
    return m;
}

static bool generate(struct call *c) {
    const struct mla *m = make(c);
    ejk_flash_mla_args *a = c->args;
    *a = m->call;
    a->out = CALL_TENSOR(c, c->dtype, m->batch, m->tokens, m->heads, m->value_dim);
    if (random_chance(&c->random, 0.5))
        a->lse = CALL_TENSOR(c, EJK_DTYPE_F32, m->batch, m->heads, m->tokens);
    return true;
}

static bool generate_vjp(struct call *c) {
    const struct mla *m = make(c);
    const ejk_flash_mla_args *in = &m->call;
    struct random *r = &c->random;
    ejk_flash_mla_vjp_args *a = c->args;
    *a = (ejk_flash_mla_vjp_args){.query = in->query,
                                  .key_value = in->key_value,
                                  .w_kc = in->w_kc,
                                  .w_vc = in->w_vc,
                                  .b_q = in->b_q,
                                  .b_k = in->b_k,
                                  .cu_seqlens = in->cu_seqlens,
                                  .softmax_aux = in->softmax_aux,
                                  .causal = in->causal,
                                  .softmax_scale = in->softmax_scale,
                                  .sliding_window = in->sliding_window,
                                  .logits_soft_cap = in->logits_soft_cap};
    a->d_out = FILLED(c, 1, m->batch, m->tokens, m->heads, m->value_dim);
    if (random_chance(r, 0.3)) {
        a->d_lse = CALL_TENSOR(c, EJK_DTYPE_F32, m->batch, m->heads, m->tokens);
        FOR(n, ejk_tensor_count(&a->d_lse)) tensor_put(&a->d_lse, n, random_normal(r));
    }
    const struct {
        ejk_tensor *gradient;
        const ejk_tensor *input;
    } wanted[] = {{&a->d_query, &in->query},
                  {&a->d_key_value, &in->key_value},
                  {&a->d_w_kc, &in->w_kc},
                  {&a->d_w_vc, &in->w_vc},
                  {&a->d_b_q, &in->b_q},
                  {&a->d_b_k, &in->b_k},
                  {&a->d_softmax_aux, &in->softmax_aux}};
    FOR(n, (int64_t)(sizeof wanted / sizeof *wanted))
    if (ejk_tensor_present(wanted[n].input) && random_chance(r, 0.8))
        *wanted[n].gradient =
            call_tensor(c, c->dtype, wanted[n].input->rank, wanted[n].input->shape);
    return true;
}

/* Tokens of no sequence hold NaN, and the last of all where no other row sees it. */
static void finish(struct call *c) {
    const struct mla *m = c->own;
    const ejk_flash_mla_args *a = &m->call;
    const ejk_tensor *inputs[] = {&a->query, &a->key_value, &a->b_q, &a->b_k};
    const int64_t tokens = m->batch * m->tokens;
    int64_t first = m->sequences > 0 ? m->ends[m->sequences] : tokens;
    if (c->dtype == EJK_DTYPE_F64) return; /* differences would find NaN */
    if (a->causal && first > 0 && m->latent == 24) first--, c->hostile = true;
    for (int i = 0; i < 4; i++) {
        const int64_t width = tokens > 0 ? ejk_tensor_count(inputs[i]) / tokens : 0;
        for (int64_t n = first * width; ejk_tensor_present(inputs[i]) && n < tokens * width; n++)
            tensor_put(inputs[i], n, (double)NAN);
    }
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
    long double *k, *v, *w; /* [B·T,Hkv,Dn], [B·T,Hkv,Dv]; weights of a row */
};

static long double scale_of(const struct mla *m) {
    if (m->call.softmax_scale.set) return (long double)m->call.softmax_scale.value;
    return 1 / sqrtl((long double)(m->dim + m->rope));
}

static long double score(const struct mla *m, const struct keys *keys, int64_t i, int64_t j,
                         int64_t h) {
    const ejk_flash_mla_args *a = &m->call;
    const int64_t width = a->query.shape[3];
    const double *q = m->q + (i * m->heads + h) * width, *tail = q + m->dim;
    if (m->bq) tail = m->bq + (a->b_q.rank == 4 ? i * m->heads + h : i) * m->rope;
    long double z = 0;
    FOR(d, m->dim)
    z += (long double)q[d] * keys->k[(j * m->kv_heads + h * m->kv_heads / m->heads) * m->dim + d];
    FOR(d, m->rope) z += (long double)tail[d] * (long double)m->bk[j * m->rope + d];
    z *= scale_of(m);
    if (!a->logits_soft_cap.set) return z;
    const long double cap = (long double)a->logits_soft_cap.value;
    return cap * tanhl(z / cap);
}

/* Tokens that token i sees, as numbers of all tokens; false: it is of no sequence. */
static bool seen(const struct mla *m, int64_t i, int64_t *first, int64_t *end) {
    const ejk_flash_mla_args *a = &m->call;
    *first = i / m->tokens * m->tokens, *end = *first + m->tokens;
    if (m->sequences > 0) {
        int64_t s = 0;
        while (s < m->sequences && m->ends[s + 1] <= i) s++;
        if (s == m->sequences) return false;
        *first = m->ends[s], *end = m->ends[s + 1];
    }
    if (a->causal) *end = i + 1;
    if (a->sliding_window.set && i + 1 - a->sliding_window.value > *first)
        *first = i + 1 - a->sliding_window.value;
    return true;
}

/* Weights of row i from w[first] on; the logarithm of what they were divided by. */
static long double weights(const struct mla *m, const struct keys *keys, int64_t i, int64_t h,
                           int64_t first, int64_t end, long double *w) {
    long double sum = 0, most = -(long double)INFINITY;
    const double *sinks = m->sinks ? m->sinks + 2 * h : NULL;
    for (int64_t j = first; j < end; j++) most = fmaxl(most, w[j] = score(m, keys, i, j, h));
    for (int n = 0; sinks && n < 2; n++) most = fmaxl(most, (long double)sinks[n]);
    for (int64_t j = first; j < end; j++) sum += w[j] = expl(w[j] - most);
    for (int n = 0; sinks && n < 2; n++) sum += expl((long double)sinks[n] - most);
    for (int64_t j = first; j < end; j++) w[j] /= sum;
    return most + logl(sum);
}

static void attend(struct call *c, const struct keys *keys, int64_t i, int64_t h, int64_t first,
                   int64_t end) {
    const struct mla *m = c->own;
    const ejk_flash_mla_args *a = c->args;
    const int64_t group = m->heads / m->kv_heads;
    long double *w = keys->w;
    double *out = call_result(c, "out", EXACT, ELEMENT) + (i * m->heads + h) * m->value_dim;
    double *spread = call_result(c, "out", SPREAD, ELEMENT) + (i * m->heads + h) * m->value_dim;
    const long double lse = weights(m, keys, i, h, first, end, w);
    for (int64_t j = first; j < end; j++) FOR(d, m->value_dim) {
            const long double v = keys->v[(j * m->kv_heads + h / group) * m->value_dim + d];
            out[d] += (double)(w[j] * v);
            spread[d] += (double)fabsl(w[j] * v);
        }
    if (ejk_tensor_present(&a->lse))
        call_result(c, "lse", EXACT,
                    LOG_SUM)[(i / m->tokens * m->heads + h) * m->tokens + i % m->tokens] =
            (double)lse;
}

static struct keys prepare(struct call *c) {
    struct mla *m = c->own;
    const ejk_flash_mla_args *a = &m->call;
    const int64_t tokens = m->batch * m->tokens, keys_row = m->kv_heads * m->dim,
                  values_row = m->kv_heads * m->value_dim;
    m->q = tensor_values(c, &a->query);
    m->c = tensor_values(c, &a->key_value);
    m->wk = tensor_values(c, &a->w_kc);
    m->wv = tensor_values(c, &a->w_vc);
    m->bq = tensor_values(c, &a->b_q);
    m->bk = tensor_values(c, &a->b_k);
    m->sinks = tensor_values(c, &a->softmax_aux);
    struct keys keys = {call_memory(c, (size_t)(tokens * keys_row + 1) * sizeof *keys.k),
                        call_memory(c, (size_t)(tokens * values_row + 1) * sizeof *keys.v),
                        call_memory(c, (size_t)(tokens + 1) * sizeof *keys.w)};
    FOR(n, tokens * keys_row) keys.k[n] = product(m, m->wk, n / keys_row, n % keys_row, keys_row);
    FOR(n, tokens * values_row)
    keys.v[n] = product(m, m->wv, n / values_row, n % values_row, values_row);
    c->scarce = true; /* sums of sums: eps counts relative to their terms */
    c->magnitude = 2;
    return keys;
}

static void exact(struct call *c) {
    const ejk_flash_mla_args *a = c->args;
    const struct keys keys = prepare(c);
    const struct mla *m = c->own;
    const int64_t rows = m->batch * m->tokens * m->heads;
    call_result(c, "out", EXACT, ELEMENT);
    double *lse = ejk_tensor_present(&a->lse) ? call_result(c, "lse", EXACT, LOG_SUM) : NULL;
    FOR(n, rows) if (lse) lse[n] = -(double)INFINITY;
    FOR(n, rows) {
        int64_t first, end;
        if (seen(m, n / m->heads, &first, &end))
            attend(c, &keys, n / m->heads, n % m->heads, first, end);
    }
}

/* ---- Gradient ---------------------------------------------------------------------------------------- */

/* Sums, and the sizes of their terms. */
struct sums {
    long double *value, *size;
};
struct gradients {
    struct sums query, tail, key, value, rope, sinks;
};

static struct sums zeros(struct call *c, int64_t count) {
    const size_t bytes = (size_t)(count + 1) * sizeof(long double);
    return (struct sums){call_memory(c, bytes), call_memory(c, bytes)};
}

static void add(const struct sums *s, int64_t n, long double x, long double size, double by) {
    s->value[n] += x * (long double)by;
    s->size[n] += size * fabsl((long double)by);
}

/* A score's cotangent x, and the size of what it is made of. */
static void add_score(const struct mla *m, const struct keys *keys, const struct gradients *g,
                      int64_t i, int64_t h, int64_t j, long double x, long double size) {
    const int64_t width = m->call.query.shape[3],
                  row = j * m->kv_heads + h * m->kv_heads / m->heads;
    const bool shared = m->bq && m->call.b_q.rank == 3;
    const int64_t at = (shared ? i : i * m->heads + h) * m->rope;
    const double *q = m->q + (i * m->heads + h) * width, *tail = m->bq ? m->bq + at : q + m->dim;
    FOR(d, m->dim) {
        add(&g->query, (i * m->heads + h) * m->dim + d, x, size, (double)keys->k[row * m->dim + d]);
        add(&g->key, row * m->dim + d, x, size, q[d]);
    }
    FOR(d, m->rope) {
        add(&g->tail, at + d, x, size, m->bk[j * m->rope + d]);
        add(&g->rope, j * m->rope + d, x, size, tail[d]);
    }
}

static void add_row(const struct mla *m, const struct keys *keys, const struct gradients *g,
                    int64_t i, int64_t h, int64_t first, int64_t end) {
    const ejk_flash_mla_args *a = &m->call;
    const long double lse = weights(m, keys, i, h, first, end, keys->w), *w = keys->w;
    const double *d_out = m->d_out + (i * m->heads + h) * m->value_dim;
    const long double d_lse =
        m->d_lse ? (long double)m->d_lse[(i / m->tokens * m->heads + h) * m->tokens + i % m->tokens]
                 : 0;
    long double own = -d_lse, own_size = fabsl(d_lse);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = first; j < end; j++) {
            const int64_t row = j * m->kv_heads + h * m->kv_heads / m->heads;
            long double x = 0, size = 0;
            FOR(d, m->value_dim) {
                const long double term = (long double)d_out[d] * keys->v[row * m->value_dim + d];
                x += term, size += fabsl(term);
                if (pass) add(&g->value, row * m->value_dim + d, w[j], w[j], d_out[d]);
            }
            if (!pass) {
                own += w[j] * x, own_size += w[j] * size;
                continue;
            }
            long double slope = w[j] * scale_of(m);
            if (a->logits_soft_cap.set) {
                const long double t =
                    score(m, keys, i, j, h) / (long double)a->logits_soft_cap.value;
                slope *= 1 - t * t;
            }
            add_score(m, keys, g, i, h, j, slope * (x - own), slope * (size + own_size));
        }
    for (int n = 0; m->sinks && n < 2; n++)
        add(&g->sinks, 2 * h + n, -own, own_size,
            (double)expl((long double)m->sinks[2 * h + n] - lse));
}

/* Entry `at` of a result from entry n of sums. */
static void put(struct call *c, const char *name, int64_t at, const struct sums *s, int64_t n) {
    double *value = call_result(c, name, EXACT, ELEMENT);
    double *size = call_result(c, name, SPREAD, ELEMENT);
    if (value) value[at] = (double)s->value[n];
    if (size) size[at] = (double)s->size[n];
}

/* Products of rows' gradients with latents, of tokens before `end`, and with weights. */
static void put_weight(struct call *c, const char *name, const double *w, int64_t dim,
                       const struct sums *rows, const struct sums *latents, int64_t end) {
    const struct mla *m = c->own;
    const int64_t row = m->kv_heads * dim;
    const struct sums s = zeros(c, m->latent * row);
    FOR(t, end)
    FOR(n, m->latent * row) {
        const int64_t k = n / row, from = t * row + n % row, to = t * m->latent + k;
        add(&s, n, rows->value[from], rows->size[from], m->c[to]);
        add(latents, to, rows->value[from], rows->size[from], w[n]);
    }
    FOR(n, m->latent * row) put(c, name, n, &s, n);
}

static void exact_vjp(struct call *c) {
    const ejk_flash_mla_vjp_args *a = c->args;
    const struct keys keys = prepare(c);
    struct mla *m = c->own;
    const int64_t tokens = m->batch * m->tokens, heads = m->heads, width = a->query.shape[3];
    const struct sums latents = zeros(c, tokens * m->latent);
    const struct gradients g = {.query = zeros(c, tokens * heads * m->dim),
                                .tail = zeros(c, tokens * heads * m->rope),
                                .key = zeros(c, tokens * m->kv_heads * m->dim),
                                .value = zeros(c, tokens * m->kv_heads * m->value_dim),
                                .rope = zeros(c, tokens * m->rope),
                                .sinks = zeros(c, heads * 2)};
    static const char *const names[] = {"d_query", "d_key_value", "d_w_kc",       "d_w_vc",
                                        "d_b_q",   "d_b_k",       "d_softmax_aux"};
    int64_t last = 0;
    FOR(n, (int64_t)(sizeof names / sizeof *names)) call_result(c, names[n], EXACT, ELEMENT);
    m->d_out = tensor_values(c, &a->d_out);
    m->d_lse = tensor_values(c, &a->d_lse);
    c->gradient = true;
    FOR(n, tokens * heads) {
        int64_t first, end;
        if (!seen(m, n / heads, &first, &end)) continue;
        last = n / heads + 1;
        add_row(m, &keys, &g, n / heads, n % heads, first, end);
    }
    put_weight(c, "d_w_kc", m->wk, m->dim, &g.key, &latents, last);
    put_weight(c, "d_w_vc", m->wv, m->value_dim, &g.value, &latents, last);
    FOR(n, tokens * m->latent) put(c, "d_key_value", n, &latents, n);
    FOR(n, tokens * heads * m->dim) put(c, "d_query", n / m->dim * width + n % m->dim, &g.query, n);
    if (!m->bq) FOR(n, tokens * heads * m->rope)
    put(c, "d_query", n / m->rope * width + m->dim + n % m->rope, &g.tail, n);
    FOR(n, m->bq ? ejk_tensor_count(&a->b_q) : 0) put(c, "d_b_q", n, &g.tail, n);
    FOR(n, tokens * m->rope) put(c, "d_b_k", n, &g.rope, n);
    FOR(n, m->sinks ? heads * 2 : 0) put(c, "d_softmax_aux", n, &g.sinks, n);
}

const struct operation flash_mla_case = {
    .op = "flash_mla", .cases = 16, .generate = generate, .finish = finish, .exact = exact};
static const struct refused refused[] = {
    {EJK_STATUS_INVALID_ARGUMENT, "d_b_k is given without b_k, expected both", "d_b_k=[1,8,4]"},
    {EJK_STATUS_INVALID_ARGUMENT, "d_b_q is given without b_q, expected both", "d_b_q=[1,8,4]"},
    {EJK_STATUS_INVALID_SHAPE, "d_softmax_aux has rank 2, expected 1",
     "softmax_aux=[3] d_softmax_aux=[4,3]"},
    {EJK_STATUS_INVALID_SHAPE, "query has 16 elements a head, expected 20", "b_k=[1,8,4]"},
    {EJK_STATUS_INVALID_SHAPE, "d_query", "d_query=[1,8,4,12]"},
    {EJK_STATUS_INVALID_ARGUMENT, "logits_soft_cap is -1", "logits_soft_cap=-1"},
    {EJK_STATUS_INVALID_ARGUMENT, "without causal, expected both", "sliding_window=3"},
    {EJK_STATUS_INVALID_LAYOUT, "d_query", "d_query=@query"},
    {EJK_STATUS_INVALID_ARGUMENT, "cu_seqlens is 9", "cu_seqlens={0,9,8}"},
    {.changes = NULL}};

REFUSED_CALL(ejk_flash_mla_vjp)

const struct operation flash_mla_vjp_case = {
    .op = "flash_mla_vjp",
    .cases = 16,
    .generate = generate_vjp,
    .finish = finish,
    .exact = exact_vjp,
    .call = ejk_flash_mla_vjp_call,
    .good = "query=[1,8,4,16] key_value=[1,8,12] w_kc=[12,2,16] w_vc=[12,2,8] d_out=[1,8,4,8] "
            "d_query=[1,8,4,16]",
    .refused = refused};
