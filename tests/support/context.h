/* SPDX-License-Identifier: Apache-2.0 */
/* The context of a program's tests, made before the first and destroyed after the last: for cmocka's groups. */
#ifndef TESTS_CONTEXT_H
#define TESTS_CONTEXT_H

#include "support/expect.h"

#include <ejkernel/ejkernel.h>

static ejk_context *context;

static int context_set_up(void **state) {
    (void)state;
    return ejk_context_create(NULL, &context) == EJK_OK ? 0 : -1;
}

static int context_tear_down(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

#endif
