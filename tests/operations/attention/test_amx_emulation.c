/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulation of AMX tiles against the manual's words, element by element: the same bits for numbers of all sizes,
 * denormals, infinities; rows that lie apart; tiles that are a thread's own.
 */
#include "support/amx_emulation.h"
#include "support/expect.h"
#include "support/random.h"

#include <ejkernel/device.h>

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 16, PAIRS = 16, ROW_BYTES = 64, CASES = 300 };

typedef union tile {
    uint16_t pair[ROWS][PAIRS][2];
    float sum[ROWS][PAIRS];
    unsigned char bytes[ROWS * ROW_BYTES];
} tile;

static void configure(void) {
    unsigned char config[64] = {1};
    for (int i = 0; i < 8; i++) {
        config[16 + 2 * i] = ROW_BYTES;
        config[48 + i] = ROWS;
    }
    amx_emulation_configure(config);
}

/* ---- The manual's words ----------------------------------------------------------------------------- */

/* Denormals count as 0. */
static float flushed(float value) {
    return fabsf(value) < 0x1p-126f ? copysignf(0, value) : value;
}

static float wide(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return flushed(value);
}

static float expected(const tile *sums, const tile *left, const tile *right, int row, int column) {
    float of[2] = {0, 0};
    for (int k = 0; k < PAIRS; k++)
        for (int n = 0; n < 2; n++)
            of[n] =
                flushed(fmaf(wide(left->pair[row][k][n]), wide(right->pair[k][column][n]), of[n]));
    return flushed(flushed(sums->sum[row][column]) + flushed(of[0] + of[1]));
}

/* ---- Cases ------------------------------------------------------------------------------------------ */

/* Sizes of a case: ordinary ones; products that are denormal; ones that overflow; anything. */
enum { ORDINARY, TINY, HUGE_ONES, ANY, SIZES };

static uint16_t element(struct random *r, int size) {
    static const int64_t least[SIZES] = {120, 60, 180, 0}, most[SIZES] = {133, 65, 199, 255};
    const uint16_t rest = (uint16_t)(random_bits(r) & 0x807f); /* sign and mantissa */
    if (size == TINY && random_chance(r, 0.1)) return rest;
    return (uint16_t)(rest | random_int(r, least[size], most[size]) << 7);
}

static void fill(struct random *r, tile *t, int size) {
    for (int i = 0; i < ROWS * PAIRS * 2; i++) (&t->pair[0][0][0])[i] = element(r, size);
}

static void fill_sums(struct random *r, tile *t, int size) {
    for (int i = 0; i < ROWS * PAIRS; i++) {
        float value = (float)random_normal(r);
        if (size == TINY) value *= random_chance(r, 0.5) ? 0x1p-127f : 0x1p-122f;
        (&t->sum[0][0])[i] = value;
    }
}

static bool same(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void products_are_the_manuals(void **state) {
    (void)state;
    tile sums, left, right, got;
    configure();
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct random r = {seed};
        const int size = (int)(seed % SIZES);
        fill_sums(&r, &sums, size);
        fill(&r, &left, size);
        fill(&r, &right, size);
        _tile_loadd(3, &sums, ROW_BYTES);
        _tile_loadd(6, &left, ROW_BYTES);
        _tile_stream_loadd(4, &right, ROW_BYTES);
        _tile_dpbf16ps(3, 6, 4);
        _tile_stored(3, &got, ROW_BYTES);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < PAIRS; j++) {
                const float want = expected(&sums, &left, &right, i, j);
                if (same(got.sum[i][j], want)) continue;
                fail_msg("seed %d: row %d, column %d is %a, expected %a", (int)seed, i, j,
                         (double)got.sum[i][j], (double)want);
            }
    }
    amx_emulation_release();
}

/* Nothing beside the rows is read or written. */
static void rows_may_lie_apart(void **state) {
    (void)state;
    enum { STRIDE = 80 };
    static unsigned char from[ROWS * STRIDE], to[ROWS * STRIDE];
    configure();
    for (int i = 0; i < ROWS * STRIDE; i++) from[i] = (unsigned char)(i * 7 % 251);
    memset(to, 0xee, sizeof to);
    _tile_loadd(0, from, STRIDE);
    _tile_zero(1);
    _tile_stored(0, to, STRIDE);
    for (int i = 0; i < ROWS * STRIDE; i++)
        assert_int_equal(to[i], i % STRIDE < ROW_BYTES ? from[i] : 0xee);
    _tile_stored(1, to, STRIDE);
    for (int i = 0; i < ROWS * STRIDE; i++)
        assert_int_equal(to[i], i % STRIDE < ROW_BYTES ? 0 : 0xee);
    amx_emulation_release();
}

static void *other_thread(void *argument) {
    configure();
    _tile_loadd(2, argument, ROW_BYTES);
    amx_emulation_release();
    return NULL;
}

static void tiles_are_a_threads_own(void **state) {
    (void)state;
    tile mine, others, got;
    pthread_t thread;
    memset(&mine, 1, sizeof mine);
    memset(&others, 2, sizeof others);
    configure();
    _tile_loadd(2, &mine, ROW_BYTES);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &others), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    _tile_stored(2, &got, ROW_BYTES);
    assert_memory_equal(&got, &mine, sizeof got);
    amx_emulation_release();
}

int main(void) {
    if (!ejk_cpu()->tiers[EJK_ISA_AVX512]) return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_the_manuals),
                                       cmocka_unit_test(rows_may_lie_apart),
                                       cmocka_unit_test(tiles_are_a_threads_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
