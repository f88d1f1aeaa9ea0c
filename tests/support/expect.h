/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of fallible calls share: the statuses by name in a failure's report, and the sentence. */
#ifndef TESTS_EXPECT_H
#define TESTS_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ejkernel/status.h>
#include <string.h>

#define EXPECT_OK(call) expect_status(EJK_OK, (call), "", #call, __FILE__, __LINE__)
/* The call answers this status, and its sentence contains `words`. */
#define EXPECT_FAIL(status, words, call)                                                           \
    expect_status(EJK_STATUS_##status, (call), (words), #call, __FILE__, __LINE__)
/* Numbers at most `tolerance` apart. */
#define EXPECT_NEAR(got, wanted, tolerance)                                                        \
    expect_near((got), (wanted), (tolerance), #got, __FILE__, __LINE__)

static inline void expect_near(double got, double wanted, double tolerance, const char *what,
                               const char *file, int line) {
    double off = got - wanted;
    if (off <= tolerance && -off <= tolerance) return;
    fail_msg("%s:%d: %s is %.17g, expected %.17g within %g", file, line, what, got, wanted,
             tolerance);
}

static inline void expect_status(ejk_status wanted, ejk_status got, const char *words,
                                 const char *call, const char *file, int line) {
    if (got == wanted && (got == EJK_OK || strstr(ejk_last_error(), words) != NULL)) return;
    fail_msg("%s:%d: %s answered %s (%s), expected %s with '%s'", file, line, call,
             ejk_status_name(got), got == EJK_OK ? "" : ejk_last_error(), ejk_status_name(wanted),
             words);
}

#endif
