/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"
#include "numeric/random.h"

#include <inttypes.h>

/* Lanes that the last axis of a cache is rounded up to. */
enum { LANES = 128 };

/* All that is asked for, with defaults in place. */
typedef struct sizes {
    int64_t seqs, pages_per_seq, page_size, q_heads, kv_heads, dim;
    int64_t most;    /* keys of a sequence */
    int64_t pages;   /* of all */
    int64_t packing; /* elements in 32 bits */
    ejk_dtype kv, q;
    int32_t distribution[3];
} sizes;

/* Keys of the generator, one for each thing that is random. */
enum { LENGTHS, QUERIES, KEYS, VALUES, CACHE, RANDOM_THINGS };

/* ---- Options --------------------------------------------------------------------------------------- */

static ejk_status take(ejk_opt_int value, int64_t fallback, const char *name, int64_t *out) {
    *out = value.set ? value.value : fallback;
    if (*out >= 1 && *out <= INT32_MAX) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %" PRId64 ", expected 1 to %d", name, *out,
                     INT32_MAX);
}

static ejk_status take_dtype(ejk_dtype dtype, ejk_dtype fallback, const char *name,
                             ejk_dtype *out) {
    *out = dtype == EJK_DTYPE_UNSET ? fallback : dtype;
    if (*out == EJK_DTYPE_F32 || *out == EJK_DTYPE_BF16 || *out == EJK_DTYPE_F16) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s is %s, expected float32, bfloat16 or float16",
                     name, ejk_dtype_name(*out));
}

static ejk_status take_distribution(const ejk_rpa_inputs_options *options, sizes *s) {
    const int32_t *given = options->decode_prefill_mixed;
    s->distribution[2] = (int32_t)s->seqs;
    if (!options->has_distribution) return EJK_OK;
    for (int i = 0; i < 3; i++) s->distribution[i] = given[i];
    if (given[0] >= 0 && given[0] <= given[1] && given[1] <= given[2] && given[2] == s->seqs)
        return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "decode_prefill_mixed is %" PRId32 ", %" PRId32 ", %" PRId32
                     ", expected rising numbers from 0 on that end at num_seqs, %" PRId64,
                     given[0], given[1], given[2], s->seqs);
}

static ejk_status read_options(const ejk_rpa_inputs_options *options, sizes *s) {
    int64_t room, tokens;
    EJKI_TRY(take(options->num_seqs, 4, "num_seqs", &s->seqs));
    EJKI_TRY(take(options->pages_per_seq, 3, "pages_per_seq", &s->pages_per_seq));
    EJKI_TRY(take(options->page_size, 16, "page_size", &s->page_size));
    EJKI_TRY(take(options->num_q_heads, 8, "num_q_heads", &s->q_heads));
    EJKI_TRY(take(options->num_kv_heads, 2, "num_kv_heads", &s->kv_heads));
    EJKI_TRY(take(options->head_dim, 80, "head_dim", &s->dim));
    EJKI_TRY(take_dtype(options->kv_dtype, EJK_DTYPE_F32, "kv_dtype", &s->kv));
    EJKI_TRY(take_dtype(options->q_dtype, s->kv, "q_dtype", &s->q));
    s->packing = 4 / (int64_t)ejk_dtype_size(s->kv);
    if (s->page_size % s->packing != 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "page_size is %" PRId64 ", expected a multiple of %" PRId64
                         ", the elements of kv_dtype in 32 bits",
                         s->page_size, s->packing);
    EJKI_TRY(take_distribution(options, s));
    room = s->pages_per_seq * s->page_size;
    s->pages = s->seqs * s->pages_per_seq;
    EJKI_TRY(take(options->kv_len_max, ejki_min(room, INT32_MAX), "kv_len_max", &s->most));
    s->most = ejki_min(s->most, room);
    tokens = s->seqs * s->most;
    if (s->pages <= INT32_MAX && tokens <= INT32_MAX) return EJK_OK;
    return ejki_fail(EJK_STATUS_OVERFLOW,
                     "num_seqs %" PRId64 " with up to %" PRId64 " keys in %" PRId64
                     " pages each do not fit into int32",
                     s->seqs, s->most, s->pages_per_seq);
}

/* ---- Tensors --------------------------------------------------------------------------------------- */

static ejk_status make_numbers(ejk_owned_tensor *out, int64_t count) {
    return ejk_owned_tensor_create(EJK_DTYPE_I32, 1, &count, out);
}

static int64_t draw(ejk_random_key key, int64_t counter, int64_t most) {
    return 1 + (int64_t)((uint64_t)most * ejki_random_bits(key, (uint64_t)counter) >> 32);
}

/* Lengths and tables. Decoding sequences have one query; all have as many keys as queries, or more. */
static ejk_status make_tables(const sizes *s, ejk_random_key key, ejk_rpa_inputs *out) {
    EJKI_TRY(make_numbers(&out->kv_lens, s->seqs));
    EJKI_TRY(make_numbers(&out->block_tables, s->pages));
    EJKI_TRY(make_numbers(&out->query_start_loc, s->seqs + 1));
    EJKI_TRY(make_numbers(&out->distribution, 3));
    int32_t *lens = out->kv_lens.tensor.data, *tables = out->block_tables.tensor.data;
    int32_t *starts = out->query_start_loc.tensor.data, *parts = out->distribution.tensor.data;
    for (int64_t i = 0; i < s->seqs; i++) {
        int64_t keys = draw(key, 2 * i, s->most);
        int64_t queries = i < s->distribution[0] ? 1 : draw(key, 2 * i + 1, keys);
        lens[i] = (int32_t)keys;
        starts[i + 1] = (int32_t)(starts[i] + queries);
    }
    for (int64_t i = 0; i < s->pages; i++) tables[i] = (int32_t)i;
    for (int i = 0; i < 3; i++) parts[i] = s->distribution[i];
    return EJK_OK;
}

static ejk_status make_tokens(const sizes *s, int64_t tokens, int64_t heads, ejk_dtype dtype,
                              ejk_random_key key, ejk_threads *threads, ejk_owned_tensor *out) {
    const int64_t shape[3] = {tokens, heads, s->dim};
    EJKI_TRY(ejk_owned_tensor_create(dtype, 3, shape, out));
    return ejk_random_normal(key, 1, threads, &out->tensor);
}

/* Behind head_dim the cache is 0. */
static ejk_status make_cache(const sizes *s, ejk_random_key key, ejk_threads *threads,
                             ejk_owned_tensor *out) {
    const int64_t shape[5] = {s->pages, s->page_size, ejki_cdiv(2 * s->kv_heads, s->packing),
                              s->packing, ejki_cdiv(s->dim, LANES) * LANES};
    EJKI_TRY(ejk_owned_tensor_create(s->kv, 5, shape, out));
    ejk_tensor used = out->tensor;
    used.shape[4] = s->dim;
    return ejk_random_normal(key, 1, threads, &used);
}

static ejk_status make_all(const sizes *s, const ejk_random_key *keys, ejk_threads *threads,
                           ejk_rpa_inputs *out) {
    EJKI_TRY(make_tables(s, keys[LENGTHS], out));
    int64_t tokens = ((const int32_t *)out->query_start_loc.tensor.data)[s->seqs];
    EJKI_TRY(make_tokens(s, tokens, s->q_heads, s->q, keys[QUERIES], threads, &out->queries));
    EJKI_TRY(make_tokens(s, tokens, s->kv_heads, s->kv, keys[KEYS], threads, &out->keys));
    EJKI_TRY(make_tokens(s, tokens, s->kv_heads, s->kv, keys[VALUES], threads, &out->values));
    return make_cache(s, keys[CACHE], threads, &out->kv_cache);
}

void ejk_rpa_inputs_close(ejk_rpa_inputs *inputs) {
    if (!inputs) return;
    ejk_owned_tensor_close(&inputs->queries);
    ejk_owned_tensor_close(&inputs->keys);
    ejk_owned_tensor_close(&inputs->values);
    ejk_owned_tensor_close(&inputs->kv_cache);
    ejk_owned_tensor_close(&inputs->kv_lens);
    ejk_owned_tensor_close(&inputs->block_tables);
    ejk_owned_tensor_close(&inputs->query_start_loc);
    ejk_owned_tensor_close(&inputs->distribution);
}

ejk_status ejk_make_dummy_rpa_inputs(const ejk_rpa_inputs_options *options, ejk_rpa_inputs *out) {
    static const ejk_rpa_inputs_options defaults = {0};
    if (!out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL");
    if (!options) options = &defaults;
    sizes s = {0};
    ejk_random_key keys[RANDOM_THINGS];
    EJKI_TRY(read_options(options, &s));
    EJKI_TRY(
        ejk_prng_split(options->has_key ? options->key : ejk_prng_key(0), RANDOM_THINGS, keys));
    ejk_rpa_inputs made = {0};
    ejk_status status = make_all(&s, keys, options->threads, &made);
    if (status == EJK_OK)
        *out = made;
    else
        ejk_rpa_inputs_close(&made);
    return status;
}
