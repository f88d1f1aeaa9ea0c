/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX tiles in software, in place of the intrinsics that the kernels on AMX use: included before their sources, which
 * are compiled once more for tests, so that they run wherever AVX512-BF16 and AVX512-VBMI are. Each thread has tiles
 * of its own.
 *
 * The product is TDPBF16PS as the manual tells it: in each row of the left operand the products of first elements
 * and those of second elements of pairs are added up one by one by fused operations, each from 0; then both sums are
 * added, and what the tile held is added to that. Each step rounds to nearest even, and denormals that go in or come
 * out count as 0.
 *
 * TDPBSSD adds up products of signed bytes, modulo 2^32.
 *
 * What the processor refuses ends the program: tiles that are not configured, the same tile twice in a product, rows
 * that do not fit. Only tiles of whole rows are known, which is all that the kernels configure.
 */
#ifndef TESTS_AMX_EMULATION_H
#define TESTS_AMX_EMULATION_H

#include <immintrin.h>
#include <stddef.h>

void amx_emulation_configure(const void *config);
void amx_emulation_release(void);
void amx_emulation_zero(int tile);
void amx_emulation_load(int tile, const void *from, ptrdiff_t stride);
void amx_emulation_store(int tile, void *to, ptrdiff_t stride);
void amx_emulation_multiply(int sums, int left, int right);
void amx_emulation_multiply_bytes(int sums, int left, int right);

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_zero(tile)                       amx_emulation_zero(tile)
#define _tile_loadd(tile, from, stride)        amx_emulation_load(tile, from, stride)
#define _tile_stream_loadd(tile, from, stride) amx_emulation_load(tile, from, stride)
#define _tile_stored(tile, to, stride)         amx_emulation_store(tile, to, stride)
#define _tile_dpbf16ps(sums, left, right)      amx_emulation_multiply(sums, left, right)
#define _tile_dpbssd(sums, left, right)        amx_emulation_multiply_bytes(sums, left, right)

/* What amx_tiles.h has else. */
#define EJKI_TIER_TEXT_amx    "amx_emulated"
#define AMX_CONFIGURE(config) amx_emulation_configure(&(config))
#define AMX_RELEASE()         amx_emulation_release()

#endif
