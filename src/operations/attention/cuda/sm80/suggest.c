/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles, splits and warps of the kernels for GPUs from compute capability 7.0 or 8.0 up. Measured on one H100,
 * 2026-11-22 (docs/kernels/flash_attention.md): 128 rows of four warps beat 64 by a quarter, as keys are then fetched
 * from shared memory half as often; a warp with 16 rows is best where there are no more rows than that, and 16 parts
 * of 8192 keys.
 */
#include "operations/attention/shared/suggest.h"

/* Blocks that keep a large GPU busy: two for each of 132 SMs, or eight small ones. */
enum { BUSY = 264, BUSY_SMALL = 1024, LEAST_KEYS_OF_A_PART = 512 };

static int64_t blocks_of(const ejki_flash_problem *p, int64_t rows) {
    const int64_t entries = p->layout == EJKI_FLASH_TOKENS ? 1 : p->batch;
    return ejki_max(1, ejki_cdiv(p->queries * p->group, rows) * entries * p->kv_heads);
}

/* Parts of the keys: none so small that its sums cost more than it does, and no more than make enough blocks. */
static int64_t parts_of(const ejki_flash_problem *p, int64_t blocks, int64_t enough) {
    return ejki_max(1, ejki_min(p->keys / LEAST_KEYS_OF_A_PART, enough / blocks));
}

/* Parameters of the kernel by mma.sync, of its gradients but for the last. */
enum { Q_BLOCKSIZE, KV_BLOCKSIZE, NUM_WARPS, NUM_STAGES, NUM_KEY_SPLITS };

static int64_t tile_of(const ejki_flash_problem *p) {
    const int64_t rows = p->queries * p->group;
    const int64_t tile = rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
    return rows > 64 && p->value_dim <= 128 && blocks_of(p, 128) >= BUSY ? 128 : tile;
}

static int64_t splits_of(const ejki_flash_problem *p, int64_t tile) {
    return parts_of(p, blocks_of(p, tile), tile == 16 ? BUSY_SMALL : BUSY);
}

void ejki_sm80_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    const int64_t tile = tile_of(problem);
    (void)threads;
    values[Q_BLOCKSIZE] = ejk_int(tile);
    values[KV_BLOCKSIZE] = ejk_int(64);
    values[NUM_WARPS] = ejk_int(ejki_min(4, tile / 16));
    values[NUM_STAGES] = ejk_int(2);
    values[NUM_KEY_SPLITS] = ejk_int(splits_of(problem, tile));
}

void ejki_sm80_suggest_plain(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)threads;
    values[0] = ejk_int(splits_of(problem, tile_of(problem)));
}

void ejki_sm80_suggest_vjp(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)problem, (void)threads;
    values[Q_BLOCKSIZE] = values[KV_BLOCKSIZE] = ejk_int(64);
    values[NUM_WARPS] = ejk_int(4);
    values[NUM_STAGES] = ejk_int(2);
}

/*
 * ---- Decoding: memory is what counts, so every SM has to fetch all the time ----
 *
 * On one H200, 2026-11-22: few heads and not too many bytes are over sooner if keys come straight into
 * registers, by 0.7 of 20 µs at 8192 keys of 8 heads; with more a ring of 192 KiB on each SM
 * wins, by 6 of 73 µs at 64 heads back to back. Eight warps of a block beat four, if these do not keep many
 * more SMs busy.
 */

enum { MULTIPROCESSORS = 132, LEAST_KEYS_OF_A_WARP = 16, RING_BYTES = 196608, FEW_HEADS = 32 };
enum { FEW_BYTES = 64 << 20, MUCH = 100 };

/* Warps of a block, those of an SM being eight, and parts; `busy` are blocks at work, of a thousand. */
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

void ejki_sm80_suggest_decode(const void *problem, int32_t threads, ejk_opt_int *values) {
    enum { WARPS, STAGES, SPLITS }; /* its parameters */
    (void)threads;
    const ejki_flash_problem *p = problem;
    const decoding wide = decoding_of(p, 8), narrow = decoding_of(p, 4);
    const decoding d = narrow.busy > wide.busy + MUCH ? narrow : wide;
    const int64_t stage =
        32 * (ejki_round_up(p->head_dim, 64) + ejki_round_up(p->value_dim, 64)) * 8;
    const int64_t heads = p->batch * p->kv_heads;
    const double bytes =
        2.0 * (double)heads * (double)p->keys * (double)(p->head_dim + p->value_dim);
    const bool direct = heads <= FEW_HEADS && bytes <= FEW_BYTES && p->queries * p->group <= 8 &&
                        ejki_max(p->head_dim, p->value_dim) <= 128;
    values[WARPS] = ejk_int(d.warps);
    values[STAGES] = ejk_int(direct ? 1 : ejki_max(2, ejki_min(8, RING_BYTES / stage)));
    values[SPLITS] = ejk_int(ejki_min(65535, d.splits));
}
