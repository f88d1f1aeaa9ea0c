/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device.h
 * What the hardware is, what it can do at most, and how work is spread over its cores.
 *
 * Facts of the processor are read once per process and never change. Instruction sets come as tiers,
 * bundles that are tested as a whole: #EJK_ISA_AVX2 is AVX2 + FMA + F16C + BMI2, #EJK_ISA_AVX512 the
 * bundle F, BW, DQ, VL, CD (with AVX2's), #EJK_ISA_AVX512_BF16 VDPBF16PS besides. Where that is slow,
 * kernels of this tier run only if it is the one asked for. `EJKERNEL_ISA=avx2` in the environment caps what
 * is picked.
 *
 * Thread-safety: all functions may be called from any thread at once; an #ejk_threads runs one parallel
 * loop at a time, and others that come meanwhile wait for it.
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

/** Instruction-set tiers: name, number, text. Within one architecture a higher number includes the lower. */
#define EJK_ISA_LIST(X)                                                                            \
    X(SCALAR, 0, "scalar")                                                                         \
    X(NEON, 10, "neon")                                                                            \
    X(AVX2, 20, "avx2")                                                                            \
    X(AVX512, 30, "avx512")                                                                        \
    X(AVX512_BF16, 35, "avx512_bf16")                                                              \
    X(AMX, 40, "amx")

/** A tier. */
typedef enum ejk_isa {
#define EJK_ISA_ENUM(name, number, text) EJK_ISA_##name = number,
    EJK_ISA_LIST(EJK_ISA_ENUM)
#undef EJK_ISA_ENUM
} ejk_isa;

/** Name of a tier, as "avx2"; "unknown" for none. Static text. */
EJK_API const char *ejk_isa_name(ejk_isa isa);

/** Reads a tier's name. UNKNOWN_NAME lists those that exist. */
EJK_API EJK_NODISCARD ejk_status ejk_isa_from_name(const char *name, ejk_isa *out);

/** Facts of the processor this process runs on. */
typedef struct ejk_cpu_info {
    char name[64];   /**< marketing name */
    char vendor[16]; /**< "intel", "amd", "arm", … */
    int32_t family, model, stepping;
    ejk_isa isa;      /**< highest tier present and not slow, whatever the environment says */
    bool tiers[64];   /**< tiers[isa]: present (instructions, and the OS saves their registers) */
    bool avx512_bf16; /**< VDPBF16PS */
    bool fast_dots;   /**< and as many of them a cycle as multiply-adds: AMD's, not Intel's */
    bool avx512_fp16;
    bool amx_bf16;      /**< AMX tiles for bf16, permission asked for and given */
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
 * Makes a pool of `count` threads, the caller's counted (0 = ejk_threads_default()). Threads start with
 * the first loop that needs them, so a pool that never runs in parallel costs nothing; in the child of a fork()
 * they start anew. Memory of the parent's threads stays allocated there.
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
 * FLOP/s in total, the median of slices of that time. dtype F32 or F64 on any tier (BF16 where the tier
 * has dot products or tiles).
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
 * Whether `threads` have their cores to themselves: the rate of multiply-adds between which other
 * instructions are issued, over their rate without, for about `seconds`. 1 = undisturbed. Well below (0.97
 * and less) another program runs on a second hardware thread of the same core: that halves what a core
 * issues in a cycle, which multiply-adds in registers, the ceiling, do not notice, and all other code does.
 * Statuses: UNAVAILABLE (a tier without such a loop: only avx2 and above have one), INVALID_ARGUMENT,
 * OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_measure_core_share(ejk_threads *threads, double seconds,
                                                        double *share_out);

/**
 * Bytes that no cache holds while so many threads (below 1 counts as 1) read their parts of them: twice the reported
 * last-level cache for each thread, which may have one of its own, of more than one thread 2 GiB at most if not one
 * cache alone asks for more; at least 64 MiB; all as far as a quarter of the memory that is free now allows. What
 * takes its inputs in turn from as much memory finds none of them in a cache.
 */
EJK_API int64_t ejk_rotation_bytes(int32_t threads);

/** Seconds of a clock that only runs forward. */
EJK_API double ejk_now(void);

#ifdef __cplusplus
}
#endif
#endif
