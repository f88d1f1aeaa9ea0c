/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed blocks of keys and values of flash attention on AMX. A worker has two: one is used, and meanwhile the
 * one that comes next is packed, a few chunks at each row tile, so that reading it from memory takes no time.
 */
#ifndef EJKI_FLASH_AMX_BLOCKS_H
#define EJKI_FLASH_AMX_BLOCKS_H

#include "kernels/flash_attention/amx_plan.h"

#define AMX_KEYS 4096 /* of a block at most */

/* Rows of keys or values. */
typedef struct amx_stream {
    uintptr_t row;
    int64_t rows, stride, width; /* left, bytes apart, bytes long */
} amx_stream;

/* A packed block, or what there is of it yet: chunks [first, end), none if they are equal. */
typedef struct amx_packed {
    int64_t batch, kv_head, block; /* first key of the block */
    int64_t first, end;
    uint16_t *keys, *values;
    __m512i top;                                 /* the larger magnitudes of keys */
    bool plain[AMX_KEYS / AMX_CHUNK], all_plain; /* values of a chunk go through the products */
} amx_packed;

/* Keys or values from the chunk `chunk` on, as many rows as there are in `chunks`. */
static inline amx_stream amx_rows_of(const ejki_flash_problem *p, const amx_packed *b,
                                     const ejki_bthd *tensor, int64_t width, int64_t chunk,
                                     int64_t chunks) {
    const int64_t key = b->block + chunk * AMX_CHUNK, element = sizeof(uint16_t);
    const int64_t rows = ejki_min(chunks * AMX_CHUNK, p->keys - key);
    const int64_t at =
        b->batch * tensor->stride_b + b->kv_head * tensor->stride_h + key * tensor->stride_t;
    return (amx_stream){(uintptr_t)amx_place(tensor->data, at), ejki_max(0, rows),
                        tensor->stride_t * element, width * element};
}

/* Packs keys and values up to the chunk `end`. */
static __attribute__((noinline)) void amx_pack(const ejki_flash_problem *p, const amx_plan *t,
                                               amx_packed *b, int64_t end) {
    const int64_t steps = t->steps, wide = t->wide;
    for (; b->end < end; b->end++) {
        const int64_t c = b->end;
        const amx_stream key = amx_rows_of(p, b, &p->key, p->head_dim, c, 1);
        const amx_stream value = amx_rows_of(p, b, &p->value, p->value_dim, c, 1);
        for (int64_t half = 0; half < 2; half++)
            b->top = amx_pack_keys((const char *)(key.row + (uintptr_t)(16 * half * key.stride)),
                                   key.stride, key.rows - 16 * half, p->head_dim, steps,
                                   b->keys + (2 * c + half) * steps * AMX_ELEMENT, b->top);
        b->plain[c] = amx_pack_values((const char *)value.row, value.stride, value.rows,
                                      p->value_dim, wide, b->values + c * wide * AMX_ELEMENT);
        b->all_plain &= b->plain[c];
    }
}

static inline void amx_start(amx_packed *b, const amx_task *task, int64_t block, int64_t first) {
    b->batch = task->batch;
    b->kv_head = task->kv_head;
    b->block = block;
    b->first = b->end = first;
    b->top = _mm512_setzero_si512();
    b->all_plain = true;
}

/* True if packing this block can go on from the chunk `first`. */
static inline bool amx_is_packed(const amx_packed *b, const amx_task *task, int64_t block,
                                 int64_t first) {
    return b->first < b->end && b->batch == task->batch && b->kv_head == task->kv_head &&
           b->block == block && b->first <= first && first <= b->end;
}

#endif
