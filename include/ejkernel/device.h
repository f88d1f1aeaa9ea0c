/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device.h
 * The processor: its properties, its measured peak rates, and thread pools.
 *
 * Facts of the processor are read once per process and never change. Kernels are compiled for tiers, which are sets
 * of features: #EJK_ISA_LIST. A kernel whose products are by a feature that is slow here runs only if its tier is the
 * one asked for. `EJKERNEL_ISA=avx2` in the environment caps what is picked.
 *
 * Thread-safety: all functions may be called from several threads at once; an #ejk_threads runs one parallel
 * loop at a time, and the next one waits for it.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_DEVICE_H
#define EJKERNEL_DEVICE_H

#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Instruction-set features: name, bit, text. Those that only occur together are one. */
#define EJK_FEATURE_LIST(X)                                                                        \
    X(AVX2, 0, "avx2")               /* with FMA, F16C and BMI2 */                                 \
    X(AVX512, 1, "avx512")           /* F, BW, DQ, VL and CD */                                    \
    X(AVX512_BF16, 2, "avx512_bf16") /* VDPBF16PS */                                               \
    X(AVX512_FP16, 3, "avx512_fp16")                                                               \
    X(AVX512_VBMI, 4, "avx512_vbmi")                                                               \
    X(AVX512_VNNI, 5, "avx512_vnni") /* VPDPBUSD */                                                \
    X(AVX_VNNI, 6, "avx_vnni")       /* the same in 256 bits, without AVX-512 */                   \
    X(AMX_TILE, 7, "amx_tile")       /* permission asked for and given */                          \
    X(AMX_BF16, 8, "amx_bf16")                                                                     \
    X(AMX_INT8, 9, "amx_int8")                                                                     \
    X(NEON, 16, "neon")                                                                            \
    X(NEON_DOT, 17, "neon_dot")   /* SDOT, UDOT */                                                 \
    X(NEON_I8MM, 18, "neon_i8mm") /* SMMLA */                                                      \
    X(NEON_BF16, 19, "neon_bf16") /* BFDOT, BFMMLA */                                              \
    X(SVE, 20, "sve")

/** A set of features. */
typedef uint64_t ejk_features;

/** The features by name, each a set of one. */
enum {
#define EJK_FEATURE_ENUM(name, bit, text) EJK_FEATURE_##name = 1 << (bit),
    EJK_FEATURE_LIST(EJK_FEATURE_ENUM)
#undef EJK_FEATURE_ENUM
};

/** Name of the lowest feature of a set, as "avx512_vnni"; "unknown" for none. Static text. */
EJK_API const char *ejk_feature_name(ejk_features feature);

/*
 * Instruction-set tiers: name, number, text, the features that a kernel of it may use, and the one among them that it
 * multiplies by. Kernels of a higher number are preferred; which tiers include which follows from the sets alone.
 */
#define EJK_ISA_LIST(X)                                                                            \
    X(SCALAR, 0, "scalar", 0, 0)                                                                   \
    X(NEON, 10, "neon", EJK_FEATURE_NEON, EJK_FEATURE_NEON)                                        \
    X(AVX2, 20, "avx2", EJK_FEATURE_AVX2, EJK_FEATURE_AVX2)                                        \
    X(AVX512, 30, "avx512", EJK_FEATURE_AVX2 | EJK_FEATURE_AVX512, EJK_FEATURE_AVX512)             \
    X(AVX512_VNNI, 33, "avx512_vnni",                                                              \
      EJK_FEATURE_AVX2 | EJK_FEATURE_AVX512 | EJK_FEATURE_AVX512_VNNI, EJK_FEATURE_AVX512_VNNI)    \
    X(AVX512_BF16, 35, "avx512_bf16",                                                              \
      EJK_FEATURE_AVX2 | EJK_FEATURE_AVX512 | EJK_FEATURE_AVX512_BF16, EJK_FEATURE_AVX512_BF16)    \
    X(AMX, 40, "amx",                                                                              \
      EJK_FEATURE_AVX2 | EJK_FEATURE_AVX512 | EJK_FEATURE_AVX512_BF16 | EJK_FEATURE_AVX512_VBMI |  \
          EJK_FEATURE_AMX_TILE | EJK_FEATURE_AMX_BF16,                                             \
      EJK_FEATURE_AMX_BF16)

/** A tier. */
typedef enum ejk_isa {
#define EJK_ISA_ENUM(name, number, text, features, multiplies) EJK_ISA_##name = number,
    EJK_ISA_LIST(EJK_ISA_ENUM)
#undef EJK_ISA_ENUM
} ejk_isa;

/** The features of a tier; none for a number that is no tier. */
EJK_API ejk_features ejk_isa_features(ejk_isa isa);

/**
 * True if a kernel of tier `isa` may run where tiers up to `allowed` may: its features are among those of `allowed`, or
 * among all of this processor where `allowed` is the tier that it is given by default. A tier that multiplies by
 * a slow feature is allowed only if it is `allowed` itself. Whether the processor has it is not asked.
 */
EJK_API bool ejk_isa_allows(ejk_isa allowed, ejk_isa isa);

/** Name of a tier, as "avx2"; "unknown" for none. Static text. */
EJK_API const char *ejk_isa_name(ejk_isa isa);

/** Reads a tier's name. UNKNOWN_NAME lists those that exist. */
EJK_API EJK_NODISCARD ejk_status ejk_isa_from_name(const char *name, ejk_isa *out);

/** Facts of the processor this process runs on. */
typedef struct ejk_cpu_info {
    char name[64];   /**< marketing name */
    char vendor[16]; /**< "intel", "amd", "arm", … */
    int32_t family, model, stepping;
    ejk_isa isa;           /**< highest tier present and not slow, whatever the environment says */
    bool tiers[64];        /**< tiers[isa]: all its features are present */
    ejk_features features; /**< instructions present, whose registers the OS saves */
    /** Of these, slower than what they replace: VDPBF16PS on Intel's, a quarter of the rate of multiply-adds. */
    ejk_features slow;
    int32_t cores;      /**< CPUs this process may run on (its CPU set) */
    int64_t l1d_bytes;  /**< per core; 0 = unknown, as below */
    int64_t l2_bytes;   /**< per core or cluster */
    int64_t l3_bytes;   /**< last level, as reported; may be shared with other machines' guests */
    int64_t line_bytes; /**< cache line */
} ejk_cpu_info;

/** The facts. Never NULL; valid for the life of the process. */
EJK_API const ejk_cpu_info *ejk_cpu(void);

/**
 * The tier that is picked by default: the highest present, capped by EJKERNEL_ISA. A tier named there
 * that this processor lacks, or an unknown name, is ignored here and reported by ejk_isa_environment().
 */
EJK_API ejk_isa ejk_isa_default(void);

/** OK, or why EJKERNEL_ISA cannot be honoured (UNKNOWN_NAME, UNAVAILABLE). */
EJK_API EJK_NODISCARD ejk_status ejk_isa_environment(void);

/**
 * The device's fingerprint, one line: `cpu|<vendor family.model.stepping; tier; cores>`, as
 * "cpu|intel 6.143.8; amx; 2 cores". What measurements are kept under. Static text.
 */
EJK_API const char *ejk_device_fingerprint(void);

/* ---- Threads -------------------------------------------------------------------------------------- */

/** One piece of a parallel loop. */
typedef void (*ejk_task_fn)(void *argument, int64_t index);

/**
 * A caller's own way of running loops: calls task(argument, i) once for each i in [0, count), on any
 * threads, in any order, one after the other if need be, and returns when all have returned.
 */
typedef void (*ejk_parallel_for_fn)(void *user, ejk_task_fn task, void *argument, int64_t count);

/** A pool of threads, or a caller's parallel_for in its place. */
typedef struct ejk_threads ejk_threads;

/**
 * The number of threads used where none is asked for: EJKERNEL_NUM_THREADS if it is a number ≥ 1, else
 * the CPUs this process may use. Never above 1024.
 */
EJK_API int32_t ejk_threads_default(void);

/**
 * Creates a pool of `count` threads including the caller's (0 = ejk_threads_default()). Threads start with the
 * first loop that needs them, so a pool that never runs in parallel costs nothing. In the child of a fork(), they
 * start again; memory of the parent's threads stays allocated there.
 * Statuses: INVALID_ARGUMENT (negative, above 1024), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_threads_create(int32_t count, ejk_threads **out);

/** Puts the caller's loop in place of a pool; `count` is how many run at once (1 to 1024). */
EJK_API EJK_NODISCARD ejk_status ejk_threads_wrap(ejk_parallel_for_fn parallel_for, void *user,
                                                  int32_t count, ejk_threads **out);

/** Ends the threads. No loop may be running. NULL is allowed. */
EJK_API void ejk_threads_destroy(ejk_threads *threads);

/** How many run at once, the caller counted; 1 for NULL. */
EJK_API int32_t ejk_threads_count(const ejk_threads *threads);

/**
 * Calls task(argument, i) for each i in [0, count) and returns when all are done. NULL `threads`, a
 * count of 1 or a pool of 1: called here, one after the other, without entering the pool. Never fails: a
 * pool whose threads cannot be started runs the loop here.
 */
EJK_API void ejk_parallel_for(ejk_threads *threads, int64_t count, ejk_task_fn task,
                              void *argument);

/* ---- Ceilings: what a measurement is a share of ---------------------------------------------------- */

/**
 * Multiply-adds in registers on random operands, on all of `threads` at once, for about `seconds`:
 * FLOP/s in total, the median of slices of that time. dtype F32 or F64 on any tier, BF16 and I8 where the tier
 * has dot products or tiles of these.
 * Statuses: UNAVAILABLE (tier not present, or no such instruction), INVALID_ARGUMENT.
 */
EJK_API EJK_NODISCARD ejk_status ejk_measure_peak(ejk_threads *threads, ejk_isa isa,
                                                  ejk_dtype dtype, double seconds,
                                                  double *flops_per_second_out);

/**
 * Reading memory in sequence on all of `threads` at once, each its own part of one buffer of `bytes`
 * (0 = ejk_rotation_bytes() of as many threads), from one place and from four places in turn, each for about half of
 * `seconds`, at least one pass:
 * bytes/s in total, the median of slices, the better of the two. The buffer is the caller's `scratch` if not
 * NULL (any memory of `bytes`, which must be given then; it is overwritten), else one of its own, freed
 * again.
 * Statuses: OUT_OF_MEMORY, INVALID_ARGUMENT.
 */
EJK_API EJK_NODISCARD ejk_status ejk_measure_read_bandwidth(ejk_threads *threads, void *scratch,
                                                            int64_t bytes, double seconds,
                                                            double *bytes_per_second_out);

/**
 * Whether other programs run on the second hardware threads of the cores of `threads`: the rate of multiply-adds
 * mixed with other instructions over their rate alone, measured for about `seconds`. 1 = undisturbed; 0.97 and less
 * means that another program runs there. It takes half of a core's issue slots, which slows most code, but not
 * the multiply-adds in registers of the measured peak.
 * Statuses: UNAVAILABLE (a tier without such a loop: only avx2 and above have one), INVALID_ARGUMENT,
 * OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_measure_core_share(ejk_threads *threads, double seconds,
                                                        double *share_out);

/**
 * Size of a buffer that does not fit the caches while `threads` threads (values below 1 count as 1) read their
 * parts of it, for measurements with cold inputs: twice the reported last-level cache for each thread, since each
 * may have its own; with several threads at most 2 GiB, or twice one cache if that is more; at least 64 MiB; at
 * most a quarter of the memory that is free now.
 */
EJK_API int64_t ejk_rotation_bytes(int32_t threads);

/** Seconds of a clock that only runs forward. */
EJK_API double ejk_now(void);

#ifdef __cplusplus
}
#endif
#endif
