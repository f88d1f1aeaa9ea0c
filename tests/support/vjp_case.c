/* SPDX-License-Identifier: Apache-2.0 */
#include "support/vjp_case.h"
#include "support/flash_run.h"

#include "operations/attention/shared/sequences.h"

#include "kernels/registry/builtin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

const char *const vjp_names[VJP_GRADIENTS] = {"d_query", "d_key", "d_value", "d_bias", "d_sinks"};

static void *place(struct guarded *memory, struct random *r, int64_t count, ejk_dtype dtype) {
    const enum guarded_side side = random_chance(r, 0.7) ? GUARDED_END : GUARDED_START;
    guarded_create(memory, (size_t)count * ejk_dtype_size(dtype), side,
                   random_chance(r, 0.3) ? (size_t)random_int(r, 0, 63) : 0);
    return memory->data;
}

/* [B, n, H, width] with gaps of multiples of `step` here and there. */
static ejki_bthd place_bthd(struct guarded *memory, struct random *r, ejk_dtype dtype, int64_t step,
                            int64_t batch, int64_t n, int64_t heads, int64_t width) {
    ejki_bthd view = {.stride_h = width + (random_chance(r, 0.3) ? step * random_int(r, 0, 5) : 0)};
    view.stride_t = heads * view.stride_h;
    view.stride_b = n * view.stride_t + (random_chance(r, 0.3) ? 3 * step : 0);
    if (random_chance(r, 0.3)) { /* heads outside */
        view.stride_t = view.stride_h;
        view.stride_h = n * view.stride_t;
    }
    const int64_t last =
        (batch - 1) * view.stride_b + (n - 1) * view.stride_t + (heads - 1) * view.stride_h + width;
    view.data = place(memory, r, batch > 0 && n > 0 && heads > 0 && width > 0 ? last : 0, dtype);
    return view;
}

static ejki_bht place_bht(struct guarded *memory, struct random *r, const struct vjp_case *c) {
    const ejki_flash_problem *p = &c->problem.forward;
    ejki_bht view = {.stride_t = random_chance(r, 0.3) ? 2 : 1};
    view.stride_h = p->queries * view.stride_t;
    view.stride_b = p->query_heads * view.stride_h;
    view.data = place(memory, r, c->entries * view.stride_b, EJK_DTYPE_F32);
    return view;
}

bool vjp_case_row(const struct vjp_case *c, int64_t entry, int64_t i, int64_t *sequence,
                  int64_t *own) {
    const ejki_flash_problem *p = &c->problem.forward;
    const int64_t *ends = c->ends[0];
    *sequence = entry;
    *own = i;
    if (p->layout == EJKI_FLASH_DENSE) return true;
    if (p->layout == EJKI_FLASH_PADDED) return i < ends[entry + 1] - ends[entry];
    for (int64_t n = 0; n < p->batch; n++)
        if (ends[n] <= i && i < ends[n + 1]) {
            *sequence = n;
            *own = i - ends[n];
            return true;
        }
    return false;
}

static bool sees_nothing(const struct vjp_case *c, int64_t entry, int64_t h, int64_t i) {
    int64_t n, own;
    if (!vjp_case_row(c, entry, i, &n, &own)) return true;
    const ejki_flash_problem p = ejki_flash_part(&c->problem.forward, n);
    for (int64_t j = 0; j < p.keys; j++)
        if (flash_visible(&p, 0, h, own, j)) return false;
    return true;
}

/* ---- Packed sequences ------------------------------------------------------------------------------- */

static void choose_ends(struct vjp_case *c, struct random *r, int which, int64_t length) {
    const ejki_flash_problem *p = &c->problem.forward;
    int64_t *ends = c->ends[which], left = length;
    for (int64_t n = 0; n < p->batch; n++) {
        const int64_t most = p->layout == EJKI_FLASH_PADDED ? length : left;
        const int64_t own = random_chance(r, 0.2)   ? 0
                            : random_chance(r, 0.2) ? most
                                                    : random_int(r, 0, most);
        ends[n + 1] = ends[n] + own;
        left -= own;
    }
    const ejk_dtype dtype = p->sums_are_i64 ? EJK_DTYPE_I64 : EJK_DTYPE_I32;
    void *sums = place(&c->sums[which], r, p->batch + 1, dtype);
    for (int64_t n = 0; n <= p->batch; n++) {
        const int32_t narrow = (int32_t)ends[n];
        if (p->sums_are_i64)
            memcpy((char *)sums + n * 8, &ends[n], 8);
        else
            memcpy((char *)sums + n * 4, &narrow, 4);
    }
    guarded_protect(&c->sums[which]);
}

/* NaN in the rows of no sequence; `which` says whose lengths count. */
static void poison_outside(const struct vjp_case *c, enum flash_tensor tensor, int which,
                           const ejki_bthd *t, int64_t length, int64_t heads, int64_t width) {
    const ejki_flash_problem *p = &c->problem.forward;
    const struct guarded *memory = &c->forward.memory[tensor];
    const int64_t *ends = c->ends[which];
    if (!memory->pages || mprotect(memory->pages, memory->mapped, PROT_READ | PROT_WRITE) != 0)
        return;
    for (int64_t b = 0; b < c->entries; b++) {
        const int64_t first =
            p->layout == EJKI_FLASH_PADDED ? ends[b + 1] - ends[b] : ends[p->batch];
        for (int64_t i = first; i < length; i++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < width; d++)
                    flash_store(p->dtype, t->data,
                                b * t->stride_b + i * t->stride_t + h * t->stride_h + d,
                                (double)NAN);
    }
    mprotect(memory->pages, memory->mapped, PROT_READ);
}

/*
 * The same tensors, cut into sequences. What nobody sees in the dense problem, nobody sees in padded sequences with
 * the same offsets; elsewhere hostile values might become visible.
 */
static void pack(struct vjp_case *c, struct random *r) {
    ejki_flash_problem *p = &c->problem.forward;
    const bool hidden = c->forward.traits.poison == FLASH_IN_HIDDEN;
    const bool padded = hidden || p->batch == 0 || random_chance(r, 0.4);
    p->layout = padded ? EJKI_FLASH_PADDED : EJKI_FLASH_TOKENS;
    p->sums_are_i64 = random_chance(r, 0.5);
    p->ends_together = !hidden && random_chance(r, 0.5);
    if (!padded) {
        c->entries = 1;
        p->batch = random_int(r, 0, VJP_SEQUENCES);
        p->has_bias = p->has_mask = p->has_segments = false;
        p->query.stride_b = p->key.stride_b = p->value.stride_b = p->out.stride_b = 0;
        p->lse.stride_b = 0;
    }
    choose_ends(c, r, 0, p->queries);
    choose_ends(c, r, 1, p->keys);
    p->query_sums = c->sums[0].data;
    p->key_sums = c->sums[1].data;
    poison_outside(c, FLASH_QUERY, 0, &p->query, p->queries, p->query_heads, p->head_dim);
    poison_outside(c, FLASH_KEY, 1, &p->key, p->keys, p->kv_heads, p->head_dim);
    poison_outside(c, FLASH_VALUE, 1, &p->value, p->keys, p->kv_heads, p->value_dim);
}

/* ---- Cotangents and gradients ----------------------------------------------------------------------- */

/* Cotangents of rows that see nothing are NaN where hidden places are hostile; of those of no sequence always. */
static void fill_cotangents(struct vjp_case *c, struct random *r) {
    const ejki_flash_problem *p = &c->problem.forward;
    const ejki_bthd *t = &c->problem.out_cotangent;
    const ejki_bht *l = &c->problem.lse_cotangent;
    const bool hostile = c->forward.traits.poison == FLASH_IN_HIDDEN && !p->has_sinks;
    int64_t n, own;
    for (int64_t b = 0; b < c->entries; b++)
        for (int64_t i = 0; i < p->queries; i++)
            for (int64_t h = 0; h < p->query_heads; h++) {
                const int64_t row = b * t->stride_b + i * t->stride_t + h * t->stride_h;
                const bool blank =
                    !vjp_case_row(c, b, i, &n, &own) || (hostile && sees_nothing(c, b, h, i));
                for (int64_t d = 0; d < p->value_dim; d++)
                    flash_store(p->dtype, t->data, row + d, blank ? (double)NAN : random_normal(r));
                if (c->problem.has_lse_cotangent)
                    l->data[b * l->stride_b + h * l->stride_h + i * l->stride_t] =
                        blank ? NAN : (float)random_normal(r);
            }
}

static bool wrote_infinities(const struct vjp_case *c) {
    const ejki_flash_problem *p = &c->problem.forward;
    for (int64_t b = 0; b < c->entries; b++)
        for (int64_t i = 0; i < p->queries; i++)
            for (int64_t h = 0; h < p->query_heads; h++)
                for (int64_t d = 0; d < p->value_dim; d++)
                    if (!isfinite(flash_load(p->dtype, p->out.data,
                                             b * p->out.stride_b + i * p->out.stride_t +
                                                 h * p->out.stride_h + d)))
                        return true;
    return false;
}

/* What the forward pass writes, by the reference. */
static void run_forward(struct vjp_case *c, struct random *r) {
    static const char *const names[] = {[EJK_DTYPE_F32] = "f32/reference",
                                        [EJK_DTYPE_BF16] = "bf16/reference",
                                        [EJK_DTYPE_F16] = "f16/reference"};
    ejki_flash_problem *p = &c->problem.forward;
    if (!p->lse.data) p->lse = place_bht(&c->lse, r, c);
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        if (strcasecmp(e->algorithm, "flash_attention") != 0 ||
            strcmp(e->name, names[p->dtype]) != 0)
            continue;
        char why[256];
        if (!flash_run(e, p, NULL, NULL, why, sizeof why)) abort();
    }
    c->overflows = wrote_infinities(c);
    guarded_protect(&c->forward.memory[FLASH_OUT]);
    guarded_protect(&c->forward.memory[FLASH_LSE]);
    if (c->lse.pages) guarded_protect(&c->lse);
}

static void place_gradients(struct vjp_case *c, struct random *r) {
    ejki_flash_vjp_problem *v = &c->problem;
    const ejki_flash_problem *p = &v->forward;
    const bool all = random_chance(r, 0.6);
    v->wants_query = all || random_chance(r, 0.5);
    v->wants_key = all || random_chance(r, 0.5);
    v->wants_value = all || random_chance(r, 0.5);
    v->wants_bias = p->has_bias && (all || random_chance(r, 0.5));
    v->wants_sinks = p->has_sinks && (all || random_chance(r, 0.5));
    if (v->wants_query)
        v->d_query = place_bthd(&c->gradient[VJP_QUERY], r, p->dtype, 1, c->entries, p->queries,
                                p->query_heads, p->head_dim);
    if (v->wants_key)
        v->d_key = place_bthd(&c->gradient[VJP_KEY], r, p->dtype, 1, c->entries, p->keys,
                              p->kv_heads, p->head_dim);
    if (v->wants_value)
        v->d_value = place_bthd(&c->gradient[VJP_VALUE], r, p->dtype, 1, c->entries, p->keys,
                                p->kv_heads, p->value_dim);
    c->rows[VJP_QUERY] = c->entries * p->queries * p->query_heads;
    c->rows[VJP_KEY] = c->rows[VJP_VALUE] = c->entries * p->keys * p->kv_heads;
    c->width[VJP_QUERY] = c->width[VJP_KEY] = p->head_dim;
    c->width[VJP_VALUE] = p->value_dim;
    if (p->has_bias) {
        const struct flash_traits *t = &c->forward.traits;
        const int64_t batch = t->bias_batch ? p->batch : 1,
                      queries = t->bias_queries ? p->queries : 1;
        const int64_t heads = t->bias_heads ? p->query_heads : 1;
        const bool aligned = random_chance(r, 0.5); /* rows that may be streamed */
        const int64_t line = 64 / (int64_t)ejk_dtype_size(p->dtype);
        const int64_t stride = aligned                 ? (p->keys + line - 1) / line * line
                               : random_chance(r, 0.3) ? p->keys + 3
                                                       : p->keys;
        c->rows[VJP_BIAS] = batch * heads * queries;
        c->width[VJP_BIAS] = p->keys;
        v->d_bias = (ejki_bias_gradient){.stride_t = queries == 1 ? 0 : stride,
                                         .stride_h = heads == 1 ? 0 : stride * queries,
                                         .stride_b = batch == 1 ? 0 : stride * queries * heads};
        const int64_t count =
            c->rows[VJP_BIAS] > 0 && p->keys > 0 ? stride * (c->rows[VJP_BIAS] - 1) + p->keys : 0;
        if (v->wants_bias && aligned) {
            const size_t bytes = (size_t)count * ejk_dtype_size(p->dtype);
            guarded_create(&c->gradient[VJP_BIAS], bytes, GUARDED_END, (64 - bytes % 64) % 64);
            v->d_bias.data = c->gradient[VJP_BIAS].data;
        } else if (v->wants_bias) {
            v->d_bias.data = place(&c->gradient[VJP_BIAS], r, count, p->dtype);
        }
    }
    if (p->has_sinks) {
        c->rows[VJP_SINKS] = p->sink_stride_h == 0 ? 1 : p->query_heads / p->sink_group;
        c->width[VJP_SINKS] = p->sink_count;
        v->d_sink_stride_h = p->sink_stride_h == 0 ? 0 : p->sink_count + 1;
        if (v->wants_sinks)
            v->d_sinks = place(&c->gradient[VJP_SINKS], r,
                               c->rows[VJP_SINKS] > 0
                                   ? (c->rows[VJP_SINKS] - 1) * v->d_sink_stride_h + p->sink_count
                                   : 0,
                               p->dtype);
    }
}

bool vjp_case_create(struct vjp_case *c, uint64_t seed, int64_t budget) {
    *c = (struct vjp_case){.problem = {.wants_query = false}};
    if (flash_case_dtype(seed) == EJK_DTYPE_F64) return false;
    flash_case_create(&c->forward, seed, budget);
    if (!c->forward.problem.normalize) {
        flash_case_destroy(&c->forward);
        return false;
    }
    struct random r = {.state = seed ^ UINT64_C(0x9e3779b97f4a7c15)};
    ejki_flash_vjp_problem *v = &c->problem;
    ejki_flash_problem *p = &v->forward;
    *p = c->forward.problem;
    p->row_max = p->row_sum = (ejki_bht){.data = NULL};
    if (random_chance(&r, 0.2)) {
        p->dropout = random_chance(&r, 0.5) ? 0.3 : 0.9 * random_real(&r);
        p->dropout_seed = random_bits(&r);
    }
    c->entries = p->batch;
    if (random_chance(&r, 0.25)) pack(c, &r);
    run_forward(c, &r);
    v->out_cotangent = place_bthd(&c->d_out, &r, p->dtype, seed & FLASH_TILED ? 8 : 1, c->entries,
                                  p->queries, p->query_heads, p->value_dim);
    v->has_lse_cotangent = random_chance(&r, 0.3);
    if (v->has_lse_cotangent) v->lse_cotangent = place_bht(&c->d_lse, &r, c);
    fill_cotangents(c, &r);
    guarded_protect(&c->d_out);
    if (v->has_lse_cotangent) guarded_protect(&c->d_lse);
    place_gradients(c, &r);
    return true;
}

void vjp_case_destroy(struct vjp_case *c) {
    guarded_destroy(&c->lse);
    guarded_destroy(&c->d_out);
    guarded_destroy(&c->d_lse);
    for (int i = 0; i < 2; i++) guarded_destroy(&c->sums[i]);
    for (int i = 0; i < VJP_GRADIENTS; i++) guarded_destroy(&c->gradient[i]);
    flash_case_destroy(&c->forward);
}

void vjp_case_print(const struct vjp_case *c, char *text, size_t size) {
    const ejki_flash_vjp_problem *v = &c->problem;
    flash_case_print(&c->forward, text, size);
    const size_t used = strlen(text);
    snprintf(text + used, size - used, " dropout=%g wants=%d%d%d%d%d%s", v->forward.dropout,
             v->wants_query, v->wants_key, v->wants_value, v->wants_bias, v->wants_sinks,
             v->has_lse_cotangent ? " d_lse" : "");
    if (v->forward.layout == EJKI_FLASH_DENSE) return;
    size_t at = strlen(text);
    at += (size_t)snprintf(text + at, size - at,
                           v->forward.layout == EJKI_FLASH_PADDED ? " padded%s" : " tokens%s",
                           v->forward.ends_together ? " ends-together" : "");
    for (int64_t n = 0; n < v->forward.batch && at < size; n++)
        at +=
            (size_t)snprintf(text + at, size - at, " %" PRId64 "x%" PRId64,
                             c->ends[0][n + 1] - c->ends[0][n], c->ends[1][n + 1] - c->ends[1][n]);
}

static int64_t bthd_place(const ejki_bthd *view, int64_t n, int64_t heads, int64_t row) {
    return row / heads / n * view->stride_b + row / heads % n * view->stride_t +
           row % heads * view->stride_h;
}

int64_t vjp_case_place(const struct vjp_case *c, int gradient, int64_t row) {
    const ejki_flash_vjp_problem *v = &c->problem;
    const ejki_flash_problem *p = &v->forward;
    switch (gradient) {
    case VJP_QUERY: return bthd_place(&v->d_query, p->queries, p->query_heads, row);
    case VJP_KEY: return bthd_place(&v->d_key, p->keys, p->kv_heads, row);
    case VJP_VALUE: return bthd_place(&v->d_value, p->keys, p->kv_heads, row);
    case VJP_SINKS: return row * v->d_sink_stride_h;
    default: break;
    }
    const int64_t queries = c->forward.traits.bias_queries ? p->queries : 1;
    const int64_t heads = c->forward.traits.bias_heads ? p->query_heads : 1;
    return row / queries / heads * v->d_bias.stride_b + row / queries % heads * v->d_bias.stride_h +
           row % queries * v->d_bias.stride_t;
}

float *vjp_case_take(struct vjp_case *c, int gradient, bool *clean) {
    struct guarded *memory = &c->gradient[gradient];
    if (!memory->pages) return NULL;
    const ejk_dtype dtype = c->problem.forward.dtype;
    const int64_t width = c->width[gradient], size = (int64_t)ejk_dtype_size(dtype);
    float *values = malloc((size_t)(c->rows[gradient] * width) * sizeof *values + 1);
    if (!values) abort();
    for (int64_t row = 0; row < c->rows[gradient] && width > 0; row++) {
        unsigned char *from = memory->data + vjp_case_place(c, gradient, row) * size;
        for (int64_t n = 0; n < width; n++)
            values[row * width + n] = (float)flash_load(dtype, from, n);
        memset(from, GUARDED_FILL, (size_t)(width * size));
    }
    if (!guarded_blank(memory)) *clean = false;
    guarded_fill(memory);
    return values;
}
