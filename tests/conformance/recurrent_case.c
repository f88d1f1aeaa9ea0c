/* SPDX-License-Identifier: Apache-2.0 */
/* The recurrent family and its gradients: one case, of which the operations differ in names and options. */
#include <stdio.h>
#include <string.h>

#include "conformance/cases.h"
#include "conformance/recurrent.h"

#define GIVEN_QKV [INITIAL] = "initial_state", [QUERY] = "query", [KEY] = "key", [VALUE] = "value"
#define GIVEN_RKV [INITIAL] = "initial_state", [QUERY] = "r", [KEY] = "k", [VALUE] = "v", [G] = "w"
#define GIVEN_DELTA                                                                                \
    GIVEN_QKV, [BETA] = "beta", [G] = "decay", [A_LOG] = "A_log", [DT_BIAS] = "dt_bias"

static const struct member members[] = {
    {.name = {GIVEN_QKV, [G] = "g", [GAMMA] = "g_gamma", [GK] = "gk", [GV] = "gv"}},
    {.name = {GIVEN_QKV, [G] = "g", [GAMMA] = "g_gamma"}},
    {.name = {GIVEN_QKV}, .has_layers = true},
    {.name = {GIVEN_DELTA}, .update = DELTA, .normalises = true, .has_raw = true, .keeps = true},
    {.name = {GIVEN_DELTA},
     .update = DELTA,
     .normalises = true,
     .has_raw = true,
     .has_pool_only = true},
    {.name = {GIVEN_RKV, [BONUS] = "u"}, .before = true},
    {.name = {GIVEN_RKV, [A] = "a", [B] = "b"}, .update = RANK_ONE},
    {.name = {GIVEN_RKV, [B] = "kk", [A] = "a"}, .update = RANK_ONE, .multiplies = true},
};
enum { RECURRENT, GLA, LIGHTNING, GATED_DELTA, RAGGED, RWKV6, RWKV7, RWKV7_MUL };

/* ---- Fields by their names --------------------------------------------------------------------------- */

static void *field(const struct call *c, const char *name) {
    size_t offset;
    const ejk_field *f = ejk_record_find(c->kernel->args, name, &offset);
    return f ? (char *)c->args + offset : NULL;
}

static void set_tensor(const struct call *c, const char *name, const ejk_tensor *t) {
    ejk_tensor *place = field(c, name);
    if (place) *place = *t;
}

static void set_gradient(struct call *c, const char *name, const ejk_tensor *like,
                         ejk_dtype dtype) {
    char text[64];
    snprintf(text, sizeof text, "d_%s", name);
    ejk_tensor *place = field(c, text);
    if (place) *place = call_tensor(c, dtype, like->rank, like->shape);
}

/* ---- Sizes ------------------------------------------------------------------------------------------- */

/* As many as there are multiprocessors, or half of them: kernels share out columns in other ways then. */
static void choose_many_heads(struct call *c, struct recurrent *p) {
    struct random *r = &c->random;
    p->batch = 1;
    p->tokens = 65;
    p->dk = random_chance(r, 0.7) ? 64 : 128;
    p->dv = random_chance(r, 0.5) ? 64 : 128;
    p->heads = 68;
    for (int i = 0; i < 3; i++) p->own[i] = random_chance(r, 0.5) ? 68 : 34;
    p->own[random_int(r, 0, 2)] = 68;
}

static void choose_sizes(struct call *c, struct recurrent *p) {
    static const int64_t tokens[] = {0, 1, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 200, 1000};
    static const int64_t sizes[] = {1, 3, 16, 16, 32, 48, 64, 100, 128, 192, 256};
    /* Those of chunks on tensor cores, of which there are several. */
    static const int64_t tiled_tokens[] = {17, 63, 64, 65, 127, 128, 129, 200};
    static const int64_t tiled_sizes[] = {64, 64, 128, 128, 192, 80};
    struct random *r = &c->random;
    const int64_t budget = c->budget / (c->gradient ? 4 : 2) * (c->tiled ? 10 : 1);
    do {
        p->batch = random_chance(r, 0.02) ? 0 : random_int(r, 1, 3);
        p->tokens = c->tiled ? RANDOM_OF(r, tiled_tokens) : RANDOM_OF(r, tokens);
        p->dk = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, sizes);
        p->dv = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, sizes);
        if (c->tiled) p->dk = random_chance(r, 0.5) ? 64 : 128, p->dv = RANDOM_OF(r, tiled_sizes);
        const int64_t few = random_int(r, 1, 2),
                      times = random_chance(r, 0.4) ? random_int(r, 2, 3) : 1;
        p->heads = few * times;
        for (int i = 0; i < 3; i++) p->own[i] = random_chance(r, 0.5) ? p->heads : few;
        p->own[random_int(r, 0, 2)] = p->heads;
    } while (p->batch * p->heads * (p->tokens + 16) * (p->dk * p->dv + 8) > budget);
    if (c->tiled && call_is_for_gpu(c) && random_chance(r, 0.15)) choose_many_heads(c, p);
    p->sequences = p->batch;
}

/* Some sequences are empty, and tokens behind the last are in none. */
static void pack(struct call *c, struct recurrent *p) {
    struct random *r = &c->random;
    p->packed = true;
    p->batch = 1;
    p->flat = random_chance(r, 0.5);
    p->sequences = random_int(r, p->tokens > 0 ? 0 : 1, MOST_SEQUENCES - 1);
    ejk_tensor ends =
        CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, p->sequences + 1);
    for (int64_t n = 1; n <= p->sequences; n++) {
        const int64_t before = p->end[n - 1];
        p->end[n] = random_chance(r, 0.2)   ? before
                    : random_chance(r, 0.2) ? before + (before < p->tokens)
                                            : random_int(r, before, p->tokens);
        tensor_put(&ends, n, (double)p->end[n]);
    }
    set_tensor(c, "cu_seqlens", &ends);
}

/* Runs of tokens of one id, some of them padding. */
static void divide(struct call *c, struct recurrent *p) {
    struct random *r = &c->random;
    const ejk_dtype dtype = random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64;
    p->ids =
        p->flat ? CALL_TENSOR(c, dtype, p->tokens) : CALL_TENSOR(c, dtype, p->batch, p->tokens);
    p->segment = call_memory(c, (size_t)(p->batch * p->tokens) * sizeof *p->segment);
    int64_t id = 0;
    for (int64_t n = 0; n < p->batch * p->tokens; n++) {
        if (random_chance(r, 0.1)) id = random_int(r, -1, 3);
        p->segment[n] = id;
        tensor_put(&p->ids, n, (double)id);
    }
    set_tensor(c, "seg_ids", &p->ids);
}

/* ---- Contents ---------------------------------------------------------------------------------------- */

static ejk_tensor token_tensor(struct call *c, const struct recurrent *p, ejk_dtype dtype,
                               int64_t heads, int64_t size) {
    const int64_t all[] = {p->batch, p->tokens, heads, size};
    return call_tensor(c, dtype, (p->flat ? 2 : 3) + (size >= 0), all + p->flat);
}

static ejk_tensor state_tensor(struct call *c, const struct recurrent *p, ejk_dtype dtype,
                               int64_t rows) {
    return CALL_TENSOR(c, dtype, rows, p->heads, p->turned ? p->dv : p->dk,
                       p->turned ? p->dk : p->dv);
}

static void fill(struct call *c, const ejk_tensor *t, double size) {
    for (int64_t n = 0; n < ejk_tensor_count(t); n++)
        tensor_put(t, n, size * random_normal(&c->random));
}

/* Nothing decays, or all does, or it is a matter of the token; growth is slow, so that states stay finite. */
static void fill_gates(struct call *c, const ejk_tensor *t) {
    static const double edges[] = {0, -50, -1e4, -INFINITY, -0.1, -1e-4};
    struct random *r = &c->random;
    const int64_t kind = random_int(r, 0, 7);
    for (int64_t n = 0; n < ejk_tensor_count(t); n++) {
        double g = -0.1 * fabs(random_normal(r));
        if (kind == 0) g = 0;
        if (kind == 1) g = 0.01 * random_normal(r);
        if (kind == 2) g = RANDOM_OF(r, edges);
        if (kind == 3) g = -20 * random_real(r);
        if (kind == 4 && random_chance(r, 0.1)) g = -INFINITY;
        tensor_put(t, n, g);
    }
}

static ejk_dtype gate_type(struct call *c) {
    return c->dtype != EJK_DTYPE_F64 && random_chance(&c->random, 0.6) ? EJK_DTYPE_F32 : c->dtype;
}

/* Chunks of gradients where queries read the state before a token have to find calls: gates of one type, no states. */
static bool is_for_chunks(struct call *c, const struct recurrent *p) {
    return c->gradient && c->dtype == EJK_DTYPE_BF16 && p->member->before &&
           random_chance(&c->random, 0.9);
}

static void fill_role(struct call *c, struct recurrent *p, enum role role) {
    struct random *r = &c->random;
    ejk_tensor *t = &p->tensor[role];
    const double small = 1 / sqrt((double)p->dk + 1);
    const ejk_dtype gate = is_for_chunks(c, p) ? c->dtype : gate_type(c);
    switch (role) {
    case QUERY:
    case KEY:
    case VALUE:
        *t = token_tensor(c, p, c->dtype, p->own[role], role == VALUE ? p->dv : p->dk);
        fill(c, t, role == KEY && !p->normalise ? small : 1);
        break;
    case A:
    case B:
        *t = token_tensor(c, p, c->dtype, p->heads, p->dk);
        fill(c, t, role == A && p->member->multiplies ? 0.5 : 0.7 * small);
        break;
    case BETA:
        *t = token_tensor(c, p, gate, p->heads, -1);
        for (int64_t n = 0; n < ejk_tensor_count(t); n++)
            tensor_put(t, n, p->logits ? 3 * random_normal(r) : random_real(r));
        break;
    case BONUS:
        *t = CALL_TENSOR(c, gate, p->heads, p->dk);
        fill(c, t, 0.5);
        break;
    case G:
        p->wide_gate = random_chance(r, 0.5) || is_for_chunks(c, p);
        *t = token_tensor(c, p, gate, p->heads, p->wide_gate ? p->dk : -1);
        fill_gates(c, t);
        break;
    case GK:
    case GV:
        *t = token_tensor(c, p, gate, p->heads, role == GK ? p->dk : p->dv);
        fill_gates(c, t);
        break;
    case GAMMA:
        p->gamma_each = random_chance(r, 0.5);
        *t = p->gamma_each ? CALL_TENSOR(c, gate, p->sequences, p->heads)
                           : CALL_TENSOR(c, gate, p->heads);
        fill_gates(c, t);
        break;
    case A_LOG:
        *t = CALL_TENSOR(c, gate, p->heads);
        fill(c, t, 1);
        break;
    case DT_BIAS:
        p->bias_row = p->wide_gate;
        *t = p->bias_row ? CALL_TENSOR(c, gate, p->heads, p->dk) : CALL_TENSOR(c, gate, p->heads);
        fill(c, t, 1);
        break;
    default:
        *t = state_tensor(
            c, p, random_chance(r, 0.5) && c->dtype != EJK_DTYPE_F64 ? EJK_DTYPE_F32 : c->dtype,
            p->sequences);
        fill(c, t, 1);
    }
}

static bool is_wanted(struct call *c, const struct recurrent *p, enum role role) {
    struct random *r = &c->random;
    if (role <= VALUE) return true;
    if (role == INITIAL) return !p->pool && random_chance(r, 0.6);
    if (!p->member->name[role]) return false;
    if (role == A || role == B) return true;
    if (role == A_LOG) return ejk_tensor_present(&p->tensor[G]) && random_chance(r, 0.4);
    if (role == DT_BIAS) return ejk_tensor_present(&p->tensor[A_LOG]) && random_chance(r, 0.7);
    return random_chance(r, role == GK || role == GV || role == GAMMA ? 0.4 : 0.85);
}

/* Rows of a pool in any order; others are somebody else's. */
static void make_pool(struct call *c, struct recurrent *p) {
    struct random *r = &c->random;
    const bool listed = p->member->has_pool_only || random_chance(r, 0.7);
    const ejk_dtype wide = c->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    int64_t row[2 * MOST_SEQUENCES];
    p->slots = listed ? p->sequences + random_int(r, 0, 3) : p->sequences;
    for (int64_t n = 0; n < p->slots; n++) {
        const int64_t other = listed ? random_int(r, 0, n) : n;
        row[n] = row[other];
        row[other] = n;
    }
    ejk_tensor pool = state_tensor(c, p, wide, p->slots);
    ejk_tensor rows =
        CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, p->sequences);
    for (int64_t n = 0; n < p->sequences; n++) {
        p->row[n] = listed && random_chance(r, 0.15) ? -1 : row[n];
        tensor_put(&rows, n, (double)p->row[n]);
    }
    fill(c, &pool, 1);
    set_tensor(c, "state", &pool);
    if (listed) set_tensor(c, "state_indices", &rows);
    p->tensor[INITIAL] = pool;
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

static void set_options(struct call *c, struct recurrent *p) {
    struct random *r = &c->random;
    ejk_opt_float *scale = field(c, "softmax_scale");
    bool *reverse = field(c, "reverse"), *logits = field(c, "use_beta_sigmoid");
    ejk_opt_bool *norm = field(c, "use_qk_l2norm");
    p->scale = 1 / sqrt(p->dk > 0 ? (double)p->dk : 1);
    if (random_chance(r, 0.4)) p->scale = scale->value = 1, scale->set = true;
    *reverse = p->reverse = random_chance(r, 0.3);
    p->turned = random_chance(r, 0.3);
    if (p->turned) strcpy(field(c, "state_layout"), "value_key");
    if (p->member->normalises) {
        p->normalise = random_chance(r, 0.7);
        *norm = p->normalise ? random_chance(r, 0.5) ? EJK_TRUE : EJK_UNSET : EJK_FALSE;
        *logits = p->logits = random_chance(r, 0.4);
    }
    if (p->member->has_layers) {
        const int64_t layers = random_int(r, 1, 8), layer = random_int(r, 0, layers);
        *(int64_t *)field(c, "num_layers") = layers;
        *(int64_t *)field(c, "layer_idx") = layer;
        p->slope = -8.0 / (double)p->heads * (1 - (double)layer / (double)layers);
    }
}

static struct recurrent *make(struct call *c, int member) {
    struct random *r = &c->random;
    struct recurrent *p = call_memory(c, sizeof *p);
    c->own = p;
    p->member = &members[member];
    choose_sizes(c, p);
    if (random_chance(r, 0.4) || p->member->has_pool_only) pack(c, p);
    if (!p->packed && p->batch == 1) p->flat = random_chance(r, 0.2);
    if (random_chance(r, c->tiled ? 0.1 : 0.25)) divide(c, p);
    set_options(c, p);
    p->pool =
        field(c, "state") && (p->member->has_pool_only || random_chance(r, c->tiled ? 0.2 : 0.4));
    if (p->pool) make_pool(c, p);
    for (int role = 0; role < ROLES; role++) {
        if (!is_wanted(c, p, (enum role)role)) continue;
        fill_role(c, p, (enum role)role);
        set_tensor(c, p->member->name[role], &p->tensor[role]);
    }
    return p;
}

static ejk_tensor kept_states(struct call *c, const struct recurrent *p) {
    return CALL_TENSOR(c, EJK_DTYPE_F32, p->packed ? 1 : p->batch, kept_rows(p), p->heads, p->dk,
                       p->dv);
}

/* Gradients that are given what the call kept. */
static void give_kept(struct call *c, struct recurrent *p) {
    p->kept[0] = kept_states(c, p);
    p->kept[1] = token_tensor(c, p, EJK_DTYPE_F32, p->heads, p->dv);
    set_tensor(c, "chunk_states", &p->kept[0]);
    set_tensor(c, "errors", &p->kept[1]);
}

static bool generate(struct call *c, int member) {
    const struct recurrent *p = make(c, member);
    const ejk_dtype wide = c->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    ejk_tensor out = token_tensor(c, p, c->dtype, p->heads, p->dv);
    set_tensor(c, "out", &out);
    ejk_tensor final = state_tensor(c, p, wide, p->sequences);
    if (!p->pool && random_chance(&c->random, c->tiled ? 0.4 : 0.6))
        set_tensor(c, "final_state", &final);
    if (!p->member->keeps || c->tiled || !random_chance(&c->random, 0.5)) return true;
    const bool both = random_chance(&c->random, 0.5), states = random_chance(&c->random, 0.5);
    const ejk_tensor kept = kept_states(c, p);
    const ejk_tensor errors = token_tensor(c, p, EJK_DTYPE_F32, p->heads, p->dv);
    if (both || states) set_tensor(c, "chunk_states", &kept);
    if (both || !states) set_tensor(c, "errors", &errors);
    return true;
}

static bool generate_vjp(struct call *c, int member) {
    c->gradient = true;
    struct recurrent *p = make(c, member);
    c->scarce = p->dk < 16 || p->dv < 16; /* few terms, of which most may be 0 */
    const ejk_dtype wide = c->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    ejk_tensor out = token_tensor(c, p, c->dtype, p->heads, p->dv);
    ejk_tensor final = state_tensor(c, p, wide, p->sequences);
    fill(c, &out, 1);
    fill(c, &final, 1);
    if (c->dtype == EJK_DTYPE_F64 || random_chance(&c->random, 0.9)) set_tensor(c, "d_out", &out);
    if (random_chance(&c->random, 0.6)) set_tensor(c, "d_final_state", &final);
    bool any = false;
    for (int role = 0; role < INITIAL; role++) {
        const ejk_tensor *t = &p->tensor[role];
        if (!ejk_tensor_present(t) || random_chance(&c->random, 0.15)) continue;
        set_gradient(c, p->member->name[role], t, t->dtype);
        any = true;
    }
    if (!any || (!is_for_chunks(c, p) && random_chance(&c->random, 0.6)))
        set_gradient(c, "initial_state", &final, wide);
    if (p->member->keeps && random_chance(&c->random, 0.5)) give_kept(c, p);
    return true;
}

static void read_values(struct call *c, struct recurrent *p) {
    if (p->x[QUERY]) return;
    for (int role = 0; role < ROLES; role++) p->x[role] = tensor_values(c, &p->tensor[role]);
    p->state = p->x[INITIAL];
    const ejk_tensor *d_out = field(c, "d_out"), *d_final = field(c, "d_final_state");
    if (d_out) p->d_out = tensor_values(c, d_out);
    if (d_final) p->d_final = tensor_values(c, d_final);
}

/* What a forward call would have kept. */
static void keep(struct call *c, struct recurrent *p) {
    double **place[] = {&p->states, &p->errors};
    for (int i = 0; i < 2; i++)
        *place[i] = call_memory(c, (size_t)ejk_tensor_count(&p->kept[i]) * sizeof **place[i] + 1);
    read_values(c, p);
    c->gradient = false;
    recurrent_double(c, p, EXACT);
    c->gradient = true;
    for (int i = 0; i < 2; i++) {
        for (int64_t n = 0; n < ejk_tensor_count(&p->kept[i]); n++)
            tensor_put(&p->kept[i], n, (*place[i])[n]);
        *place[i] = NULL;
    }
}

/* Tokens in no sequence and padding hold NaN. */
static void hide(const struct recurrent *p, const ejk_tensor *t) {
    const int64_t tokens = p->batch * p->tokens,
                  row = tokens > 0 ? ejk_tensor_count(t) / tokens : 0;
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t i = 0; i < row; i++)
            if ((p->packed && n >= p->end[p->sequences]) || (p->segment && p->segment[n] < 0))
                tensor_put(t, n * row + i, (double)NAN);
}

/* Differences would find NaN times 0. */
static void finish(struct call *c) {
    struct recurrent *p = c->own;
    static const enum role of_tokens[] = {QUERY, KEY, VALUE, A, B, BETA, G, GK, GV};
    for (int i = 0; i < 9 && c->dtype != EJK_DTYPE_F64; i++)
        if (ejk_tensor_present(&p->tensor[of_tokens[i]])) hide(p, &p->tensor[of_tokens[i]]);
    const ejk_tensor *d_out = field(c, "d_out");
    if (d_out && ejk_tensor_present(d_out) && c->dtype != EJK_DTYPE_F64) hide(p, d_out);
    if (ejk_tensor_present(&p->kept[0])) keep(c, p);
}

static void exact(struct call *c) {
    read_values(c, c->own);
    if (c->dtype == EJK_DTYPE_F64)
        recurrent_long(c, c->own, EXACT);
    else
        recurrent_double(c, c->own, EXACT);
}

static void naive(struct call *c, int order) {
    read_values(c, c->own);
    if (c->dtype == EJK_DTYPE_F64)
        recurrent_double(c, c->own, order);
    else
        recurrent_float(c, c->own, order);
}

/* ---- Parts ------------------------------------------------------------------------------------------- */

static void cut(struct slice *s, const char *symbol, int64_t first, int64_t end) {
    s->range[s->count].symbol = symbol;
    s->range[s->count].first = first;
    s->range[s->count].end = end;
    s->count++;
}

/*
 * Columns of the value. On sm_90 chunks whose columns are a multiple of 64 have kernels of their own, with which others
 * agree to rounding: of such a multiple a part is one, too.
 */
static void cut_columns(const struct call *c, struct random *r, struct slice *s) {
    const struct recurrent *p = c->own;
    int64_t first = random_int(r, 0, p->dv - 1), end = random_int(r, first + 1, p->dv);
    const bool is_wide = call_is_for_gpu(c) && p->dv % 64 == 0;
    if (is_wide && ((end - first) % 16 == 0 || random_chance(r, 0.5))) {
        const int64_t count = 64 * random_int(r, 1, p->dv / 64);
        first = random_int(r, 0, p->dv - count);
        end = first + count;
    }
    cut(s, "Dv", first, end);
}

/* Entries of the batch, or columns of the value. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct recurrent *p = c->own;
    if (p->batch * p->tokens * p->dk * p->dv == 0) return false;
    if (!p->packed && !p->flat && !p->pool && random_chance(r, 0.5)) {
        const int64_t first = random_int(r, 0, p->batch - 1),
                      end = random_int(r, first + 1, p->batch);
        cut(s, "B", first, end);
        cut(s, "N", first, end);
        s->range[1].same = true;
        return true;
    }
    if (p->turned && p->dk == p->dv) return false; /* symbols do not tell which axis is which */
    cut_columns(c, r, s);
    return true;
}

#define CASE(op, member, none_of)                                                                  \
    static bool generate_##op(struct call *c) {                                                    \
        return generate(c, member);                                                                \
    }                                                                                              \
    const struct operation op##_case = {#op,                                                       \
                                        .cases = 40,                                               \
                                        .generate = generate_##op,                                 \
                                        .finish = finish,                                          \
                                        .exact = exact,                                            \
                                        .naive = naive,                                            \
                                        .slice = slice,                                            \
                                        .never = none_of};
#define CASE_VJP(op, member, none_of)                                                              \
    static bool generate_##op##_vjp(struct call *c) {                                              \
        return generate_vjp(c, member);                                                            \
    }                                                                                              \
    const struct operation op##_vjp_case = {                                                       \
        #op "_vjp",       .cases = 40,     .generate = generate_##op##_vjp,                        \
        .finish = finish, .exact = exact,  .naive = naive,                                         \
        .slice = slice,   .never = none_of};

CASE(recurrent_attention, RECURRENT, "/rank")
CASE(gla_attention, GLA, "/rank")
CASE(lightning_attention, LIGHTNING, "/rank")
CASE(gated_delta_rule, GATED_DELTA, "/rank")
CASE(ragged_gated_delta_rule, RAGGED, "/rank")
CASE(kda_attention, GATED_DELTA, "/rank")
CASE(rwkv6, RWKV6, "/rank")
CASE(rwkv7, RWKV7, "/chunk")
CASE(rwkv7_mul, RWKV7_MUL, "/chunk")
CASE_VJP(recurrent_attention, RECURRENT, NULL)
CASE_VJP(gla_attention, GLA, NULL)
CASE_VJP(lightning_attention, LIGHTNING, NULL)
CASE_VJP(gated_delta_rule, GATED_DELTA, NULL)
CASE_VJP(kda_attention, GATED_DELTA, NULL)
CASE_VJP(rwkv6, RWKV6, "avx512/chunk avx2/chunk neon/chunk scalar/chunk")
CASE_VJP(rwkv7, RWKV7, "/chunk")
CASE_VJP(rwkv7_mul, RWKV7_MUL, "/chunk")
