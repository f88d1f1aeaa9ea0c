/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of 16 and 8 bits in vectors, on every tier that has words of its own; elements_of_tier.c says what holds. */
#include <ejkernel/device.h>

#include "elements.h"
#include "support/expect.h"

#if defined(__x86_64__)
#define TIERS(X) X(SCALAR, scalar) X(AVX2, avx2) X(AVX512, avx512)
#elif defined(__aarch64__)
#define TIERS(X) X(SCALAR, scalar) X(NEON, neon)
#else
#define TIERS(X) X(SCALAR, scalar)
#endif

typedef struct {
    ejk_isa isa;
    void (*check)(void **state);
} tier_check;

static void on_its_tier(void **state) {
    const tier_check *check = *state;
    if (!ejk_cpu()->tiers[check->isa]) skip();
    check->check(state);
}

#define DECLARE(check, tier) void CHECK_OF(check, tier)(void **state);
#define TEST(check, id, tier)                                                                      \
    {#check " on " #tier, on_its_tier, NULL, NULL,                                                 \
     &(tier_check){EJK_ISA_##id, CHECK_OF(check, tier)}},
#define DECLARE_ALL(id, tier) ELEMENT_CHECKS(DECLARE, tier)
#define TEST_ALL(id, tier)    ELEMENT_CHECKS(TEST, id, tier)
TIERS(DECLARE_ALL)

int main(void) {
    const struct CMUnitTest tests[] = {TIERS(TEST_ALL)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
