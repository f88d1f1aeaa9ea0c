/* SPDX-License-Identifier: Apache-2.0 */
/* native_sparse_attention: all branches of a tile of tokens, one after the other onto its results. */
#ifndef EJKI_NATIVE_SPARSE_FORWARD_H
#define EJKI_NATIVE_SPARSE_FORWARD_H

#ifdef EJKI_TIER_AMX
#include "operations/attention/native_sparse/amx/selected.h"
#else
#include "operations/attention/native_sparse/tile.h"
#endif

/* Results of `used` lanes from `lane` on += gate · sums and what these are multiplied by. */
static void add_sums(const tile *w, int which, int64_t lane, int64_t used) {
    const int64_t width = w->s->value.width;
    for (int64_t i = 0; i < used; i++) {
        const vf factor = v_set1(w->part[i] == 0 ? 0 : w->part[i] * gate_of(w, which, lane + i));
        float *to = w->all + (lane + i) * width;
        if (w->part[i] == 0) continue;
        for (int64_t d = 0; d < width; d += VL)
            v_store(to + d, v_fma(factor, v_load(w->sums + i * width + d), v_load(to + d)));
    }
}

static void add_branch(tile *w, const branch *br, const softmax *s, int which, int64_t lane) {
    add_rows(br, s->scores, false, w->s->value.width, w->sums);
    add_sums(w, which, lane, br->used);
}

/* The selected branch of token i. */
static void add_selected(tile *w, int64_t i, const int32_t *list, int64_t count) {
    const int64_t lane = i * w->s->p->group;
#ifdef EJKI_TIER_AMX
    if (amx_select(w, i, list, count)) {
        add_sums(w, NSA_SELECTED, lane, w->s->p->group);
        return;
    }
#endif
    const branch br = selected_branch(w, i, list, count);
    const softmax s = softmax_of(w, &br);
    add_branch(w, &br, &s, NSA_SELECTED, lane);
}

static void put_rows(const tile *w) {
    const nsa_problem *p = w->s->p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    for (int64_t lane = 0; lane < w->used; lane++) {
        const float *from = w->all + lane * w->s->value.width;
        const nsa_size at = nsa_at(&p->out, w->b, w->first + lane / p->group,
                                   w->kv_head * p->group + lane % p->group);
        for (int64_t d = 0; d < p->width; d += VL)
            v_narrow_some(dtype, element_at(dtype, p->out.data, at + d), v_load(from + d),
                          p->width - d);
    }
}

static void put_chosen(const tile *w, const int64_t *counts) {
    const nsa_problem *p = w->s->p;
    const nsa_view *v = &p->selected;
    for (int64_t i = 0; v->dtype && i < w->count; i++)
        for (int64_t k = 0; k < p->slots; k++)
            ejki_store_i64((ejk_dtype)v->dtype, v->data,
                           nsa_at(v, w->b, w->first + i, w->kv_head) + k,
                           k < counts[i] ? w->list[i * p->slots + k] : -1);
}

static void clear_results(tile *w) {
    static const int64_t none[1] = {0};
    memset(w->all, 0, (size_t)(w->used * w->s->value.width) * sizeof *w->all);
    put_rows(w);
    put_chosen(w, none);
}

static void forward_tile(tile *w) {
    const nsa_problem *p = w->s->p;
    int64_t counts[LANES];
    branch br = {0};
    softmax s = {0};
    memset(w->all, 0, (size_t)(w->used * w->s->value.width) * sizeof *w->all);
    if (nsa_has(p, NSA_COMPRESSED)) {
        br = compressed_branch(w);
        s = softmax_of(w, &br);
    }
    choose_all(w, &br, &s, counts);
    put_chosen(w, counts);
    if (nsa_has(p, NSA_COMPRESSED)) add_branch(w, &br, &s, NSA_COMPRESSED, 0);
    for (int64_t i = 0; i < w->count; i++) add_selected(w, i, w->list + i * p->slots, counts[i]);
    if (nsa_has(p, NSA_WINDOW)) {
        br = window_branch(w);
        s = softmax_of(w, &br);
        add_branch(w, &br, &s, NSA_WINDOW, 0);
    }
    put_rows(w);
}

static void forward_worker(void *argument, int64_t worker) {
    shared *s = argument;
    tile w;
    place_tile(&w, s, s->scratch + worker * s->scratch_bytes);
#ifdef EJKI_TIER_AMX
    amx_open();
#endif
    each_tile(s, &w, forward_tile, clear_results);
#ifdef EJKI_TIER_AMX
    amx_close();
#endif
}

#endif
