/* SPDX-License-Identifier: Apache-2.0 */
/* What every room may use of base: failing with a sentence, arithmetic that notices overflow, quantiles. */
#ifndef EJKI_BASE_H
#define EJKI_BASE_H

#include <ejkernel/status.h>

#define EJKI_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* Writes the thread's error sentence and returns `status`, so that a check reads `return ejki_fail(...)`. */
ejk_status ejki_fail(ejk_status status, const char *format, ...) EJKI_PRINTF(2, 3);
#ifdef __clang_analyzer__ /* which cannot see that it returns what it is given */
#define ejki_fail(status, ...) ((ejki_fail)(status, __VA_ARGS__), (status))
#endif

/* Passes a failure on. */
#define EJKI_TRY(expression)                                                                       \
    do {                                                                                           \
        ejk_status ejki_status_ = (expression);                                                    \
        if (ejki_status_ != EJK_OK) return ejki_status_;                                           \
    } while (0)

/* Products and sums of sizes: false when the result does not fit, and then *out is undefined. */
static inline bool ejki_mul(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool ejki_add(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

static inline int64_t ejki_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t ejki_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}
/* a / b rounded up, and a rounded up to a multiple of b, for a >= 0 and b > 0. */
static inline int64_t ejki_cdiv(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}
static inline int64_t ejki_round_up(int64_t a, int64_t b) {
    return ejki_cdiv(a, b) * b;
}

/* A constant that a list of X(name, number, text) declares; LIST(EJKI_NAMED) makes a table of them. */
typedef struct ejki_named {
    int64_t number;
    const char *name, *text;
} ejki_named;
#define EJKI_NAMED(name, number, text) {number, #name, text},

/* The constant of a number; `otherwise` if there is none. */
static inline ejki_named ejki_named_of(const ejki_named *list, size_t count, int64_t number,
                                       const char *otherwise) {
    for (size_t i = 0; i < count; i++)
        if (list[i].number == number) return list[i];
    return (ejki_named){number, otherwise, otherwise};
}
#define EJKI_NAMED_OF(list, number, otherwise)                                                     \
    ejki_named_of(list, sizeof list / sizeof *list, number, otherwise)

/*
 * Uninitialised memory at a multiple of 64 bytes, freed with free(); NULL if there is none. From 2 MiB on it
 * lies in large pages where the system grants them, which saves misses of the address cache.
 */
void *ejki_allocate(int64_t bytes);

/* The value below which `part` (0 to 1) of the values lie, interpolated between neighbours; 0 of none.
 * Sorts the values. */
double ejki_quantile(double *values, int64_t count, double part);

#endif
