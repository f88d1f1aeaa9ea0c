/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EJKI_NUMERIC_RANDOM_H
#define EJKI_NUMERIC_RANDOM_H

#include <ejkernel/numeric.h>

/* The 32 random bits of one counter. */
uint32_t ejki_random_bits(ejk_random_key key, uint64_t counter);

#endif
