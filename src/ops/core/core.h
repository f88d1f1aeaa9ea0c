/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs behind ejk_context and ejk_plan, and what the files of this room share.
 *
 * Everything that a call needs is worked out once, when its plan is made, so that an execution only
 * compares numbers: the values that make up the plan's signature, the tensors whose pointers must be
 * there, and the distances between tensors at which memories would overlap.
 */
#ifndef EJKI_OPS_CORE_CORE_H
#define EJKI_OPS_CORE_CORE_H

#include <ejkernel/plan.h>

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "record/domain.h"
#include "ops/core/context.h"
#include "ops/core/request.h"

/* ---- workspace.c: buffers that executions take and give back ---------------------------------------- */

/* Scratch memory in all workspaces is aligned to this. */
#define EJKI_ALIGNMENT 64

/* More executions at once than this allocate and free their workspace each time. */
#define EJKI_MAX_WORKSPACES 128

typedef struct ejki_workspaces {
    _Atomic(void *) idle[EJKI_MAX_WORKSPACES];
} ejki_workspaces;

/* A buffer of at least `bytes`; OUT_OF_MEMORY. Allocates only if no idle one is large enough. */
ejk_status ejki_workspaces_take(ejki_workspaces *list, size_t bytes, void **out);
void ejki_workspaces_give(ejki_workspaces *list, void *workspace);
void ejki_workspaces_close(ejki_workspaces *list);

/* ---- device_memory.c: a plan's workspace on a GPU ---------------------------------------------------- */

/* Device memory is aligned to this. */
#define EJKI_DEVICE_ALIGNMENT 256

typedef struct ejki_device_memory ejki_device_memory;

/* OUT_OF_MEMORY, and what the device says. */
ejk_status ejki_device_memory_create(int32_t device, size_t bytes, ejki_device_memory **out);
/* Waits for the device. NULL is allowed. */
void ejki_device_memory_destroy(ejki_device_memory *memory);
/* The memory, until it is given back: nobody else enqueues work that uses it meanwhile. */
void *ejki_device_memory_take(ejki_device_memory *memory);
void ejki_device_memory_give(ejki_device_memory *memory);

/* ---- signature.c: is this call one for that plan? --------------------------------------------------- */

/* Compared at once, or by halves where registers are shorter. */
typedef uint64_t ejki_bytes __attribute__((vector_size(32)));

/* What the bytes at an offset of the arguments must be, where the mask says that they count. */
typedef struct ejki_expected {
    ejki_bytes value, counts;
    size_t offset;
} ejki_expected;

typedef struct ejki_signature ejki_signature;
typedef bool (*ejki_fits)(const ejki_signature *signature, const void *args);

/* Every value that counts in a call's signature. */
struct ejki_signature {
    ejki_expected *blocks; /* owned; those in which all that counts must be 0 come last */
    size_t count;          /* 0: too small a record, compare it by its fields */
    size_t values;         /* blocks before those */
    ejki_fits fits;        /* compares them, with the registers that the processor has */
};

/* With instructions up to those of a tier. */
ejk_status ejki_signature_create(const ejk_record *record, const void *args, ejk_isa isa,
                                 ejki_signature *out);
/* INVALID_ARGUMENT with the first field that differs and both its values. */
ejk_status ejki_signature_explain(const ejk_record *record, const void *expected, const void *args);

/* ---- overlap.c: do results lie where something else lies? ------------------------------------------- */

/* A tensor that has elements. */
typedef struct ejki_operand {
    const char *name;
    int32_t member; /* of a list of that name, or -1 */
    bool output;
    size_t offset; /* in the arguments */
} ejki_operand;

/*
 * Two regular patterns of bytes that repeat with a common period: seen modulo the period, `first` bytes
 * from the one tensor's start and `second` bytes from the other's.
 */
typedef struct ejki_period {
    int64_t length, shift, first, second;
} ejki_period;

#define EJKI_MAX_PERIODS 4

/*
 * An output and another tensor: their spans meet iff low < distance of their pointers < high. They are
 * apart nevertheless if they are so under one of the periods.
 */
typedef struct ejki_pair {
    ejki_operand first, second;
    int64_t low, high;
    ejki_period periods[EJKI_MAX_PERIODS];
    int32_t period_count;
} ejki_pair;

typedef struct ejki_operands {
    ejki_operand *tensors;
    ejki_pair *pairs;
    size_t tensor_count, pair_count;
    bool idle; /* results are asked for, but none has elements: there is nothing to do */
} ejki_operands;

/* INVALID_LAYOUT: an output whose own elements share memory. */
ejk_status ejki_operands_create(const ejk_record *record, const void *args, ejki_operands *out);
void ejki_operands_close(ejki_operands *operands);
/* INVALID_ARGUMENT: a missing pointer; INVALID_LAYOUT: an output overlaps another tensor. */
ejk_status ejki_operands_check(const ejki_operands *operands, const void *args);

/* ---- guards.c: what data has to be looked at before a run on the CPU ---------------------------------- */

/* A tensor whose unit says what its values are. */
typedef struct ejki_guard {
    const char *name;
    int32_t member; /* of a list of that name, or -1 */
    size_t offset;  /* in the arguments */
    ejki_domain_rule rule;
} ejki_guard;

typedef struct ejki_guards {
    ejk_status (*validate)(const void *problem); /* the kernel's, asked after the list; or NULL */
    int32_t count;
    ejki_guard list[];
} ejki_guards;

/* Of 8 to 64 bits, signed or not. */
bool ejki_is_integer(ejk_dtype dtype);

/* NULL where there is nothing to look at. Freed with free(). */
ejk_status ejki_guards_create(const ejk_kernel *kernel, const void *args, const ejk_axes *axes,
                              ejki_guards **out);
/* INVALID_ARGUMENT with the entry. The problem has the pointers of the arguments. */
ejk_status ejki_guards_check(const ejki_guards *guards, const void *args, const void *problem);

/* ---- kernel_check.c --------------------------------------------------------------------------------- */

/* The tensor field that a list of names, as ejk_kernel.further_types, has at `*at`, which then is behind it; NULL where
 * there is none of that name. */
const ejk_field *ejki_next_type(const ejk_record *record, const char **at);

/* INVALID_ARGUMENT with what is wrong with a kernel's hooks. hooks.c. */
ejk_status ejki_hooks_check(const ejk_kernel *kernel);
/* INVALID_ARGUMENT with what is wrong with a kernel's description. */
ejk_status ejki_kernel_check(const ejk_kernel *kernel);
/* Values that no field of its kind can have: texts without end, truth values that are neither. */
ejk_status ejki_values_check(const ejk_record *record, const void *object);

/* ---- plan_cache.c ----------------------------------------------------------------------------------- */

#define EJKI_CACHE_WAYS 8
#define EJKI_CACHE_SETS 32

typedef struct ejki_cache_slot {
    _Atomic(uint32_t) pins; /* calls that use the plan now; the top bit: it is being replaced */
    _Atomic(uint32_t) used; /* the cache's clock when it was last used */
    ejk_plan *plan;
} ejki_cache_slot;

typedef struct ejki_cache_set {
    _Alignas(64) _Atomic(uint64_t) hashes[EJKI_CACHE_WAYS]; /* 0 = empty */
    ejki_cache_slot slots[EJKI_CACHE_WAYS];
} ejki_cache_set;

typedef struct ejki_plan_cache {
    ejki_cache_set sets[EJKI_CACHE_SETS];
    _Atomic(ejki_cache_slot *) latest; /* of the last call that looked up; a guess for the next */
    _Atomic(uint32_t) clock;           /* counts plans put in */
    pthread_mutex_t lock;              /* held while one is put in */
} ejki_plan_cache;

/* Destroys the plans; no call may be running. */
void ejki_plan_cache_clear(ejki_plan_cache *cache);

/* ---- context.c, select.c, plan.c, execute.c --------------------------------------------------------- */

typedef struct ejki_kernel_node ejki_kernel_node;

struct ejk_context {
    ejki_plan_cache cache;
    ejki_workspaces workspaces; /* of the plans in the cache */
    ejk_threads *threads;
    ejk_registry *registry;
    ejk_isa isa;
    ejk_event_fn on_event;
    void *on_event_user;
    void *stream;
    ejk_config_chooser chooser; /* without functions: the call's own, else heuristics */
    void *adopted;              /* ended with the context by `destroy_adopted` */
    void (*destroy_adopted)(void *object);
    ejk_context *base; /* whose threads, registry and kernels these are; NULL = its own */
    _Atomic(ejki_kernel_node *) kernels; /* in the order added; only ever appended to */
    pthread_mutex_t kernels_lock;        /* held while one is appended */
};

/* A step as it is executed. */
typedef struct ejki_plan_step {
    const ejk_implementation *implementation;
    const char *algorithm;
    ejk_threads *threads; /* NULL for one worker */
    ejk_launch launch;
    int64_t parameters[EJK_MAX_PARAMETERS];
    ejk_choice_step sources[EJK_MAX_PARAMETERS];
} ejki_plan_step;

struct ejk_plan {
    ejk_context *context;
    const ejk_kernel *kernel;
    ejki_plan_step steps[EJK_MAX_STEPS];
    int32_t step_count;     /* 0: a hook runs */
    int32_t workers;        /* of the first step, or offered to the hook */
    size_t workspace_bytes; /* what is shared, and behind it what any step needs */
    size_t shared_bytes;    /* rounded up */
    const ejk_hook *hook;
    const ejki_plan_request *request; /* while the plan is made */
    void *config;        /* the whole configuration chosen; NULL if the kernel has none */
    uint64_t generation; /* of the chooser, when it was asked */
    ejk_choice_step step;
    void *args;    /* copy of the arguments, data pointers NULL */
    void *problem; /* NULL: the arguments are the problem */
    ejki_signature signature;
    ejki_operands operands;
    ejki_guards *guards; /* NULL: nothing in this call's data has to be looked at */
    ejki_device place;
    ejki_device_memory *device_memory; /* workspace on a GPU; NULL = none */
    ejki_workspaces *workspaces;
    bool owns_workspaces;
    ejk_cost cost;
    ejk_dtype dtype; /* by which the implementation was found */
    ejk_query query; /* the whole of it, without problem and algorithm */
};

/* Operations that later versions bring: none that this one has. */
const char *const *ejki_later_operations(int32_t *count);

/* The chooser's number for this thread. */
static inline uint64_t ejki_context_generation(const ejk_context *context) {
    return context->chooser.generation ? context->chooser.generation(context->chooser.self) : 0;
}

/* What the implementation is asked about: the problem, or the arguments if they are it. */
static inline const void *ejki_plan_problem(const ejk_plan *plan) {
    return plan->problem ? plan->problem : plan->args;
}

/* Tells the caller's hook that a plan was made. */
void ejki_plan_announce(const ejk_plan *plan);

/* Steps that the operation may have, and one of them. */
int32_t ejki_kernel_steps(const ejk_kernel *kernel);
ejk_step ejki_kernel_step(const ejk_kernel *kernel, int32_t index);

/* Fills steps or hook, dtype, config, parameters and where they came from. */
ejk_status ejki_plan_select(ejk_plan *plan);
/* A parameter's value in a configuration; unset if the configuration does not have it. */
ejk_opt_int ejki_parameter_of(const ejk_kernel *kernel, const void *config, const char *name);
/* Sets it there; nothing happens if the configuration does not have it. */
void ejki_parameter_set(const ejk_kernel *kernel, void *config, const char *name,
                        ejk_opt_int value);
/* True if an implementation takes this value. */
bool ejki_parameter_allowed(const ejk_parameter *parameter, int64_t value);

/* ejk_plan_create() of a plan that shares the context's workspaces. */
ejk_status ejki_plan_make(const ejki_plan_request *request, ejk_plan **out);

/* True if the call has the plan's signature. */
bool ejki_plan_fits(const ejk_plan *plan, const void *args);
/* The same for certain if true; may be false for a call that fits, but is quicker to say so. */
static inline bool ejki_plan_fits_exactly(const ejk_plan *plan, const void *args) {
    return plan->signature.fits(&plan->signature, args);
}
#endif
