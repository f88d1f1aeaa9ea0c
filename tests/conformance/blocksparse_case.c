/* SPDX-License-Identifier: Apache-2.0 */
/* blocksparse_attention and its gradients: masks of every kind as grids of blocks, positions, chunks. */
#include "conformance/attention.h"
#include "conformance/cases.h"
#include "support/splash_call.h"

#include <stdlib.h>
#include <string.h>

/* What a call has besides. */
struct sparse {
    struct attention *a;
    ejk_blocksparse_mask_info info, original; /* the arrays of the first are the call's */
    int64_t block[2];
};

/* ---- Masks ------------------------------------------------------------------------------------------- */

/* Elements of which whole blocks are empty or full. */
static ejk_splash_mask *block_mask(struct random *r, int64_t q, int64_t kv,
                                   const int64_t block[2]) {
    static const double densities[] = {0, 0, 0, 0.5, 1};
    uint8_t *bytes = calloc((size_t)(q * kv) + 1, 1);
    if (!bytes) abort();
    for (int64_t i = 0; i < q; i += block[0])
        for (int64_t j = 0; j < kv; j += block[1]) {
            const double density = RANDOM_OF(r, densities);
            for (int64_t n = 0; n < block[0] * block[1]; n++)
                bytes[(i + n / block[1]) * kv + j + n % block[1]] = random_chance(r, density);
        }
    ejk_splash_mask *mask = splash_dense(bytes, q, kv);
    free(bytes);
    return mask;
}

static ejk_splash_mask *mask_of(struct call *c, const struct attention *a, const int64_t block[2]) {
    struct random *r = &c->random;
    const bool small =
        a->queries <= 64 && a->keys <= 64; /* what splash_random_mask() has room for */
    const double mixed = random_chance(r, 0.5) ? 0 : 0.4;
    const ejk_splash_mask *list[64];
    ejk_splash_mask *kinds[2], *mask = NULL;
    for (int i = 0; i < 2; i++)
        kinds[i] = small && random_chance(r, 0.6) ? splash_random_mask(r, a->queries, a->keys, 2)
                                                  : block_mask(r, a->queries, a->keys, block);
    for (int64_t h = 0; h < a->heads; h++) list[h] = kinds[random_chance(r, mixed)];
    EXPECT_OK(ejk_multi_head_mask_create(list, a->heads, &mask));
    for (int i = 0; i < 2; i++) ejk_splash_mask_release(kinds[i]);
    return mask;
}

/* A copy of an array in memory of the call; of a grid sometimes in another type of integers. */
static ejk_tensor kept(struct call *c, const ejk_tensor *from, bool grid) {
    static const ejk_dtype types[] = {EJK_DTYPE_I16, EJK_DTYPE_I32, EJK_DTYPE_I64};
    if (!ejk_tensor_present(from)) return *from;
    const ejk_dtype dtype =
        grid && random_chance(&c->random, 0.4) ? RANDOM_OF(&c->random, types) : from->dtype;
    const ejk_tensor to = call_tensor(c, dtype, from->rank, from->shape);
    EXPECT_OK(ejk_tensor_copy(from, &to));
    return to;
}

static void keep_info(struct call *c, ejk_splash_mask_info *info) {
    info->data_next = kept(c, &info->data_next, true);
    info->mask_next = kept(c, &info->mask_next, true);
    info->block_mask = kept(c, &info->block_mask, true);
    info->partial_mask_blocks = kept(c, &info->partial_mask_blocks, false);
    info->q_sequence = kept(c, &info->q_sequence, false);
    info->owner = NULL; /* what is no array is the original's */
}

/* A mask for the sizes of the call, as grids and as elements. */
static void choose_mask_info(struct call *c, struct sparse *s) {
    struct attention *a = s->a;
    ejk_splash_mask *mask = mask_of(c, a, s->block);
    const ejk_blocksparse_mask_options options = {
        .block_shape = {s->block[0], s->block[1]},
        .shrink_grid = random_chance(&c->random, 0.5) ? EJK_UNSET : EJK_FALSE};
    uint8_t *dense = splash_elements(mask), *elements;
    const size_t bytes = (size_t)(a->heads * a->queries * a->keys);
    EXPECT_OK(ejk_blocksparse_mask_info_create(mask, &options, &s->original));
    elements = call_memory(c, bytes);
    memcpy(elements, dense, bytes);
    a->elements = elements;
    free(dense);
    s->info = s->original;
    keep_info(c, &s->info.fwd);
    keep_info(c, &s->info.dq);
    keep_info(c, &s->info.dkv);
    ejk_splash_mask_release(mask);
}

/* ---- Positions --------------------------------------------------------------------------------------- */

static ejk_tensor positions(struct call *c, ejk_dtype dtype, int64_t batch, int64_t length,
                            int64_t most) {
    static const int64_t far[] = {INT64_MIN, INT64_MIN / 2, INT64_MAX, INT64_MAX - 1};
    struct random *r = &c->random;
    const ejk_tensor t = CALL_TENSOR(c, dtype, batch, length);
    for (int64_t n = 0; n < batch * length; n++) {
        int64_t at = random_int(r, -2, most + 2);
        if (dtype == EJK_DTYPE_I64 && random_chance(r, 0.1)) at = RANDOM_OF(r, far);
        const int32_t narrow = (int32_t)at;
        if (dtype == EJK_DTYPE_I64)
            memcpy((char *)t.data + n * 8, &at, 8);
        else
            memcpy((char *)t.data + n * 4, &narrow, 4);
    }
    return t;
}

static void choose_places(struct call *c, struct attention *a) {
    struct random *r = &c->random;
    const ejk_dtype dtype = random_chance(r, 0.5) ? EJK_DTYPE_I64 : EJK_DTYPE_I32;
    const bool queries = random_chance(r, 0.8);
    if (queries) a->query_positions = positions(c, dtype, a->batch, a->queries, a->keys);
    if (!queries || random_chance(r, 0.8))
        a->key_positions = positions(c, dtype, a->batch, a->keys, a->keys);
    a->options.positions = true;
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

/* Blocks, and lengths that are whole numbers of them; some calls have no grid. */
static void choose_blocks(struct call *c, struct sparse *s) {
    static const int64_t of_queries[] = {1, 3, 8, 16, 31, 32, 40, 64};
    static const int64_t of_keys[] = {1, 5, 16, 31, 32, 33, 48, 64, 128};
    struct random *r = &c->random;
    struct attention *a = s->a;
    s->block[0] = RANDOM_OF(r, of_queries);
    s->block[1] = RANDOM_OF(r, of_keys);
    if (c->dtype == EJK_DTYPE_F64)
        s->block[0] = random_int(r, 1, 8), s->block[1] = random_int(r, 1, 8);
    a->queries = s->block[0] * random_int(r, 1, 4);
    a->keys = s->block[1] * random_int(r, 1, random_chance(r, 0.2) ? 20 : 5);
    a->batch = random_int(r, 1, 2);
    a->kv_heads = random_int(r, 1, 2);
    a->group = random_int(r, 1, 3);
    if (a->queries * a->keys > 8000) a->batch = a->kv_heads = 1;
    a->heads = a->kv_heads * a->group;
    if (a->queries * a->keys * a->heads * a->batch > 10000) {
        if (a->dim > 64) a->dim = 64;
        if (a->value_dim > 64) a->value_dim = 64;
    }
}

static struct sparse *make(struct call *c, struct attention_options options) {
    struct sparse *s = call_memory(c, sizeof *s);
    options.heads_first = options.soft_cap = options.sinks = true;
    struct attention *a = s->a = attention_create(c, options);
    a->more = s;
    const bool grid = !random_chance(&c->random, 0.15);
    if (grid) choose_blocks(c, s);
    if (grid) choose_mask_info(c, s);
    attention_features(c, a);
    if (random_chance(&c->random, 0.3)) choose_places(c, a);
    if (random_chance(&c->random, 0.2)) a->chunk = ejk_int(random_int(&c->random, 1, a->keys + 1));
    attention_tensors(c, a);
    attention_contents(c, a);
    return s;
}

static void release(struct call *c) {
    struct sparse *s = ((struct attention *)c->own)->more;
    ejk_blocksparse_mask_info_close(&s->original);
}

static bool generate(struct call *c) {
    ejk_blocksparse_attention_args *args = c->args;
    const struct sparse *s = make(c, (struct attention_options){.gradients = false});
    attention_arguments(c, s->a);
    if (s->a->elements) EXPECT_OK(ejk_blocksparse_attention_set_mask_info(args, &s->info));
    return true;
}

/* A grid with planes of heads of its own would have to be cut, too: then batch entries alone are a part. */
static bool cut(const struct call *c, struct random *r, struct slice *s, const ejk_tensor *planes) {
    const struct attention *a = c->own;
    if (!attention_slice(c, r, s)) return false;
    for (int32_t i = 1; i < 3 && ejk_tensor_present(planes) && planes->shape[0] > 1; i++) {
        s->range[i].first = 0;
        s->range[i].end = i == 1 ? a->kv_heads : a->heads;
    }
    return true;
}

static bool slice(const struct call *c, struct random *r, struct slice *s) {
    ejk_blocksparse_attention_args *args = s->args;
    return cut(c, r, s, &args->fwd_block_mask);
}

const struct operation blocksparse_attention_case = {.op = "blocksparse_attention",
                                                     .cases = 120,
                                                     .generate = generate,
                                                     .finish = attention_finish,
                                                     .exact = attention_exact,
                                                     .naive = attention_naive,
                                                     .slice = slice,
                                                     .release = release};

static bool generate_vjp(struct call *c) {
    ejk_blocksparse_attention_vjp_args *args = c->args;
    const struct sparse *s = make(c, (struct attention_options){.gradients = true});
    struct attention *a = s->a;
    attention_gradients(c, a);
    attention_arguments(c, a);
    if (!a->elements) return true;
    /* The grid of the call, or those of gradients, or all three. */
    if (random_chance(&c->random, 0.5)) {
        ejk_blocksparse_attention_args forward = {.query = a->query};
        EXPECT_OK(ejk_blocksparse_attention_set_mask_info(&forward, &s->info));
        args->fwd_data_next = forward.fwd_data_next;
        args->fwd_mask_next = forward.fwd_mask_next;
        args->fwd_block_mask = forward.fwd_block_mask;
        args->fwd_partial_mask_blocks = forward.fwd_partial_mask_blocks;
        args->fwd_kv_blocksize = forward.fwd_kv_blocksize;
        memcpy(args->mask_function, forward.mask_function, sizeof args->mask_function);
        args->q_sequence = forward.q_sequence;
        args->mask_interval = forward.mask_interval;
        args->mask_chunk_size = forward.mask_chunk_size;
    } else {
        EXPECT_OK(ejk_blocksparse_attention_vjp_set_mask_info(args, &s->info));
    }
    return true;
}

static bool slice_vjp(const struct call *c, struct random *r, struct slice *s) {
    ejk_blocksparse_attention_vjp_args *args = s->args;
    const ejk_tensor *planes =
        ejk_tensor_present(&args->fwd_block_mask) ? &args->fwd_block_mask : &args->dkv_block_mask;
    return cut(c, r, s, planes);
}

const struct operation blocksparse_attention_vjp_case = {.op = "blocksparse_attention_vjp",
                                                         .cases = 80,
                                                         .generate = generate_vjp,
                                                         .finish = attention_finish,
                                                         .exact = attention_exact,
                                                         .naive = attention_naive,
                                                         .slice = slice_vjp,
                                                         .release = release};
