/* SPDX-License-Identifier: Apache-2.0 */
/* The products of a score tile, and products of one score tile while weights and dS of another are made. */
#ifndef EJKI_AMX_VJP_STEPS_H
#define EJKI_AMX_VJP_STEPS_H

#include "operations/attention/cpu/amx_backward/amx_vjp_forms.h"

/* The products of a score tile, scores = keys · queriesᵀ and products = values · cotangentsᵀ, and where they go. */
typedef struct amx_vjp_next {
    const uint16_t *keys, *values, *queries, *cotangents;
    float *scores, *products;
} amx_vjp_next;

AMX_INLINE void amx_vjp_store_product(float *target) {
    _tile_stored(0, target, 128);
    _tile_stored(1, target + 16 * AMX_ROWS, 128);
    _tile_stored(2, target + 16, 128);
    _tile_stored(3, target + 16 * AMX_ROWS + 16, 128);
    AMX_BARRIER();
}

/* target[32 keys][32 rows] = a · b. */
static inline void amx_vjp_product(int64_t steps, const uint16_t *a, const uint16_t *b,
                                   float *target) {
    AMX_BARRIER();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = 0; s < steps; s++, a += AMX_ELEMENT, b += AMX_ELEMENT) {
        _tile_loadd(4, b, 64);
        _tile_loadd(6, a, 64);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(7, a + steps * AMX_ELEMENT, 64);
        _tile_dpbf16ps(1, 7, 4);
        _tile_loadd(5, b + steps * AMX_ELEMENT, 64);
        _tile_dpbf16ps(2, 6, 5);
        _tile_dpbf16ps(3, 7, 5);
    }
    amx_vjp_store_product(target);
}

static inline void amx_vjp_products(const amx_vjp_next *n, int64_t steps, int64_t value_steps) {
    amx_vjp_product(steps, n->keys, n->queries, n->scores);
    amx_vjp_product(value_steps, n->values, n->cotangents, n->products);
}

/* Weights and dS of the pairs of keys [from, to) in either way; `edge` is looked at only without a form. */
AMX_INLINE void amx_vjp_key_pairs(const int kind, const bool edge, const amx_vjp_fixed *f,
                                  const amx_form *form, int from, int to, amx_fit *fit) {
    if (kind == AMX_PLAIN)
        amx_vjp_plain_range(f, from, to, edge, false, false, fit);
    else
        amx_vjp_form_range(kind, false, f, form, from, to, fit);
}

/* One of the two products, and meanwhile the pairs of keys [from, from + 8) of another score tile. */
AMX_INLINE void amx_vjp_both(const int kind, const int steps, const bool edge, const uint16_t *a,
                             const uint16_t *b, float *target, const amx_vjp_fixed *f,
                             const amx_form *form, int from, amx_fit *fit) {
    AMX_BARRIER();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    AMX_UNROLL for (int s = 0; s < steps; s++) {
        const int at = from + 8 * s / steps, count = 8 * (s + 1) / steps - 8 * s / steps;
        _tile_loadd(4, b + s * AMX_ELEMENT, 64);
        _tile_loadd(6, a + s * AMX_ELEMENT, 64);
        _tile_dpbf16ps(0, 6, 4);
        amx_vjp_key_pairs(kind, edge, f, form, at, at + count / 4, fit);
        _tile_loadd(7, a + (steps + s) * AMX_ELEMENT, 64);
        _tile_dpbf16ps(1, 7, 4);
        amx_vjp_key_pairs(kind, edge, f, form, at + count / 4, at + count / 2, fit);
        _tile_loadd(5, b + (steps + s) * AMX_ELEMENT, 64);
        _tile_dpbf16ps(2, 6, 5);
        amx_vjp_key_pairs(kind, edge, f, form, at + count / 2, at + count * 3 / 4, fit);
        _tile_dpbf16ps(3, 7, 5);
        amx_vjp_key_pairs(kind, edge, f, form, at + count * 3 / 4, at + count, fit);
    }
    amx_vjp_store_product(target);
}

/* Products of one score tile while weights and dS of another are made; false if the slow path has to make these. */
AMX_INLINE bool amx_vjp_overlap(const int kind, const int steps, const bool edge,
                                const amx_vjp_next *n, const amx_vjp_score_tile *st,
                                const amx_exp *e) {
    const amx_vjp_fixed f = amx_vjp_fix(st, e);
    amx_form form = {.caps = false};
    amx_fit fit = amx_fit_all();
    if (kind == AMX_PLAIN) {
        amx_vjp_both(kind, steps, edge, n->keys, n->queries, n->scores, &f, &form, 0, &fit);
        amx_vjp_both(kind, steps, edge, n->values, n->cotangents, n->products, &f, &form, 8, &fit);
        return amx_fits(&fit, AMX_VJP_MOST);
    }
    /* A loop: this code is long. */
    form = *st->form;
    for (int half = 0; half < 2; half++)
        amx_vjp_both(kind, steps, edge, half ? n->values : n->keys,
                     half ? n->cotangents : n->queries, half ? n->products : n->scores, &f, &form,
                     8 * half, &fit);
    return amx_fits(&fit, AMX_VJP_MOST);
}

#define AMX_VJP_OVERLAP(name, kind, steps, edge)                                                   \
    static __attribute__((noinline)) bool name(const amx_vjp_next *n,                              \
                                               const amx_vjp_score_tile *st, const amx_exp *e) {   \
        return amx_vjp_overlap(kind, steps, edge, n, st, e);                                       \
    }
AMX_VJP_OVERLAP(amx_vjp_overlap_2, AMX_PLAIN, 2, false)
AMX_VJP_OVERLAP(amx_vjp_overlap_4, AMX_PLAIN, 4, false)
AMX_VJP_OVERLAP(amx_vjp_edge_2, AMX_PLAIN, 2, true)
AMX_VJP_OVERLAP(amx_vjp_edge_4, AMX_PLAIN, 4, true)
AMX_VJP_OVERLAP(amx_vjp_caps_2, AMX_CAPS, 2, true)
AMX_VJP_OVERLAP(amx_vjp_caps_4, AMX_CAPS, 4, true)
AMX_VJP_OVERLAP(amx_vjp_biased_2, AMX_BIASED, 2, true)
AMX_VJP_OVERLAP(amx_vjp_biased_4, AMX_BIASED, 4, true)
AMX_VJP_OVERLAP(amx_vjp_caps_biased_2, AMX_BOTH, 2, true)
AMX_VJP_OVERLAP(amx_vjp_caps_biased_4, AMX_BOTH, 4, true)

static inline bool amx_vjp_overlaps(int64_t steps, int64_t value_steps) {
    return steps == value_steps && (steps == 2 || steps == 4);
}

/*
 * Products of one score tile, and weights and dS of another, by its form if it has one. Without a form, and with
 * `visible` NULL, every key is visible to every row.
 */
static inline bool amx_vjp_step(int64_t steps, const amx_vjp_next *n, const amx_vjp_score_tile *st,
                                const amx_exp *e) {
    const bool two = steps == 2;
    switch (st->form ? amx_kind(st->form) : AMX_PLAIN) {
    case AMX_CAPS: return two ? amx_vjp_caps_2(n, st, e) : amx_vjp_caps_4(n, st, e);
    case AMX_BIASED: return two ? amx_vjp_biased_2(n, st, e) : amx_vjp_biased_4(n, st, e);
    case AMX_BOTH: return two ? amx_vjp_caps_biased_2(n, st, e) : amx_vjp_caps_biased_4(n, st, e);
    default: break;
    }
    if (st->visible) return two ? amx_vjp_edge_2(n, st, e) : amx_vjp_edge_4(n, st, e);
    return two ? amx_vjp_overlap_2(n, st, e) : amx_vjp_overlap_4(n, st, e);
}

#endif
