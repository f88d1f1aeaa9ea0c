/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of sequences: from cumulative lengths, and from masks. */
#include "sequence/sequence.h"

#include <inttypes.h>
#include <stdlib.h>

static ejk_status check_lengths(const ejki_lengths *lengths) {
    const int64_t *ends = lengths->ends;
    if (ends[0] != 0) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "cu_seqlens[0] is %" PRId64 ", expected 0",
                         ends[0]);
    }
    for (int64_t n = 0; n < lengths->sequences; n++) {
        if (ends[n + 1] >= ends[n]) continue;
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "cu_seqlens[%" PRId64 "] is %" PRId64 ", less than %" PRId64
                         " before it; expected numbers that never decrease",
                         n + 1, ends[n + 1], ends[n]);
    }
    return EJK_OK;
}

ejk_status ejki_lengths_read(const ejk_tensor *cu_seqlens, ejki_lengths *out) {
    EJKI_TRY(ejki_sequence_input(cu_seqlens, "cu_seqlens", EJKI_INDICES));
    if (cu_seqlens->rank != 1 || cu_seqlens->shape[0] < 1) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "cu_seqlens has rank %" PRId32 " and %" PRId64
                         " elements, expected rank 1 and at least 1",
                         cu_seqlens->rank, ejk_tensor_count(cu_seqlens));
    }
    int64_t count = cu_seqlens->shape[0];
    int64_t *ends = ejki_sequence_alloc(count, sizeof *ends);
    if (!ends) {
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %" PRId64 " cumulative lengths",
                         count);
    }
    ejki_lengths lengths = {count - 1, ends};
    ejk_tensor copy = ejk_tensor_1d(ends, EJK_DTYPE_I64, count);
    ejk_status status = ejk_tensor_copy(cu_seqlens, &copy);
    if (status == EJK_OK) status = check_lengths(&lengths);
    if (status != EJK_OK)
        free(ends);
    else
        *out = lengths;
    return status;
}

static ejk_status write_lens(const ejki_lengths *lengths, const ejk_tensor *cu_seqlens,
                             const ejk_tensor *out) {
    EJKI_TRY(ejki_sequence_output(out, "lens_out", EJKI_INDICES, 1, &lengths->sequences));
    EJKI_TRY(ejki_argument_apart(out, "lens_out", cu_seqlens, "cu_seqlens"));
    int64_t longest = 0;
    for (int64_t n = 0; n < lengths->sequences; n++) {
        lengths->ends[n] = lengths->ends[n + 1] - lengths->ends[n];
        longest = ejki_max(longest, lengths->ends[n]);
    }
    EJKI_TRY(ejki_sequence_fits(out, "lens_out", longest));
    ejk_tensor lens = ejk_tensor_1d(lengths->ends, EJK_DTYPE_I64, lengths->sequences);
    return ejk_tensor_copy(&lens, out);
}

ejk_status ejk_prepare_lens(const ejk_tensor *cu_seqlens, const ejk_tensor *lens_out) {
    ejki_lengths lengths;
    EJKI_TRY(ejki_lengths_read(cu_seqlens, &lengths));
    ejk_status status = write_lens(&lengths, cu_seqlens, lens_out);
    free(lengths.ends);
    return status;
}

/* ---- From masks ------------------------------------------------------------------------------------ */

enum { CHUNK_WORDS = 64, ROWS_A_TASK = 16 };

struct counting {
    const ejk_tensor *mask;
    int64_t *counts;
};

static int64_t count_row(ejk_tensor row) {
    int64_t count = 0;
    for (int64_t done = 0; done < row.shape[0]; done += CHUNK_WORDS * 64) {
        uint64_t words[CHUNK_WORDS];
        int64_t length = ejki_min(CHUNK_WORDS * 64, row.shape[0] - done);
        ejk_tensor part = ejk_tensor_slice(row, 0, done, length);
        ejki_pack_row(&part, words);
        for (int64_t i = 0; i < ejki_bit_words(length); i++) {
            count += __builtin_popcountll(words[i]);
        }
    }
    return count;
}

static void count_rows(void *argument, int64_t index) {
    const struct counting *c = argument;
    int64_t end = ejki_min((index + 1) * ROWS_A_TASK, c->mask->shape[0]);
    for (int64_t b = index * ROWS_A_TASK; b < end; b++) {
        c->counts[b] = count_row(ejki_tensor_at(*c->mask, b));
    }
}

static ejk_status check_mask(const ejk_tensor *mask) {
    EJKI_TRY(ejki_sequence_input(mask, "mask", EJKI_ANY_DTYPE));
    if (mask->rank == 2) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "mask has rank %" PRId32 ", expected 2: [B,S]",
                     mask->rank);
}

/* Fills counts[0 … B-1] and returns the greatest. */
static int64_t count_all(ejk_threads *threads, const ejk_tensor *mask, int64_t *counts) {
    int64_t rows = mask->shape[0], greatest = 0;
    struct counting counting = {mask, counts};
    ejk_parallel_for(threads, ejki_cdiv(rows, ROWS_A_TASK), count_rows, &counting);
    for (int64_t b = 0; b < rows; b++) greatest = ejki_max(greatest, counts[b]);
    return greatest;
}

static ejk_status write_numbers(int64_t *numbers, int64_t greatest, const ejk_tensor *out,
                                const char *name) {
    EJKI_TRY(ejki_sequence_fits(out, name, greatest));
    ejk_tensor view = ejk_tensor_1d(numbers, EJK_DTYPE_I64, out->shape[0]);
    return ejk_tensor_copy(&view, out);
}

ejk_status ejk_prepare_lens_from_mask(ejk_threads *threads, const ejk_tensor *mask,
                                      const ejk_tensor *lens_out) {
    EJKI_TRY(check_mask(mask));
    EJKI_TRY(ejki_sequence_output(lens_out, "lens_out", EJKI_INDICES, 1, &mask->shape[0]));
    EJKI_TRY(ejki_argument_apart(lens_out, "lens_out", mask, "mask"));
    int64_t *counts = ejki_sequence_alloc(mask->shape[0], sizeof *counts);
    if (!counts) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the lengths of rows");
    int64_t greatest = count_all(threads, mask, counts);
    ejk_status status = write_numbers(counts, greatest, lens_out, "lens_out");
    free(counts);
    return status;
}

ejk_status ejk_prepare_cu_seqlens_from_mask(ejk_threads *threads, const ejk_tensor *mask,
                                            const ejk_tensor *cu_seqlens_out) {
    EJKI_TRY(check_mask(mask));
    int64_t rows = mask->shape[0], length;
    if (!ejki_add(rows, 1, &length)) {
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "mask has %" PRId64 " rows, one more cannot be counted", rows);
    }
    EJKI_TRY(ejki_sequence_output(cu_seqlens_out, "cu_seqlens_out", EJKI_INDICES, 1, &length));
    EJKI_TRY(ejki_argument_apart(cu_seqlens_out, "cu_seqlens_out", mask, "mask"));
    int64_t *ends = ejki_sequence_alloc(length, sizeof *ends);
    if (!ends) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the lengths of rows");
    count_all(threads, mask, ends + 1);
    /* A mask whose rows share memory, by a step of 0, still has no more elements than 63 bits count. */
    for (int64_t b = 0; b < rows; b++) ends[b + 1] += ends[b];
    ejk_status status = write_numbers(ends, ends[rows], cu_seqlens_out, "cu_seqlens_out");
    free(ends);
    return status;
}
