/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether two MaskInfos say the same. Their blocks may have other sizes and lie by rows or by columns: each block
 * that one names is compared with those of the other that it overlaps, and then the other way round. What causal, a
 * window, chunks or mask_function hide by index may be said either way.
 */
#include "operations/attention/blocksparse/problem.h"

#include "base/base.h"

/* A part of the scores of a head: queries [row, row_end), keys [key, key_end). */
typedef struct region {
    int64_t row, row_end, key, key_end;
} region;

/* A block mask as one head reads it. Without block lists it is one block that is full. */
typedef struct side {
    const ejki_block_mask *block_mask;
    int64_t mask_head, block_q, block_kv;
} side;

static side side_of(const ejki_flash_problem *problem, const ejki_block_mask *p, int64_t head) {
    if (p->mask_heads == 0) return (side){p, 0, problem->queries, problem->keys};
    return (side){p, head / p->heads_per_mask, p->block_q, p->block_kv};
}

static ejki_mask_block mask_block_at(const side *s, int64_t row, int64_t key) {
    if (s->block_mask->mask_heads == 0) return (ejki_mask_block){.state = 2};
    return ejki_block_mask_find(s->block_mask, s->mask_head, row / s->block_q, key / s->block_kv);
}

static bool shows(const side *s, ejki_mask_block mask_block, int64_t row, int64_t key) {
    if (mask_block.block == NULL) return mask_block.state != 0;
    const int64_t a = row % s->block_q, b = key % s->block_kv, step = s->block_mask->block_row;
    return mask_block.block[s->block_mask->by_column ? b * step + a : a * step + b] != 0;
}

/* Pairs of partial blocks that were found to be equal lately; masks have few distinct ones. */
enum { REMEMBERED = 64 };
typedef struct search {
    const ejki_flash_problem *problem;
    int64_t head;
    side own, other;
    const uint8_t *block[REMEMBERED], *equal[REMEMBERED];
} search;

/* Blocks of the same elements, wherever they lie. */
static bool equal_blocks(search *s, ejki_mask_block own, ejki_mask_block other) {
    const ejki_block_mask *p = s->own.block_mask;
    if (own.block == NULL || other.block == NULL || s->own.block_q != s->other.block_q ||
        s->own.block_kv != s->other.block_kv)
        return false;
    /* Blocks may lie backwards: any place below REMEMBERED does. */
    const uint64_t distance = (uint64_t)(own.block - p->blocks);
    const uint64_t at = distance / (uint64_t)ejki_max(1, p->block_stride) % REMEMBERED;
    if (s->block[at] == own.block && s->equal[at] == other.block) return true;
    for (int64_t a = 0; a < s->own.block_q; a++)
        for (int64_t b = 0; b < s->own.block_kv; b++)
            if (shows(&s->own, own, a, b) != shows(&s->other, other, a, b)) return false;
    s->block[at] = own.block;
    s->equal[at] = other.block;
    return true;
}

static const char *name_of(const side *s) {
    return s->block_mask->mask_heads == 0 ? "the call, which has no fwd," : s->block_mask->name;
}

static ejk_status differ(const search *s, bool own_shows, int64_t row, int64_t key) {
    const side *hides = own_shows ? &s->other : &s->own, *other = own_shows ? &s->own : &s->other;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s hides key %lld from query %lld of head %lld and %s does not, expected the "
                     "MaskInfos of a call and of its gradients to say the same mask",
                     name_of(hides), (long long)key, (long long)row, (long long)s->head,
                     name_of(other));
}

/* A region that lies in one block of each. */
static ejk_status compare(search *s, ejki_mask_block own, ejki_mask_block other, const region *r) {
    const bool whole = own.block == NULL && other.block == NULL;
    if ((whole && (own.state != 0) == (other.state != 0)) || equal_blocks(s, own, other))
        return EJK_OK;
    for (int64_t row = r->row; row < r->row_end; row++) {
        int64_t first, end;
        ejki_flash_visible(s->problem, row, &first, &end);
        for (int64_t key = ejki_max(first, r->key); key < ejki_min(end, r->key_end); key++) {
            const bool own_shows = shows(&s->own, own, row, key);
            if (own_shows != shows(&s->other, other, row, key))
                return differ(s, own_shows, row, key);
        }
    }
    return EJK_OK;
}

static int64_t next_edge(int64_t at, int64_t block, int64_t end) {
    return ejki_min(end, (at / block + 1) * block);
}

/* A block of one with all that it overlaps of the other. */
static ejk_status compare_block(search *s, ejki_mask_block own, const region *block) {
    region r;
    for (r.row = block->row; r.row < block->row_end; r.row = r.row_end) {
        r.row_end = next_edge(r.row, s->other.block_q, block->row_end);
        for (r.key = block->key; r.key < block->key_end; r.key = r.key_end) {
            r.key_end = next_edge(r.key, s->other.block_kv, block->key_end);
            EJKI_TRY(compare(s, own, mask_block_at(&s->other, r.row, r.key), &r));
        }
    }
    return EJK_OK;
}

/* Each block that a head's own block mask names. */
static ejk_status compare_head(search *s) {
    const ejki_block_mask *p = s->own.block_mask;
    if (p->mask_heads == 0)
        return compare_block(s, mask_block_at(&s->own, 0, 0),
                             &(region){0, s->problem->queries, 0, s->problem->keys});
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t column = ejki_block_mask_seek(p, s->own.mask_head, row, 0);
             column < p->columns;
             column = ejki_block_mask_seek(p, s->own.mask_head, row, column + 1)) {
            const int64_t named = ejki_block_list_at(&p->next, s->own.mask_head, row, column);
            const int64_t i = (p->by_column ? named : row) * p->block_q;
            const int64_t j = (p->by_column ? column : named) * p->block_kv;
            const region block = {i, i + p->block_q, j, j + p->block_kv};
            EJKI_TRY(
                compare_block(s, ejki_block_mask_at(p, s->own.mask_head, row, column), &block));
        }
    return EJK_OK;
}

static ejk_status compare_all(const ejki_flash_problem *problem, const ejki_block_mask *own,
                              const ejki_block_mask *other) {
    search s = {.problem = problem};
    for (s.head = 0; s.head < problem->query_heads; s.head++) {
        const side before[] = {s.own, s.other};
        s.own = side_of(problem, own, s.head);
        s.other = side_of(problem, other, s.head);
        if (s.head > 0 && s.own.mask_head == before[0].mask_head &&
            s.other.mask_head == before[1].mask_head)
            continue;
        EJKI_TRY(compare_head(&s));
    }
    return EJK_OK;
}

static bool same_arrays(const ejki_block_mask *a, const ejki_block_mask *b) {
    return a->by_column == b->by_column && a->mask_heads == b->mask_heads &&
           a->block_q == b->block_q && a->block_kv == b->block_kv &&
           a->state.data == b->state.data && a->next.data == b->next.data &&
           a->id.data == b->id.data && a->blocks == b->blocks;
}

ejk_status ejki_block_mask_agree(const ejki_flash_problem *problem, const ejki_block_mask *own,
                                 const ejki_block_mask *other) {
    if (other->mask_heads == 0 || same_arrays(own, other)) return EJK_OK;
    EJKI_TRY(compare_all(problem, own, other));
    return compare_all(problem, other, own);
}
