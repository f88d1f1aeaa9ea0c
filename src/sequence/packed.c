/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of tokens and chunks of packed sequences. Results are written in pieces, from a buffer on the stack. */
#include "sequence/sequence.h"

#include <inttypes.h>
#include <stdlib.h>

enum { PIECE = 512, TASK = 64 * PIECE };

/* What a row says of element i of sequence n. */
enum content { ELEMENT, SEQUENCE, SEQUENCE_AND_ELEMENT };

typedef struct listing {
    const char *name; /* of the result */
    enum content content;
    const ejki_lengths *lengths; /* in elements: tokens or chunks */
    const ejk_tensor *out;
} listing;

/* From tokens to the chunks that each sequence is cut into. */
static void count_chunks(ejki_lengths *lengths, int64_t chunk_size) {
    int64_t *ends = lengths->ends, start = 0, chunks = 0;
    for (int64_t n = 0; n < lengths->sequences; n++) {
        int64_t end = ends[n + 1];
        chunks += ejki_cdiv(end - start, chunk_size);
        start = end;
        ends[n + 1] = chunks;
    }
}

/* The greatest number of a listing, or 0 of none. */
static int64_t greatest(const listing *what) {
    const int64_t *ends = what->lengths->ends;
    int64_t result = 0;
    for (int64_t n = 0; n < what->lengths->sequences; n++) {
        int64_t count = ends[n + 1] - ends[n];
        if (count == 0) continue;
        if (what->content != SEQUENCE) result = ejki_max(result, count - 1);
        if (what->content != ELEMENT) result = ejki_max(result, n);
    }
    return result;
}

/* The sequence that element number `at` of all is in. */
static int64_t sequence_of(const ejki_lengths *lengths, int64_t at) {
    int64_t low = 0, high = lengths->sequences - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (lengths->ends[middle + 1] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Shapes were checked, and the buffer is apart from all: a copy cannot be refused. */
static void store(const ejk_tensor *out, int64_t at, int64_t count, int64_t (*rows)[2]) {
    ejk_tensor part = ejk_tensor_slice(*out, 0, at, count);
    ejk_tensor source = ejk_tensor_2d(rows, EJK_DTYPE_I64, count, 2);
    if (part.rank == 1) source = ejki_tensor_at(ejk_tensor_transpose(source, 0, 1), 0);
    ejk_status status = ejk_tensor_copy(&source, &part);
    (void)status;
}

static void list_part(void *argument, int64_t index) {
    const listing *what = argument;
    const int64_t *ends = what->lengths->ends;
    int64_t at = index * TASK, n = sequence_of(what->lengths, at);
    int64_t end = ejki_min(at + TASK, ejki_lengths_total(what->lengths));
    while (at < end) {
        int64_t rows[PIECE][2], count = ejki_min(PIECE, end - at);
        for (int64_t i = 0; i < count; i++) {
            while (ends[n + 1] <= at + i) n++;
            rows[i][1] = at + i - ends[n];
            rows[i][0] = what->content == ELEMENT ? rows[i][1] : n;
        }
        store(what->out, at, count, rows);
        at += count;
    }
}

static ejk_status write_listing(ejk_threads *threads, const ejk_tensor *cu_seqlens, listing *what) {
    int64_t count = ejki_lengths_total(what->lengths), shape[] = {count, 2};
    int32_t rank = what->content == SEQUENCE_AND_ELEMENT ? 2 : 1;
    EJKI_TRY(ejki_sequence_output(what->out, what->name, EJKI_INDICES, rank, shape));
    EJKI_TRY(ejki_argument_apart(what->out, what->name, cu_seqlens, "cu_seqlens"));
    EJKI_TRY(ejki_sequence_fits(what->out, what->name, greatest(what)));
    ejk_parallel_for(threads, ejki_cdiv(count, TASK), list_part, what);
    return EJK_OK;
}

/* Elements are chunks of `chunk_size` tokens. */
static ejk_status list(ejk_threads *threads, const ejk_tensor *cu_seqlens, int64_t chunk_size,
                       listing what) {
    ejki_lengths lengths;
    EJKI_TRY(ejki_lengths_read(cu_seqlens, &lengths));
    if (chunk_size > 1) count_chunks(&lengths, chunk_size);
    what.lengths = &lengths;
    ejk_status status = write_listing(threads, cu_seqlens, &what);
    free(lengths.ends);
    return status;
}

ejk_status ejk_prepare_position_ids(ejk_threads *threads, const ejk_tensor *cu_seqlens,
                                    const ejk_tensor *positions_out) {
    return list(threads, cu_seqlens, 1, (listing){"positions_out", ELEMENT, NULL, positions_out});
}

ejk_status ejk_prepare_sequence_ids(ejk_threads *threads, const ejk_tensor *cu_seqlens,
                                    const ejk_tensor *sequences_out) {
    return list(threads, cu_seqlens, 1, (listing){"sequences_out", SEQUENCE, NULL, sequences_out});
}

ejk_status ejk_prepare_token_indices(ejk_threads *threads, const ejk_tensor *cu_seqlens,
                                     const ejk_tensor *indices_out) {
    return list(threads, cu_seqlens, 1,
                (listing){"indices_out", SEQUENCE_AND_ELEMENT, NULL, indices_out});
}

static ejk_status check_chunk_size(int64_t chunk_size) {
    if (chunk_size >= 1) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "chunk_size is %" PRId64 ", expected 1 or more",
                     chunk_size);
}

ejk_status ejk_prepare_chunk_indices(ejk_threads *threads, const ejk_tensor *cu_seqlens,
                                     int64_t chunk_size, const ejk_tensor *indices_out) {
    EJKI_TRY(check_chunk_size(chunk_size));
    return list(threads, cu_seqlens, chunk_size,
                (listing){"indices_out", SEQUENCE_AND_ELEMENT, NULL, indices_out});
}

ejk_status ejk_prepare_chunk_count(const ejk_tensor *cu_seqlens, int64_t chunk_size,
                                   int64_t *count_out) {
    EJKI_TRY(check_chunk_size(chunk_size));
    if (!count_out) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "count_out is NULL, expected where to put the count");
    }
    ejki_lengths lengths;
    EJKI_TRY(ejki_lengths_read(cu_seqlens, &lengths));
    count_chunks(&lengths, chunk_size);
    *count_out = ejki_lengths_total(&lengths);
    free(lengths.ends);
    return EJK_OK;
}

static ejk_status write_offsets(const ejki_lengths *chunks, const ejk_tensor *cu_seqlens,
                                const ejk_tensor *out) {
    EJKI_TRY(ejki_sequence_output(out, "offsets_out", EJKI_INDICES, 1, cu_seqlens->shape));
    EJKI_TRY(ejki_argument_apart(out, "offsets_out", cu_seqlens, "cu_seqlens"));
    EJKI_TRY(ejki_sequence_fits(out, "offsets_out", ejki_lengths_total(chunks)));
    ejk_tensor offsets = ejk_tensor_1d(chunks->ends, EJK_DTYPE_I64, chunks->sequences + 1);
    return ejk_tensor_copy(&offsets, out);
}

ejk_status ejk_prepare_chunk_offsets(const ejk_tensor *cu_seqlens, int64_t chunk_size,
                                     const ejk_tensor *offsets_out) {
    EJKI_TRY(check_chunk_size(chunk_size));
    ejki_lengths lengths;
    EJKI_TRY(ejki_lengths_read(cu_seqlens, &lengths));
    count_chunks(&lengths, chunk_size);
    ejk_status status = write_offsets(&lengths, cu_seqlens, offsets_out);
    free(lengths.ends);
    return status;
}
