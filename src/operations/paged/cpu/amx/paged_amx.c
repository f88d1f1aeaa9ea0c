/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages with AMX: paged_body.h with products of many rows by tiles, as in prefilling, decoding of
 * latents and shared prefixes. Few rows, as in decoding, and all but products are what the tier avx512_bf16 has.
 */
#define EJKI_THIS_LINE        unified_attention_amx
#define EJKI_TIER_AVX512_BF16 /* its words; this tier has them all */
#define EJKI_TIER             amx
#define PAGED_AMX
#include "operations/paged/cpu/paged_body.h"
