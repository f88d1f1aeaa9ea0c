/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on top of flash attention, and flash attention of few rows, on the CPU by the library's own choice: random
 * calls, whose error is within SEMANTICS section 5; so is that of the reference.
 */
#include "support/call_oracle.h"
#include "support/call_results.h"
#include "support/operation_case.h"
#include "support/soak.h"

enum { ROUNDS = 24 };

static double worst;
static int calls;

static void try_call(struct operation_case *c, const ejk_kernel *kernel, const void *args) {
    char why[400];
    void *got = call_results(kernel->args, args);
    calls++;
    EXPECT_OK(ejk_call(c->context, kernel, got));
    if (!call_oracle_accepts(kernel, args, got, &worst, why, sizeof why))
        fail_msg("%s: %s", kernel->op_id, why);
    if (!call_oracle_accepts(kernel, args, args, &worst, why, sizeof why))
        fail_msg("the reference of %s: %s", kernel->op_id, why);
    call_free_results(kernel->args, got);
}

static void errors_are_within_bounds(void **state) {
    struct operation_case c = {.call = try_call};
    (void)state;
    EXPECT_OK(ejk_context_create(NULL, &c.context));
    while (soak_round(&c.random, 1, ROUNDS)) {
        c.seed = soak.seed;
        operation_case_run(&c);
    }
    print_message("%d calls, at most %.2f of the tolerance\n", calls, worst);
    ejk_context_destroy(c.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {SOAK_TEST(errors_are_within_bounds)};
    return cmocka_run_group_tests_name("operations", tests, NULL, NULL);
}
