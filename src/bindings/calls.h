/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that come from frameworks: a text that says which operation, which tensors and which other arguments, and
 * the tensors. Plans are kept by text and shapes, so that a call costs a look-up and the addresses.
 *
 * The text is "operation;operands;results;elements;arguments": names of the operands and of the results, in the
 * order of the tensors, separated by ","; 0, or how many elements a mapped call has; the other arguments as JSON. In
 * a mapped call each tensor whose name has a "*" before it has one more axis in front, along which the elements lie;
 * they are computed one after the other.
 *
 * A tensor that is updated in place is an operand and a result. The result's memory is the one that is updated; if it
 * is not the operand's, that is copied to it first.
 */
#ifndef EJKI_BINDINGS_CALLS_H
#define EJKI_BINDINGS_CALLS_H

#include <ejkernel/context.h>
#include <ejkernel/device.h>
#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

/* The most operands and results of a call. */
#define EJKI_CALL_TENSORS 64

/* A tensor of a call, whose axes are read where the framework has them. */
typedef struct ejki_call_tensor {
    void *data;
    const int64_t *shape, *strides; /* strides NULL, of all tensors of a call or of none: no gaps */
    uint64_t kind;                  /* ejki_call_kind() */
} ejki_call_tensor;

/* What a tensor is but for its axes, as one number; a rank is at most EJK_MAX_RANK. */
static inline uint64_t ejki_call_kind(ejk_dtype dtype, int64_t rank, int32_t device_type,
                                      int32_t device_index) {
    return (uint64_t)rank | (uint64_t)dtype << 8 | (uint64_t)device_type << 16 |
           (uint64_t)device_index << 32;
}

static inline int32_t ejki_call_rank(uint64_t kind) {
    return kind & 255;
}

static inline ejk_dtype ejki_call_dtype(uint64_t kind) {
    return (ejk_dtype)(kind >> 8 & 255);
}

static inline int32_t ejki_call_device_type(uint64_t kind) {
    return kind >> 16 & 0xffff;
}

static inline int32_t ejki_call_device_index(uint64_t kind) {
    return (int32_t)(kind >> 32);
}

/*
 * Makes the memory of the results that are not given, all at once, which are to look like `results`: writes their
 * addresses to `data`. Frees what it made where it fails.
 */
typedef ejk_status (*ejki_make_results_fn)(void *user, const ejk_tensor *results, int32_t count,
                                           void **data);

/* Memory of the call's device for the time of a call, aligned to 256 bytes; whoever gives it takes it back later. */
typedef ejk_status (*ejki_take_workspace_fn)(void *user, size_t bytes, void **out);

/*
 * A call. `tensors` are its operands and, unless `make` is given, its results, as many as its text names; on a GPU
 * its work is enqueued on `stream`, nothing is waited for, and `take` gives workspace, which may serve other work
 * that is enqueued on this stream later.
 */
typedef struct ejki_call {
    const char *text;
    size_t length;
    const ejki_call_tensor *tensors;
    int32_t count;
    ejki_make_results_fn make;   /* NULL: all results are given */
    ejki_take_workspace_fn take; /* NULL where all tensors are on the CPU */
    void *user;                  /* the first argument of both */
    void *stream;
    ejk_parallel_for_fn
        parallel_for;    /* the framework's threads, which are awake; NULL: the library's own */
    void *parallel_user; /* its first argument */
} ejki_call;

/*
 * Runs a call. With `make`, shapes and types of the results follow from the units: a result that may be any float has
 * the type of the first operand that is one, or float32 where the library takes nothing else. Statuses: those of
 * ejk_plan_create() and ejk_plan_execute_on(), MALFORMED (the text), UNAVAILABLE (no context is in use), those of
 * `make` and `take`.
 */
ejk_status ejki_run_call(const ejki_call *call);

/*
 * The workspace that a call on a GPU takes, and its plan as ejk_plan_describe() has it. Makes the plan, and looks at no
 * memory. Statuses: those of the plan.
 */
ejk_status ejki_call_workspace(const ejki_call *call, size_t *out, char **description);

/* Whether this process is the child of one that made calls: threads of frameworks may not live there. */
bool ejki_is_child(void);

/* Whether a call updates the operand of an index in place, which then cannot be given as a copy. */
ejk_status ejki_operand_is_updated(const char *text, size_t length, int32_t index, bool *out);

/*
 * Says in which context calls run from now on; NULL: in none. Waits for those that are running, and destroys the
 * plans of the last context, which may then be destroyed too. For the Python package.
 */
EJK_API void ejk_bindings_use(ejk_context *context);

#endif
