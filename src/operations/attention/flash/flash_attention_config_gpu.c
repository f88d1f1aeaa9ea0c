/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configurations of flash attention on a GPU. Measured on one H100, 2026-11-22 (docs/kernels/flash_attention.md): 128
 * rows of four warps beat 64 by a quarter, as keys are then fetched from shared memory half as often; a warp with 16
 * rows is best where there are no more rows than that, and 16 parts of 8192 keys.
 */
#include "operations/attention/flash/flash_attention_steps.h"

#include <ejkernel/chooser.h>
#include <ejkernel/flash_attention.h>

#include "base/base.h"
#include "operations/attention/flash/vjp_problem.h"

#include <string.h>

/* Blocks that keep a large GPU busy: two for each of 132 multiprocessors, or eight small ones. */
enum { BUSY = 264, BUSY_SMALL = 1024, LEAST_KEYS_OF_A_PART = 512 };

static int64_t blocks_of(const ejki_flash_problem *p, int64_t rows) {
    const int64_t entries = p->layout == EJKI_FLASH_TOKENS ? 1 : p->batch;
    return ejki_max(1, ejki_cdiv(p->queries * p->group, rows) * entries * p->kv_heads);
}

/* Parts of the keys: none so small that its sums cost more than it does, and no more than make enough blocks. */
static int64_t parts_of(const ejki_flash_problem *p, int64_t blocks, int64_t enough) {
    return ejki_max(1, ejki_min(p->keys / LEAST_KEYS_OF_A_PART, enough / blocks));
}

/*
 * ---- Decoding: memory is what counts, so every multiprocessor has to fetch all the time ----
 *
 * On one H200, 2026-11-22: few heads and not too many bytes are over sooner if keys come straight into
 * registers, by 0.7 of 20 µs at 8192 keys of 8 heads; with more a ring of 192 KiB on each multiprocessor
 * wins, by 6 of 73 µs at 64 heads back to back. Eight warps of a block beat four, if these do not keep many
 * more multiprocessors busy.
 */

enum { MULTIPROCESSORS = 132, LEAST_KEYS_OF_A_WARP = 16, RING_BYTES = 196608, FEW_HEADS = 32 };
enum { FEW_BYTES = 64 << 20, MUCH = 100 };

/* Warps of a block, those of a multiprocessor being eight, and parts; `busy` are blocks at work, of a thousand. */
typedef struct decoding {
    int64_t warps, splits, busy;
} decoding;

static decoding decoding_of(const ejki_flash_problem *p, int64_t warps) {
    const int64_t heads = ejki_max(1, p->batch * p->kv_heads), room = MULTIPROCESSORS * 8 / warps;
    const int64_t most = ejki_max(1, p->keys / (LEAST_KEYS_OF_A_WARP * warps));
    decoding d = {.warps = warps, .splits = ejki_max(1, ejki_min(most, room / heads))};
    const int64_t blocks = heads * d.splits;
    d.busy = 1000 * blocks / (ejki_cdiv(blocks, room) * room);
    return d;
}

static void set_decoding(const ejki_flash_problem *p, ejk_fwd_params *params) {
    const decoding wide = decoding_of(p, 8), narrow = decoding_of(p, 4);
    const decoding d = narrow.busy > wide.busy + MUCH ? narrow : wide;
    const int64_t stage =
        32 * (ejki_round_up(p->head_dim, 64) + ejki_round_up(p->value_dim, 64)) * 8;
    const int64_t heads = p->batch * p->kv_heads;
    const double bytes =
        2.0 * (double)heads * (double)p->keys * (double)(p->head_dim + p->value_dim);
    const bool direct = heads <= FEW_HEADS && bytes <= FEW_BYTES && p->queries * p->group <= 8 &&
                        ejki_max(p->head_dim, p->value_dim) <= 128;
    params->num_warps = ejk_int(d.warps);
    params->num_stages = ejk_int(direct ? 1 : ejki_max(2, ejki_min(8, RING_BYTES / stage)));
    params->num_key_splits = ejk_int(ejki_min(65535, d.splits));
}

/* Is it a kernel that keeps a copying warpgroup, with tiles of one query head? */
static bool has_copier(const ejk_implementation *chosen) {
    return chosen && chosen->least_capability == 90;
}

enum { LONG = 2048 }; /* keys that a row sees, from which on more at a time are better */

/* Keys that the row in the middle of a sequence sees by positions. */
static int64_t keys_seen(const ejki_flash_problem *p, int64_t queries, int64_t keys) {
    const int64_t middle = queries / 2;
    const int64_t end = ejki_min(keys - 1 - middle, p->last_offset) + middle + 1;
    return ejki_max(0, end - ejki_max(0, middle + p->first_offset));
}

/* Queries, keys, warps, stages. */
static void set_tiles(ejk_fwd_params *params, int64_t queries, int64_t keys, int64_t warps,
                      int64_t stages) {
    params->q_blocksize = ejk_int(queries);
    params->kv_blocksize = ejk_int(keys);
    params->num_warps = ejk_int(warps);
    params->num_stages = ejk_int(stages);
}

/*
 * Tiles of the kernels with a copier, for heads up to 64 and wider ones, where rows see few keys and many:
 * queries, keys, warps, stages, and how fast they are beside the first where all is in use. More warpgroups
 * with fewer keys each hide more of one another's waiting. Measured on one H200, 2026-11-23
 * (docs/kernels/flash_attention_cuda.md), but for tiles of 64 queries, which are guessed from what was
 * measured before.
 */
typedef struct tile_choice {
    int64_t queries, keys, warps, stages;
    double speed;
} tile_choice;

enum { TILES = 4 };
static const tile_choice narrow_few[TILES] = {
    {256, 64, 16, 8, 1.0}, {192, 128, 12, 2, 0.87}, {128, 128, 8, 3, 0.87}, {64, 128, 8, 2, 0.75}};
static const tile_choice narrow_many[TILES] = {
    {192, 128, 12, 2, 1.0}, {256, 64, 16, 8, 0.96}, {128, 128, 8, 3, 0.85}, {64, 128, 8, 2, 0.7}};
static const tile_choice wide_few[TILES] = {
    {192, 64, 12, 3, 1.0}, {192, 80, 12, 2, 0.98}, {128, 128, 8, 2, 0.96}, {64, 64, 8, 2, 0.7}};
static const tile_choice wide_many[TILES] = {
    {192, 80, 12, 2, 1.0}, {192, 64, 12, 3, 0.98}, {128, 128, 8, 2, 0.96}, {64, 64, 8, 2, 0.7}};

/*
 * The share of a sequence's tiles that is of use. The tile that is not full is the first, so where rows see
 * ever more keys what it lacks counts by those that its last row sees, of twice what the row in the middle
 * does.
 */
static double share_used(const ejki_flash_problem *p, const tile_choice *c, int64_t queries,
                         int64_t keys, int64_t seen) {
    const int64_t rows = ejki_round_up(queries, 64);
    const int64_t lacking = ejki_round_up(queries, c->queries) - rows;
    const bool rising = p->last_offset < keys - 1;
    const double least = (double)(c->queries - lacking) / (double)(2 * seen + 1);
    const double cost = rising && least < 1 ? least : 1;
    return (double)rows / ((double)rows + cost * (double)lacking);
}

/* The fastest, for the share of it that is of use, and of multiprocessors that have a tile. */
static void set_copied_for(const ejki_flash_problem *p, ejk_fwd_params *params) {
    const bool packed = p->layout == EJKI_FLASH_TOKENS;
    const bool narrow = p->value_dim <= 64 && p->head_dim <= 64;
    const int64_t sequences = ejki_max(1, p->batch), of = packed ? sequences : 1;
    const int64_t keys = p->keys / of, queries = ejki_max(1, p->queries / of);
    const int64_t seen = keys_seen(p, queries, keys);
    const bool many = seen >= LONG;
    const tile_choice *choices = narrow ? many ? narrow_many : narrow_few
                                 : many ? wide_many
                                        : wide_few;
    const tile_choice *best = choices;
    double most = 0;
    for (const tile_choice *c = choices; c < choices + TILES; c++) {
        const int64_t tiles = ejki_cdiv(queries, c->queries);
        const double busy =
            (double)tiles * (double)sequences * (double)p->query_heads / MULTIPROCESSORS;
        const double used = share_used(p, c, queries, keys, seen);
        const double speed = c->speed * used * (busy < 1 ? busy : 1);
        if (speed > most) best = c, most = speed;
    }
    set_tiles(params, best->queries, best->keys, best->warps, best->stages);
}

void ejki_flash_gpu_heuristic_cfg(const ejk_invocation *invocation, ejk_fwd_params *params) {
    const ejki_flash_problem *p = invocation->problem;
    const ejk_implementation *chosen = invocation->implementation;
    if (chosen && strstr(chosen->name, "/decode")) {
        set_decoding(p, params);
        return;
    }
    if (has_copier(chosen)) {
        set_copied_for(p, params);
        return;
    }
    const int64_t rows = p->queries * p->group;
    int64_t tile = rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
    if (rows > 64 && p->value_dim <= 128 && blocks_of(p, 128) >= BUSY) tile = 128;
    const int64_t enough = tile == 16 ? BUSY_SMALL : BUSY;
    set_tiles(params, tile, 64, ejki_min(4, tile / 16), 2);
    params->num_key_splits = ejk_int(parts_of(p, blocks_of(p, tile), enough));
}

void ejki_flash_gpu_vjp_heuristic_cfg(const ejk_invocation *invocation, ejk_bwd_params *params) {
    if (has_copier(invocation->implementation)) {
        params->q_blocksize = ejk_int(128); /* 64 where registers want that */
        return;
    }
    params->q_blocksize = params->kv_blocksize = ejk_int(64);
    params->num_warps = ejk_int(4);
    params->num_stages = ejk_int(2);
}

/* ---- Candidates ------------------------------------------------------------------------------------- */

/* Rows, keys, warps, stages. */
static const int64_t forward[][4] = {
    {128, 64, 4, 2}, {64, 64, 4, 2}, {128, 128, 4, 2}, {128, 32, 4, 2}, {128, 64, 8, 2},
    {64, 128, 4, 2}, {64, 32, 4, 3}, {32, 64, 2, 2},   {16, 64, 1, 2},  {16, 32, 1, 3},
};
static const int64_t backward[][4] = {
    {64, 64, 4, 2}, {32, 64, 4, 2}, {64, 32, 4, 2}, {32, 32, 4, 2}, {64, 64, 8, 2}, {64, 64, 4, 1},
};

/* Queries, keys, warps, stages. */
static const int64_t copied[][4] = {
    {128, 128, 8, 2}, {128, 128, 8, 3}, {192, 128, 12, 2}, {192, 80, 12, 2},
    {192, 64, 12, 3}, {256, 64, 16, 8}, {64, 64, 12, 3},   {64, 128, 8, 2},
};

static bool has_parameters(const ejk_invocation *invocation) {
    return invocation->implementation->parameter_count > 3;
}

ejk_status ejki_flash_gpu_candidate_cfgs(const ejk_invocation *invocation,
                                         ejk_flash_attention_config *list, int32_t capacity,
                                         int32_t *count) {
    ejk_flash_attention_config base;
    *count = 0;
    if (!has_parameters(invocation)) return EJK_OK;
    EJKI_TRY(ejk_invocation_heuristics(invocation, &base));
    const bool copier = has_copier(invocation->implementation);
    const int64_t(*tiles)[4] = copier ? copied : forward;
    const size_t known = copier ? sizeof copied / sizeof *copied : sizeof forward / sizeof *forward;
    for (size_t i = 0; i < known && *count < capacity; i++) {
        list[*count] = base;
        set_tiles(&list[(*count)++].fwd_params, tiles[i][0], tiles[i][1], tiles[i][2], tiles[i][3]);
    }
    return EJK_OK;
}

ejk_status ejki_flash_gpu_vjp_candidate_cfgs(const ejk_invocation *invocation,
                                             ejk_flash_attention_config *list, int32_t capacity,
                                             int32_t *count) {
    ejk_flash_attention_config base;
    *count = 0;
    if (!has_parameters(invocation)) return EJK_OK;
    EJKI_TRY(ejk_invocation_heuristics(invocation, &base));
    for (size_t i = 0; i < sizeof backward / sizeof *backward && *count < capacity; i++) {
        ejk_bwd_params *params = &list[*count].bwd_params;
        list[*count] = base;
        params->q_blocksize = ejk_int(backward[i][0]);
        params->kv_blocksize = ejk_int(backward[i][1]);
        params->num_warps = ejk_int(backward[i][2]);
        params->num_stages = ejk_int(backward[i][3]);
        (*count)++;
    }
    return EJK_OK;
}
