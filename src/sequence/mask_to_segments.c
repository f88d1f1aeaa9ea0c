/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a mask to segment ids. Rows are packed to bits, hashed and numbered. In the same pass, 64 rows at a time
 * are turned, so that each column gives a word to a hash of its own: the mask is read once. Columns of equal
 * hash are compared by their bits in one row of each pattern, as rows of one pattern cannot tell them apart.
 *
 * Many matrices are spread over the threads whole; the steps of one are spread otherwise.
 */
#include "base/bits.h"
#include "sequence/patterns.h"
#include "sequence/sequence.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One matrix at work, with memory for one. */
typedef struct matrix {
    ejk_threads
        *threads;     /* a loop inside a task runs on its thread, so these may always be given */
    ejk_tensor heads; /* [H,Q,K]; rows are what all H have in common */
    uint64_t secret;
    int64_t first_id;
    ejki_bit_rows rows, columns;
    ejki_patterns row_patterns, column_patterns;
    int64_t representatives; /* of rows */
    uint64_t *scratch;       /* a row for each task of rows */
    uint64_t *shares;        /* of the columns' hashes, for each task of rows: rows.width * 64 */
    uint64_t *any;           /* the columns with a bit, for each task of rows: rows.width */
    uint64_t *shared;        /* [rows.width]: the columns whose hash another has too */
    int64_t rows_a_task;     /* a multiple of 64 */
    void *memory[12];
    int held;
} matrix;

/* ---- Rows, and hashes of columns --------------------------------------------------------------------- */

/* Row i as bits. */
static void pack_row(const matrix *m, int64_t i, uint64_t *words, uint64_t *scratch) {
    /* No head at all forbids nothing. */
    if (m->heads.shape[0] == 0) {
        memset(words, 0, (size_t)m->rows.width * sizeof *words);
        for (int64_t k = 0; k < m->columns.count; k++) words[k / 64] |= UINT64_C(1) << k % 64;
    }
    for (int64_t h = 0; h < m->heads.shape[0]; h++) {
        ejk_tensor row = ejki_tensor_at(ejki_tensor_at(m->heads, h), i);
        ejki_pack_row(&row, h == 0 ? words : scratch);
        for (int64_t w = 0; h > 0 && w < m->rows.width; w++) words[w] &= scratch[w];
    }
}

/* Adds a word of each of up to 64 rows from `first` on to the hashes of its 64 columns. */
static void add_square(const matrix *m, int64_t first, int64_t count, int64_t word, uint64_t key,
                       uint64_t *shares, uint64_t *any) {
    uint64_t block[64], some = 0;
    const uint64_t *from = m->rows.words + first * m->rows.stride + word;
    for (int64_t i = 0; i < count; i++) some |= block[i] = from[i * m->rows.stride];
    *any |= some;
    for (int64_t i = count; i < 64; i++) block[i] = 0;
    ejki_transpose_bits(block);
    for (int64_t i = 0; i < 64; i++) shares[i] += ejki_word_share(m->secret, key, 0, block[i]);
}

/* The rows of one task, 64 at a time: their bits and hashes, and their part in those of the columns. */
static void pack_rows(void *argument, int64_t index) {
    const matrix *m = argument;
    int64_t start = index * m->rows_a_task, width = m->rows.width;
    int64_t end = ejki_min(start + m->rows_a_task, m->rows.count);
    uint64_t *scratch = m->scratch + index * m->rows.stride;
    uint64_t *shares = m->shares + index * width * 64, *any = m->any + index * width;
    memset(shares, 0, (size_t)width * 64 * sizeof *shares);
    memset(any, 0, (size_t)width * sizeof *any);
    for (int64_t first = start; first < end; first += 64) {
        int64_t count = ejki_min(64, end - first);
        for (int64_t i = first; i < first + count; i++) {
            uint64_t *words = m->rows.words + i * m->rows.stride;
            pack_row(m, i, words, scratch);
            m->row_patterns.hashes[i] = ejki_hash_bits(words, width, m->secret);
        }
        uint64_t key = ejki_line_key(m->secret, first);
        for (int64_t w = 0; w < width; w++)
            add_square(m, first, count, w, key, shares + 64 * w, any + w);
    }
}

static int64_t row_tasks(const matrix *m) {
    return ejki_cdiv(m->rows.count, m->rows_a_task);
}

/* The hashes of the columns of one word, from what all tasks have. */
static void join_columns(void *argument, int64_t word) {
    const matrix *m = argument;
    int64_t tasks = row_tasks(m), count = ejki_min(64, m->columns.count - word * 64);
    uint64_t sums[64] = {0}, any = 0;
    for (int64_t t = 0; t < tasks; t++) {
        const uint64_t *shares = m->shares + (t * m->rows.width + word) * 64;
        for (int64_t i = 0; i < 64; i++) sums[i] += shares[i];
        any |= m->any[t * m->rows.width + word];
    }
    for (int64_t i = 0; i < count; i++)
        m->column_patterns.hashes[word * 64 + i] = any >> i & 1 ? ejki_hash_done(sums[i]) : 0;
}

/* ---- Bits of columns --------------------------------------------------------------------------------- */

/* Words of a row that one task turns, and rows it turns before the next word: whole lines of the cache. */
enum { WORDS_A_TASK = 8, ROWS_A_TURN = 8 * 64 };

/* The bits of up to 64 representatives from `first`, in one word of their rows. */
static void gather(const matrix *m, int64_t first, int64_t word, uint64_t block[64]) {
    int64_t count = ejki_min(64, m->representatives - first);
    for (int64_t i = 0; i < 64; i++) {
        block[i] = 0;
        if (i >= count) continue;
        int64_t row = m->row_patterns.representatives[first + i];
        block[i] = m->rows.words[row * m->rows.stride + word];
    }
}

static void turn_word(const matrix *m, int64_t first, int64_t word) {
    uint64_t block[64];
    gather(m, first, word, block);
    ejki_transpose_bits(block);
    int64_t count = ejki_min(64, m->columns.count - word * 64);
    uint64_t *column = m->columns.words + word * 64 * m->columns.stride + first / 64;
    for (int64_t i = 0; i < count; i++) column[i * m->columns.stride] = block[i];
}

/* Only where a column will be compared. */
static void turn_columns(void *argument, int64_t index) {
    const matrix *m = argument;
    int64_t start = index * WORDS_A_TASK;
    int64_t end = ejki_min(start + WORDS_A_TASK, m->rows.width);
    for (int64_t top = 0; top < m->representatives; top += ROWS_A_TURN) {
        int64_t bottom = ejki_min(top + ROWS_A_TURN, m->representatives);
        for (int64_t word = start; word < end; word++) {
            for (int64_t first = top; first < bottom && m->shared[word] != 0; first += 64)
                turn_word(m, first, word);
        }
    }
}

static void number(matrix *m) {
    ejk_parallel_for(m->threads, row_tasks(m), pack_rows, m);
    m->representatives = ejki_number_patterns(&m->rows, m->first_id, &m->row_patterns);
    ejk_parallel_for(m->threads, m->rows.width, join_columns, m);
    m->columns.width = ejki_bit_words(m->representatives);
    m->columns.stride = m->columns.width | 1;
    if (ejki_find_shared(m->columns.count, &m->column_patterns, m->shared))
        ejk_parallel_for(m->threads, ejki_cdiv(m->rows.width, WORDS_A_TASK), turn_columns, m);
    (void)ejki_number_patterns(&m->columns, m->first_id, &m->column_patterns);
}

/* ---- Memory ------------------------------------------------------------------------------------------ */

/* Uninitialised: whatever is read was written before. */
static void *hold(matrix *m, int64_t count, size_t size) {
    int64_t bytes;
    void *memory = ejki_mul(count, (int64_t)size, &bytes) ? ejki_allocate(bytes) : NULL;
    return m->memory[m->held++] = memory;
}

static ejki_patterns hold_patterns(matrix *m, int64_t count) {
    return (ejki_patterns){hold(m, count, sizeof(uint64_t)), hold(m, count, sizeof(int64_t)),
                           hold(m, count, sizeof(int64_t)), NULL};
}

/* The two numberings use the table one after the other. False if there is no memory. */
static bool create(matrix *m, ejk_threads *threads, int64_t queries, int64_t keys) {
    m->threads = threads;
    /* Odd strides: a column of words does not fall into few sets of the cache. */
    int64_t across = ejki_bit_words(keys), down = ejki_bit_words(queries);
    m->rows = (ejki_bit_rows){NULL, queries, across, across | 1};
    m->columns = (ejki_bit_rows){NULL, keys, down, down | 1};
    int64_t least = ejki_cdiv(65536, ejki_max(keys, 1));
    int64_t even = ejki_cdiv(queries, 4 * (int64_t)ejk_threads_count(threads));
    m->rows_a_task = ejki_round_up(ejki_max(ejki_max(least, even), 1), 64);
    m->rows.words = hold(m, queries * m->rows.stride, sizeof(uint64_t));
    m->columns.words = hold(m, keys * m->columns.stride, sizeof(uint64_t));
    m->scratch = hold(m, row_tasks(m) * m->rows.stride, sizeof(uint64_t));
    m->shares = hold(m, row_tasks(m) * across * 64, sizeof(uint64_t));
    m->any = hold(m, row_tasks(m) * across, sizeof(uint64_t));
    m->shared = hold(m, across, sizeof(uint64_t));
    m->row_patterns = hold_patterns(m, queries);
    m->column_patterns = hold_patterns(m, keys);
    int64_t slots = ejki_pattern_slots(ejki_max(queries, keys));
    m->row_patterns.table = ejki_sequence_alloc(slots, sizeof(int64_t));
    m->column_patterns.table = m->row_patterns.table;
    bool complete = m->row_patterns.table != NULL;
    for (int i = 0; i < m->held; i++) complete = complete && m->memory[i] != NULL;
    return complete;
}

static void destroy(matrix *m) {
    for (int i = 0; i < m->held; i++) free(m->memory[i]);
    free(m->row_patterns.table);
}

/* ---- All matrices ------------------------------------------------------------------------------------ */

typedef struct conversion {
    ejk_tensor mask;         /* [B,M,H,Q,K]: matrices b and m, over H heads each */
    ejk_tensor q_ids, k_ids; /* [B,M,Q], [B,M,K] */
    int64_t first_id;
    uint64_t secret;
    int64_t workers;
    matrix *matrices; /* one a worker */
} conversion;

static void convert_one(const conversion *c, matrix *m, int64_t index) {
    int64_t batch = index / c->mask.shape[1], inner = index % c->mask.shape[1];
    m->heads = ejki_tensor_at(ejki_tensor_at(c->mask, batch), inner);
    m->first_id = c->first_id;
    m->secret = c->secret;
    number(m);
    ejk_tensor q = ejki_tensor_at(ejki_tensor_at(c->q_ids, batch), inner);
    ejk_tensor k = ejki_tensor_at(ejki_tensor_at(c->k_ids, batch), inner);
    ejk_tensor q_ids = ejk_tensor_1d(m->row_patterns.ids, EJK_DTYPE_I64, m->rows.count);
    ejk_tensor k_ids = ejk_tensor_1d(m->column_patterns.ids, EJK_DTYPE_I64, m->columns.count);
    /* They cannot fail: all was checked. */
    if (ejk_tensor_copy(&q_ids, &q) != EJK_OK || ejk_tensor_copy(&k_ids, &k) != EJK_OK) return;
}

static void convert_some(void *argument, int64_t worker) {
    const conversion *c = argument;
    int64_t count = c->mask.shape[0] * c->mask.shape[1];
    for (int64_t i = worker; i < count; i += c->workers) convert_one(c, &c->matrices[worker], i);
}

static ejk_status convert_all(ejk_threads *threads, conversion *c) {
    int64_t count = c->mask.shape[0] * c->mask.shape[1];
    int64_t queries = c->mask.shape[3], keys = c->mask.shape[4];
    if (count == 0) return EJK_OK;
    c->workers = count < ejk_threads_count(threads) ? 1 : ejk_threads_count(threads);
    c->secret = ejki_hash_secret();
    c->matrices = ejki_sequence_alloc(c->workers, sizeof *c->matrices);
    bool complete = c->matrices != NULL;
    for (int64_t i = 0; complete && i < c->workers; i++) {
        complete = create(&c->matrices[i], threads, queries, keys);
    }
    if (complete) ejk_parallel_for(threads, c->workers, convert_some, c);
    for (int64_t i = 0; c->matrices && i < c->workers; i++) destroy(&c->matrices[i]);
    free(c->matrices);
    if (complete) return EJK_OK;
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                     "no memory for masks of %" PRId64 " queries and %" PRId64 " keys as bits",
                     queries, keys);
}

/* ---- Arguments --------------------------------------------------------------------------------------- */

/* The view with an axis of one element before `axis`. */
static ejk_tensor widened(ejk_tensor tensor, int32_t axis) {
    for (int32_t i = tensor.rank++; i > axis; i--) {
        tensor.shape[i] = tensor.shape[i - 1];
        tensor.strides[i] = tensor.strides[i - 1];
    }
    tensor.shape[axis] = tensor.strides[axis] = 1;
    return tensor;
}

/* Room for `count` ids from first_id. */
static ejk_status check_ids(const ejk_tensor *ids, const char *name, const ejk_tensor *mask,
                            int32_t rank, const int64_t *shape, int64_t first_id) {
    EJKI_TRY(ejki_sequence_output(ids, name, EJKI_INDICES, rank, shape));
    EJKI_TRY(ejki_argument_apart(ids, name, mask, "mask"));
    return ejki_sequence_fits(ids, name, shape[rank - 1] - 1 + first_id);
}

static ejk_status check_arguments(const ejk_tensor *mask, bool per_head, int64_t first_id,
                                  const ejk_tensor *q_ids, const ejk_tensor *kv_ids) {
    EJKI_TRY(ejki_sequence_first_id(first_id));
    EJKI_TRY(ejki_sequence_input(mask, "mask", EJKI_ANY_DTYPE));
    if (mask->rank < 2 || mask->rank > 4) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "mask has rank %" PRId32 ", expected 2 to 4: [Q,K], [B,Q,K] or [B,H,Q,K]",
                         mask->rank);
    }
    int32_t leading = mask->rank == 4 && !per_head ? 1 : mask->rank - 2;
    int64_t shape[3] = {0};
    for (int32_t axis = 0; axis < leading; axis++) shape[axis] = mask->shape[axis];
    shape[leading] = mask->shape[mask->rank - 2];
    EJKI_TRY(check_ids(q_ids, "q_ids_out", mask, leading + 1, shape, first_id));
    shape[leading] = mask->shape[mask->rank - 1];
    EJKI_TRY(check_ids(kv_ids, "kv_ids_out", mask, leading + 1, shape, first_id));
    return ejki_argument_apart(kv_ids, "kv_ids_out", q_ids, "q_ids_out");
}

ejk_status ejk_mask_to_segment_ids(ejk_threads *threads, const ejk_tensor *mask, bool per_head,
                                   int64_t first_id, const ejk_tensor *q_ids_out,
                                   const ejk_tensor *kv_ids_out) {
    EJKI_TRY(check_arguments(mask, per_head, first_id, q_ids_out, kv_ids_out));
    conversion c = {.mask = *mask, .q_ids = *q_ids_out, .k_ids = *kv_ids_out, .first_id = first_id};
    while (c.mask.rank < 4) c.mask = widened(c.mask, mask->rank == 3 ? 1 : 0);
    c.mask = widened(c.mask, per_head ? 2 : 1);
    while (c.q_ids.rank < 3) c.q_ids = widened(c.q_ids, q_ids_out->rank == 2 ? 1 : 0);
    while (c.k_ids.rank < 3) c.k_ids = widened(c.k_ids, kv_ids_out->rank == 2 ? 1 : 0);
    /* A mask whose queries lie side by side in memory is read along them. */
    if (llabs(c.mask.strides[4]) != 1 && c.mask.strides[3] == 1) {
        ejk_tensor ids = c.q_ids;
        c.mask = ejk_tensor_transpose(c.mask, 3, 4);
        c.q_ids = c.k_ids;
        c.k_ids = ids;
    }
    return convert_all(threads, &c);
}
