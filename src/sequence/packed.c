/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of tokens and chunks of packed sequences. Results are written in pieces, from a buffer on the stack. */
#include "sequence/sequence.h"

#include <inttypes.h>
#include <stdlib.h>

enum { PIECE = 512 };

/* Rows of one or two numbers on their way to a result. */
typedef struct writer {
    const ejk_tensor *out;
    int64_t done, waiting; /* rows */
    int64_t rows[PIECE][2];
} writer;

static ejk_status flush(writer *w) {
    ejk_tensor part = ejk_tensor_slice(*w->out, 0, w->done, w->waiting);
    ejk_tensor rows = ejk_tensor_2d(w->rows, EJK_DTYPE_I64, w->waiting, 2);
    if (part.rank == 1) rows = ejki_tensor_at(ejk_tensor_transpose(rows, 0, 1), 0);
    w->done += w->waiting;
    w->waiting = 0;
    return ejk_tensor_copy(&rows, &part);
}

static ejk_status put(writer *w, int64_t first, int64_t second) {
    w->rows[w->waiting][0] = first;
    w->rows[w->waiting][1] = second;
    return ++w->waiting == PIECE ? flush(w) : EJK_OK;
}

/* What a row says of element i of sequence n. */
enum content { ELEMENT, SEQUENCE, SEQUENCE_AND_ELEMENT };

typedef struct listing {
    const char *name; /* of the result */
    enum content content;
    int64_t chunk_size; /* 1: elements are tokens */
} listing;

static int64_t pieces(const ejki_lengths *lengths, int64_t n, int64_t chunk_size) {
    return ejki_cdiv(lengths->ends[n + 1] - lengths->ends[n], chunk_size);
}

static int64_t all_pieces(const ejki_lengths *lengths, int64_t chunk_size) {
    int64_t count = 0;
    for (int64_t n = 0; n < lengths->sequences; n++) count += pieces(lengths, n, chunk_size);
    return count;
}

/* The greatest number of a listing, or 0 of none. */
static int64_t greatest(const ejki_lengths *lengths, const listing *what) {
    int64_t result = 0;
    for (int64_t n = 0; n < lengths->sequences; n++) {
        int64_t count = pieces(lengths, n, what->chunk_size);
        if (count == 0) continue;
        if (what->content != SEQUENCE) result = ejki_max(result, count - 1);
        if (what->content != ELEMENT) result = ejki_max(result, n);
    }
    return result;
}

static ejk_status write_listing(const ejki_lengths *lengths, const ejk_tensor *cu_seqlens,
                                const listing *what, const ejk_tensor *out) {
    int64_t shape[] = {all_pieces(lengths, what->chunk_size), 2};
    int32_t rank = what->content == SEQUENCE_AND_ELEMENT ? 2 : 1;
    EJKI_TRY(ejki_sequence_output(out, what->name, EJKI_INDICES, rank, shape));
    EJKI_TRY(ejki_sequence_apart(out, what->name, cu_seqlens, "cu_seqlens"));
    EJKI_TRY(ejki_sequence_fits(out, what->name, greatest(lengths, what)));
    writer w = {.out = out};
    for (int64_t n = 0; n < lengths->sequences; n++) {
        int64_t count = pieces(lengths, n, what->chunk_size);
        for (int64_t i = 0; i < count; i++) {
            EJKI_TRY(put(&w, what->content == ELEMENT ? i : n, i));
        }
    }
    return flush(&w);
}

static ejk_status list(const ejk_tensor *cu_seqlens, const listing *what, const ejk_tensor *out) {
    ejki_lengths lengths;
    EJKI_TRY(ejki_lengths_read(cu_seqlens, &lengths));
    ejk_status status = write_listing(&lengths, cu_seqlens, what, out);
    free(lengths.ends);
    return status;
}

ejk_status ejk_prepare_position_ids(const ejk_tensor *cu_seqlens, const ejk_tensor *positions_out) {
    return list(cu_seqlens, &(listing){"positions_out", ELEMENT, 1}, positions_out);
}

ejk_status ejk_prepare_sequence_ids(const ejk_tensor *cu_seqlens, const ejk_tensor *sequences_out) {
    return list(cu_seqlens, &(listing){"sequences_out", SEQUENCE, 1}, sequences_out);
}

ejk_status ejk_prepare_token_indices(const ejk_tensor *cu_seqlens, const ejk_tensor *indices_out) {
    return list(cu_seqlens, &(listing){"indices_out", SEQUENCE_AND_ELEMENT, 1}, indices_out);
}

static ejk_status check_chunk_size(int64_t chunk_size) {
    if (chunk_size >= 1) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "chunk_size is %" PRId64 ", expected 1 or more",
                     chunk_size);
}

ejk_status ejk_prepare_chunk_indices(const ejk_tensor *cu_seqlens, int64_t chunk_size,
                                     const ejk_tensor *indices_out) {
    EJKI_TRY(check_chunk_size(chunk_size));
    return list(cu_seqlens, &(listing){"indices_out", SEQUENCE_AND_ELEMENT, chunk_size},
                indices_out);
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
    *count_out = all_pieces(&lengths, chunk_size);
    free(lengths.ends);
    return EJK_OK;
}

static ejk_status write_offsets(const ejki_lengths *lengths, const ejk_tensor *cu_seqlens,
                                int64_t chunk_size, const ejk_tensor *out) {
    EJKI_TRY(ejki_sequence_output(out, "offsets_out", EJKI_INDICES, 1, cu_seqlens->shape));
    EJKI_TRY(ejki_sequence_apart(out, "offsets_out", cu_seqlens, "cu_seqlens"));
    EJKI_TRY(ejki_sequence_fits(out, "offsets_out", all_pieces(lengths, chunk_size)));
    writer w = {.out = out};
    int64_t before = 0;
    EJKI_TRY(put(&w, 0, 0));
    for (int64_t n = 0; n < lengths->sequences; n++) {
        before += pieces(lengths, n, chunk_size);
        EJKI_TRY(put(&w, before, 0));
    }
    return flush(&w);
}

ejk_status ejk_prepare_chunk_offsets(const ejk_tensor *cu_seqlens, int64_t chunk_size,
                                     const ejk_tensor *offsets_out) {
    EJKI_TRY(check_chunk_size(chunk_size));
    ejki_lengths lengths;
    EJKI_TRY(ejki_lengths_read(cu_seqlens, &lengths));
    ejk_status status = write_offsets(&lengths, cu_seqlens, chunk_size, offsets_out);
    free(lengths.ends);
    return status;
}
