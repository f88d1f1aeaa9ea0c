/* SPDX-License-Identifier: Apache-2.0 */
/* AMX tiles, whoever uses them: what a thread does before the first one and after the last. */
#ifndef EJKI_SIMD_AMX_H
#define EJKI_SIMD_AMX_H

#include <stdint.h>

/* Compilers do not know that tile loads read memory and tile stores write it. */
#define AMX_BARRIER() __asm__ volatile("" ::: "memory")

/* Tests bring an emulation of tiles. */
#ifndef AMX_CONFIGURE
#define AMX_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(config))
#define AMX_RELEASE()         __asm__ volatile("tilerelease")
#endif

/* The operand of ldtilecfg. */
typedef struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;
_Static_assert(sizeof(amx_config) == 64, "the layout is the processor's");

/* Eight tiles of rows of 64 bytes: `right` of them tiles 4 and 5, `rows` the others. */
static inline void amx_open_rows(int rows, int right) {
    amx_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = (uint8_t)(i == 4 || i == 5 ? right : rows);
    }
    AMX_CONFIGURE(config);
}

/* Eight tiles of full size. */
static inline void amx_open(void) {
    amx_open_rows(16, 16);
}

static inline void amx_close(void) {
    AMX_RELEASE();
}

#endif
