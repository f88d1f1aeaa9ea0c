/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of the kernels for compute capability 9.0. */
#include "operations/attention/shared/suggest.h"

enum { MULTIPROCESSORS = 132 };
enum { LONG = 2048 }; /* keys that a row sees, from which on more at a time are better */

/* Keys that the row in the middle of a sequence sees by positions. */
static int64_t keys_visible(const ejki_flash_problem *p, int64_t queries, int64_t keys) {
    const int64_t middle = queries / 2;
    const int64_t end = ejki_min(keys - 1 - middle, p->last_offset) + middle + 1;
    return ejki_max(0, end - ejki_max(0, middle + p->first_offset));
}

/*
 * Tiles, for heads up to 64 and wider ones, where rows see few keys and many:
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
                         int64_t keys, int64_t visible) {
    const int64_t rows = ejki_round_up(queries, 64);
    const int64_t lacking = ejki_round_up(queries, c->queries) - rows;
    const bool rising = p->last_offset < keys - 1;
    const double least = (double)(c->queries - lacking) / (double)(2 * visible + 1);
    const double cost = rising && least < 1 ? least : 1;
    return (double)rows / ((double)rows + cost * (double)lacking);
}

/* The fastest, for the share of it that is of use, and of SMs that have a tile. */
void ejki_sm90_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)threads;
    const ejki_flash_problem *p = problem;
    const bool packed = p->layout == EJKI_FLASH_TOKENS;
    const bool narrow = p->value_dim <= 64 && p->head_dim <= 64;
    const int64_t sequences = ejki_max(1, p->batch), of = packed ? sequences : 1;
    const int64_t keys = p->keys / of, queries = ejki_max(1, p->queries / of);
    const int64_t visible = keys_visible(p, queries, keys);
    const bool many = visible >= LONG;
    const tile_choice *choices = narrow ? many ? narrow_many : narrow_few
                                 : many ? wide_many
                                        : wide_few;
    const tile_choice *best = choices;
    double most = 0;
    for (const tile_choice *c = choices; c < choices + TILES; c++) {
        const int64_t tiles = ejki_cdiv(queries, c->queries);
        const double busy =
            (double)tiles * (double)sequences * (double)p->query_heads / MULTIPROCESSORS;
        const double used = share_used(p, c, queries, keys, visible);
        const double speed = c->speed * used * (busy < 1 ? busy : 1);
        if (speed > most) best = c, most = speed;
    }
    const int64_t chosen[] = {best->queries, best->keys, best->warps, best->stages};
    for (int i = 0; i < 4; i++) values[i] = ejk_int(chosen[i]); /* in the order of its parameters */
}

void ejki_sm90_suggest_vjp(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)problem, (void)threads;
    values[0] = ejk_int(128); /* q_blocksize; 64 where registers want that */
}
