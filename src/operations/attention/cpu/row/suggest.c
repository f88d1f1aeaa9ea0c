/* SPDX-License-Identifier: Apache-2.0 */
/* Splits, blocks and prefetches of the row-wise kernel. */
#include "operations/attention/shared/suggest.h"

#include <string.h>

enum { SPLITS, KEYS, HEADS, HINT, DISTANCE }; /* its parameters */

/* How a processor streams keys and values. */
typedef struct row_streaming {
    bool in_order;          /* all heads of a key, then the next key */
    int64_t block_bytes;    /* of all heads' keys and values; 0 = all of a split */
    int64_t most_keys;      /* of a block */
    int64_t hint, distance; /* of prefetches */
} row_streaming;

/*
 * Intel processors give most of memory in four places at a time. AMD's read fastest in the order of memory: a Zen 5
 * gives 39 GB/s of one or two places and 27 of four. On a Zen 4 PREFETCHT1 overlaps where PREFETCHT0 hardly does
 * (docs/kernels/flash_attention.md has the figures); what a block costs besides its keys shows in bf16, whose blocks
 * are longer there. Lines of 16 bits are twice the work where they become floats, for which four query rows of a head
 * leave no time: what waits for arithmetic wants PREFETCHT0.
 */
static row_streaming streaming_of(const ejki_flash_problem *p, bool pairs) {
    const ejk_cpu_info *cpu = ejk_cpu();
    const bool amd = strcmp(cpu->vendor, "amd") == 0;
    const bool zen4 = amd && cpu->family == 25 && cpu->tiers[EJK_ISA_AVX512];
    const bool quick = p->dtype == EJK_DTYPE_F32 || pairs;
    const bool few_rows = p->queries * p->group <= (quick ? 4 : 2);
    row_streaming s = {.block_bytes = 1 << 17, .most_keys = 128};
    if (amd && cpu->family >= 26 && few_rows)
        s = (row_streaming){.in_order = true, .most_keys = 512};
    if (zen4) {
        s.in_order = few_rows;
        s.hint = few_rows || p->dtype == EJK_DTYPE_F32;
        if (pairs)
            s.block_bytes = 1 << 19;
        else
            s.distance = 32 << 10;
    }
    return s;
}

/*
 * A block of all heads' keys and values well inside the second-level cache, and enough splits
 * for many threads, none below 512 keys but for the first four: with fewer tasks a few threads would
 * share out the heads, and then none reads memory in order. Where a block is read in order, changing between keys and
 * values is what costs, and a block is longer.
 */
static void suggest(const ejki_flash_problem *p, bool pairs, ejk_opt_int *values) {
    const row_streaming s = streaming_of(p, pairs);
    const int64_t kv_heads = ejki_clamp(p->kv_heads, 1, 1 << 20), batch = ejki_max(1, p->batch);
    const int64_t own =
        (ejki_clamp(p->head_dim, 1, 1 << 20) + ejki_clamp(p->value_dim, 1, 1 << 20)) *
        (int64_t)ejk_dtype_size(p->dtype);
    const int64_t few = ejki_clamp(p->keys / 64, 1, ejki_cdiv(4, batch));
    const int64_t splits = ejki_clamp(p->keys / 512, few, ejki_cdiv(64, batch));
    const int64_t keys = s.block_bytes > 0 ? s.block_bytes / (own * kv_heads) : p->keys / splits;
    values[SPLITS] = ejk_int(splits);
    values[KEYS] = ejk_int(ejki_clamp(keys / 32 * 32, 32, s.most_keys));
    values[HEADS] = ejk_int(s.in_order ? ejki_clamp(kv_heads, 2, 64) : 1);
    values[HINT] = ejk_int(s.hint);
    values[DISTANCE] = ejk_int(s.distance);
}

void ejki_row_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)threads;
    suggest(problem, false, values);
}

void ejki_row_suggest_bf16_dot(const void *problem, int32_t threads, ejk_opt_int *values) {
    (void)threads;
    suggest(problem, true, values);
}
