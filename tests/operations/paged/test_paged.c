/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over pages: defects of the system that it re-creates, each shown absent, and what bad tables are told. */
#include "support/context.h"

#include <math.h>
#include <string.h>

enum { SEQUENCES = 8, KEYS = 300, HEADS = 2, GROUP = 2, QUERIES = HEADS * GROUP, D = 8 };
enum { PAGE = 4, WIDTH = KEYS / PAGE, POOL = 601, ROWS = 64 };
enum layout { TOKENS_FIRST, HEADS_FIRST, INTERLEAVED };

static float query[ROWS * QUERIES * D], out[ROWS * QUERIES * D];
static float keys[SEQUENCES * KEYS * HEADS * D], values[SEQUENCES * KEYS * HEADS * D];
static float cache[2 * POOL * PAGE * HEADS * D], *key_cache = cache,
                                                 *value_cache = cache + POOL * PAGE * HEADS * D;
static int32_t table[SEQUENCES * WIDTH], lens[SEQUENCES], starts[SEQUENCES + 1];

static float *row_of(enum layout layout, int page, int row, int head, bool value) {
    const int at = page * PAGE + row;
    if (layout == INTERLEAVED) return cache + ((at * HEADS + head) * 2 + value) * D;
    float *from = value ? value_cache : key_cache;
    if (layout == HEADS_FIRST) return from + ((page * HEADS + head) * PAGE + row) * D;
    return from + (at * HEADS + head) * D;
}

static float *dense(float *from, int n, int t, int head) {
    return from + ((n * KEYS + t) * HEADS + head) * D;
}

/* Sequences of these lengths, `rows` query rows each; whatever nobody sees is NaN, entries that are not needed -1. */
static void lay_out(enum layout layout, int sequences, const int32_t *lengths, int rows) {
    for (size_t i = 0; i < sizeof cache / sizeof *cache; i++) cache[i] = NAN;
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) out[i] = NAN;
    for (int i = 0; i < SEQUENCES * WIDTH; i++) table[i] = -1;
    for (int n = 0; n < sequences; n++) {
        lens[n] = lengths[n];
        starts[n + 1] = starts[n] + rows;
        for (int t = 0; t < lengths[n]; t++) {
            const int page = (n * WIDTH + t / PAGE) * 7 % POOL;
            table[n * WIDTH + t / PAGE] = page;
            for (int h = 0; h < HEADS; h++) {
                memcpy(row_of(layout, page, t % PAGE, h, false), dense(keys, n, t, h),
                       D * sizeof *keys);
                memcpy(row_of(layout, page, t % PAGE, h, true), dense(values, n, t, h),
                       D * sizeof *values);
            }
        }
    }
}

/* Row `row` of the packed queries against keys low to high - 1 of sequence n, as the formula reads. */
static void expect_row(int row, int n, int low, int high, double cap, double sink) {
    for (int h = 0; h < QUERIES; h++) {
        const float *q = query + (row * QUERIES + h) * D, *o = out + (row * QUERIES + h) * D;
        double sum = exp(sink), wanted[D] = {0};
        for (int t = low; t < high; t++) {
            double z = 0;
            for (int d = 0; d < D; d++) z += (double)(q[d] * dense(keys, n, t, h / GROUP)[d]);
            z /= sqrt(D);
            if (cap > 0) z = cap * tanh(z / cap);
            sum += exp(z);
            for (int d = 0; d < D; d++)
                wanted[d] += exp(z) * (double)dense(values, n, t, h / GROUP)[d];
        }
        for (int d = 0; d < D; d++) EXPECT_NEAR((double)o[d], wanted[d] / sum, 1e-5);
    }
}

static ejk_tensor list(int32_t *from, int64_t count) {
    return ejk_tensor_1d(from, EJK_DTYPE_I32, count);
}
static ejk_tensor rows(float *from, int64_t count) {
    return ejk_tensor_3d(from, EJK_DTYPE_F32, count, QUERIES, D);
}
static ejk_tensor pages(float *from, int64_t second, int64_t third) {
    return ejk_tensor_contiguous(from, EJK_DTYPE_F32, 4, (int64_t[]){POOL, second, third, D});
}

static ejk_unified_attention_args unified(int sequences, int count) {
    return (ejk_unified_attention_args){.query = rows(query, count),
                                        .key_cache = pages(key_cache, PAGE, HEADS),
                                        .value_cache = pages(value_cache, PAGE, HEADS),
                                        .kv_lens = list(lens, sequences),
                                        .block_tables =
                                            ejk_tensor_2d(table, EJK_DTYPE_I32, sequences, WIDTH),
                                        .query_start_loc = list(starts, sequences + 1),
                                        .out = rows(out, count)};
}

/* BUG 5: the first blocks of keys lie outside the window of every row. */
static void a_window_far_from_the_first_key(void **state) {
    (void)state;
    lay_out(TOKENS_FIRST, 1, (const int32_t[]){KEYS}, 5);
    ejk_unified_attention_args a = unified(1, 5);
    a.sliding_window = ejk_int(3);
    EXPECT_OK(ejk_unified_attention(context, &a));
    for (int r = 0; r < 5; r++) expect_row(r, 0, KEYS - 5 + r - 2, KEYS - 5 + r + 1, 0, -INFINITY);
}

/* BUG 17, 18, 53 and 5b 14, 15: [pages,Hkv,page,D] is what it says, no configuration is needed, one split writes all
 * heads of a group, pages of nobody may hold NaN, and a window is one. */
static void page_attention_by_its_defaults(void **state) {
    (void)state;
    lay_out(HEADS_FIRST, 3, (const int32_t[]){KEYS, 1, 9}, 1);
    ejk_page_attention_args a = {.query = rows(query, 3),
                                 .key_cache = pages(key_cache, HEADS, PAGE),
                                 .value_cache = pages(value_cache, HEADS, PAGE),
                                 .context_lens = list(lens, 3),
                                 .block_tables = ejk_tensor_2d(table, EJK_DTYPE_I32, 3, WIDTH),
                                 .out = rows(out, 3)};
    for (int splits = 0; splits < 3; splits++) {
        if (splits > 0) a.num_splits = ejk_int(splits);
        EXPECT_OK(ejk_page_attention(context, &a));
        for (int n = 0; n < 3; n++) expect_row(n, n, 0, lens[n], 0, -INFINITY);
    }
    a.sliding_window = ejk_int(6);
    EXPECT_OK(ejk_page_attention(context, &a));
    for (int n = 0; n < 3; n++)
        expect_row(n, n, lens[n] > 6 ? lens[n] - 6 : 0, lens[n], 0, -INFINITY);
}

static void a_page_may_be_larger_than_its_buffer(void **state) {
    (void)state;
    lay_out(TOKENS_FIRST, 1, (const int32_t[]){KEYS}, 1);
    table[0] = 0;
    const ejk_decode_attention_args a = {
        .query = rows(query, 1),
        .key_buffer = ejk_tensor_3d(keys, EJK_DTYPE_F32, KEYS, HEADS, D),
        .value_buffer = ejk_tensor_3d(values, EJK_DTYPE_F32, KEYS, HEADS, D),
        .req_to_tokens = ejk_tensor_2d(table, EJK_DTYPE_I32, 1, 1),
        .seq_lens = list(lens, 1),
        .page_size = ejk_int(INT64_C(1) << 56),
        .out = rows(out, 1)};
    EXPECT_OK(ejk_decode_attention(context, &a));
    expect_row(0, 0, 0, KEYS, 0, -INFINITY);
}

static ejk_ragged_page_attention_args ragged(int sequences, int count) {
    return (ejk_ragged_page_attention_args){
        .queries = rows(query, count),
        .kv_pages = pages(cache, PAGE, 2 * HEADS),
        .context_lens = list(lens, sequences),
        .block_tables = ejk_tensor_2d(table, EJK_DTYPE_I32, sequences, WIDTH),
        .query_start_loc = list(starts, sequences + 1),
        .out = rows(out, count)};
}

/* BUG 19, 20: sequences of one row do not overwrite each other, with 75 pages each. */
static void decoding_sequences_have_their_own_rows(void **state) {
    (void)state;
    const int32_t lengths[SEQUENCES] = {KEYS, 1, 4, 5, 257, 280, 8, KEYS};
    for (int sequences = 2; sequences <= SEQUENCES; sequences += 3) {
        lay_out(INTERLEAVED, sequences, lengths, 1);
        const ejk_ragged_page_attention_args a = ragged(sequences, sequences);
        EXPECT_OK(ejk_ragged_page_attention(context, &a));
        for (int n = 0; n < sequences; n++) expect_row(n, n, 0, lens[n], 0, -INFINITY);
    }
}

/* BUG 21, 22, 23: defaults run, the cap is the formula's, and `optimized` neither drops context nor the window. */
static void context_before_the_queries_counts(void **state) {
    (void)state;
    lay_out(INTERLEAVED, 2, (const int32_t[]){50, 3}, 3);
    ejk_ragged_page_attention_args a = ragged(2, 6);
    a.logits_soft_cap = ejk_float(0.7);
    a.optimized = EJK_TRUE;
    EXPECT_OK(ejk_ragged_page_attention(context, &a));
    for (int i = 0; i < 6; i++) expect_row(i, i / 3, 0, lens[i / 3] - 2 + i % 3, 0.7, -INFINITY);
    a.sliding_window = ejk_int(2);
    EXPECT_OK(ejk_ragged_page_attention(context, &a));
    for (int i = 0; i < 6; i++) {
        const int high = lens[i / 3] - 2 + i % 3;
        expect_row(i, i / 3, high > 2 ? high - 2 : 0, high, 0.7, -INFINITY);
    }
}

/* BUG 24 and 5b 1, 2: entries that are not needed name a page of the same sequence, which is written to; and each row
 * of a prefill has its own window. */
static void padded_tables_do_not_undo_writes(void **state) {
    (void)state;
    static float new_keys[ROWS * HEADS * D], new_values[ROWS * HEADS * D];
    int32_t distribution[] = {0, 0, 1};
    lay_out(INTERLEAVED, 1, (const int32_t[]){40}, 40);
    for (int j = 40 / PAGE; j < WIDTH; j++) table[j] = table[0];
    for (int t = 0; t < 40; t++)
        for (int h = 0; h < HEADS; h++) {
            float *key = row_of(INTERLEAVED, table[t / PAGE], t % PAGE, h, false);
            memcpy(new_keys + (t * HEADS + h) * D, key, D * sizeof *key);
            memcpy(new_values + (t * HEADS + h) * D, key + D, D * sizeof *key);
            for (int d = 0; d < 2 * D; d++) key[d] = NAN; /* not there yet */
        }
    ejk_ragged_page_attention_v3_args a = {
        .queries = rows(query, 40),
        .keys = ejk_tensor_3d(new_keys, EJK_DTYPE_F32, 40, HEADS, D),
        .values = ejk_tensor_3d(new_values, EJK_DTYPE_F32, 40, HEADS, D),
        .kv_cache =
            ejk_tensor_contiguous(cache, EJK_DTYPE_F32, 5, (int64_t[]){POOL, PAGE, HEADS, 2, D}),
        .kv_lens = list(lens, 1),
        .block_tables = list(table, WIDTH),
        .query_start_loc = list(starts, 2),
        .distribution = list(distribution, 3),
        .sliding_window = ejk_int(8),
        .out = rows(out, 40)};
    EXPECT_OK(ejk_ragged_page_attention_v3(context, &a));
    for (int r = 0; r < 40; r++) expect_row(r, 0, r > 7 ? r - 7 : 0, r + 1, 0, -INFINITY);
    a.q_scale = ejk_float(-1);
    EXPECT_FAIL(INVALID_ARGUMENT, "q_scale is -1", ejk_ragged_page_attention_v3(context, &a));
}

/* BUG 25, 26, 27: sinks join the denominator only, window and cap count, and no length or size is a block's. */
static void ragged_decoding_takes_what_it_is_given(void **state) {
    (void)state;
    enum { WIDE = 136, FEW = 37 };
    static float wide_query[WIDE], wide_key[FEW * WIDE], wide_value[FEW * WIDE], wide_out[WIDE];
    float sinks[] = {0.5F};
    int32_t first[] = {0, 2}, end[] = {KEYS, 33};
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) out[i] = NAN;
    ejk_ragged_decode_attention_args a = {
        .query = rows(query, 2),
        .key = ejk_tensor_contiguous(keys, EJK_DTYPE_F32, 4, (int64_t[]){2, KEYS, HEADS, D}),
        .value = ejk_tensor_contiguous(values, EJK_DTYPE_F32, 4, (int64_t[]){2, KEYS, HEADS, D}),
        .sequence_start = list(first, 2),
        .sequence_end = list(end, 2),
        .softmax_aux = ejk_tensor_1d(sinks, EJK_DTYPE_F32, 1),
        .out = rows(out, 2)};
    EXPECT_OK(ejk_ragged_decode_attention(context, &a));
    for (int n = 0; n < 2; n++) expect_row(n, n, first[n], end[n], 0, 0.5);
    a.sliding_window = ejk_window_of(9, 0);
    a.logits_soft_cap = ejk_float(0.7);
    EXPECT_OK(ejk_ragged_decode_attention(context, &a));
    for (int n = 0; n < 2; n++) expect_row(n, n, end[n] - 10, end[n], 0.7, 0.5);

    for (int i = 0; i < FEW * WIDE; i++) wide_key[i] = (float)(i % 7), wide_value[i] = 3;
    end[0] = FEW;
    const int64_t cached[] = {1, FEW, 1, WIDE};
    const ejk_ragged_decode_attention_args b = {
        .query = ejk_tensor_3d(wide_query, EJK_DTYPE_F32, 1, 1, WIDE),
        .key = ejk_tensor_contiguous(wide_key, EJK_DTYPE_F32, 4, cached),
        .value = ejk_tensor_contiguous(wide_value, EJK_DTYPE_F32, 4, cached),
        .sequence_start = list(first, 1),
        .sequence_end = list(end, 1),
        .out = ejk_tensor_3d(wide_out, EJK_DTYPE_F32, 1, 1, WIDE)};
    EXPECT_OK(ejk_ragged_decode_attention(context, &b));
    for (int d = 0; d < WIDE; d++) EXPECT_NEAR((double)wide_out[d], 3, 1e-5);
}

/* BUG 28: flash_mla runs by its defaults. A row that sees one key has its value. */
static void flash_mla_by_its_defaults(void **state) {
    (void)state;
    float q[2] = {1, 2}, latent[3] = {1, 2, 3}, w_kc[6] = {1, 1, 1, 1, 1, 1},
          w_vc[6] = {1, 10, 2, 20, 3, 30}, result[2] = {0};
    const ejk_flash_mla_args a = {
        .query = ejk_tensor_contiguous(q, EJK_DTYPE_F32, 4, (int64_t[]){1, 1, 1, 2}),
        .key_value = ejk_tensor_3d(latent, EJK_DTYPE_F32, 1, 1, 3),
        .w_kc = ejk_tensor_3d(w_kc, EJK_DTYPE_F32, 3, 1, 2),
        .w_vc = ejk_tensor_3d(w_vc, EJK_DTYPE_F32, 3, 1, 2),
        .out = ejk_tensor_contiguous(result, EJK_DTYPE_F32, 4, (int64_t[]){1, 1, 1, 2})};
    EXPECT_OK(ejk_flash_mla(context, &a));
    EXPECT_NEAR((double)result[0], 14, 1e-5);
    EXPECT_NEAR((double)result[1], 140, 1e-4);
}

/* 5b 16: rows of R + P lanes, and of both rounded up to 128, are the same to a call. */
static void latents_lie_in_rows_of_either_size(void **state) {
    (void)state;
    enum { R = 8, P = 4, LEN = 6, LANES = 256 };
    static float latents[2 * PAGE * LANES], results[2][LEN * R];
    int32_t length = LEN, ends[] = {0, LEN}, entries[] = {1, 0}, distribution[] = {0, 0, 1};
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < 2 * PAGE * LANES; n++) latents[n] = NAN;
        ejk_multi_latent_ragged_page_attention_args a = {
            .queries_nope = ejk_tensor_3d(query, EJK_DTYPE_F32, LEN, 1, R),
            .queries_pe = ejk_tensor_3d(query, EJK_DTYPE_F32, LEN, 1, P),
            .keys_values = ejk_tensor_2d(keys, EJK_DTYPE_F32, LEN, R),
            .keys_pe = ejk_tensor_2d(values, EJK_DTYPE_F32, LEN, P),
            .kv_cache = ejk_tensor_3d(latents, EJK_DTYPE_F32, 2, PAGE, i ? LANES : R + P),
            .kv_lens = list(&length, 1),
            .block_tables = list(entries, 2),
            .query_start_loc = list(ends, 2),
            .distribution = list(distribution, 3),
            .out = ejk_tensor_3d(results[i], EJK_DTYPE_F32, LEN, 1, R)};
        EXPECT_OK(ejk_multi_latent_ragged_page_attention(context, &a));
        a.v_scale = ejk_float(2);
        EXPECT_FAIL(INVALID_ARGUMENT, "v_scale is 2, expected k_scale",
                    ejk_multi_latent_ragged_page_attention(context, &a));
    }
    assert_true(isfinite(results[0][0]) && results[0][0] != 0);
    assert_memory_equal(results[0], results[1], sizeof results[0]);
}

/* Each wrong number is an argument, its value and what was expected, and nothing is written. */
static void wrong_tables_are_refused(void **state) {
    (void)state;
    static const struct {
        int32_t *at, value;
        const char *sentence;
    } wrong[] = {{&table[1], POOL, "page 1 of sequence 0 is 601, expected 0 to 600"},
                 {&table[2], -1, "page 2 of sequence 0 is -1, expected 0 to 600"},
                 {&lens[1], KEYS + 1, "sequence 1 has 301 keys, expected at most 300"},
                 {&lens[0], -1, "-1, expected 0 or more"},
                 {&starts[1], 7, "query_start_loc[1] is 7, expected 0 to 4"},
                 {&starts[2], 1, "query_start_loc[2] is 1, expected 2 to 4"},
                 {&starts[0], 1, "query_start_loc[0] is 1, expected 0"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        lay_out(TOKENS_FIRST, 2, (const int32_t[]){40, 9}, 2);
        const ejk_unified_attention_args a = unified(2, 4);
        EXPECT_OK(ejk_unified_attention(context, &a));
        for (int n = 0; n < 4 * QUERIES * D; n++) out[n] = 77;
        *wrong[i].at = wrong[i].value;
        assert_int_equal(ejk_unified_attention(context, &a), EJK_STATUS_INVALID_ARGUMENT);
        if (!strstr(ejk_last_error(), wrong[i].sentence))
            fail_msg("\"%s\" does not say \"%s\"", ejk_last_error(), wrong[i].sentence);
        for (int n = 0; n < 4 * QUERIES * D; n++) assert_true(out[n] == 77);
        starts[0] = 0;
    }
}

/* Numbers that only some of the names have. */
static void wrong_lists_are_refused(void **state) {
    (void)state;
    int32_t number[3] = {0}, starts_at[] = {-1, 0};
    float bias[9] = {0};
    for (size_t n = 0; n < sizeof out / sizeof *out; n++) out[n] = 77;
    lay_out(TOKENS_FIRST, 2, (const int32_t[]){40, 9}, 2);
    for (size_t n = 0; n < sizeof out / sizeof *out; n++) out[n] = 77;
    ejk_unified_attention_args a = unified(2, 4);
    a.causal = EJK_FALSE;
    EXPECT_FAIL(INVALID_ARGUMENT, "causal is false", ejk_unified_attention(context, &a));
    a = unified(2, 4);
    a.qq_bias = ejk_tensor_2d(bias, EJK_DTYPE_F32, 1, 1);
    EXPECT_FAIL(INVALID_ARGUMENT, "2 rows, expected at most the 1 of qq_bias",
                ejk_unified_attention(context, &a));
    a = unified(2, 4);
    a.block_tables = (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
    a.kv_indices = list(table, 13);
    a.kv_indptr = list(number, 3);
    number[1] = 10, number[2] = 14;
    EXPECT_FAIL(INVALID_ARGUMENT, "kv_indptr[2] is 14, expected 10 to 13",
                ejk_unified_attention(context, &a));
    ejk_ragged_page_attention_args r = ragged(2, 4);
    r.num_seqs = list(number, 1);
    for (int bad = -1; bad < 4; bad += 4) {
        number[0] = bad;
        EXPECT_FAIL(INVALID_ARGUMENT, "sequences are to be processed, expected 0 to 2",
                    ejk_ragged_page_attention(context, &r));
    }
    const ejk_ragged_decode_attention_args d = {
        .query = rows(query, 2),
        .key = ejk_tensor_contiguous(keys, EJK_DTYPE_F32, 4, (int64_t[]){2, KEYS, HEADS, D}),
        .value = ejk_tensor_contiguous(values, EJK_DTYPE_F32, 4, (int64_t[]){2, KEYS, HEADS, D}),
        .sequence_start = list(starts_at, 2),
        .sequence_end = list(lens, 2),
        .out = rows(out, 2)};
    EXPECT_FAIL(INVALID_ARGUMENT, "sequence 0 has keys -1 to 40",
                ejk_ragged_decode_attention(context, &d));
    /* Of the second page of 4 the buffer has 2 rows. */
    ejk_decode_attention_args s = {.query = rows(query, 1),
                                   .key_buffer = ejk_tensor_3d(keys, EJK_DTYPE_F32, 6, HEADS, D),
                                   .value_buffer =
                                       ejk_tensor_3d(values, EJK_DTYPE_F32, 6, HEADS, D),
                                   .req_to_tokens = ejk_tensor_2d(number, EJK_DTYPE_I32, 1, 2),
                                   .seq_lens = list(lens, 1),
                                   .page_size = ejk_int(4),
                                   .out = rows(out, 1)};
    number[0] = 0, number[1] = 1, lens[0] = 7;
    EXPECT_FAIL(INVALID_ARGUMENT, "page 1 of sequence 0 is 1, which has no row 2",
                ejk_decode_attention(context, &s));
    for (size_t n = 0; n < sizeof out / sizeof *out; n++) assert_true(out[n] == 77);
    lens[0] = 6;
    EXPECT_OK(ejk_decode_attention(context, &s));
    expect_row(0, 0, 0, 6, 0, -INFINITY);
}

/* Rows that are written need room among the keys, and slots have to be there; the cache stays as it is. */
static void wrong_writes_are_refused(void **state) {
    (void)state;
    static float before[sizeof cache / sizeof *cache];
    int32_t slots[] = {0, 5};
    lay_out(TOKENS_FIRST, 2, (const int32_t[]){40, 1}, 2);
    memcpy(before, cache, sizeof cache);
    ejk_update_kv_cache_args a = {
        .key = ejk_tensor_3d(keys, EJK_DTYPE_F32, 4, HEADS, D),
        .value = ejk_tensor_3d(values, EJK_DTYPE_F32, 4, HEADS, D),
        .key_cache = pages(key_cache, PAGE, HEADS),
        .value_cache = pages(value_cache, PAGE, HEADS),
        .kv_lens = list(lens, 2),
        .block_tables = ejk_tensor_2d(table, EJK_DTYPE_I32, 2, WIDTH),
        .query_start_loc = list(starts, 3),
    };
    EXPECT_FAIL(INVALID_ARGUMENT, "sequence 1 writes 2 rows and has 1 keys",
                ejk_update_kv_cache(context, &a));
    a.kv_lens = a.block_tables = a.query_start_loc = (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
    a.key.shape[0] = a.value.shape[0] = 2;
    a.slot_mapping = list(slots, 2);
    slots[1] = POOL * PAGE;
    EXPECT_FAIL(INVALID_ARGUMENT, "slot_mapping[1] is 2404, expected -1 to 2403",
                ejk_update_kv_cache(context, &a));
    slots[1] = -2;
    EXPECT_FAIL(INVALID_ARGUMENT, "slot_mapping[1] is -2", ejk_update_kv_cache(context, &a));
    assert_memory_equal(before, cache, sizeof cache);
}

/* A window of 0 or less is none. */
static void windows_of_nothing_are_none(void **state) {
    (void)state;
    lay_out(TOKENS_FIRST, 1, (const int32_t[]){KEYS}, 1);
    ejk_unified_attention_args a = unified(1, 1);
    for (int window = 0; window > -2; window--) {
        a.sliding_window = ejk_int(window);
        EXPECT_OK(ejk_unified_attention(context, &a));
        expect_row(0, 0, 0, KEYS, 0, -INFINITY);
    }
}

/* What is said to be in common has to be: pages, and as many keys. A call with a window has no use for it. */
static void a_prefix_is_what_tables_say(void **state) {
    (void)state;
    lay_out(TOKENS_FIRST, 2, (const int32_t[]){40, 9}, 2);
    ejk_unified_attention_args a = unified(2, 4);
    a.common_prefix_len = ejk_int(5);
    for (int n = 0; n < 4 * QUERIES * D; n++) out[n] = 77;
    EXPECT_FAIL(INVALID_ARGUMENT, "page 0 of sequence 1 is 525, expected 0, as sequence 0 has it",
                ejk_unified_attention(context, &a));
    table[WIDTH] = table[0];
    EXPECT_FAIL(INVALID_ARGUMENT, "page 1 of sequence 1 is 532, expected 7, as sequence 0 has it",
                ejk_unified_attention(context, &a));
    table[WIDTH + 1] = table[1];
    a.common_prefix_len = ejk_int(10);
    EXPECT_FAIL(INVALID_ARGUMENT, "sequence 1 has 9 keys, expected the 10 of common_prefix_len",
                ejk_unified_attention(context, &a));
    a.common_prefix_len = ejk_int(-1);
    EXPECT_FAIL(INVALID_ARGUMENT, "common_prefix_len is -1", ejk_unified_attention(context, &a));
    for (int n = 0; n < 4 * QUERIES * D; n++) assert_true(out[n] == 77);
    a.common_prefix_len = ejk_int(8);
    EXPECT_OK(ejk_unified_attention(context, &a));
    a.common_prefix_len = ejk_int(40);
    a.sliding_window = ejk_int(3);
    EXPECT_OK(ejk_unified_attention(context, &a));
}

/* Rows of a prompt that are no multiple of those of a task, whatever the tier: each task is as the reference has it. */
static void prompts_are_longer_than_a_task(void **state) {
    (void)state;
    enum { TOKENS = 700, LINE = 32, PROMPT_GROUP = 3, PROMPT_PAGES = TOKENS / 4 };
    static uint16_t q[TOKENS * PROMPT_GROUP * LINE], k[TOKENS * LINE], v[TOKENS * LINE];
    static uint16_t got[TOKENS * PROMPT_GROUP * LINE], wanted[TOKENS * PROMPT_GROUP * LINE];
    int32_t length = TOKENS, first[2] = {0, TOKENS}, page[PROMPT_PAGES];
    for (int n = 0; n < PROMPT_PAGES; n++) page[n] = n * 3 % PROMPT_PAGES;
    for (int n = 0; n < TOKENS * PROMPT_GROUP * LINE; n++)
        q[n] = ejk_f32_to_bf16((float)sin(0.7 * n));
    for (int n = 0; n < TOKENS * LINE; n++) {
        k[n] = ejk_f32_to_bf16((float)(2 * sin(1.3 * n + 0.1)));
        v[n] = ejk_f32_to_bf16((float)cos(0.9 * n));
    }
    ejk_unified_attention_args a = {
        .query = ejk_tensor_3d(q, EJK_DTYPE_BF16, TOKENS, PROMPT_GROUP, LINE),
        .key_cache = ejk_tensor_4d(k, EJK_DTYPE_BF16, PROMPT_PAGES, 4, 1, LINE),
        .value_cache = ejk_tensor_4d(v, EJK_DTYPE_BF16, PROMPT_PAGES, 4, 1, LINE),
        .kv_lens = list(&length, 1),
        .block_tables = ejk_tensor_2d(page, EJK_DTYPE_I32, 1, PROMPT_PAGES),
        .query_start_loc = list(first, 2),
        .out = ejk_tensor_3d(got, EJK_DTYPE_BF16, TOKENS, PROMPT_GROUP, LINE),
    };
    a.cfg.fwd_params.q_blocksize = ejk_int(1020);
    EXPECT_OK(ejk_unified_attention(context, &a));
    a.cfg = (ejk_paged_attention_config){.platform = "reference"};
    a.out.data = wanted;
    EXPECT_OK(ejk_unified_attention(context, &a));
    for (int n = 0; n < TOKENS * PROMPT_GROUP * LINE; n++)
        EXPECT_NEAR((double)ejk_bf16_to_f32(got[n]), (double)ejk_bf16_to_f32(wanted[n]), 0.01);
}

/*
 * One key, whose value has all codes of float8_e4m3fn: the result is what they stand for, NaN among them. The numbers
 * of documented configurations change nothing.
 */
static void codes_of_float8_are_read_as_they_are(void **state) {
    (void)state;
    static uint8_t none[256], codes[256];
    static float zeros[256], found[256];
    int32_t page = 0, length = 1, ends[] = {0, 1};
    for (int n = 0; n < 256; n++) codes[n] = (uint8_t)n;
    static const char numbers[] =
        "{\"num_splits\":4,\"pages_per_compute_block\":2,\"num_kv_pages_per_block\":3,"
        "\"num_queries_per_block\":8,\"chunk_prefill_size\":16,\"num_warps\":8,\"num_stages\":2}";
    ejk_unified_attention_args a = {
        .query = ejk_tensor_3d(zeros, EJK_DTYPE_F32, 1, 1, 256),
        .key_cache = ejk_tensor_4d(none, EJK_DTYPE_F8E4M3, 1, 1, 1, 256),
        .value_cache = ejk_tensor_4d(codes, EJK_DTYPE_F8E4M3, 1, 1, 1, 256),
        .kv_lens = list(&length, 1),
        .block_tables = ejk_tensor_2d(&page, EJK_DTYPE_I32, 1, 1),
        .query_start_loc = list(ends, 2),
        .out = ejk_tensor_3d(found, EJK_DTYPE_F32, 1, 1, 256)};
    EXPECT_OK(ejk_record_from_json(&ejk_paged_attention_config_record, numbers, &a.cfg));
    assert_int_equal(a.cfg.chunk_prefill_size.value, 16);
    EXPECT_OK(ejk_unified_attention(context, &a));
    for (int n = 0; n < 256; n++) {
        const int exponent = n >> 3 & 15, bits = n & 7;
        const double size = exponent ? ldexp(8 + bits, exponent - 10) : ldexp(bits, -9);
        if ((n & 127) == 127)
            assert_true(isnan(found[n]));
        else
            assert_true((double)found[n] == (n < 128 ? size : -size));
    }
}

static int set_up(void **state) {
    for (int i = 0; i < ROWS * QUERIES * D; i++) query[i] = (float)sin(0.7 * i);
    for (int i = 0; i < SEQUENCES * KEYS * HEADS * D; i++) {
        keys[i] = (float)(2 * sin(1.3 * i + 0.1));
        values[i] = (float)cos(0.9 * i);
    }
    return context_set_up(state);
}

/* Pages head by head: whether keys and values are read one after the other changes no bits. What nobody sees is NaN. */
static void order_of_reading_changes_no_bits(void **state) {
    (void)state;
    enum { LENGTH = 77, IN_PAGE = 5, PAGES_OF = 16, KV = 2, ASKED = 4 * KV, DIM = 128 };
    static float cached[2][PAGES_OF * KV * IN_PAGE * DIM], asks[ASKED * DIM], found[2][ASKED * DIM];
    int32_t length = LENGTH, page[PAGES_OF];
    for (int i = 0; i < PAGES_OF; i++) page[i] = i * 7 % PAGES_OF;
    for (int i = 0; i < ASKED * DIM; i++) asks[i] = (float)(i * 29 % 101 - 50) / 50;
    for (int c = 0; c < 2; c++)
        for (int i = 0; i < PAGES_OF * KV * IN_PAGE * DIM; i++)
            cached[c][i] = (float)(i * 37 % 201 - 100) / 90;
    for (int h = 0; h < KV; h++)
        for (int t = LENGTH % IN_PAGE; t < IN_PAGE; t++)
            for (int d = 0; d < DIM; d++)
                cached[0][((page[PAGES_OF - 1] * KV + h) * IN_PAGE + t) * DIM + d] =
                    cached[1][((page[PAGES_OF - 1] * KV + h) * IN_PAGE + t) * DIM + d] = NAN;
    for (int window = 0; window <= 40; window += 40) {
        for (int i = 0; i < 2; i++) {
            ejk_page_attention_args a = {
                .query = ejk_tensor_3d(asks, EJK_DTYPE_F32, 1, ASKED, DIM),
                .key_cache = ejk_tensor_4d(cached[0], EJK_DTYPE_F32, PAGES_OF, KV, IN_PAGE, DIM),
                .value_cache = ejk_tensor_4d(cached[1], EJK_DTYPE_F32, PAGES_OF, KV, IN_PAGE, DIM),
                .context_lens = list(&length, 1),
                .block_tables = ejk_tensor_2d(page, EJK_DTYPE_I32, 1, PAGES_OF),
                .out = ejk_tensor_3d(found[i], EJK_DTYPE_F32, 1, ASKED, DIM)};
            a.cfg.fwd_params.prefetch_hint = ejk_int(i ? 3 : 1);
            if (window > 0) a.sliding_window = ejk_int(window);
            EXPECT_OK(ejk_page_attention(context, &a));
        }
        assert_memory_equal(found[0], found[1], sizeof found[0]);
        for (int i = 0; i < ASKED * DIM; i++) assert_true(isfinite(found[1][i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_far_from_the_first_key),
        cmocka_unit_test(page_attention_by_its_defaults),
        cmocka_unit_test(a_page_may_be_larger_than_its_buffer),
        cmocka_unit_test(decoding_sequences_have_their_own_rows),
        cmocka_unit_test(context_before_the_queries_counts),
        cmocka_unit_test(padded_tables_do_not_undo_writes),
        cmocka_unit_test(ragged_decoding_takes_what_it_is_given),
        cmocka_unit_test(flash_mla_by_its_defaults),
        cmocka_unit_test(latents_lie_in_rows_of_either_size),
        cmocka_unit_test(wrong_tables_are_refused),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(wrong_writes_are_refused),
        cmocka_unit_test(windows_of_nothing_are_none),
        cmocka_unit_test(a_prefix_is_what_tables_say),
        cmocka_unit_test(prompts_are_longer_than_a_task),
        cmocka_unit_test(codes_of_float8_are_read_as_they_are),
        cmocka_unit_test(order_of_reading_changes_no_bits),
    };
    return cmocka_run_group_tests(tests, set_up, context_tear_down);
}
