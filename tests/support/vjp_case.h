/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random problems of the gradients of flash attention: a flash_case in f32, bf16 or f16, a quarter of them made
 * to hold packed sequences of either layout, with NaN in tokens of none; what the forward pass wrote, cotangents,
 * and guarded places for any of the gradients.
 */
#ifndef TESTS_VJP_CASE_H
#define TESTS_VJP_CASE_H

#include "operations/attention/flash/vjp_problem.h"
#include "support/flash_case.h"

enum { VJP_QUERY, VJP_KEY, VJP_VALUE, VJP_BIAS, VJP_SINKS, VJP_GRADIENTS };
extern const char *const vjp_names[VJP_GRADIENTS];

enum { VJP_SEQUENCES = 8 }; /* the most there are in a case of packed ones */

struct vjp_case {
    struct flash_case forward;
    ejki_flash_vjp_problem problem;
    struct guarded lse, d_out, d_lse, gradient[VJP_GRADIENTS];
    int64_t rows[VJP_GRADIENTS], width[VJP_GRADIENTS]; /* 0 rows where there is no such gradient */
    int64_t entries; /* of the batch axis: 1 where tokens lie one after the other */
    struct guarded sums[2];
    int64_t ends[2]
                [VJP_SEQUENCES + 1]; /* of packed sequences, of their queries and keys; 0 first */
    bool
        overflows; /* the forward pass wrote what is not finite, so that cotangents meet infinities */
};

/* False if the seed's problem has none: f64, or a sum that is not normalised. */
bool vjp_case_create(struct vjp_case *c, uint64_t seed, int64_t budget);
void vjp_case_destroy(struct vjp_case *c);
void vjp_case_print(const struct vjp_case *c, char *text, size_t size);

/*
 * Of row i of an entry of the batch axis: the sequence that it is of and which of its rows it is. False if it is of
 * none. Without packed sequences each entry is one.
 */
bool vjp_case_row(const struct vjp_case *c, int64_t entry, int64_t i, int64_t *sequence,
                  int64_t *own);

/* First element of a row of a gradient: axes in the order of its tensor. */
int64_t vjp_case_place(const struct vjp_case *c, int gradient, int64_t row);

/*
 * Takes a gradient as row-major floats and leaves its memory as before a run; NULL if it is not wanted.
 * *clean becomes false if anything else was written.
 */
float *vjp_case_take(struct vjp_case *c, int gradient, bool *clean);

#endif
