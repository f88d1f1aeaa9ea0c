/* SPDX-License-Identifier: Apache-2.0 */
/* A call of the process functions under way. */
#ifndef EJKI_MASK_PROCESS_H
#define EJKI_MASK_PROCESS_H

#include "mask/mask.h"

/* The numbers of a call, checked. */
typedef struct {
    int64_t heads, q, kv, bq, bkv;
    int64_t head_shards, q_shards;
    int64_t rows, columns; /* blocks: q / bq, kv / bkv */
    int64_t shard_heads;   /* heads of a head shard */
    int64_t shard_rows;    /* block rows of a query shard */
    int64_t cells;         /* rows * columns */
    bool dkv, narrow, shrink;
    ejk_threads *threads;
    int64_t max_bytes;
} ejki_mask_call;

/*
 * The grids before they are narrowed: `planes` of rows * columns each. next[0] is data_next, next[1]
 * mask_next or NULL. Every plane is written `copies` times.
 */
typedef struct {
    int64_t planes, copies, rows, columns;
    uint8_t *states;
    int32_t *next[2];
} ejki_grid;

/* The distinct masks of the heads, their blocks' states, and the distinct partial blocks. */
typedef struct {
    const ejk_splash_mask **masks;
    int64_t count;
    int64_t *of_head;
    uint8_t *states;     /* [count][cells] */
    uint64_t secret;     /* of the hashes */
    uint64_t *hashes;    /* of the blocks of dense masks, [count][cells]: 0 = the same as its left
                            neighbour; NULL if there are none */
    int32_t *ids;        /* the same shape, where partial; NULL if no table is wanted or needed */
    int64_t block_count; /* of the table */
    uint8_t *blocks;     /* [block_count][bq][bkv] */
} ejki_masks;

/* The numbers of a call; the checks of lengths come last. `shape` is that of the mask, three lengths. */
ejk_status ejki_mask_call_check(const int64_t *shape, const ejk_process_mask_args *args, bool dkv,
                                ejki_mask_call *out);

/* Whether an array is within the call's limit. */
ejk_status ejki_mask_check_array(const ejki_mask_call *call, int64_t count, int64_t size);

/* Memory for count * size bytes, zeroed on demand; checks the call's limit. */
ejk_status ejki_mask_alloc(const ejki_mask_call *call, int64_t count, int64_t size, void *out);

/* Into how many strips of rows a block row of a dense mask is cut: each is a task. */
int64_t ejki_dense_strips(const ejki_mask_call *call);

/* Adds what one strip tells of the blocks of its row; both arrays begin as zeros. */
void ejki_dense_scan(const ejki_mask_call *call, const ejk_splash_mask *mask, int64_t block_row,
                     int64_t strip, uint64_t secret, uint8_t *seen, uint64_t *hashes);

/* Turns what all strips saw of `count` blocks into their states and hashes. */
void ejki_dense_resolve(int64_t count, uint8_t *states, uint64_t *hashes);

/* The same hash for the block of any mask, from its elements. */
uint64_t ejki_block_hash(const ejki_mask_call *call, const ejk_splash_mask *mask, int64_t cell,
                         uint64_t secret);

/* Evaluates the blocks whose state is UNDECIDED; refuses, before, to look at more than the call's limit. */
ejk_status ejki_masks_decide(const ejki_mask_call *call, const ejki_masks *masks);

/* Fills in masks->ids, blocks (for dkv with their axes exchanged) and block_count. */
ejk_status ejki_partial_table(const ejki_mask_call *call, ejki_masks *masks);

/* data_next (want_partial false) or mask_next of all planes, each beginning anew in every group of shards. */
void ejki_grid_fill(const ejki_mask_call *call, const ejki_masks *masks,
                    const int64_t *mask_of_plane, int64_t planes, int64_t group_planes,
                    bool want_partial, int32_t *out);

/* Leaves out what no row (dkv: column) of a shard needs; `grid` has one plane and is replaced. */
ejk_status ejki_grid_shrink(const ejki_mask_call *call, ejki_grid *grid);

/* The grids as tensors of `info`, as narrow as the call and `bounds` allow (NULL: the values themselves). */
ejk_status ejki_grid_publish(const ejki_mask_call *call, const ejki_grid *grid,
                             const int64_t bounds[2], ejk_splash_mask_info *info);

void ejki_grid_free(ejki_grid *grid);

/* Places of an info's owner. */
enum { DATA_NEXT, MASK_NEXT, BLOCK_MASK, PARTIAL_BLOCKS, Q_SEQUENCE, ARRAYS };

/* Gives a fresh info its owner. */
ejk_status ejki_info_open(ejk_splash_mask_info *info);

/* Hands an array over to the info. */
void ejki_info_keep(ejk_splash_mask_info *info, int place, void *array);

#endif
