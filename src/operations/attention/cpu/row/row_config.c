/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/attention/cpu/row/row_config.h"

#include <ejkernel/device.h>

#include "base/base.h"

#include <string.h>

/* How a processor streams keys and values. */
typedef struct row_streaming {
    bool in_order;          /* all heads of a key, then the next key */
    int64_t block_bytes;    /* of all heads' keys and values; 0 = all of a split */
    int64_t most_keys;      /* of a block */
    int64_t hint, distance; /* of prefetches */
} row_streaming;

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return ejki_max(low, ejki_min(value, high));
}

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
void ejki_row_heuristic(const ejki_flash_problem *p, bool pairs, ejk_fwd_params *params) {
    const row_streaming s = streaming_of(p, pairs);
    const int64_t kv_heads = clamp(p->kv_heads, 1, 1 << 20), batch = ejki_max(1, p->batch);
    const int64_t own = (clamp(p->head_dim, 1, 1 << 20) + clamp(p->value_dim, 1, 1 << 20)) *
                        (int64_t)ejk_dtype_size(p->dtype);
    const int64_t few = clamp(p->keys / 64, 1, ejki_cdiv(4, batch));
    const int64_t splits = clamp(p->keys / 512, few, ejki_cdiv(64, batch));
    const int64_t keys = s.block_bytes > 0 ? s.block_bytes / (own * kv_heads) : p->keys / splits;
    params->num_key_splits = ejk_int(splits);
    params->blocksize_keys = ejk_int(clamp(keys / 32 * 32, 32, s.most_keys));
    params->blocksize_heads = ejk_int(s.in_order ? clamp(kv_heads, 2, 64) : 1);
    params->prefetch_hint = ejk_int(s.hint);
    params->prefetch_bytes = ejk_int(s.distance);
}
