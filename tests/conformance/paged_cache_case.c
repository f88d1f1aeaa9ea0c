/* SPDX-License-Identifier: Apache-2.0 */
/* update_kv_cache, kv_cache_copy, and attention to keys without pages. */
#include "conformance/cases.h"
#include "conformance/paged.h"

#include <string.h>

#define FOR(index, count) for (int64_t index = 0; index < (count); index++)

static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16,   EJK_DTYPE_F16,
                                  EJK_DTYPE_I8,  EJK_DTYPE_F8E4M3, EJK_DTYPE_F8E5M2};

static void fill(struct call *c, const ejk_tensor *t, double size) {
    FOR(n, ejk_tensor_count(t)) tensor_put(t, n, size * random_normal(&c->random));
}

/* ---- update_kv_cache --------------------------------------------------------------------------------- */

/* A cache, what is written to it, and its scales; slots[t] is the row of token t, or -1. */
struct update {
    int64_t pages, page, heads, tokens;
    int64_t slots[256];
    ejk_dtype type;
};

static double limit_of(ejk_dtype type) {
    return type == EJK_DTYPE_I8       ? 127
           : type == EJK_DTYPE_F8E4M3 ? 448
           : type == EJK_DTYPE_F8E5M2 ? 57344
                                      : 0;
}

static ejk_tensor some_scale(struct call *c, int64_t heads) {
    ejk_tensor t = random_chance(&c->random, 0.5) ? CALL_TENSOR(c, EJK_DTYPE_F32, 1)
                                                  : CALL_TENSOR(c, EJK_DTYPE_F32, heads);
    FOR(n, ejk_tensor_count(&t)) tensor_put(&t, n, 0.003 + 0.03 * random_real(&c->random));
    return t;
}

/* Slots of all tokens are different; by a table they are those of one sequence after the other. */
static void choose_slots(struct call *c, struct update *u, ejk_update_kv_cache_args *a) {
    struct random *r = &c->random;
    const ejk_dtype index = random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64;
    if (random_chance(r, 0.5)) {
        a->slot_mapping = CALL_TENSOR(c, index, u->tokens);
        FOR(t, u->tokens) {
            const int64_t count = u->pages * u->page, step = count > 1 ? count - 1 : 1;
            u->slots[t] = random_chance(r, 0.2) ? -1 : t * step % count;
            tensor_put(&a->slot_mapping, t, (double)u->slots[t]);
        }
        return;
    }
    const int64_t sequences = random_int(r, 1, 3), width = u->pages / sequences;
    a->kv_lens = CALL_TENSOR(c, index, sequences);
    a->query_start_loc = CALL_TENSOR(c, index, sequences + 1);
    a->block_tables = CALL_TENSOR(c, index, sequences, width);
    int64_t token = 0;
    FOR(n, sequences) {
        const int64_t room = width * u->page,
                      rows =
                          random_int(r, 0, (u->tokens - token) < room ? u->tokens - token : room);
        const int64_t keys = random_int(r, rows, room);
        tensor_put(&a->kv_lens, n, (double)keys);
        FOR(j, width) {
            const bool read = rows > 0 && (j + 1) * u->page > keys - rows && j * u->page < keys;
            tensor_put(&a->block_tables, n * width + j,
                       read ? (double)(u->pages - 1 - n * width - j) : -9);
        }
        FOR(i, rows) {
            const int64_t t = keys - rows + i;
            u->slots[token++] = (u->pages - 1 - n * width - t / u->page) * u->page + t % u->page;
        }
        tensor_put(&a->query_start_loc, n + 1, (double)token);
    }
    for (; token < u->tokens; token++) u->slots[token] = -1;
}

static bool generate_update(struct call *c) {
    static const int64_t sizes[] = {1, 3, 8, 16}, dims[] = {1, 8, 17, 64, 128};
    struct random *r = &c->random;
    ejk_update_kv_cache_args *a = c->args;
    struct update *u = call_memory(c, sizeof *u);
    c->own = u;
    u->page = RANDOM_OF(r, sizes);
    u->pages = random_int(r, 8, 14);
    u->heads = random_int(r, 1, 3);
    u->tokens = random_int(r, 0, u->pages * u->page < 100 ? u->pages * u->page - 1 : 100);
    u->type = random_chance(r, 0.3) ? c->dtype : RANDOM_OF(r, types);
    const int64_t dim = RANDOM_OF(r, dims),
                  value_dim = random_chance(r, 0.5) ? dim : RANDOM_OF(r, dims);
    a->key = CALL_TENSOR(c, c->dtype, u->tokens, u->heads, dim);
    a->value = CALL_TENSOR(c, c->dtype, u->tokens, u->heads, value_dim);
    a->key_cache = CALL_TENSOR(c, u->type, u->pages, u->page, u->heads, dim);
    a->value_cache = CALL_TENSOR(c, u->type, u->pages, u->page, u->heads, value_dim);
    fill(c, &a->key, 1);
    fill(c, &a->value, 1);
    FOR(n, u->tokens * u->heads * dim) /* rows of zeros, whose scale is 1 */
    if (n / dim % 11 == 5) tensor_put(&a->key, n, 0);
    fill(c, &a->key_cache, 1);
    fill(c, &a->value_cache, 1);
    choose_slots(c, u, a);
    if (random_chance(r, 0.4)) {
        a->k_row_scale = CALL_TENSOR(c, EJK_DTYPE_F32, u->pages, u->page, u->heads);
        a->v_row_scale = CALL_TENSOR(c, EJK_DTYPE_F32, u->pages, u->page, u->heads);
    } else if (random_chance(r, 0.6)) {
        a->k_scale = some_scale(c, u->heads);
        a->v_scale = some_scale(c, u->heads);
    }
    return true;
}

/* Quotients in the precision of the call, rounded as the cache rounds. */
static double stored(const struct call *c, int order, ejk_dtype type, double value, double scale) {
    const bool whole = order == EXACT || c->dtype == EJK_DTYPE_F64;
    const double element = whole ? value / scale : (double)((float)value / (float)scale);
    double place = 0;
    if (type == EJK_DTYPE_I8) return fmax(-128, fmin(127, nearbyint(element)));
    element_store(type, &place, 0, element);
    return element_load(type, &place, 0);
}

static void update_one(struct call *c, int order, const ejk_tensor *rows, const ejk_tensor *cache,
                       const ejk_tensor *scale, const ejk_tensor *row_scale, const char *name,
                       const char *scale_name) {
    const struct update *u = c->own;
    const int64_t width = rows->shape[2];
    const double limit = limit_of(u->type);
    double *to = call_result(c, name, order, ELEMENT);
    double *scales =
        ejk_tensor_present(row_scale) ? call_result(c, scale_name, order, ELEMENT) : NULL;
    FOR(n, ejk_tensor_count(cache)) to[n] = tensor_get(cache, n);
    FOR(n, scales ? ejk_tensor_count(row_scale) : 0) scales[n] = tensor_get(row_scale, n);
    FOR(t, u->tokens) FOR(h, u->heads) {
        if (u->slots[t] < 0) continue;
        const int64_t from = (t * u->heads + h) * width, at = u->slots[t] * u->heads + h;
        double by = 1, most = 0;
        if (ejk_tensor_present(scale)) by = tensor_get(scale, scale->shape[0] == 1 ? 0 : h);
        FOR(d, width) most = fmax(most, fabs(tensor_get(rows, from + d)));
        if (scales) by = scales[at] = limit > 0 && most > 0 ? (double)(float)(most / limit) : 1;
        FOR(d, width)
        to[at * width + d] = stored(c, order, u->type, tensor_get(rows, from + d), by);
    }
}

static void update_all(struct call *c, int order) {
    const ejk_update_kv_cache_args *a = c->args;
    update_one(c, order, &a->key, &a->key_cache, &a->k_scale, &a->k_row_scale, "key_cache",
               "k_row_scale");
    update_one(c, order, &a->value, &a->value_cache, &a->v_scale, &a->v_row_scale, "value_cache",
               "v_row_scale");
}

static void exact_update(struct call *c) {
    update_all(c, EXACT);
}

const struct operation update_kv_cache_case = {.op = "update_kv_cache",
                                               .cases = 24,
                                               .generate = generate_update,
                                               .exact = exact_update,
                                               .naive = update_all};

/* ---- kv_cache_copy ----------------------------------------------------------------------------------- */

static bool generate_copy(struct call *c) {
    struct random *r = &c->random;
    ejk_kv_cache_copy_args *a = c->args;
    if (c->dtype != EJK_DTYPE_F32) return false;
    const int64_t pages = random_int(r, 1, 12), page = random_int(r, 1, 16),
                  heads = random_int(r, 1, 3);
    const int64_t copies = random_int(r, 0, pages / 2);
    const ejk_dtype type = RANDOM_OF(r, types);
    a->key_cache = CALL_TENSOR(c, type, pages, page, heads, random_int(r, 1, 40));
    a->value_cache = CALL_TENSOR(c, type, pages, page, heads, random_int(r, 1, 40));
    fill(c, &a->key_cache, 3);
    fill(c, &a->value_cache, 3);
    if (random_chance(r, 0.5)) a->k_row_scale = CALL_TENSOR(c, EJK_DTYPE_F32, pages, page, heads);
    if (random_chance(r, 0.5)) a->v_row_scale = CALL_TENSOR(c, EJK_DTYPE_F32, pages, page, heads);
    if (ejk_tensor_present(&a->k_row_scale)) fill(c, &a->k_row_scale, 1);
    if (ejk_tensor_present(&a->v_row_scale)) fill(c, &a->v_row_scale, 1);
    a->block_mapping =
        CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, copies, 2);
    FOR(i, copies) { /* one page may be copied many times */
        tensor_put(&a->block_mapping, 2 * i, (double)random_int(r, 0, pages - copies - 1));
        tensor_put(&a->block_mapping, 2 * i + 1, (double)(pages - 1 - i));
    }
    return true;
}

static void copy_one(struct call *c, const ejk_tensor *cache, const char *name) {
    const ejk_kv_cache_copy_args *a = c->args;
    if (!ejk_tensor_present(cache)) return;
    const int64_t count = ejk_tensor_count(cache), page = count / cache->shape[0];
    double *to = call_result(c, name, EXACT, ELEMENT);
    FOR(n, count) to[n] = tensor_get(cache, n);
    FOR(i, a->block_mapping.shape[0]) {
        const int64_t from = (int64_t)tensor_get(&a->block_mapping, 2 * i);
        const int64_t there = (int64_t)tensor_get(&a->block_mapping, 2 * i + 1);
        FOR(n, page) to[there * page + n] = tensor_get(cache, from * page + n);
    }
}

static void exact_copy(struct call *c) {
    const ejk_kv_cache_copy_args *a = c->args;
    copy_one(c, &a->key_cache, "key_cache");
    copy_one(c, &a->value_cache, "value_cache");
    copy_one(c, &a->k_row_scale, "k_row_scale");
    copy_one(c, &a->v_row_scale, "v_row_scale");
}

const struct operation kv_cache_copy_case = {
    .op = "kv_cache_copy", .cases = 30, .generate = generate_copy, .exact = exact_copy};

/* ---- ragged_decode_attention ------------------------------------------------------------------------- */

/* Pages as long as the longest sequence: sequence n is batch entry n. */
static bool generate_ragged_decode(struct call *c) {
    const struct paged_options options = {.form = FORM_OWN,
                                          .one_row = 1,
                                          .firsts = true,
                                          .sinks = true,
                                          .sink_heads = true,
                                          .cap = true,
                                          .own_lse = true};
    struct random *r = &c->random;
    const struct paged *p = paged_create(c, options);
    ejk_ragged_decode_attention_args *a = c->args;
    *a = (ejk_ragged_decode_attention_args){
        .query = p->query,
        .key = p->key_cache,
        .value = p->value_cache,
        .sequence_start = p->firsts,
        .sequence_end = p->lens,
        .softmax_aux = p->sinks,
        .softmax_scale = p->scale,
        .logits_soft_cap = p->cap,
        .out = p->out,
        .lse = p->lse,
    };
    if (p->left >= 0) a->sliding_window.left = ejk_int(p->left);
    if (p->left >= 0 && random_chance(r, 0.5))
        a->sliding_window.right = ejk_int(random_int(r, 0, 9));
    if (random_chance(r, 0.7)) return true;
    const int64_t query[] = {p->tokens, 1, p->heads, p->dim},
                  out[] = {p->tokens, 1, p->heads, p->value_dim};
    a->query = ejk_tensor_contiguous(p->query.data, p->query.dtype, 4, query);
    a->out = ejk_tensor_contiguous(p->out.data, p->out.dtype, 4, out);
    return true;
}

static bool slice_ragged_decode(const struct call *c, struct random *r, struct slice *s) {
    const struct paged *p = c->own;
    if (p->sequences == 0) return false;
    const int64_t first = random_int(r, 0, p->sequences - 1);
    s->range[s->count].symbol = "B";
    s->range[s->count].first = first;
    s->range[s->count++].end = random_int(r, first + 1, p->sequences);
    return true;
}

const struct operation ragged_decode_attention_case = {.op = "ragged_decode_attention",
                                                       .cases = 16,
                                                       .generate = generate_ragged_decode,
                                                       .finish = paged_finish,
                                                       .exact = paged_exact,
                                                       .naive = paged_naive,
                                                       .slice = slice_ragged_decode,
                                                       .never = "/latent"};
