/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an implementation is declared: once for its line in a kernels.list, from which its names, platform, tier,
 * element types and limits come. What is left to say is what it does:
 *
 *     EJKI_DECLARE(my_operation_cuda, .prepare = prepare, .run = run)
 *
 * at file level, without a semicolon. The first argument is the line's operation, kernel (unless it is `-`) and tier,
 * joined by underscores. A body that is compiled for several tiers says EJKI_THIS_LINE, which the build defines
 * together with EJKI_TIER_<TIER>, by which kernels/simd/vec.h picks the vectors.
 */
#ifndef EJKI_KERNELS_DECLARE_H
#define EJKI_KERNELS_DECLARE_H

#include <ejkernel/registry.h>

#include "kernel_lines.h"

#define EJKI_DECLARE(line, ...)      EJKI_DECLARE_LINE(line, __VA_ARGS__)
#define EJKI_DECLARE_LINE(line, ...) EJKI_LINE_##line(EJKI_DECLARE_ONE, __VA_ARGS__)
#define EJKI_DECLARE_ONE(symbol, operation, id, technology, hardware, tier, type, second, third,   \
                         fourth, least, most, ...)                                                 \
    extern const ejk_implementation symbol;                                                        \
    const ejk_implementation symbol = {.algorithm = operation,                                     \
                                       .name = id,                                                 \
                                       .platform = EJK_PLATFORM_##technology,                      \
                                       .backend = EJK_BACKEND_##hardware,                          \
                                       .isa = EJK_ISA_##tier,                                      \
                                       .dtype = type,                                              \
                                       .further_dtypes = {second, third, fourth},                  \
                                       .least_capability = least,                                  \
                                       .most_capability = most,                                    \
                                       __VA_ARGS__};

/*
 * `name`: the implementation of another line, of its first element type. All types of a line share what it does. At
 * file level, without a semicolon. A body finds the line of another operation that has its own kernel and tier by
 * EJKI_LINE_OF(operation), which the build defines.
 */
#define EJKI_DECLARE_OTHER(name, line) EJKI_DECLARE_OTHER_(name, line)
#define EJKI_DECLARE_OTHER_(name, line)                                                            \
    EJKI_LINE_##line(EJKI_EXTERN_ONE, 0) static const ejk_implementation *const name =             \
        EJKI_FIRST(EJKI_LINE_##line(EJKI_ADDRESS_ONE, 0) NULL);
#define EJKI_EXTERN_ONE(symbol, ...)  extern const ejk_implementation symbol;
#define EJKI_ADDRESS_ONE(symbol, ...) &symbol,
#define EJKI_FIRST(...)               EJKI_FIRST_(__VA_ARGS__)
#define EJKI_FIRST_(first, ...)       first

/* The run of an implementation whose workers each do work(run, index); at file level, without a semicolon. */
#define EJKI_DEFINE_RUN(work)                                                                      \
    static ejk_status run(const ejk_run *run) {                                                    \
        ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);                \
        return EJK_OK;                                                                             \
    }

/* The public call of an operation, which its header declares; at file level, without a semicolon. */
#define EJKI_DEFINE_CALL(operation)                                                                \
    ejk_status ejk_##operation(ejk_context *context, const ejk_##operation##_args *args) {         \
        return ejk_call(context, &ejk_##operation##_kernel, args);                                 \
    }

#endif
