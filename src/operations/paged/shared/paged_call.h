/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call of any operation of the paged family: which tensor of its arguments plays which part. An operation says that
 * in a function of a few lines; checks, problem, pointers, contents for measuring and costs are the same for all.
 */
#ifndef EJKI_PAGED_CALL_H
#define EJKI_PAGED_CALL_H

#include <ejkernel/kernel.h>

#include "operations/paged/shared/problem.cuh"

/* Which axis of a cache is which; below 0: it has none. */
typedef struct ejki_paged_axes {
    int page, row, head;
} ejki_paged_axes;

#define EJKI_PAGED_NHD    ((ejki_paged_axes){0, 1, 2})
#define EJKI_PAGED_HND    ((ejki_paged_axes){0, 2, 1})
#define EJKI_PAGED_HEADS  ((ejki_paged_axes){1, 2, 0})
#define EJKI_PAGED_SLOTS  ((ejki_paged_axes){-1, 0, 1})
#define EJKI_PAGED_LATENT ((ejki_paged_axes){0, 1, -1})

/* NULL and zeros: the operation has no such thing. */
typedef struct ejki_paged_call {
    const ejk_tensor *query, *query_tail, *out, *lse,
        *status;       /* [tokens,…,heads,D]; lse [heads,tokens] */
    bool lse_by_token; /* or [tokens,heads] */
    const ejk_tensor *key_cache, *value_cache, *tail_cache;
    ejki_paged_axes axes;
    /* Head slots of one cache: K of head h at 2h, V at 2h + 1; with `packed` the last axes are [X,pack,D]. */
    bool interleaved, packed;
    /* Columns of the key cache, where they are not all: keys from 0, the tail from tail_at; the values are columns
     * 0 to value_dim - 1 of the keys, if there is no other place for them. */
    int64_t dim, tail_at, value_dim;
    int64_t slots_a_page; /* of EJKI_PAGED_SLOTS */
    int64_t latent_rows;  /* of a page of [pages,rows,pack,lanes] */
    const ejk_tensor *k_scale, *v_scale;
    ejk_opt_float k_factor, v_factor, q_scale;
    int tables;
    const ejk_tensor *table, *lists, *starts, *lens, *firsts, *count, *slot_mapping;
    int64_t sequences, table_width; /* of a flat table: entries of a sequence */
    int64_t rows_each;
    int64_t count_at;
    const ejk_tensor *new_key, *new_value, *new_tail;
    const ejk_tensor *alibi, *bias, *sinks;
    ejk_opt_float scale, cap;
    double scale_unset; /* 0: 1/sqrt of the products' length */
    ejk_opt_int window; /* keys with the row's own */
    ejk_opt_int left;   /* keys before it */
    ejk_opt_int prefix; /* keys that all sequences share */
    bool full;          /* rows see all keys, not those up to their own */
} ejki_paged_call;

ejk_status ejki_paged_prepare(const ejki_paged_call *call, paged_problem *p);
void ejki_paged_bind(const ejki_paged_call *call, paged_problem *p);
/* Lengths, starts and tables of a call of full tables, pages in random order. */
ejk_status ejki_paged_inputs(const ejki_paged_call *call, const ejk_inputs *how);
extern const ejk_input_option ejki_paged_input_options[1];

/* Hooks of all operations: tables, lengths and starts. */
ejk_status ejki_paged_validate(const void *problem);
void ejki_paged_cost(const void *problem, const void *args, ejk_cost *out);

/* NULL where the tensor is absent. */
static inline const ejk_tensor *ejki_paged_given(const ejk_tensor *tensor) {
    return ejk_tensor_present(tensor) ? tensor : NULL;
}

/* prepare, bind and inputs of an operation from its `static ejk_status call_of(const type *, ejki_paged_call *)`. */
#define EJKI_PAGED_HOOKS(type)                                                                     \
    static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {             \
        (void)axes;                                                                                \
        ejki_paged_call call;                                                                      \
        EJKI_TRY(call_of(args, &call));                                                            \
        return ejki_paged_prepare(&call, problem);                                                 \
    }                                                                                              \
    static void bind(const void *args, void *problem) {                                            \
        ejki_paged_call call;                                                                      \
        if (call_of(args, &call) == EJK_OK) ejki_paged_bind(&call, problem);                       \
    }                                                                                              \
    static ejk_status inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {            \
        (void)axes;                                                                                \
        ejki_paged_call call;                                                                      \
        EJKI_TRY(call_of((const type *)args, &call));                                              \
        return ejki_paged_inputs(&call, how);                                                      \
    }

/* What operations are done by that write new rows before they attend. */
extern const ejk_step ejki_paged_steps[2];
#define EJKI_PAGED_WRITES .steps = ejki_paged_steps, .step_count = 2

/* The members of an ejk_kernel that they all have. */
#define EJKI_PAGED_KERNEL                                                                          \
    .version = "0", .config = &ejk_paged_attention_config_record, .config_field = "cfg",           \
    .parameters_field = "fwd_params", .problem_size = sizeof(paged_problem), .prepare = prepare,   \
    .bind = bind, .inputs = inputs, .input_options = ejki_paged_input_options,                     \
    .input_option_count = 1, .validate = ejki_paged_validate, .cost = ejki_paged_cost

#endif
