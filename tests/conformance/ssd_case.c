/* SPDX-License-Identifier: Apache-2.0 */
/* state_space_v2 and its gradient. */
#include "conformance/cases.h"
#include "conformance/ssd.h"

/* ---- Sizes ------------------------------------------------------------------------------------------- */

static void choose_sizes(struct call *c, struct ssd *p) {
    static const int64_t tokens[] = {0, 1, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 200};
    static const int64_t sizes[] = {1, 3, 8, 16, 17, 32, 64, 64, 100};
    static const int64_t states[] = {1, 3, 16, 16, 17, 32, 64, 128};
    static const int64_t shared[] = {1, 2, 3, 4, 4, 8, 16};
    /* Those of chunks on tensor cores, of which there are several. */
    static const int64_t tiled_tokens[] = {17, 63, 64, 65, 127, 128, 129, 200};
    static const int64_t tiled_sizes[] = {16, 64, 64, 64, 128, 80};
    struct random *r = &c->random;
    const int64_t budget = c->budget / (c->gradient ? 4 : 2) * (c->tiled ? 10 : 1);
    int64_t batch, t;
    do {
        batch = random_chance(r, 0.02) ? 0 : random_int(r, 1, 3);
        t = c->tiled ? RANDOM_OF(r, tiled_tokens) : RANDOM_OF(r, tokens);
        p->size = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, sizes);
        p->states = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, states);
        if (c->tiled) p->size = RANDOM_OF(r, tiled_sizes);
        if (c->tiled) p->states = random_chance(r, 0.5) ? 64 : 128;
        p->groups = random_int(r, 1, 2);
        p->heads = p->groups * RANDOM_OF(r, shared);
        if (random_chance(r, 0.02)) p->groups = p->heads = 0;
    } while (batch * p->heads * (t + 16) * (p->size * p->states + 8) > budget);
    lines_make(c, &p->lines, batch, t);
}

/* ---- Contents ---------------------------------------------------------------------------------------- */

/* Rates from none at all to everything at once. */
static void fill_rates(struct call *c, const ejk_tensor *t) {
    static const double special[] = {0, -50, -1e4, -1e-4};
    struct random *r = &c->random;
    for (int64_t n = 0; n < ejk_tensor_count(t); n++)
        tensor_put(t, n,
                   random_chance(r, 0.2) ? RANDOM_OF(r, special) : -exp(random_normal(r) - 0.5));
}

/* Step sizes are positive, with softplus or without: states would grow without bounds. */
static void fill_steps(struct call *c, const struct ssd *p, const ejk_tensor *t, double middle) {
    tensor_fill(c, t, middle, 1.5);
    for (int64_t n = 0; !p->softplus && n < ejk_tensor_count(t); n++)
        tensor_put(t, n, exp(0.5 * tensor_get(t, n) - 1));
}

/* Rows whose heads are an axis, or not. */
static ejk_tensor rows(struct call *c, const struct ssd *p) {
    const int64_t n = p->lines.batch, t = p->lines.tokens;
    return random_chance(&c->random, 0.5) ? CALL_TENSOR(c, c->dtype, n, t, p->heads, p->size)
                                          : CALL_TENSOR(c, c->dtype, n, t, p->heads * p->size);
}

/*
 * The norm of a few numbers has a slope near 0 as large as 1 / sqrt(eps), by which what y is off by grows, and which
 * would be all of a gradient. So norms are of eight numbers, or eps is no less than a tenth.
 */
static void choose_norm(struct call *c, struct ssd *p) {
    struct random *r = &c->random;
    const int64_t width = p->heads * p->size, least = c->gradient ? 8 : 1;
    p->norm = random_chance(r, 0.5);
    p->norm_first = random_chance(r, 0.5);
    p->eps = random_chance(r, 0.5) ? 1e-5 : 1e-3;
    p->norm_group = width;
    if (width > least && random_chance(r, 0.5)) do
            p->norm_group = random_int(r, least, width);
        while (width % p->norm_group != 0);
    /*
     * The norm of few numbers is steep where they are near 0: errors of sums must not become ten times as large. In 16
     * bits what such a sum is off by is a matter of its terms, not of what it comes to.
     */
    c->scarce =
        p->norm && p->norm_group < 8 && c->dtype != EJK_DTYPE_F32 && c->dtype != EJK_DTYPE_F64;
    if (p->norm_group == 1)
        p->eps = 1;
    else if (p->norm_group < 8)
        p->eps = 0.1;
    else if (c->gradient)
        p->eps = 1e-2;
    if (!p->norm || !random_chance(r, 0.7)) return;
    p->tensor[SSD_WEIGHT] = CALL_TENSOR(c, lines_type(c), width);
    tensor_fill(c, &p->tensor[SSD_WEIGHT], 1, 0.3);
}

static void fill_lists(struct call *c, struct ssd *p) {
    struct random *r = &c->random;
    ejk_tensor *t = p->tensor;
    t[SSD_A] = CALL_TENSOR(c, lines_type(c), p->heads);
    fill_rates(c, &t[SSD_A]);
    if (random_chance(r, 0.6)) {
        t[SSD_D] = CALL_TENSOR(c, lines_type(c), p->heads);
        tensor_fill(c, &t[SSD_D], 1, 0.3);
    }
    if (random_chance(r, 0.5)) {
        t[SSD_BIAS] = CALL_TENSOR(c, lines_type(c), p->heads);
        fill_steps(c, p, &t[SSD_BIAS], 0);
    }
}

static void fill_states(struct call *c, struct ssd *p) {
    struct random *r = &c->random;
    const ejk_dtype wide = c->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    const int64_t entries = p->pooled ? p->lines.slots : p->lines.count;
    if (p->pooled || random_chance(r, 0.5)) {
        p->tensor[SSD_BEFORE] =
            CALL_TENSOR(c, p->pooled ? wide : lines_type(c), entries, p->heads, p->size, p->states);
        tensor_fill(c, &p->tensor[SSD_BEFORE], 0, 1);
    }
    if (!p->pooled && random_chance(r, c->tiled ? 0.4 : 0.6))
        p->tensor[SSD_AFTER] = CALL_TENSOR(c, wide, entries, p->heads, p->size, p->states);
}

static struct ssd *make(struct call *c, bool gradient) {
    struct random *r = &c->random;
    struct ssd *p = call_memory(c, sizeof *p);
    ejk_tensor *t = p->tensor;
    c->own = p;
    c->gradient = gradient;
    choose_sizes(c, p);
    p->softplus = random_chance(r, 0.5);
    p->limited = random_chance(r, 0.3);
    p->reverse = random_chance(r, 0.3);
    p->pooled = !gradient && random_chance(r, c->tiled ? 0.2 : 0.4);
    if (p->pooled) lines_pool(c, &p->lines);
    const int64_t n = p->lines.batch, tokens = p->lines.tokens;
    t[SSD_X] = CALL_TENSOR(c, c->dtype, n, tokens, p->heads, p->size);
    t[SSD_B] = CALL_TENSOR(c, c->dtype, n, tokens, p->groups, p->states);
    t[SSD_C] = CALL_TENSOR(c, c->dtype, n, tokens, p->groups, p->states);
    t[SSD_DT] = CALL_TENSOR(c, lines_type(c), n, tokens, p->heads);
    tensor_fill(c, &t[SSD_X], 0.3, 1);
    tensor_fill(c, &t[SSD_B], 0, 1 / sqrt((double)p->states + 1));
    tensor_fill(c, &t[SSD_C], 0, 1);
    fill_steps(c, p, &t[SSD_DT], -1);
    fill_lists(c, p);
    if (random_chance(r, 0.6)) {
        t[SSD_GATE] = rows(c, p);
        tensor_fill(c, &t[SSD_GATE], 0, 2);
    }
    choose_norm(c, p);
    fill_states(c, p);
    t[SSD_Y] = rows(c, p);
    if (!gradient) return p;
    if (p->states < 16 || p->size < 16) c->scarce = true; /* few terms, of which most may be 0 */
    tensor_fill(c, &t[SSD_Y], 0.2, 1);
    if (ejk_tensor_present(&t[SSD_AFTER])) tensor_fill(c, &t[SSD_AFTER], 0.2, 1);
    return p;
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

#define SET_SHARED(args, p)                                                                        \
    do {                                                                                           \
        (args)->x = (p)->tensor[SSD_X];                                                            \
        (args)->a = (p)->tensor[SSD_A];                                                            \
        (args)->b = (p)->tensor[SSD_B];                                                            \
        (args)->c = (p)->tensor[SSD_C];                                                            \
        (args)->d = (p)->tensor[SSD_D];                                                            \
        (args)->dt = (p)->tensor[SSD_DT];                                                          \
        (args)->gate = (p)->tensor[SSD_GATE];                                                      \
        (args)->dt_bias = (p)->tensor[SSD_BIAS];                                                   \
        (args)->rmsnorm_weight = (p)->tensor[SSD_WEIGHT];                                          \
        (args)->cu_seqlens = (p)->lines.ends;                                                      \
        (args)->n_groups = (ejk_opt_int){(p)->groups, (p)->reverse};                               \
        (args)->use_gated_rmsnorm = (p)->norm;                                                     \
        (args)->rmsnorm_eps = (ejk_opt_float){(p)->eps, (p)->eps > 1e-4};                          \
        (args)->norm_before_gate = (p)->norm_first ? EJK_UNSET : EJK_FALSE;                        \
        (args)->rmsnorm_group_size =                                                               \
            (ejk_opt_int){(p)->norm_group, (p)->norm_group != (p)->heads * (p)->size};             \
        (args)->dt_softplus = (p)->softplus;                                                       \
        (args)->dt_min = (ejk_opt_float){SSD_LEAST, (p)->limited};                                 \
        (args)->dt_max = (ejk_opt_float){SSD_MOST, (p)->limited};                                  \
        (args)->reverse = (p)->reverse;                                                            \
    } while (0)

static bool generate(struct call *c) {
    ejk_state_space_v2_args *args = c->args;
    const struct ssd *p = make(c, false);
    SET_SHARED(args, p);
    args->out = p->tensor[SSD_Y];
    args->final_state = p->tensor[SSD_AFTER];
    args->state_indices = p->lines.indices;
    if (p->pooled)
        args->state = p->tensor[SSD_BEFORE];
    else
        args->initial_state = p->tensor[SSD_BEFORE];
    return true;
}

static bool generate_vjp(struct call *c) {
    ejk_state_space_v2_vjp_args *args = c->args;
    const struct ssd *p = make(c, true);
    SET_SHARED(args, p);
    args->initial_state = p->tensor[SSD_BEFORE];
    args->d_out = p->tensor[SSD_Y];
    args->d_final_state = p->tensor[SSD_AFTER];
    args->d_x = call_tensor_like(c, &p->tensor[SSD_X], 0.9);
    args->d_a = call_tensor_like(c, &p->tensor[SSD_A], 0.9);
    args->d_b = call_tensor_like(c, &p->tensor[SSD_B], 0.9);
    args->d_c = call_tensor_like(c, &p->tensor[SSD_C], 0.9);
    args->d_d = call_tensor_like(c, &p->tensor[SSD_D], 0.9);
    args->d_dt = call_tensor_like(c, &p->tensor[SSD_DT], 0.9);
    args->d_gate = call_tensor_like(c, &p->tensor[SSD_GATE], 0.9);
    args->d_dt_bias = call_tensor_like(c, &p->tensor[SSD_BIAS], 0.9);
    args->d_initial_state = call_tensor_like(c, &p->tensor[SSD_BEFORE], 0.9);
    args->d_rmsnorm_weight = call_tensor_like(c, &p->tensor[SSD_WEIGHT], 0.9);
    return true;
}

/* What nobody reads: tokens of no sequence, slots of none. Differences would find NaN times 0. */
static void finish(struct call *c) {
    static const enum ssd_tensor of_tokens[] = {SSD_X, SSD_B, SSD_C, SSD_DT, SSD_GATE, SSD_Y};
    const struct ssd *p = c->own;
    for (int i = 0; i < (c->gradient ? 6 : 5); i++)
        if (c->dtype != EJK_DTYPE_F64) lines_hide(&p->lines, &p->tensor[of_tokens[i]]);
    if (p->pooled) lines_hide_slots(&p->lines, &p->tensor[SSD_BEFORE]);
}

static void read(struct call *c, struct ssd *p) {
    if (p->x[SSD_X]) return;
    for (int i = 0; i < SSD_TENSORS; i++) p->x[i] = tensor_values(c, &p->tensor[i]);
}

static void exact(struct call *c) {
    read(c, c->own);
    if (c->dtype == EJK_DTYPE_F64)
        ssd_long(c, c->own, EXACT);
    else
        ssd_double(c, c->own, EXACT);
}

static void naive(struct call *c, int order) {
    read(c, c->own);
    if (c->dtype == EJK_DTYPE_F64)
        ssd_double(c, c->own, order);
    else
        ssd_float(c, c->own, order);
}

/* Entries of the batch, with their states. */
static bool slice(const struct call *c, struct random *r, struct slice *s) {
    const struct ssd *p = c->own;
    if (p->lines.packed || p->pooled || p->lines.batch * p->lines.tokens == 0) return false;
    slice_add(s, r, "B", p->lines.batch, false);
    s->range[1] = s->range[0];
    s->range[1].symbol = "N";
    s->range[1].same = true;
    s->count = 2;
    return true;
}

#define CASE .cases = 40, .finish = finish, .exact = exact, .naive = naive, .slice = slice

const struct operation state_space_v2_case = {CASE, .op = "state_space_v2",
                                              .never = "recurrent_attention:bf16/cuda/rank",
                                              .generate = generate};
const struct operation state_space_v2_vjp_case = {CASE, .op = "state_space_v2_vjp",
                                                  .never = "recurrent_attention:bf16/cuda/chunk "
                                                           "recurrent_attention:bf16/cuda/rank",
                                                  .generate = generate_vjp};
