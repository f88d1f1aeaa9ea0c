/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"
#include "numeric/random.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct selection {
    int64_t blocks, block_size, heads, selected;
    ejk_random_key key;
    int32_t *order;  /* room for the blocks */
    int32_t *chosen; /* room for what is selected */
} selection;

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Chooses among blocks 0 … `block`; numbers of the stream lie at the counters of `group`. */
static void choose(const selection *s, int64_t group, int64_t block) {
    int64_t candidates = block + 1, found = ejki_min(candidates, s->selected);
    for (int64_t i = 0; i < candidates; i++) s->order[i] = (int32_t)i;
    for (int64_t i = 0; i < s->selected; i++) s->chosen[i] = -1;
    for (int64_t i = 0; i < found; i++) {
        uint64_t counter = (uint64_t)group * (uint64_t)s->selected + (uint64_t)i;
        /* The high part of a product spreads 32 bits over what is left, evenly to one in 2^32 / left. */
        uint64_t left = (uint64_t)(candidates - i);
        int64_t other = i + (int64_t)(left * ejki_random_bits(s->key, counter) >> 32);
        s->chosen[i] = s->order[other];
        s->order[other] = s->order[i];
    }
    qsort(s->chosen, (size_t)s->selected, sizeof *s->chosen, ascending);
}

static ejk_status check(int64_t block_size, const ejk_tensor *out) {
    EJKI_TRY(ejki_array_output(out, "out"));
    if (out->dtype != EJK_DTYPE_I32) {
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "out is %s, expected int32",
                         ejk_dtype_name(out->dtype));
    }
    if (out->rank != 4) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "out has rank %" PRId32 ", expected 4",
                         out->rank);
    }
    if (block_size < 1) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "block_size is %" PRId64 ", expected at least 1", block_size);
    }
    if (out->shape[1] % block_size == 0 && out->shape[1] / block_size <= INT32_MAX) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "axis 1 of out is %" PRId64 " long, expected a multiple of block_size %" PRId64
                     ", of fewer than 2^31 blocks",
                     out->shape[1], block_size);
}

static void fill(const selection *s, const ejk_tensor *out) {
    int64_t queries = s->blocks * s->block_size, groups = out->shape[0] * s->blocks * s->heads;
    for (int64_t group = 0; group < groups; group++) {
        int64_t head = group % s->heads, block = group / s->heads % s->blocks;
        int64_t batch = group / s->heads / s->blocks;
        choose(s, group, block);
        for (int64_t i = 0; i < s->block_size; i++) {
            int64_t row = (batch * queries + block * s->block_size + i) * s->heads + head;
            ejki_array_store(out, row * s->selected, s->selected, EJK_DTYPE_I32, s->chosen);
        }
    }
}

ejk_status ejk_generate_block_indices(ejk_random_key key, int64_t block_size,
                                      const ejk_tensor *out) {
    EJKI_TRY(check(block_size, out));
    if (ejk_tensor_count(out) == 0) return EJK_OK;
    selection s = {.blocks = out->shape[1] / block_size,
                   .block_size = block_size,
                   .heads = out->shape[2],
                   .selected = out->shape[3],
                   .key = key};
    s.order = calloc((size_t)s.blocks, sizeof *s.order);
    s.chosen = calloc((size_t)s.selected, sizeof *s.chosen);
    bool room = s.order && s.chosen;
    if (room) fill(&s, out);
    free(s.order);
    free(s.chosen);
    if (room) return EJK_OK;
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                     "no memory to choose %" PRId64 " of %" PRId64 " blocks", s.selected, s.blocks);
}
