/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file registry.h
 * The registry: the implementations of each algorithm, and the selection of one that fits a call.
 *
 * An #ejk_implementation describes one function that computes one algorithm by one technology (its platform) on
 * one kind of hardware (its backend) with one instruction-set tier and element type, and its parameters with
 * their bounds. Plans choose the implementation and the values (plan.h). Applications register implementations
 * with ejk_registry_register(), as the library does.
 *
 * The platforms triton, pallas and xla are known by name but have no implementation in this version: a request
 * for one returns #EJK_STATUS_UNAVAILABLE with the list of those that exist. So does a request for cuda without a
 * usable NVIDIA GPU (cuda.h), with the reason.
 *
 * Thread-safety: a registry may be read and added to from any thread at once. Entries are never removed.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_REGISTRY_H
#define EJKERNEL_REGISTRY_H

#include <ejkernel/device.h>
#include <ejkernel/record.h>
#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Implementation technologies: name, number, text. */
#define EJK_PLATFORM_LIST(X)                                                                       \
    X(AUTO, 0, "auto")                                                                             \
    X(REFERENCE, 1, "reference")                                                                   \
    X(SIMD, 2, "simd")                                                                             \
    X(CUDA, 3, "cuda")                                                                             \
    X(XLA, 4, "xla")                                                                               \
    X(TRITON, 5, "triton")                                                                         \
    X(PALLAS, 6, "pallas")

/** A technology; AUTO lets the library pick: on a CPU simd, then reference, on a GPU cuda. */
typedef enum ejk_platform {
#define EJK_PLATFORM_ENUM(name, number, text) EJK_PLATFORM_##name = number,
    EJK_PLATFORM_LIST(EJK_PLATFORM_ENUM)
#undef EJK_PLATFORM_ENUM
} ejk_platform;

/** Kinds of hardware: name, number, text. */
#define EJK_BACKEND_LIST(X)                                                                        \
    X(ANY, 0, "any")                                                                               \
    X(CPU, 1, "cpu")                                                                               \
    X(GPU, 2, "gpu")                                                                               \
    X(TPU, 3, "tpu")

/** A kind of hardware. */
typedef enum ejk_backend {
#define EJK_BACKEND_ENUM(name, number, text) EJK_BACKEND_##name = number,
    EJK_BACKEND_LIST(EJK_BACKEND_ENUM)
#undef EJK_BACKEND_ENUM
} ejk_backend;

/** Names, as "simd" and "cpu"; "unknown" for none. Static text. */
EJK_API const char *ejk_platform_name(ejk_platform platform);
EJK_API const char *ejk_backend_name(ejk_backend backend);

/** Read a name ("" = auto, any). UNKNOWN_NAME lists those that exist. */
EJK_API EJK_NODISCARD ejk_status ejk_platform_from_name(const char *name, ejk_platform *out);
EJK_API EJK_NODISCARD ejk_status ejk_backend_from_name(const char *name, ejk_backend *out);

/** A number that changes an implementation's speed, never its result beyond rounding. */
typedef struct ejk_parameter {
    const char *name;         /**< as in the operation's configuration, "kv_blocksize" */
    int64_t minimum, maximum; /**< inclusive */
    int64_t step;             /**< allowed: minimum, minimum + step, … */
    int64_t fallback;         /**< where neither configuration nor heuristic gives a value */
    const char *doc;          /**< one line, with the unit */
} ejk_parameter;

/** The most element types besides the first that an implementation may be chosen by. */
#define EJK_MAX_FURTHER_TYPES 3

/** The most parameters an implementation may take. */
#define EJK_MAX_PARAMETERS 8

/** Values worth measuring, in the order of the parameters; 0 leaves what is suggested. @since 0.1 */
typedef struct ejk_candidate {
    int64_t value[EJK_MAX_PARAMETERS];
} ejk_candidate;

/** The most things that an implementation may prepare for its runs. */
#define EJK_MAX_PREPARED 12

/** What an implementation needs to run one problem, answered once, when its plan is made. */
typedef struct ejk_launch {
    size_t
        workspace_bytes; /**< scratch memory in all, aligned to 64 bytes; on a GPU to 256, on that GPU */
    int32_t workers; /**< threads it will use, 1 … those offered */
    int32_t device;  /**< given: index of the GPU on which the tensors lie; 0 on the CPU */
    /** Handed to every run: what takes time to have, as compiled kernels. It lives as long as the process. */
    void *prepared[EJK_MAX_PREPARED];
} ejk_launch;

/** One run: what `run` is given. */
typedef struct ejk_run {
    const void *problem;       /**< the operation's problem with this call's pointers */
    const int64_t *parameters; /**< values, in the order of the implementation's list */
    void *workspace;           /**< `workspace_bytes` of the launch, aligned as it says */
    void *shared;          /**< ejk_kernel.shared_bytes, aligned likewise; NULL if there are none */
    ejk_threads *threads;  /**< for ejk_parallel_for() */
    int32_t workers;       /**< of the launch */
    int32_t device;        /**< of the launch */
    void *stream;          /**< on a GPU: where the work is enqueued; a `CUstream` */
    void *const *prepared; /**< of the launch */
} ejk_run;

/**
 * An implementation. The registry copies the struct and keeps its pointers: texts and parameters have
 * to live as long as the registry.
 */
typedef struct ejk_implementation {
    const char *algorithm; /**< the operation's op_id, "flash_attention"; compared without case */
    const char *name; /**< what distinguishes it, "f32/avx512/tile"; unique within the algorithm */
    ejk_platform platform; /**< not AUTO */
    ejk_backend backend;
    ejk_isa isa;     /**< tier it needs; SCALAR = none */
    ejk_dtype dtype; /**< element type of its first tensor; UNSET = any */
    /** Of the tensors that ejk_kernel.further_types names, in that order; UNSET = any. */
    ejk_dtype further_dtypes[EJK_MAX_FURTHER_TYPES];
    int32_t
        priority; /**< higher is preferred; ties go to the higher tier, then to the first registered */
    int32_t version; /**< raised whenever results or the meaning of a parameter change */
    const ejk_parameter *parameters; /**< NULL if it takes none */
    int32_t parameter_count;
    /** True if it can compute this problem. Pure. NULL = always. */
    bool (*applicable)(const void *problem);
    /** Says what a run needs. Pure. NULL = no workspace, one worker. */
    ejk_status (*prepare)(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch);
    /**
     * Values of the parameters that suit a problem without measuring, in the order of the list; all are unset before,
     * and what stays so takes the fallback. Values out of bounds count as none. Pure but for what it asks of the
     * processor (device.h). They go where the operation's heuristic_cfg has set nothing. NULL = none.
     */
    void (*suggest)(const void *problem, int32_t threads, ejk_opt_int *values);
    /**
     * Values worth measuring besides the suggested ones, the most promising first: what an operation's `candidate_cfgs`
     * may list for this implementation. NULL = none of its own. @since 0.1
     */
    const ejk_candidate *candidates;
    int32_t candidate_count;
    /**
     * Computes. May be called from any threads at once, with different workspaces. With backend GPU it enqueues its
     * work on the stream, and neither waits nor allocates: the call may be captured into a graph.
     */
    ejk_status (*run)(const ejk_run *run);
    /** Backend GPU: compute capabilities, 10 times, that it is for, both inclusive: 80 is 8.0. 0 = any. */
    int32_t least_capability, most_capability;
    const char
        *needs; /**< what `applicable` asks for, in a few words for explanations; may be NULL */
    /** True: not yet tested where it runs. Taken only where EJKERNEL_EXPERIMENTAL is 1. @since 0.1 */
    bool experimental;
} ejk_implementation;

/** A set of implementations. */
typedef struct ejk_registry ejk_registry;

/** An empty registry. OUT_OF_MEMORY. */
EJK_API EJK_NODISCARD ejk_status ejk_registry_create(ejk_registry **out);
/** NULL is allowed. */
EJK_API void ejk_registry_destroy(ejk_registry *registry);

/** Adds the library's own implementations: every line of every kernels.list. */
EJK_API EJK_NODISCARD ejk_status ejk_registry_add_builtin(ejk_registry *registry);

/**
 * Adds one. INVALID_ARGUMENT: a missing name or function, platform AUTO, a parameter whose bounds or
 * fallback contradict each other, a candidate out of bounds, or a name that the algorithm already has.
 */
EJK_API EJK_NODISCARD ejk_status ejk_registry_register(ejk_registry *registry,
                                                       const ejk_implementation *implementation);

/** Requirements of a lookup. Zero-initialised members require nothing. */
typedef struct ejk_query {
    const char *algorithm;
    ejk_platform platform;
    ejk_backend
        backend; /**< an entry for any backend fits every request, and ANY fits every entry */
    ejk_isa isa; /**< highest tier allowed */
    ejk_dtype dtype;
    ejk_dtype further_dtypes[EJK_MAX_FURTHER_TYPES]; /**< as in #ejk_implementation */
    const void *problem; /**< if not NULL, `applicable` is called with it */
    /**
     * The device of the call's tensors: GPU admits only entries of backend GPU, CPU only others, ANY all. What runs
     * on a GPU never reads the CPU's memory, nor the other way round.
     */
    ejk_backend place;
    int32_t capability; /**< of that GPU, 10 times; 0 = any */
} ejk_query;

/**
 * The preferred implementation that fits. With platform AUTO simd is tried before reference, whatever
 * the priorities; on a GPU there is cuda only. Tiers that this processor lacks never fit, nor does what runs on a
 * GPU by cuda where there is none.
 * Statuses: UNKNOWN_NAME (no such algorithm; lists those that exist), UNAVAILABLE (none fits; lists what
 * exists for it, as "flash_attention on platform triton is unavailable, these exist: …").
 */
EJK_API EJK_NODISCARD ejk_status ejk_registry_get(const ejk_registry *registry,
                                                  const ejk_query *query,
                                                  const ejk_implementation **out);

/**
 * Why an implementation does not fit a query, as "needs compute capability 8.0, the GPU has 7.5"; "" if it fits.
 * `out` has room for `size` bytes; a longer reason is cut. The algorithm's name is not compared.
 * Statuses: INVALID_ARGUMENT (NULL, no room).
 */
EJK_API EJK_NODISCARD ejk_status ejk_registry_explain(const ejk_query *query,
                                                      const ejk_implementation *implementation,
                                                      char *out, size_t size);

/**
 * The platform a call would run on: an explicit one if an implementation of the algorithm exists for it and can
 * run here, else UNAVAILABLE; for AUTO, the first that exists for tensors on the CPU. Statuses as
 * ejk_registry_get().
 */
EJK_API EJK_NODISCARD ejk_status ejk_detect_platform(const ejk_registry *registry,
                                                     const char *algorithm, ejk_platform platform,
                                                     ejk_platform *out);

/**
 * The rule that the user's documents state, whatever exists here. An explicit `platform` is the answer if
 * an implementation of the algorithm is registered for it (and for `backend`, unless ANY), else
 * UNAVAILABLE. AUTO answers by the hardware `backend`: gpu: triton if registered for it, else xla; tpu:
 * pallas if registered for it, else xla; cpu and any: xla. With `maybe_pallas` a gpu takes pallas, if
 * registered for it, before triton. The xla of AUTO need not be registered: asking for it then fails.
 * Statuses: INVALID_ARGUMENT (NULL), UNKNOWN_NAME (no such algorithm), UNAVAILABLE.
 */
EJK_API EJK_NODISCARD ejk_status ejk_detect_platform_documented(
    const ejk_registry *registry, const char *algorithm, ejk_platform platform, ejk_backend backend,
    bool maybe_pallas, ejk_platform *out);

/** Number of entries, and one of them, in the order of preference within registration. NULL out of range. */
EJK_API int32_t ejk_registry_count(const ejk_registry *registry);
EJK_API const ejk_implementation *ejk_registry_entry(const ejk_registry *registry, int32_t index);

/**
 * Names of the algorithms, lower case, sorted, each once, separated by ", ". Freed with ejk_free().
 */
EJK_API EJK_NODISCARD ejk_status ejk_registry_list_algorithms(const ejk_registry *registry,
                                                              char **out);

/**
 * Up to `capacity` implementations of an algorithm, most preferred first; *count is how many there are.
 * An unknown algorithm has none.
 */
EJK_API EJK_NODISCARD ejk_status ejk_registry_list_implementations(
    const ejk_registry *registry, const char *algorithm, const ejk_implementation **entries,
    int32_t capacity, int32_t *count);

/**
 * Compares the parameters (number, names, bounds) of an algorithm's implementations that share platform
 * and name up to the tier. OK if they agree; MISMATCH with the first difference; UNKNOWN_NAME.
 * NULL = every algorithm.
 */
EJK_API EJK_NODISCARD ejk_status ejk_registry_validate_signatures(const ejk_registry *registry,
                                                                  const char *algorithm);

#ifdef __cplusplus
}
#endif
#endif
