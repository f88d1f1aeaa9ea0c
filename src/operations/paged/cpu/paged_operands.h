/* SPDX-License-Identifier: Apache-2.0 */
/* What the products of a tier take. */
#ifndef EJKI_PAGED_OPERANDS_H
#define EJKI_PAGED_OPERANDS_H

#include "operations/attention/cpu/tile/tile_shape.h"

#ifdef TILE_BF16_DOT
#include "operations/paged/cpu/paged_bf16_dot.h"
#else
#include "operations/paged/cpu/paged_f32.h"
#endif

#endif
