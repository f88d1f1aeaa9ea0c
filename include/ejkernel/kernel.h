/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file kernel.h
 * Kernels: descriptions of operations, with arguments, configuration, checks, heuristics and cost.
 *
 * Implementations (registry.h) compute an operation; plans (plan.h) combine both. The command line, benchmarks,
 * tests and caches work from the description, so they support a kernel of your own without further code.
 *
 * The steps of a call: its tensors are checked against the record of the arguments, which binds the symbols of
 * their shapes; `prepare` checks the rest and writes the problem, a plain struct that implementations read; an
 * implementation is looked up, or the kernel's own `run` hook (hooks.h); unless the call brings a configuration,
 * the context's chooser (chooser.h) provides it. An execution copies the problem, `bind` inserts the call's
 * pointers, and the implementation or the hook runs.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_KERNEL_H
#define EJKERNEL_KERNEL_H

#include <ejkernel/hooks.h>
#include <ejkernel/params.h>
#include <ejkernel/record.h>
#include <ejkernel/registry.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The largest problem struct, in bytes: it is copied to the stack of every execution. */
#define EJK_MAX_PROBLEM_SIZE 4096

/** The least work of a call, by which its shares of peak FLOP/s and bandwidth are computed. */
typedef struct ejk_cost {
    double flops; /**< multiplications and additions of the products, of what is visible only */
    double bytes; /**< inputs read once and outputs written once */
} ejk_cost;

/** What is wanted of the contents of a call's inputs, by a name of the kernel's `input_options`. */
typedef struct ejk_input_wish {
    const char *name, *value; /**< "lengths", "4096+63x16" */
} ejk_input_wish;

/** How the inputs of a call are filled. Zeros = any contents that are valid. */
typedef struct ejk_inputs {
    uint64_t seed; /**< of what is random */
    const ejk_input_wish *wishes;
    int32_t wish_count;
} ejk_inputs;

/** A name that an #ejk_input_wish may have, and what its value means. */
typedef struct ejk_input_option {
    const char *name, *doc; /**< doc: one line */
} ejk_input_option;

/** The most steps of an operation. */
#define EJK_MAX_STEPS 8

/** A step of an operation: what is looked up in the registry for it, and for which calls. */
typedef struct ejk_step {
    const char *algorithm;
    const char *doc; /**< one line */
    /** Asked once, when the plan is made. Pure. NULL = always. */
    bool (*wanted)(const void *problem);
} ejk_step;

/** A call whose plan is being made. What it points to is valid during the call only. */
typedef struct ejk_invocation {
    const struct ejk_kernel *kernel;
    const void *args;                         /**< the call's arguments, without data pointers */
    const void *problem;                      /**< what `prepare` wrote, or `args` */
    const ejk_implementation *implementation; /**< the first step's; NULL if a hook runs */
    /** Those of all steps that are wanted, in order. No steps: there is `implementation` only. */
    const ejk_implementation *const *steps;
    int32_t step_count;
    int32_t threads;             /**< offered to it */
    struct ejk_context *context; /**< in which the call is made */
    const void *override_cfg;    /**< the call's configuration; NULL if nothing in it is set */
    const ejk_hook *run;         /**< the hook that runs; NULL if an implementation does */
    ejk_platform platform;       /**< asked for, or AUTO */
    ejk_backend backend;         /**< asked for, or ANY */
    const char *method;          /**< "shard_map", or NULL for a plain call */
    bool backward;               /**< gradients are computed, not the operation itself */
    int32_t device_type;         /**< where the tensors lie: an #ejk_device_type */
    int32_t device_index;        /**< which device of that type */
} ejk_invocation;

/** Description of an operation. Constant; it and what it points to live as long as its contexts. */
typedef struct ejk_kernel {
    const char *op_id;        /**< "flash_attention" */
    const char *version;      /**< of the operation's meaning; NULL = "0" */
    const char *doc;          /**< one line */
    const ejk_record *args;   /**< description of the arguments */
    const ejk_record *config; /**< description of the configuration; NULL = none */
    /**
     * Name of the nested record of `args` that holds an explicit configuration ("cfg"), and the record
     * in it that holds the parameters ("fwd_params"; "" = itself). NULL = none.
     */
    const char *config_field;
    const char *parameters_field;
    size_t problem_size; /**< at most #EJK_MAX_PROBLEM_SIZE; 0 = the arguments are the problem */
    /**
     * Checks what the record cannot say and writes the problem. `axes` has the symbols of the tensors.
     * May be NULL if problem_size is 0. No side effects besides `problem`.
     */
    ejk_status (*prepare)(const void *args, const ejk_axes *axes, void *problem);
    /** Puts the pointers of `args` into a copy of the problem. Must be there if problem_size is not 0. */
    void (*bind)(const void *args, void *problem);
    /**
     * Writes contents that are valid and that a call of these shapes is likely to have, into integers and masks:
     * lengths of packed sequences, lists of blocks, indices. Tensors are on the CPU; those without data are absent
     * or somebody else's, and are left alone. Other numbers have been filled already, integers with 0. Called by
     * ejk_fill_inputs(), ejk_problem_allocate() and tuning. NULL = integers are what their units allow, else 0.
     */
    ejk_status (*inputs)(void *args, const ejk_axes *axes, const ejk_inputs *how);
    const ejk_input_option *input_options; /**< what may be wished of `inputs`; NULL = nothing */
    int32_t input_option_count;
    /** Element type by which implementations are looked up. NULL = that of the first tensor field. */
    ejk_dtype (*dtype)(const void *args);
    /**
     * Names of further tensors, separated by commas ("rhs,scales"), whose element types implementations are looked up
     * by, too: those of a tensor that a call lacks fit any. At most #EJK_MAX_FURTHER_TYPES. NULL = none.
     */
    const char *further_types;
    /**
     * Sets fields of `config` (zeroed) that suit the invocation; implementations suggest what it leaves unset of their
     * parameters (ejk_implementation.suggest). Never measures. NULL = leave all to them.
     */
    void (*heuristic_cfg)(const ejk_invocation *invocation, void *config);
    /**
     * Looks at what only the data says and units cannot: how lengths, lists and indices that implementations follow go
     * together. The problem has the call's pointers. Called before every run on the CPU of a call that has integer
     * tensors, hooks' runs too, before anything is written, and after all integers were found among the values that
     * their units allow; INVALID_ARGUMENT with the entry. Not on GPUs, where a run does not wait for data: kernels
     * clamp there. Whoever calls an implementation without a plan calls this first. NULL = units say all.
     */
    ejk_status (*validate)(const void *problem);
    /**
     * What the call costs. With `args`, the problem has their pointers, and what is in integers and masks counts: their
     * tensors are on the CPU and have passed `validate`; other tensors may not be looked at. NULL args: there is no
     * data in view, and it counts as such calls usually have it. NULL = unknown.
     */
    void (*cost)(const void *problem, const void *args, ejk_cost *cost);
    /**
     * Writes up to `capacity` configurations worth measuring, zeroed, one after the other, the heuristic one
     * not among them; *count is how many. NULL = derived from the bounds of the parameters.
     */
    ejk_status (*candidate_cfgs)(const ejk_invocation *invocation, void *configs, int32_t capacity,
                                 int32_t *count);
    const ejk_hook *hooks; /**< functions of the kernel's own; NULL = none */
    int32_t hook_count;
    const ejk_record *residuals; /**< what fwd_with_residuals keeps for vjp; NULL = nothing */
    /** Another call key than the documented one (identity.h), under which configurations are kept: a text of
     * fewer than `size` bytes. NULL = that. */
    ejk_status (*key_builder)(const ejk_invocation *invocation, char *key, size_t size);
    /** Of gradients: the operation whose results, under their own names, are arguments here. NULL = none. */
    const struct ejk_kernel *forward;
    /** What is looked up in the registry; NULL = op_id. So operations with the same problem, or one that begins
     * with the other's, share implementations. */
    const char *algorithm;
    /**
     * What the operation is done by, if not by one implementation of `algorithm`, which is NULL then: steps that run
     * one after the other on the same problem, on a GPU on one stream. Each that is wanted, one at least, has an
     * implementation of its own, by the same platform, tier and element type; parameters are found by their names in
     * the one configuration, so that steps with a parameter of one name share its value. Hooks run in place of all.
     *
     * Workspaces of steps are the same memory, and hold nothing from one to the next. What a step leaves for
     * later ones goes to `shared_bytes` of memory beside them, ejk_run.shared, the same for all; not initialised.
     */
    const ejk_step *steps;
    int32_t step_count;                          /**< at most #EJK_MAX_STEPS */
    size_t (*shared_bytes)(const void *problem); /**< pure; NULL = 0 */
    /**
     * Puts the address of that memory into the problem, after `bind` and if there is any: so a step can write there
     * that is an operation elsewhere and knows only where its problem says its results go. NULL = steps look at
     * ejk_run.shared.
     */
    void (*bind_shared)(void *problem, void *shared);
    /**
     * Says what a result looks like where its unit does not, as codes whose number follows from a format: sets type,
     * rank and shape of `view`, which has them as far as the unit says them, and answers true; false: as it is. `args`
     * has what is given of the call, not checked yet. Pure. NULL = units say all.
     */
    bool (*result)(const void *args, const char *name, ejk_tensor *view);
} ejk_kernel;

/** The configuration every operation's configuration starts with. */
#define EJK_BASE_OPERATION_CONFIG(F, R)                                                            \
    F(NAME, platform, EJK_OPTIONAL, "auto", "",                                                    \
      "implementation technology: auto, simd, reference, cuda")                                    \
    F(NAME, backend, EJK_OPTIONAL, "any", "", "kind of hardware: any, cpu, gpu")

/**
 * The description as JSON, from which bindings to other languages are generated:
 * {"op","version","doc","config_field","parameters_field","forward","args":{"name","size","symbols","orders",
 * "fields":[{"name","kind","role","offset","size","default","unit","doc","record"}]}}. Kinds are the names of
 * #EJK_FIELD_LIST; "role" is "optional", "required", "output", "required output", "inout" or "required inout";
 * offsets and sizes are bytes of the struct; "record" is there for nested ones. What is NULL is "". Freed with
 * ejk_free(). Statuses: INVALID_ARGUMENT (NULL; a record that ejk_record_check() refuses), OUT_OF_MEMORY.
 * @since 0.1
 */
EJK_API EJK_NODISCARD ejk_status ejk_kernel_describe(const ejk_kernel *kernel, char **out);

#ifdef __cplusplus
}
#endif
#endif
