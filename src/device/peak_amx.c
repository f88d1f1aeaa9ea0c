/* SPDX-License-Identifier: Apache-2.0 */
#include "device/peak.h"

#if defined(__x86_64__)

/* Tiles of 16 rows of 64 bytes: 5 accumulators (a single one is 6 % slower, 3 are 2 %), 1 and 1 factors,
   the 1 negated. Random operands run 18 % slower than zeros on a Sapphire Rapids. */
#define CHAINS     5
#define TILES      8
#define ROWS       16
#define TILE_BYTES (ROWS * 64)

#define LOAD(n)       "tileloadd 1024*" #n "(%[data],%[row],1), %%tmm" #n "\n\t"
#define ADD(op, n, b) op " %%tmm" #b ", %%tmm5, %%tmm" #n "\n\t"
#define STEP(op, b)   ADD(op, 0, b) ADD(op, 1, b) ADD(op, 2, b) ADD(op, 3, b) ADD(op, 4, b)

#define LOAD_ALL LOAD(0) LOAD(1) LOAD(2) LOAD(3) LOAD(4) LOAD(5) LOAD(6) LOAD(7)

/* The operand of ldtilecfg. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "the layout is the processor's");

static struct tile_config full_tiles(void) {
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < TILES; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = ROWS;
    }
    return config;
}

#define PEAK(name, op)                                                                             \
    static void name(const void *operands, int64_t iterations) {                                   \
        const struct tile_config config = full_tiles();                                            \
        __asm__ volatile("ldtilecfg %[config]\n\t" LOAD_ALL EJKI_PEAK_LOOP(                        \
                             STEP(op, 6) STEP(op, 7)) "tilerelease"                                \
                         : [left] "+r"(iterations)                                                 \
                         : [data] "r"(operands), [row] "r"((int64_t)64), [config] "m"(config)      \
                         : "cc", "memory");                                                        \
    }

PEAK(add_bf16, "tdpbf16ps")
PEAK(add_i8, "tdpbusd")

#define SHAPE .registers = TILES, .register_bytes = TILE_BYTES, .negated = 1, .iterations = 200

/* Each of 16 x 16 sums takes 32 products, or 64 of bytes. */
const ejki_peak ejki_peak_amx[2] = {
    {EJK_ISA_AMX, EJK_DTYPE_BF16, add_bf16, NULL, SHAPE, .flops = 2.0 * CHAINS * 16 * 16 * 32 * 2},
    {EJK_ISA_AMX, EJK_DTYPE_I8, add_i8, NULL, SHAPE, .needs = EJK_FEATURE_AMX_INT8,
     .flops = 2.0 * CHAINS * 16 * 16 * 64 * 2},
};

#endif
