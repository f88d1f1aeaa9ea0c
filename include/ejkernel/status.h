/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file status.h
 * Status codes and error messages of fallible calls.
 *
 * A call returns an #ejk_status; 0 is success. On failure it leaves its outputs untouched and stores one sentence
 * for the calling thread, which names the argument, its value and what was expected: ejk_last_error(). The library
 * never prints or aborts.
 *
 * Thread-safety: all functions here may be called from any thread at once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_STATUS_H
#define EJKERNEL_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define EJK_API       __attribute__((visibility("default")))
#define EJK_NODISCARD __attribute__((warn_unused_result))
#else
#define EJK_API
#define EJK_NODISCARD
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Every status: name, number, meaning. The numbers are pinned: a number is never reused, and new ones
 * fill the gaps of their group.
 */
#define EJK_STATUS_LIST(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(INVALID_ARGUMENT, 10, "an argument has a value that is not allowed")                         \
    X(INVALID_SHAPE, 11, "a tensor has a rank or an axis that does not fit the others")            \
    X(INVALID_DTYPE, 12, "a tensor has an element type that is not accepted there")                \
    X(INVALID_LAYOUT, 13, "a tensor's strides, alignment or memory overlap are not accepted")      \
    X(OVERFLOW, 14, "a size does not fit the numbers that count it")                               \
    X(UNKNOWN_NAME, 20, "nothing has that name")                                                   \
    X(UNAVAILABLE, 21, "the name is known, but nothing stands behind it here or in this version")  \
    X(WORKSPACE_TOO_SMALL, 22, "the caller's workspace is smaller than the plan needs")            \
    X(MISMATCH, 23, "compared values differ by more than the tolerance")                           \
    X(OUT_OF_MEMORY, 30, "memory could not be had")                                                \
    X(IO, 31, "a file could not be opened, read or written")                                       \
    X(MALFORMED, 32, "a file or a text does not follow its format")                                \
    X(INTERNAL, 90, "the library contradicted itself: please report it")

/** The answer of a fallible call. */
typedef enum ejk_status {
#define EJK_STATUS_ENUM(name, number, text) EJK_STATUS_##name = number,
    EJK_STATUS_LIST(EJK_STATUS_ENUM)
#undef EJK_STATUS_ENUM
} ejk_status;

/** The short spelling of success. */
#define EJK_OK EJK_STATUS_OK

/** The name of a status, as "INVALID_SHAPE"; "UNKNOWN" for a number that is none. Static text. */
EJK_API const char *ejk_status_name(ejk_status status);

/** What a status means, in words. Static text. */
EJK_API const char *ejk_status_message(ejk_status status);

/**
 * The sentence of this thread's last failure; "" before the first one. A success does not clear it.
 * The text belongs to the thread and stays valid until its next failing call.
 */
EJK_API const char *ejk_last_error(void);

/** Frees a text or buffer that the library handed over. NULL is allowed. */
EJK_API void ejk_free(void *pointer);

/** The library's version, as "0.1.0". Static text. */
EJK_API const char *ejk_version(void);

/** Compiler and flags the library was built with, in one line. Static text. */
EJK_API const char *ejk_build_flags(void);

#ifdef __cplusplus
}
#endif
#endif
