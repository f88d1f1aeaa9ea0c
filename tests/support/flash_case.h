/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random problems of flash attention, each made from one number: sizes around the edges of tiles, every
 * feature alone and with others, awkward layouts, hostile values. Inputs are read-only memory that ends
 * or starts at a guard page; what views leave out is NaN.
 */
#ifndef TESTS_FLASH_CASE_H
#define TESTS_FLASH_CASE_H

#include "operations/attention/flash/problem.h"
#include "support/guarded.h"
#include "support/random.h"

enum flash_tensor {
    FLASH_QUERY,
    FLASH_KEY,
    FLASH_VALUE,
    FLASH_BIAS,
    FLASH_MASK,
    FLASH_QUERY_IDS,
    FLASH_KEY_IDS,
    FLASH_SINKS,
    FLASH_OUT,
    FLASH_LSE,
    FLASH_ROW_MAX,
    FLASH_ROW_SUM,
    FLASH_TENSORS,
    FLASH_FIRST_OUTPUT = FLASH_OUT,
};

/* What the scores are like. */
enum flash_pattern {
    FLASH_NORMAL,
    FLASH_LARGE,   /* about ±1e4 */
    FLASH_EQUAL,   /* the same for all keys */
    FLASH_ONE_HOT, /* one key far above the others */
    FLASH_RISING,  /* each key above the one before it */
    FLASH_FALLING,
    FLASH_JUMP, /* the second half far above the first */
    FLASH_TINY,
    FLASH_PATTERNS,
};

/* Where NaN and infinities are put. */
enum flash_poison {
    FLASH_CLEAN,
    FLASH_IN_HIDDEN, /* everywhere in K, V and bias that no query sees */
    FLASH_IN_KEY,    /* in a few places that some queries may see, as the next two */
    FLASH_IN_VALUE,
    FLASH_IN_BIAS,
};

/* What decides a case besides its problem. */
struct flash_traits {
    enum flash_pattern pattern;
    enum flash_poison poison;
    bool bias_batch, bias_heads, bias_queries; /* axes that are not broadcast */
    bool mask_batch, mask_queries;
    int mask_heads, sink_heads; /* 0: one for all, 1: Hkv, 2: Hq */
    double mask_density;
    bool infinite_bias; /* some bias is -inf */
    bool wide_sinks;    /* sinks up to ±1e4, some -inf */
    bool wants_lse, wants_row_max, wants_row_sum;
    bool odd_addresses; /* not even aligned to elements */
};

struct flash_case {
    uint64_t seed;
    struct flash_traits traits;
    ejki_flash_problem problem; /* pointers bound */
    struct guarded memory[FLASH_TENSORS];
};

/*
 * Set in a seed: cases for kernels on tiles of 16-bit elements. Rows begin at multiples of eight elements from one
 * another, sizes and lengths are those around tiles, and few cases have a bias, a mask, segments or dropout.
 */
#define FLASH_TILED (UINT64_C(1) << 62)

/* The element type that a seed leads to, known before anything is made. */
ejk_dtype flash_case_dtype(uint64_t seed);

/* `budget` limits B·Hq·T·S·(D + Dv) of most cases; a few may have four times as much. */
void flash_case_create(struct flash_case *c, uint64_t seed, int64_t budget);
void flash_case_destroy(struct flash_case *c);

/* The case in one line. */
void flash_case_print(const struct flash_case *c, char *text, size_t size);

/* Makes memory, layout and contents for a problem whose sizes and flags are set. */
void flash_case_fill(struct flash_case *c, struct random *random);

/* Fills outputs anew. */
void flash_case_clear_outputs(struct flash_case *c);

/* Element `index` from `data`, as double, and back, rounded; types are f64, f32, bf16 and f16. */
double flash_load(ejk_dtype dtype, const void *data, int64_t index);
void flash_store(ejk_dtype dtype, void *data, int64_t index, double value);

/* True if query i of (b, h) may attend to key j, straight from the rules: a bias of -inf hides a key, too. */
bool flash_visible(const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i, int64_t j);

#endif
