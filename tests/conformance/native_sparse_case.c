/* SPDX-License-Identifier: Apache-2.0 */
/* native_sparse_attention and its gradients. */
#include "conformance/native_sparse.h"
#include "conformance/cases.h"

static const char *const gate_names[] = {"d_g_cmp", "d_g_slc", "d_g_swa"};

/* ---- Calls ------------------------------------------------------------------------------------------- */

static void choose_sizes(struct call *c, struct sparse *s) {
    static const int64_t tokens[] = {0, 1, 2, 15, 16, 17, 40, 64, 65, 100, 200};
    static const int64_t dims[] = {1, 3, 8, 16, 17, 32, 40, 64, 65, 128, 136};
    static const int64_t groups[] = {1, 2, 3, 4, 8, 16, 17}, blocks[] = {1, 3, 8, 16, 17, 32, 64};
    struct random *r = &c->random;
    s->batch = random_chance(r, 0.02) ? 0 : random_int(r, 1, 2);
    s->kv_heads = random_int(r, 1, 2);
    s->group = RANDOM_OF(r, groups);
    s->dim = RANDOM_OF(r, dims);
    s->width = random_chance(r, 0.6) ? s->dim : RANDOM_OF(r, dims);
    s->block = RANDOM_OF(r, blocks);
    s->tokens = RANDOM_OF(r, tokens);
    if (random_chance(r, 0.2)) s->group = 16, s->dim = s->width = 64, s->block = 32;
    if (c->tiled) {
        static const int64_t wide[] = {32, 64, 128};
        s->dim = RANDOM_OF(r, wide);
        s->width = random_chance(r, 0.7) ? s->dim : RANDOM_OF(r, wide);
        s->group = random_chance(r, 0.7) ? 16 : RANDOM_OF(r, groups);
        s->block = random_chance(r, 0.5) ? 32 : 64;
        s->tokens = random_int(r, 70, 200);
        s->batch = s->kv_heads = 1;
    }
    s->heads = s->kv_heads * s->group;
}

static int64_t work(const struct sparse *s) {
    const int64_t seen = s->slots * s->block + s->tokens / s->block + s->window;
    return s->batch * s->tokens * s->heads * (s->dim + s->width) *
           (seen < s->tokens ? seen : s->tokens);
}

static void choose_gates(struct call *c, struct sparse *s, bool compresses) {
    struct random *r = &c->random;
    for (int i = 0; i < BRANCHES; i++) {
        if (i == COMPRESSED ? !compresses : !random_chance(r, 0.6)) continue;
        if (i == WINDOW && s->window == 0) continue;
        s->gate[i] = CALL_TENSOR(c, lines_type(c), s->batch, s->tokens, s->heads);
        tensor_fill(c, &s->gate[i], 0.5, 0.5);
    }
}

/* Lists with holes, blocks that come twice, and blocks behind the token. */
static void fill_indices(struct call *c, const struct sparse *s) {
    const int64_t blocks = (s->tokens + s->block - 1) / s->block, slots = s->indices.shape[3];
    for (int64_t n = 0; n < ejk_tensor_count(&s->indices); n++) {
        const int64_t t = n / slots / s->kv_heads % s->tokens, own = t / s->block;
        const double dice = random_real(&c->random);
        int64_t index = random_int(&c->random, 0, own);
        if (dice < 0.1) index = -1;
        if (dice > 0.9) index = random_int(&c->random, 0, blocks - 1);
        tensor_put(&s->indices, n, (double)index);
    }
}

static struct sparse *make(struct call *c) {
    struct random *r = &c->random;
    struct sparse *s = c->own = call_memory(c, sizeof *s);
    choose_sizes(c, s);
    const bool compresses = random_chance(r, 0.6);
    int64_t slots = random_chance(r, 0.03) ? 0 : random_int(r, 1, 5);
    s->most = random_chance(r, 0.1) ? 16 : random_int(r, random_chance(r, 0.03) ? 0 : 1, 5);
    if (random_chance(r, 0.4)) s->window = random_int(r, 1, 50);
    s->slots = s->most;
    while (work(s) > c->budget) s->tokens /= 2;
    lines_make(c, &s->lines, s->batch, s->tokens);
    s->batch = s->lines.batch;
    const int64_t blocks = (s->tokens + s->block - 1) / s->block;
    s->rows = blocks + (s->lines.packed ? s->lines.count : 0);
    s->query = CALL_TENSOR(c, c->dtype, s->batch, s->tokens, s->heads, s->dim);
    s->key = CALL_TENSOR(c, c->dtype, s->batch, s->tokens, s->kv_heads, s->dim);
    s->value = CALL_TENSOR(c, c->dtype, s->batch, s->tokens, s->kv_heads, s->width);
    s->out = CALL_TENSOR(c, c->dtype, s->batch, s->tokens, s->heads, s->width);
    tensor_fill(c, &s->query, 0, random_chance(r, 0.2) ? 3 : 1);
    tensor_fill(c, &s->key, 0, 1);
    tensor_fill(c, &s->value, 0.5, 1);
    choose_gates(c, s, compresses);
    s->slots = compresses ? blocks : slots;
    if (s->slots > s->most) s->slots = s->most;
    if (!compresses) {
        s->indices = CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, s->batch,
                                 s->tokens, s->kv_heads, slots);
        fill_indices(c, s);
    }
    if (random_chance(r, 0.3)) {
        s->counts = CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, s->batch,
                                s->tokens, s->kv_heads);
        for (int64_t n = 0; n < ejk_tensor_count(&s->counts); n++)
            tensor_put(&s->counts, n, (double)random_int(r, 0, s->most));
    }
    if (random_chance(r, 0.5))
        s->selected = CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64,
                                  s->batch, s->tokens, s->kv_heads, s->slots);
    s->scale = random_chance(r, 0.5) ? 1 / sqrt((double)s->dim) : 0.3;
    return s;
}

#define SET_SHARED(args, s)                                                                        \
    do {                                                                                           \
        (args)->query = (s)->query;                                                                \
        (args)->key = (s)->key;                                                                    \
        (args)->value = (s)->value;                                                                \
        (args)->g_cmp = (s)->gate[COMPRESSED];                                                     \
        (args)->g_slc = (s)->gate[SELECTED];                                                       \
        (args)->g_swa = (s)->gate[WINDOW];                                                         \
        (args)->block_indices = (s)->indices;                                                      \
        (args)->token_block_counts = (s)->counts;                                                  \
        (args)->selected = (s)->selected;                                                          \
        (args)->cu_seqlens = (s)->lines.ends;                                                      \
        (args)->block_counts = (ejk_opt_int){(s)->most, (s)->most != 16};                          \
        (args)->block_size = (ejk_opt_int){(s)->block, (s)->block != 64};                          \
        (args)->window_size = (ejk_opt_int){(s)->window, (s)->window > 0};                         \
        (args)->softmax_scale = (ejk_opt_float){(s)->scale, (s)->scale == 0.3};                    \
    } while (0)

static bool generate(struct call *c) {
    ejk_native_sparse_attention_args *args = c->args;
    const struct sparse *s = make(c);
    struct random *r = &c->random;
    SET_SHARED(args, s);
    args->out = s->out;
    /* Numbers of which products of bf16 would make 0, and some that are not finite. */
    if (c->dtype != EJK_DTYPE_F16 && random_chance(r, 0.04)) tensor_fill(c, &s->value, 0, 0x1p-124);
    if (random_chance(r, 0.5)) call_disturb(c, &s->value);
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_native_sparse_attention_vjp_args *args = c->args;
    const struct sparse *s = make(c);
    c->gradient = true;
    SET_SHARED(args, s);
    args->d_out = s->out;
    tensor_fill(c, &s->out, 0, 1);
    args->d_query = call_tensor_like(c, &s->query, 0.8);
    args->d_key = call_tensor_like(c, &s->key, 0.8);
    args->d_value = call_tensor_like(c, &s->value, 0.8);
    args->d_g_cmp = call_tensor_like(c, &s->gate[COMPRESSED], 0.8);
    args->d_g_slc = call_tensor_like(c, &s->gate[SELECTED], 0.8);
    args->d_g_swa = call_tensor_like(c, &s->gate[WINDOW], 0.8);
    return true;
}

#define R(value) call_step(c, order, value)

static void finish(struct call *c) {
    struct sparse *s = c->own;
    sparse_read(c);
    sparse_choose(c);
    for (int64_t n = 0;
         c->gradient && ejk_tensor_present(&s->selected) && n < ejk_tensor_count(&s->selected);
         n++) {
        const int64_t row = n / s->slots, i = n % s->slots;
        tensor_put(&s->selected, n, i < s->count[row] ? (double)s->chosen[row * s->slots + i] : -1);
    }
    if (c->dtype == EJK_DTYPE_F64) return; /* differences would find NaN times 0 */
    lines_hide(&s->lines, &s->query);
    lines_hide(&s->lines, &s->key);
    lines_hide(&s->lines, &s->value);
    for (int i = 0; i < BRANCHES; i++) lines_hide(&s->lines, &s->gate[i]);
    if (c->gradient) lines_hide(&s->lines, &s->out);
    sparse_hide_unseen(c);
}

/* ---- Results ----------------------------------------------------------------------------------------- */

static long double gate_of(const struct sparse *s, int branch, const struct row *r) {
    return s->g[branch] ? (long double)s->g[branch][sparse_query_at(s, r)] : 1;
}

static bool has(const struct sparse *s, int branch) {
    return branch == SELECTED || (branch == WINDOW ? s->window > 0 : s->g[COMPRESSED] != NULL);
}

/* Rows of a head: of the tokens, or of means, which an order has by itself. */
static struct rows rows_of(const struct sparse *s, const struct rows *mean, int branch,
                           const struct row *r) {
    const struct rows *all = branch == COMPRESSED ? mean : &s->token;
    const int64_t before =
        (r->b * s->kv_heads + r->kv) * (branch == COMPRESSED ? s->rows : s->tokens);
    return (struct rows){all->key + before * s->dim, all->value + before * s->width};
}

static struct rows means_of(struct call *c, int order) {
    const struct sparse *s = c->own;
    return (struct rows){sparse_means(c, order, s->token.key, s->dim),
                         sparse_means(c, order, s->token.value, s->width)};
}

/* Calls `each` for every row and branch that the call has. */
typedef void visit(struct call *c, int order, int branch, struct row *r, const struct rows *rows,
                   void *with);
static void each_row(struct call *c, int order, visit *each, void *with) {
    struct sparse *s = c->own;
    const struct rows mean = means_of(c, order);
    struct row r = sparse_row(c);
    sparse_read(c);
    for (r.b = 0; r.b < s->batch; r.b++)
        for (r.t = 0; r.t < s->tokens; r.t++) {
            r.begin = sparse_line(s, r.t, &r.first);
            for (r.head = 0; r.begin >= 0 && r.head < s->heads; r.head++)
                for (int branch = 0; branch < BRANCHES; branch++) {
                    r.kv = r.head / s->group;
                    if (!has(s, branch)) continue;
                    const struct rows rows = rows_of(s, &mean, branch, &r);
                    sparse_see(s, &r, branch);
                    sparse_weigh(c, order, &r, rows.key);
                    each(c, order, branch, &r, &rows, with);
                }
        }
}

static void add_out(struct call *c, int order, int branch, struct row *r, const struct rows *rows,
                    void *with) {
    const struct sparse *s = c->own;
    const struct call_sums *out = with;
    const int64_t from = order == EXACT ? 0 : r->count * order / ORDERS;
    const long double gate = gate_of(s, branch, r);
    for (int64_t d = 0; d < s->width; d++) {
        long double sum = 0, size = 0;
        for (int64_t k = 0; k < r->count; k++) {
            const int64_t i = (from + k) % r->count;
            const long double v = rows->value[r->seen[i] * s->width + d];
            sum = R(sum + R(sparse_narrowed(c, order, r->weight[i]) * v));
            size += fabsl(r->weight[i] * v);
        }
        call_add(c, order, *out, sparse_query_at(s, r) * s->width + d, gate * sum,
                 fabsl(gate) * size);
    }
}

static void results(struct call *c, int order) {
    const struct sparse *s = c->own;
    struct call_sums out = call_sums_of(c, "out", order);
    each_row(c, order, add_out, &out);
    double *selected = order == EXACT ? call_result(c, "selected", EXACT, ELEMENT) : NULL;
    for (int64_t n = 0; selected && n < ejk_tensor_count(&s->selected); n++) {
        const int64_t row = n / s->slots, i = n % s->slots;
        selected[n] = i < s->count[row] ? (double)s->chosen[row * s->slots + i] : -1;
    }
}

struct gradients {
    struct call_sums query, key, value, gate[BRANCHES];
    const struct sparse *s;
};

/* A term of the gradient of a row's key or value, which a mean has from each of its tokens. */
static void add_row(struct call *c, int order, int branch, const struct row *r, int64_t seen,
                    struct call_sums to, int64_t width, int64_t d, long double term,
                    long double size) {
    const struct sparse *s = c->own;
    int64_t first = seen, end = seen + 1;
    if (branch == COMPRESSED) {
        first = r->begin + (seen - r->first) * s->block;
        end = first + s->block; /* it is complete */
    }
    const long double part = 1 / (long double)(end - first);
    for (int64_t u = first; u < end; u++)
        call_add(c, order, to, ((r->b * s->tokens + u) * s->kv_heads + r->kv) * width + d,
                 R(term * part), size * part);
}

static void add_gradients(struct call *c, int order, int branch, struct row *r,
                          const struct rows *rows, void *with) {
    const struct sparse *s = c->own;
    const struct gradients *to = with;
    const int64_t at = sparse_query_at(s, r);
    const double *cotangent = s->cotangent + at * s->width;
    const long double gate = gate_of(s, branch, r), scale = (long double)s->scale;
    long double inner = 0, size = 0;
    for (int64_t i = 0; i < r->count; i++) {
        r->own[i] = 0;
        for (int64_t d = 0; d < s->width; d++)
            r->own[i] = R(r->own[i] +
                          R((long double)cotangent[d] * rows->value[r->seen[i] * s->width + d]));
        inner = R(inner + R(r->weight[i] * r->own[i]));
        size += fabsl(r->weight[i] * r->own[i]);
    }
    if (s->g[branch]) call_add(c, order, to->gate[branch], at, inner, size);
    for (int64_t i = 0; i < r->count; i++) {
        const int64_t seen = r->seen[i];
        const long double p = sparse_narrowed(c, order, R(gate * r->weight[i]));
        const long double slope =
            sparse_narrowed(c, order, R(gate * R(r->weight[i] * R(r->own[i] - inner))));
        const long double most = fabsl(gate * r->weight[i]) * (fabsl(r->own[i]) + size);
        for (int64_t d = 0; d < s->dim; d++) {
            const long double k = rows->key[seen * s->dim + d];
            const long double q = (long double)s->q[at * s->dim + d];
            call_add(c, order, to->query, at * s->dim + d, slope * k * scale,
                     most * fabsl(k * scale));
            add_row(c, order, branch, r, seen, to->key, s->dim, d, slope * q * scale,
                    most * fabsl(q * scale));
        }
        for (int64_t d = 0; d < s->width; d++)
            add_row(c, order, branch, r, seen, to->value, s->width, d,
                    p * (long double)cotangent[d], fabsl(p * (long double)cotangent[d]));
    }
}

static void gradients(struct call *c, int order) {
    struct gradients to = {call_sums_of(c, "d_query", order),
                           call_sums_of(c, "d_key", order),
                           call_sums_of(c, "d_value", order),
                           {{0}},
                           c->own};
    for (int i = 0; i < BRANCHES; i++) to.gate[i] = call_sums_of(c, gate_names[i], order);
    each_row(c, order, add_gradients, &to);
}

static void exact(struct call *c) {
    results(c, EXACT);
}
static void exact_vjp(struct call *c) {
    gradients(c, EXACT);
}

/* Batches, and first tokens where these have as many slots as all. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct sparse *own = c->own;
    if (ejk_tensor_count(&own->out) == 0) return false;
    if (!own->lines.packed) slice_add(s, r, "B", own->batch, false);
    if (c->gradient) return s->count > 0;
    const int64_t least = own->slots * own->block;
    if (own->lines.packed || ejk_tensor_present(&own->indices) || least > own->tokens)
        return s->count > 0;
    slice_add(s, r, "T", own->tokens, true);
    if (s->range[s->count - 1].end < least) s->range[s->count - 1].end = least;
    return true;
}

#define GIVEN "query=[1,9,4,2] key=[1,9,2,2] value=[1,9,2,3] block_size=4 "
static const struct refused refused[] = {
    {EJK_STATUS_INVALID_ARGUMENT, "block_indices are missing", "g_cmp="},
    {EJK_STATUS_OK, "", "g_cmp= block_indices=int32[1,9,2,2]"},
    {EJK_STATUS_OK, "", "window_size=3 g_swa=[1,9,4] token_block_counts=int64[1,9,2]"},
    {EJK_STATUS_INVALID_SHAPE, "query has 4 heads and key 3", "key=[1,9,3,2] value=[1,9,3,3]"},
    {EJK_STATUS_INVALID_ARGUMENT, "block_size is 0", "block_size=0"},
    {EJK_STATUS_INVALID_ARGUMENT, "window_size is 0", "window_size=0"},
    {EJK_STATUS_INVALID_ARGUMENT, "block_counts is -1", "block_counts=-1"},
    {EJK_STATUS_INVALID_ARGUMENT, "g_swa is given without window_size", "g_swa=[1,9,4]"},
    {EJK_STATUS_INVALID_SHAPE, "selected has 2 slots, expected 3", "selected=int32[1,9,2,2]"},
    {EJK_STATUS_INVALID_SHAPE, "g_slc", "g_slc=[1,9,2]"},
    {EJK_STATUS_INVALID_SHAPE, "batch is 2, expected 1",
     "query=[2,9,4,2] key=[2,9,2,2] value=[2,9,2,3] g_cmp=[2,9,4] out=[2,9,4,3] "
     "cu_seqlens={0,9}"},
    {EJK_STATUS_INVALID_ARGUMENT, "cu_seqlens", "cu_seqlens={0,10}"},
    {.changes = NULL}};
static const struct refused refused_vjp[] = {
    {EJK_STATUS_INVALID_ARGUMENT, "d_g_slc is given without g_slc", "d_g_slc=[1,9,4]"},
    {EJK_STATUS_INVALID_SHAPE, "d_key", "d_key=[1,9,2,3]"},
    {EJK_STATUS_INVALID_SHAPE, "selected has 4 slots", "selected=int32[1,9,2,4]"},
    {.changes = NULL}};

REFUSED_CALL(ejk_native_sparse_attention)
REFUSED_CALL(ejk_native_sparse_attention_vjp)

#define CASE .cases = 80, .finish = finish, .slice = slice
const struct operation native_sparse_attention_case = {CASE,
                                                       .op = "native_sparse_attention",
                                                       .generate = generate,
                                                       .exact = exact,
                                                       .naive = results,
                                                       .call = ejk_native_sparse_attention_call,
                                                       .good = GIVEN "g_cmp=[1,9,4] out=[1,9,4,3]",
                                                       .refused = refused};
const struct operation native_sparse_attention_vjp_case = {
    CASE,
    .op = "native_sparse_attention_vjp",
    .never = "cuda/mma",
    .generate = generate_vjp,
    .exact = exact_vjp,
    .naive = gradients,
    .call = ejk_native_sparse_attention_vjp_call,
    .good = GIVEN "g_cmp=[1,9,4] d_out=[1,9,4,3] d_query=[1,9,4,2]",
    .refused = refused_vjp};
