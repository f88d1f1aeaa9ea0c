/* SPDX-License-Identifier: Apache-2.0 */
/* The measured ceilings: that there is a number where there should be one. How large is not asserted. */
#include <ejkernel/device.h>

#include <math.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/rate.h"

#define SECONDS   0.005
#define UNTOUCHED (-1.0)

static const int isas[] = {
#define NUMBER(name, number, text, features, multiplies) number,
    EJK_ISA_LIST(NUMBER)
#undef NUMBER
};

static bool has_peak(int isa, ejk_dtype dtype) {
    const ejk_cpu_info *cpu = ejk_cpu();
    if (!cpu->tiers[isa]) return false;
    if (dtype == EJK_DTYPE_I8)
        return isa == EJK_ISA_AVX512_VNNI ||
               (isa == EJK_ISA_AMX && cpu->features & EJK_FEATURE_AMX_INT8);
    if (dtype != EJK_DTYPE_BF16) return true;
    return isa == EJK_ISA_AMX || isa == EJK_ISA_AVX512_BF16;
}

static void peaks_are_measured_where_the_tier_is(void **state) {
    (void)state;
    const ejk_dtype dtypes[] = {EJK_DTYPE_F32, EJK_DTYPE_F64, EJK_DTYPE_BF16, EJK_DTYPE_I8};
    ejk_threads *threads = NULL;
    assert_int_equal(ejk_threads_create(2, &threads), EJK_OK);
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++)
        for (size_t d = 0; d < 4; d++)
            for (int with = 0; with < 2; with++) {
                double rate = UNTOUCHED;
                ejk_status status = ejk_measure_peak(with ? threads : NULL, (ejk_isa)isas[i],
                                                     dtypes[d], SECONDS, &rate);
                if (has_peak(isas[i], dtypes[d])) {
                    assert_int_equal(status, EJK_OK);
                    assert_true(isfinite(rate) && rate > 0);
                } else {
                    assert_int_equal(status, EJK_STATUS_UNAVAILABLE);
                    assert_non_null(strstr(ejk_last_error(), ejk_isa_name((ejk_isa)isas[i])));
                    assert_true(rate <= UNTOUCHED && rate >= UNTOUCHED);
                }
            }
    ejk_threads_destroy(threads);
}

static void wrong_arguments_of_a_peak_are_refused(void **state) {
    (void)state;
    double rate = UNTOUCHED;
    const double times[] = {0, -1, (double)NAN, (double)INFINITY, 1e9};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        assert_int_equal(ejk_measure_peak(NULL, EJK_ISA_SCALAR, EJK_DTYPE_F32, times[i], &rate),
                         EJK_STATUS_INVALID_ARGUMENT);
    const int wrong_isas[] = {-1, 7, 41, 64, 1 << 30};
    for (size_t i = 0; i < sizeof wrong_isas / sizeof wrong_isas[0]; i++)
        assert_int_equal(
            ejk_measure_peak(NULL, (ejk_isa)wrong_isas[i], EJK_DTYPE_F32, SECONDS, &rate),
            EJK_STATUS_INVALID_ARGUMENT);
    const ejk_dtype wrong_dtypes[] = {EJK_DTYPE_UNSET, EJK_DTYPE_F16, EJK_DTYPE_I32, (ejk_dtype)99};
    for (size_t i = 0; i < sizeof wrong_dtypes / sizeof wrong_dtypes[0]; i++)
        assert_int_equal(ejk_measure_peak(NULL, EJK_ISA_SCALAR, wrong_dtypes[i], SECONDS, &rate),
                         EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_measure_peak(NULL, EJK_ISA_SCALAR, EJK_DTYPE_F32, SECONDS, NULL),
                     EJK_STATUS_INVALID_ARGUMENT);
    assert_true(rate <= UNTOUCHED && rate >= UNTOUCHED);
}

static void core_share_is_measured(void **state) {
    (void)state;
    ejk_threads *threads = NULL;
    assert_int_equal(ejk_threads_create(2, &threads), EJK_OK);
    for (int with = 0; with < 2; with++) {
        double share = UNTOUCHED;
        ejk_status status = ejk_measure_core_share(with ? threads : NULL, SECONDS, &share);
        if (ejk_cpu()->tiers[EJK_ISA_AVX2]) {
            assert_int_equal(status, EJK_OK);
            assert_true(isfinite(share) && share > 0);
        } else {
            assert_int_equal(status, EJK_STATUS_UNAVAILABLE);
            assert_true(share <= UNTOUCHED && share >= UNTOUCHED);
        }
    }
    double share = UNTOUCHED;
    assert_int_equal(ejk_measure_core_share(threads, 0, &share), EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_measure_core_share(threads, SECONDS, NULL), EJK_STATUS_INVALID_ARGUMENT);
    assert_true(share <= UNTOUCHED && share >= UNTOUCHED);
    ejk_threads_destroy(threads);
}

static void bandwidth_is_measured(void **state) {
    (void)state;
    ejk_threads *threads = NULL;
    assert_int_equal(ejk_threads_create(3, &threads), EJK_OK);
    const int64_t sizes[] = {0, 3 * 64, 3 * 64 + 1, 1000, 300001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double rate = UNTOUCHED;
        assert_int_equal(ejk_measure_read_bandwidth(threads, NULL, sizes[i], SECONDS, &rate),
                         EJK_OK);
        assert_true(isfinite(rate) && rate > 0);
    }
    ejk_threads_destroy(threads);
}

static void rotation_grows_with_threads(void **state) {
    (void)state;
    const int64_t mib = INT64_C(1) << 20, cache = 2 * ejk_cpu()->l3_bytes;
    const int64_t free_bytes = (int64_t)sysconf(_SC_AVPHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    const int32_t threads[] = {INT32_MIN, 0, 1, 2, 3, 1000, INT32_MAX};
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        const int64_t bytes = ejk_rotation_bytes(threads[i]),
                      count = threads[i] < 1 ? 1 : threads[i];
        assert_true(bytes >= 64);
        if (free_bytes / 8 < 2048 * mib || cache >= 2048 * mib)
            continue; /* memory may be the limit */
        int64_t wanted = count * cache < 2048 * mib ? count * cache : 2048 * mib;
        if (wanted < 64 * mib) wanted = 64 * mib;
        assert_int_equal(bytes, wanted);
    }
}

static void scratch_is_used_and_nothing_around_it(void **state) {
    (void)state;
    enum { SIZE = 5001, EDGE = 13 };
    unsigned char memory[EDGE + SIZE + EDGE];
    memset(memory, 0xa5, sizeof memory);
    double rate = UNTOUCHED;
    assert_int_equal(ejk_measure_read_bandwidth(NULL, memory + EDGE, SIZE, SECONDS, &rate), EJK_OK);
    assert_true(isfinite(rate) && rate > 0);
    for (int i = 0; i < EDGE; i++) {
        assert_int_equal(memory[i], 0xa5);
        assert_int_equal(memory[EDGE + SIZE + i], 0xa5);
    }
    assert_int_not_equal(memory[EDGE], 0xa5);
}

static void wrong_arguments_of_bandwidth_are_refused(void **state) {
    (void)state;
    double rate = UNTOUCHED;
    char scratch[64];
    const int64_t sizes[] = {-1, INT64_MIN, 1, 63};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        assert_int_equal(ejk_measure_read_bandwidth(NULL, scratch, sizes[i], SECONDS, &rate),
                         EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_measure_read_bandwidth(NULL, scratch, 0, SECONDS, &rate),
                     EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_measure_read_bandwidth(NULL, NULL, 0, 0, &rate),
                     EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_measure_read_bandwidth(NULL, NULL, 0, SECONDS, NULL),
                     EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(ejk_measure_read_bandwidth(NULL, NULL, INT64_MAX, SECONDS, &rate),
                     EJK_STATUS_OUT_OF_MEMORY);
    assert_true(rate <= UNTOUCHED && rate >= UNTOUCHED);
}

static void one_after_the_other(void *user, ejk_task_fn task, void *argument, int64_t count) {
    (void)user;
    for (int64_t i = 0; i < count; i++) task(argument, i);
}

/* Its unit is the time it takes itself. */
static double spend_time(void *pieces, int64_t index) {
    ++((int64_t *)pieces)[index];
    double start = ejk_now(), end;
    while ((end = ejk_now()) < start + 20e-6) {
    }
    return end - start;
}

static void threads_in_turn_are_not_counted_as_at_once(void **state) {
    (void)state;
    ejk_threads *threads = NULL;
    int64_t pieces[4] = {0};
    double rate = UNTOUCHED;
    assert_int_equal(ejk_threads_wrap(one_after_the_other, NULL, 4, &threads), EJK_OK);
    assert_int_equal(ejki_measure_rate(threads, spend_time, pieces, SECONDS, 0, &rate), EJK_OK);
    for (int i = 0; i < 4; i++) assert_true(pieces[i] > 0);
    assert_true(rate > 0 && rate <= 1.0 + 1e-9);
    ejk_threads_destroy(threads);
}

static double count_piece(void *pieces, int64_t index) {
    (void)index;
    ++*(int64_t *)pieces;
    return 1;
}

static void measuring_goes_on_until_the_least_is_done(void **state) {
    (void)state;
    int64_t pieces = 0;
    double rate = UNTOUCHED;
    assert_int_equal(ejki_measure_rate(NULL, count_piece, &pieces, 1e-6, 5000, &rate), EJK_OK);
    assert_true(pieces >= 5000);
}

static void the_clock_runs_forward(void **state) {
    (void)state;
    double before = ejk_now();
    for (int i = 0; i < 1000; i++) {
        double now = ejk_now();
        assert_true(isfinite(now) && now >= before);
        before = now;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peaks_are_measured_where_the_tier_is),
        cmocka_unit_test(wrong_arguments_of_a_peak_are_refused),
        cmocka_unit_test(core_share_is_measured),
        cmocka_unit_test(bandwidth_is_measured),
        cmocka_unit_test(rotation_grows_with_threads),
        cmocka_unit_test(scratch_is_used_and_nothing_around_it),
        cmocka_unit_test(wrong_arguments_of_bandwidth_are_refused),
        cmocka_unit_test(threads_in_turn_are_not_counted_as_at_once),
        cmocka_unit_test(measuring_goes_on_until_the_least_is_done),
        cmocka_unit_test(the_clock_runs_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
