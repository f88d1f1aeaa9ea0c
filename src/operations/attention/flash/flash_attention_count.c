/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Visible scores, counted from the data of a call: lengths of packed sequences, segment ids, the blocks of a
 * MaskInfo and the elements of partial ones, with what causal, a window, chunks and mask_function hide by
 * index. attention_mask counts as seen, as do scores that positions of the caller's hide: neither spares a
 * kernel their products.
 */
#include "operations/attention/flash/flash_attention_steps.h"

#include "base/base.h"
#include "operations/attention/shared/sequences.h"

#include <stdlib.h>

/* A key and its segment, in the order of segments and then of keys. */
typedef struct place {
    int64_t segment, key;
} place;

/* One batch entry or sequence. */
typedef struct entry {
    ejki_flash_problem problem;
    place *places; /* NULL without segments */
    int64_t count; /* of places */
} entry;

static int64_t id_at(const ejki_flash_problem *p, const void *ids, int64_t index) {
    return p->segments_are_i64 ? ((const ejki_int64 *)ids)[index]
                               : ((const ejki_int32 *)ids)[index];
}

static int by_segment(const void *left, const void *right) {
    const place *a = left, *b = right;
    const int order = (a->segment > b->segment) - (a->segment < b->segment);
    return order ? order : (a->key > b->key) - (a->key < b->key);
}

static void sort_keys(entry *e) {
    const ejki_flash_problem *p = &e->problem;
    e->count = p->keys;
    for (int64_t j = 0; j < p->keys; j++)
        e->places[j] = (place){id_at(p, p->key_segments.data, j), j};
    qsort(e->places, (size_t)p->keys, sizeof *e->places, by_segment);
}

/* Places before this key of a segment. */
static int64_t places_before(const entry *e, int64_t segment, int64_t key) {
    const place wanted = {segment, key};
    int64_t low = 0, high = e->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (by_segment(&e->places[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Keys of [first, end) that are in the query's segment. */
static int64_t keys_between(const entry *e, int64_t query, int64_t first, int64_t end) {
    if (first >= end) return 0;
    if (!e->places) return end - first;
    const int64_t segment = id_at(&e->problem, e->problem.query_segments.data, query);
    if (segment < 0) return 0;
    return places_before(e, segment, end) - places_before(e, segment, first);
}

static int64_t keys_of_block(const entry *e, ejki_mask_block mask_block, int64_t query,
                             int64_t first, int64_t end) {
    const ejki_block_mask *p = &e->problem.block_mask;
    int64_t keys = 0;
    if (!mask_block.block) return keys_between(e, query, first, end);
    const uint8_t *row = mask_block.block + query % p->block_q * p->block_row;
    for (int64_t j = first; j < end; j++)
        if (row[j % p->block_kv]) keys += keys_between(e, query, j, j + 1);
    return keys;
}

/* Keys that a query sees in the heads of a mask head. */
static int64_t keys_of_query(const entry *e, int64_t mask_head, int64_t query) {
    const ejki_block_mask *p = &e->problem.block_mask;
    int64_t first, end, keys = 0;
    ejki_flash_visible(&e->problem, query, &first, &end);
    if (p->mask_heads == 0) return keys_between(e, query, first, end);
    const int64_t row = query / p->block_q;
    for (int64_t c = ejki_block_mask_seek(p, mask_head, row, 0); c < p->columns;
         c = ejki_block_mask_seek(p, mask_head, row, c + 1)) {
        const int64_t block = ejki_block_list_at(&p->next, mask_head, row, c) * p->block_kv;
        keys += keys_of_block(e, ejki_block_mask_at(p, mask_head, row, c), query,
                              ejki_max(first, block), ejki_min(end, block + p->block_kv));
    }
    return keys;
}

/* Scores of all heads of one entry. */
static double count_entry(const entry *e) {
    const ejki_flash_problem *p = &e->problem;
    const int64_t mask_heads = ejki_max(1, p->block_mask.mask_heads);
    if (!e->places && ejki_block_mask_is_empty(&p->block_mask))
        return ejki_flash_visible_pairs(p) * (double)p->query_heads;
    double keys = 0;
    for (int64_t mask_head = 0; mask_head < mask_heads; mask_head++)
        for (int64_t i = 0; i < p->queries; i++) keys += (double)keys_of_query(e, mask_head, i);
    return keys * (double)(p->query_heads / mask_heads);
}

bool ejki_flash_in_view(const ejki_flash_problem *p, const void *args) {
    const ejki_block_mask *g = &p->block_mask;
    if (!args) return false;
    if (p->layout != EJKI_FLASH_DENSE && !(p->query_sums && p->key_sums)) return false;
    if (p->has_segments && !(p->query_segments.data && p->key_segments.data)) return false;
    if (g->has_positions && !g->positions) return false;
    if (g->mask_heads == 0) return true;
    return g->state.data && g->next.data && (g->block_count == 0 || (g->id.data && g->blocks));
}

double ejki_flash_count(const ejki_flash_problem *p) {
    const bool alike = p->layout == EJKI_FLASH_DENSE && !p->has_segments;
    const int64_t entries = alike ? ejki_min(p->batch, 1) : p->batch;
    entry e = {.places = NULL};
    double scores = 0;
    if (p->has_segments) {
        e.places = calloc((size_t)p->keys + 1, sizeof *e.places);
        if (!e.places) return -1;
    }
    for (int64_t n = 0; n < entries; n++) {
        e.problem = ejki_flash_part(p, n);
        if (e.places) sort_keys(&e);
        scores += count_entry(&e);
    }
    free(e.places);
    return alike ? scores * (double)p->batch : scores;
}

void ejki_flash_tokens(const ejki_flash_problem *p, double *queries, double *keys) {
    int64_t length[2];
    *queries = *keys = 0;
    for (int64_t n = 0; n < p->batch; n++) {
        ejki_flash_part_lengths(p, n, &length[0], &length[1]);
        *queries += (double)length[0];
        *keys += (double)length[1];
    }
}
