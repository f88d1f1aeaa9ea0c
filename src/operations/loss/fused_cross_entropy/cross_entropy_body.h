/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_cross_entropy and its gradient in vectors. Tokens that count are listed first. Logits that are given are read
 * by the token. Else hidden states of these tokens are packed side by side, and blocks of them and of the vocabulary
 * multiplied by the tier's own matmul; gradients of a block are what its other products are made of. A token's sums run
 * over its classes in order, those of tokens over these in order: bits depend on neither threads nor other tokens.
 *
 * Gradients of the hidden form go over the vocabulary once: a block of d_lm_head_weight is added up over all tokens and
 * written once, d_hidden is added up in float32. Elements of blocks are without d_loss and the mean, which would take
 * them below what f16 holds: products count times these.
 */
#include "operations/loss/fused_cross_entropy/blocks.h"
#include "operations/loss/fused_cross_entropy/fold.h"

#include "kernels/declare.h"

EJKI_DECLARE_OTHER(product, EJKI_LINE_OF(matmul))

/* ---- Memory ----------------------------------------------------------------------------------------- */

/* A token that counts. */
typedef struct token {
    mm_size row;
    double weight;
    loss_sums sums;
} token;

/* Where things lie in the workspace, in bytes. */
typedef struct places {
    int64_t tokens, hidden, logits, slopes, d_hidden, d_weight, d_bias, product, end;
} places;

static bool adds_up(const loss_problem *p) {
    return loss_rows(p) > p->block_tokens;
}

static places places_of(const loss_problem *p) {
    const mm_size rows = loss_rows(p), block = p->block_tokens * loss_stride(p);
    const int64_t size = element_size((ejk_dtype)p->dtype);
    places at = {.end = 0};
    at.tokens = loss_reserve(&at.end, rows * (int64_t)sizeof(token));
    if (p->width < 0) return at;
    at.hidden = loss_reserve(&at.end, rows * p->width * size);
    at.logits = at.slopes = loss_reserve(&at.end, block * 4);
    if (p->gradient && size < 4) at.slopes = loss_reserve(&at.end, block * size);
    if (p->d_hidden.dtype) at.d_hidden = loss_reserve(&at.end, rows * p->width * 4);
    if (p->d_weight.present && adds_up(p))
        at.d_weight = loss_reserve(&at.end, p->width * loss_stride(p) * 4);
    if (p->d_bias.present && adds_up(p)) at.d_bias = loss_reserve(&at.end, loss_stride(p) * 4);
    at.product = at.end;
    return at;
}

/* A run, its listed tokens, and the block at hand. */
typedef struct state {
    const ejk_run *run;
    const loss_problem *p;
    fold_call call;
    places at;
    token *tokens;
    mm_size count, first, end; /* tokens first to end - 1 are the block's */
    mm_size class, classes;    /* as are its classes */
    double each;               /* d_loss and the division of a mean */
} state;

static void *place(const state *s, int64_t at) {
    return loss_place(s->run->workspace, at);
}

/* ---- Tokens ----------------------------------------------------------------------------------------- */

static double list_tokens(state *s) {
    double weight = 0;
    for (mm_size row = 0; row < loss_rows(s->p); row++) {
        const double own = loss_weight(s->p, row);
        if (!s->p->gradient) loss_put_lse(s->p, row, 0);
        if (own == 0) continue;
        s->tokens[s->count++] = (token){.row = row, .weight = own, .sums = loss_sums_none()};
        weight += own;
    }
    return weight;
}

/* Row `row` of a tensor, from element `index` on; NULL of one that is absent. */
static void *row_at(const loss_problem *p, const loss_view *v, mm_size row, mm_size index) {
    const ejk_dtype dtype = (ejk_dtype)v->dtype;
    return v->dtype ? element_at(dtype, v->data, loss_at(p, v, row) + index) : NULL;
}

static fold_piece piece_of(const state *s, const token *t, const void *x, mm_size first,
                           mm_size count) {
    const loss_problem *p = s->p;
    return (fold_piece){.x = x,
                        .soft = row_at(p, &p->soft, t->row, first),
                        .first = first,
                        .count = count,
                        .target = loss_target(p, t->row)};
}

/* Worker `index` of several has tokens from first to behind last of the block's. */
static void share_of(const state *s, int64_t index, mm_size *first, mm_size *last) {
    const mm_size count = s->end - s->first;
    *first = s->first + count * index / s->run->workers;
    *last = s->first + count * (index + 1) / s->run->workers;
}

static fold_slope slope_of(const state *s, const token *t, double factor) {
    const loss_problem *p = s->p;
    if (!p->lse.dtype) return fold_slope_of(p, &t->sums, factor);
    const double lse =
        ejki_load_f64((ejk_dtype)p->lse.dtype, p->lse.data, loss_at(p, &p->lse, t->row));
    return fold_slope_by(p, lse, t->sums.mass, factor);
}

/* ---- Logits that are given -------------------------------------------------------------------------- */

static void fold_given(void *argument, int64_t index) {
    const state *s = argument;
    const loss_problem *p = s->p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    mm_size n, last;
    for (share_of(s, index, &n, &last); n < last; n++) {
        token *t = s->tokens + n;
        const void *x = row_at(p, &p->logits, t->row, 0);
        const fold_piece own = piece_of(s, t, x, 0, p->vocab);
        if (!p->gradient || !p->lse.dtype || own.soft) fold_of(dtype, &s->call, &own, &t->sums);
        if (!p->gradient) continue;
        const fold_slope at = slope_of(s, t, s->each * t->weight);
        derive_of(dtype, dtype, &s->call, &own, &at, row_at(p, &p->d_logits, t->row, 0));
    }
    if (s->call.streams) v_streamed();
}

/* Rows of tokens that count nowhere become 0. */
static void clear_rows(const state *s, const loss_view *v, mm_size width) {
    const size_t bytes = (size_t)(width * element_size((ejk_dtype)s->p->dtype));
    mm_size n = 0;
    for (mm_size row = 0; v->dtype && row < loss_rows(s->p); row++) {
        if (n < s->count && s->tokens[n].row == row)
            n++;
        else
            memset(row_at(s->p, v, row, 0), 0, bytes);
    }
}

/* ---- Products --------------------------------------------------------------------------------------- */

enum { LOGITS, D_HIDDEN, D_WEIGHT, D_BIAS, PRODUCTS };

/* Where sums over tokens go: to a result, or until the last tokens to float32, which are added. */
static void to_result(const state *s, mm_view result, int64_t sums, mm_product *m) {
    const mm_view floats = loss_rows_at(place(s, sums), loss_stride(s->p), EJK_DTYPE_F32);
    const bool is_last = s->end == s->count;
    m->out = is_last ? loss_from_column(result, s->class) : floats;
    if (s->first > 0) m->add = floats;
}

static loss_block block_of(const state *s) {
    const loss_problem *p = s->p;
    const mm_size before = s->first * p->width;
    return (loss_block){
        .tokens = s->end - s->first,
        .first = s->class,
        .classes = s->classes,
        .hidden = place(s, s->at.hidden + before * element_size((ejk_dtype)p->dtype)),
        .logits = place(s, s->at.logits),
        .slopes = place(s, s->at.slopes),
        .d_hidden = place(s, s->at.d_hidden + before * 4),
    };
}

static mm_product product_of(const state *s, int which) {
    const loss_problem *p = s->p;
    const loss_block b = block_of(s);
    mm_product m;
    if (which == LOGITS) return loss_logits(p, &b);
    if (which == D_HIDDEN) {
        m = loss_d_hidden(p, &b);
        if (s->class > 0) m.add = m.out;
    } else if (which == D_WEIGHT) {
        m = loss_d_weight(p, &b);
        to_result(s, p->d_weight, s->at.d_weight, &m);
    } else {
        m = ejki_mm_product(1, b.tokens, b.classes);
        m.a = (mm_view){.dtype = p->dtype, .present = 1, .ones = 1};
        m.b = loss_slopes(p, &b);
        to_result(s, p->d_bias, s->at.d_bias, &m);
    }
    m.alpha = s->each;
    return m;
}

static ejk_status multiply(const state *s, int which) {
    const mm_problem one = {.count = 1, .product = {product_of(s, which)}};
    ejk_launch launch = {.workers = 1};
    EJKI_TRY(product->prepare(&one, s->run->parameters, s->run->workers, &launch));
    ejk_run own = *s->run;
    own.problem = &one;
    own.workers = launch.workers;
    own.workspace = place(s, s->at.product);
    return product->run(&own);
}

/* ---- Logits of products ----------------------------------------------------------------------------- */

static void pack_hidden(void *argument, int64_t index) {
    const state *s = argument;
    const ejk_dtype dtype = (ejk_dtype)s->p->dtype;
    const mm_size width = s->p->width;
    mm_size n, last;
    for (share_of(s, index, &n, &last); n < last; n++)
        memcpy(element_at(dtype, place(s, s->at.hidden), n * width),
               row_at(s->p, &s->p->hidden, s->tokens[n].row, 0),
               (size_t)(width * element_size(dtype)));
}

static float *block_row(const state *s, mm_size n) {
    return (float *)place(s, s->at.logits) + (n - s->first) * loss_stride(s->p);
}

static void fold_block(void *argument, int64_t index) {
    const state *s = argument;
    mm_size n, last;
    for (share_of(s, index, &n, &last); n < last; n++) {
        const fold_piece own = piece_of(s, s->tokens + n, block_row(s, n), s->class, s->classes);
        fold_of(EJK_DTYPE_F32, &s->call, &own, &s->tokens[n].sums);
    }
}

static void derive_block(void *argument, int64_t index) {
    const state *s = argument;
    const ejk_dtype dtype = (ejk_dtype)s->p->dtype;
    mm_size n, last;
    for (share_of(s, index, &n, &last); n < last; n++) {
        const token *t = s->tokens + n;
        const fold_piece own = piece_of(s, t, block_row(s, n), s->class, s->classes);
        const fold_slope at = slope_of(s, t, t->weight);
        derive_of(EJK_DTYPE_F32, dtype, &s->call, &own, &at,
                  element_at(dtype, place(s, s->at.slopes), (n - s->first) * loss_stride(s->p)));
    }
}

static void each_worker(state *s, void (*work)(void *, int64_t)) {
    ejk_parallel_for(s->run->threads, s->run->workers, work, s);
}

/* Calls `each` for blocks of all tokens, and of all classes, these first if `across`. */
static ejk_status each_block(state *s, bool across, ejk_status (*each)(state *)) {
    const loss_problem *p = s->p;
    const mm_size rows = ejki_cdiv(s->count, p->block_tokens);
    const mm_size columns = ejki_cdiv(p->vocab, p->block_classes);
    for (mm_size i = 0; i < rows * columns; i++) {
        const mm_size row = across ? i / columns : i % rows;
        const mm_size column = across ? i % columns : i / rows;
        s->first = row * p->block_tokens;
        s->end = ejki_min(s->first + p->block_tokens, s->count);
        s->class = column * p->block_classes;
        s->classes = ejki_min(p->block_classes, p->vocab - s->class);
        EJKI_TRY(each(s));
    }
    return EJK_OK;
}

static ejk_status fold_product(state *s) {
    EJKI_TRY(multiply(s, LOGITS));
    each_worker(s, fold_block);
    return EJK_OK;
}

static ejk_status derive_product(state *s) {
    const loss_problem *p = s->p;
    EJKI_TRY(multiply(s, LOGITS));
    each_worker(s, derive_block);
    if (p->d_hidden.dtype) EJKI_TRY(multiply(s, D_HIDDEN));
    if (p->d_weight.present) EJKI_TRY(multiply(s, D_WEIGHT));
    return p->d_bias.present ? multiply(s, D_BIAS) : EJK_OK;
}

static void whole(state *s) {
    s->first = 0;
    s->end = s->count;
}

/* Sums of all tokens. */
static ejk_status fold_tokens(state *s) {
    whole(s);
    if (s->p->width < 0) {
        each_worker(s, fold_given);
        return EJK_OK;
    }
    each_worker(s, pack_hidden);
    return s->p->gradient && s->p->lse.dtype ? EJK_OK : each_block(s, true, fold_product);
}

/* ---- Runs ------------------------------------------------------------------------------------------- */

static state state_of(const ejk_run *run) {
    state s = {.run = run, .p = run->problem, .call = fold_call_of(run->problem)};
    s.at = places_of(s.p);
    s.tokens = place(&s, s.at.tokens);
    return s;
}

static ejk_status run_forward(const ejk_run *run) {
    state s = state_of(run);
    loss_totals total = {.weight = list_tokens(&s)};
    EJKI_TRY(fold_tokens(&s));
    for (mm_size n = 0; n < s.count; n++) {
        const token *t = s.tokens + n;
        const loss_terms terms = loss_terms_of(s.p, &t->sums, loss_target(s.p, t->row));
        loss_count(&total, t->weight, &terms);
        loss_put_lse(s.p, t->row, terms.lse);
    }
    loss_put(s.p, &total);
    return EJK_OK;
}

static void put_hidden(void *argument, int64_t index) {
    const state *s = argument;
    const loss_problem *p = s->p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    mm_size n, last;
    for (share_of(s, index, &n, &last); n < last; n++) {
        const float *from = (const float *)place(s, s->at.d_hidden) + n * p->width;
        void *to = row_at(p, &p->d_hidden, s->tokens[n].row, 0);
        for (mm_size h = 0; h < p->width; h += VL)
            v_narrow_some(dtype, element_at(dtype, to, h),
                          v_load_first(from + h, ejki_min(VL, p->width - h)), p->width - h);
    }
}

/* Gradients that no token adds to. */
static void clear_matrix(const loss_problem *p) {
    const mm_view *v = &p->d_weight;
    for (mm_size h = 0; v->present && h < p->width; h++)
        memset(element_at((ejk_dtype)v->dtype, v->data, h * v->row), 0,
               (size_t)(p->vocab * element_size((ejk_dtype)v->dtype)));
    if (p->d_bias.present)
        memset(p->d_bias.data, 0, (size_t)(p->vocab * element_size((ejk_dtype)p->d_bias.dtype)));
}

/* Σ q of tokens whose lse is given. */
static void take_masses(void *argument, int64_t index) {
    const state *s = argument;
    const loss_problem *p = s->p;
    mm_size n, last;
    for (share_of(s, index, &n, &last); n < last; n++)
        s->tokens[n].sums.mass =
            mass_of((ejk_dtype)p->soft.dtype, row_at(p, &p->soft, s->tokens[n].row, 0), p->vocab);
}

static ejk_status run_vjp(const ejk_run *run) {
    state s = state_of(run);
    const loss_problem *p = s.p;
    const double weight = list_tokens(&s);
    s.each = ejki_load_f64((ejk_dtype)p->result, p->loss, 0) / loss_denominator(p, weight);
    if (p->width < 0 && !p->d_logits.dtype) return EJK_OK;
    clear_rows(&s, &p->d_logits, p->vocab);
    clear_rows(&s, &p->d_hidden, p->width);
    EJKI_TRY(fold_tokens(&s));
    if (p->width < 0) return EJK_OK;
    if (s.count == 0) clear_matrix(p);
    whole(&s);
    if (p->lse.dtype && p->soft.dtype) each_worker(&s, take_masses);
    EJKI_TRY(each_block(&s, false, derive_product));
    whole(&s);
    if (!p->d_hidden.dtype) return EJK_OK;
    if (p->vocab == 0) memset(place(&s, s.at.d_hidden), 0, (size_t)(s.count * p->width * 4));
    each_worker(&s, put_hidden);
    return EJK_OK;
}

/* ---- Launch ----------------------------------------------------------------------------------------- */

/* A thread is worth waking for this many logits. */
enum { WORTH = 20000 };

/* The largest block of a call, which takes the most memory. */
static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const loss_problem *p = problem;
    const double logits =
        (double)loss_rows(p) * (double)p->vocab * (p->width < 0 ? 1 : 1 + (double)p->width / 16);
    launch->workers = logits < (double)threads * WORTH ? (int32_t)(logits / WORTH) + 1 : threads;
    const ejk_run run = {.problem = p, .workers = launch->workers};
    state s = {.run = &run, .p = p, .at = places_of(p), .classes = p->block_classes};
    size_t most = 0;
    s.end = s.count = p->block_tokens;
    for (int which = LOGITS; p->width >= 0 && which < (p->gradient ? PRODUCTS : D_HIDDEN);
         which++) {
        const mm_problem one = {.count = 1, .product = {product_of(&s, which)}};
        ejk_launch own = {.workers = 1};
        EJKI_TRY(product->prepare(&one, parameters, launch->workers, &own));
        if (own.workspace_bytes > most) most = own.workspace_bytes;
    }
    launch->workspace_bytes = (size_t)s.at.end + most;
    return EJK_OK;
}

static bool applicable(const void *problem) {
    const loss_problem *p = problem;
    return p->soft.dtype != EJK_DTYPE_F64 && p->bias.dtype != EJK_DTYPE_F64;
}

static ejk_status run(const ejk_run *run) {
    const loss_problem *p = run->problem;
    return p->gradient ? run_vjp(run) : run_forward(run);
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .needs = "no float64", .applicable = applicable,
             .prepare = prepare, .run = run)
