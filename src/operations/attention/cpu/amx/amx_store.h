/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mask blocks that a worker of flash attention on AMX keeps packed for its next tasks. Packing 128 keys takes half as
 * long as 128 rows' work on them, most of it waiting for memory. The blocks of the next tasks are known, so eviction
 * is optimal: the block whose next use is furthest away goes. No result depends on it.
 */
#ifndef EJKI_FLASH_AMX_STORE_H
#define EJKI_FLASH_AMX_STORE_H

#include "operations/attention/cpu/amx/amx_state.h"

/* Marks the columns of the block mask that a later task of the same KV head visits. */
static void amx_foresee(amx_state *s, int64_t index, uint8_t mark) {
    const ejki_flash_problem *p = s->problem;
    const ejki_block_mask *t = &p->block_mask;
    const amx_task task = amx_task_of(p, s->plan, index);
    if (task.rows == 0 || task.batch * p->kv_heads + task.kv_head != s->head) return;
    const int64_t row = task.first_row / s->plan->region_rows;
    for (int64_t i = 0; i < s->mask_walk.count; i++) {
        const int64_t mask_head = (task.kv_head * p->group + i) / t->heads_per_mask;
        int64_t at = ejki_block_mask_seek(t, mask_head, row, 0);
        for (; at < t->columns; at = ejki_block_mask_seek(t, mask_head, row, at + 1))
            s->ahead[ejki_block_list_at(&t->next, mask_head, row, at)] |= mark;
    }
}

/* Advances to a task: drops marks of earlier tasks, and marks what the tasks from there on visit. */
static void amx_store_advance(amx_state *s, int64_t index) {
    const int64_t head = s->task.batch * s->problem->kv_heads + s->task.kv_head;
    const int64_t columns = s->problem->keys / s->problem->block_mask.block_kv;
    int64_t passed = ejki_min(index - s->index, AMX_AHEAD);
    if (head != s->head) {
        passed = AMX_AHEAD;
        for (int64_t i = 0; i < s->plan->kept; i++) s->store[i] = (amx_stored){.column = -1};
    }
    s->head = head;
    s->index = index;
    if (passed == AMX_AHEAD) memset(s->ahead, 0, (size_t)columns);
    for (int64_t i = 0; i < columns; i++) s->ahead[i] = (uint8_t)(s->ahead[i] >> passed);
    for (int64_t i = AMX_AHEAD - passed; i < AMX_AHEAD; i++)
        amx_foresee(s, index + i, (uint8_t)(1 << i));
}

/* Slot of a column's mask block: its first packed chunk. Blocks of the present load are not evicted. */
static int64_t amx_store_slot(amx_state *s, int64_t column) {
    const int64_t span = s->plan->span, count = s->plan->kept;
    amx_stored *store = s->store;
    int64_t at = 0;
    while (at < count && store[at].column != column) at++;
    if (at == count) {
        int latest = -1;
        for (int64_t i = 0; i < count; i++) {
            const bool empty = store[i].column < 0;
            const unsigned marks = empty ? 0 : s->ahead[store[i].column] | 1u << AMX_AHEAD;
            const int next = empty ? AMX_AHEAD + 1 : __builtin_ctz(marks);
            if (store[i].load == s->load || next <= latest) continue;
            latest = next;
            at = i;
        }
        for (int64_t i = 0; i < span; i++) s->packed[at * span + i].there = false;
    }
    store[at] = (amx_stored){.column = column, .load = s->load};
    s->ahead[column] &= (uint8_t)~1;
    return at * span;
}

/* ---- Packing ---------------------------------------------------------------------------------------- */

/* A chunk's rows in keys or values, and those of the next one. */
static amx_source amx_source_of(const amx_state *s, const ejki_bthd *tensor, int64_t chunk) {
    const int64_t start = s->task.batch * tensor->stride_b + s->task.kv_head * tensor->stride_h;
    const amx_chunk *c = &s->chunk[chunk];
    const bool there = s->plan->kept > 0 && chunk + 1 < s->end && s->packed[c[1].place].there;
    return (amx_source){.row = amx_address(tensor->data, start + c->key * tensor->stride_t),
                        .ahead = amx_address(tensor->data, start + c[1].key * tensor->stride_t),
                        .stride = tensor->stride_t * (int64_t)sizeof(uint16_t),
                        .count = c->end - c->key,
                        .coming = there ? 0 : c[1].end - c[1].key};
}

/* Copies rows of `dim` elements side by side, 32 elements at a time, and asks for as many that come next. */
static void amx_copy_rows(const char *const *row, const char *const *ahead, int64_t dim,
                          uint16_t *to) {
    for (int64_t i = 0; i < AMX_CHUNK; i++)
        for (int64_t d = 0; d < dim; d += 32, to += 32) {
            if (ahead) amx_prefetch_far(ahead[i] + 2 * d);
            _mm512_store_si512(to, amx_load(row[i] + 2 * d, dim - d));
        }
}

/* Brings a chunk of pages side by side. */
static __attribute__((noinline)) void amx_gather(const amx_state *s, int64_t chunk,
                                                 amx_source *keys, amx_source *values) {
    const ejki_flash_problem *p = s->problem;
    const amx_chunk *c = &s->chunk[chunk];
    const int64_t wide = ejki_round_up(p->head_dim, 32);
    amx_pages *pages = s->pages;
    const bool more = chunk + 1 < s->end;
    if (chunk == s->first) pages->find(pages->context, c->key, &pages->now);
    if (more) pages->find(pages->context, c[1].key, &pages->next);
    uint16_t *value = pages->copy + AMX_CHUNK * wide;
    amx_copy_rows(pages->now.key, more ? pages->next.key : NULL, p->head_dim, pages->copy);
    amx_copy_rows(pages->now.value, more ? pages->next.value : NULL, p->value_dim, value);
    *keys = (amx_source){
        .row = (const char *)pages->copy, .stride = 2 * wide, .count = c->end - c->key};
    *values = *keys;
    values->row = (const char *)value;
    values->stride = 2 * ejki_round_up(p->value_dim, 32);
    pages->now = pages->next;
}

/* Packs a chunk's keys and values. */
static void amx_pack_chunk(amx_state *s, int64_t chunk) {
    const ejki_flash_problem *p = s->problem;
    const amx_plan *t = s->plan;
    const int64_t place = s->chunk[chunk].place;
    uint16_t *target = s->keys + 2 * place * t->steps * AMX_ELEMENT;
    amx_source keys, values;
    if (s->pages) {
        amx_gather(s, chunk, &keys, &values);
    } else {
        keys = amx_source_of(s, &p->key, chunk);
        values = amx_source_of(s, &p->value, chunk);
    }
    __m512i top = amx_pack_keys(&keys, p->head_dim, t->steps, target, _mm512_setzero_si512());
    keys.row += 16 * keys.stride;
    keys.ahead += 16 * keys.stride;
    keys.count -= 16;
    keys.coming -= 16;
    top = amx_pack_keys(&keys, p->head_dim, t->steps, target + t->steps * AMX_ELEMENT, top);
    s->packed[place].values_fit = amx_pack_values(values, p->value_dim, t->value_tiles,
                                                  s->values + place * t->value_tiles * AMX_ELEMENT);
    s->packed[place].top = amx_top(top);
    s->packed[place].there = true;
}

/* Packs keys and values of a block, but for chunks that have stayed packed. */
static __attribute__((noinline)) void amx_pack(amx_state *s) {
    s->all_values_fit = true;
    s->key_top = 0;
    for (int64_t c = s->first; c < s->end; c++) {
        const amx_packed *packed = &s->packed[s->chunk[c].place];
        if (s->plan->kept == 0 || !packed->there) amx_pack_chunk(s, c);
        s->all_values_fit &= packed->values_fit;
        /* NaN stays */
        if (s->key_top <= packed->top || packed->top != packed->top) s->key_top = packed->top;
    }
}

#endif
