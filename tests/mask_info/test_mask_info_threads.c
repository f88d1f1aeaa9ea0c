/* SPDX-License-Identifier: Apache-2.0 */
/* Lazy forms read by several threads at once: all see one tensor, computed once. */
#include "support/mask_world.h"

#include <pthread.h>

enum { THREADS = 6, FORMS_READ = 8, ROUNDS = 60 };

typedef struct reader {
    ejk_mask_info *info;
    pthread_barrier_t *start;
    const void *seen[FORMS_READ];
    int failures, first;
} reader;

static ejk_status read_one(const ejk_mask_info *info, int form, ejk_tensor *t) {
    ejk_tensor other;
    switch (form) {
    case 0: return ejk_mask_info_attention_mask(info, t);
    case 1: return ejk_mask_info_get_or_compute_attention_mask(info, EJK_DTYPE_F32, t);
    case 2: return ejk_mask_info_bias(info, t);
    case 3: return ejk_mask_info_q_segment_ids(info, t);
    case 4: return ejk_mask_info_get_or_compute_positions(info, &other, t);
    case 5: return ejk_mask_info_q_position_ids(info, t);
    case 6: return ejk_mask_info_get_or_compute_segment_ids(info, true, t, &other);
    default: return ejk_mask_info_get_qkv_masks(info, EJK_DTYPE_I32, NULL, NULL, t);
    }
}

static void *read_all(void *argument) {
    reader *r = argument;
    pthread_barrier_wait(r->start);
    for (int i = 0; i < FORMS_READ; i++) {
        int form = (i + r->first) % FORMS_READ;
        ejk_tensor t;
        if (read_one(r->info, form, &t) != EJK_OK)
            r->failures++;
        else
            r->seen[form] = t.data;
    }
    ejk_mask_info_release(r->info);
    return NULL;
}

static void one_tensor_for_all(void **state) {
    (void)state;
    struct random random = {3};
    for (int round = 0; round < ROUNDS; round++) {
        ejk_mask_info *base = random_info(&random, 2, 2, 9, 11), *info = NULL;
        EXPECT_OK(ejk_mask_info_apply_causal(base, NULL, &info));
        pthread_barrier_t start;
        pthread_barrier_init(&start, NULL, THREADS);
        pthread_t threads[THREADS];
        reader readers[THREADS] = {0};
        for (int i = 0; i < THREADS; i++) {
            readers[i] = (reader){.info = ejk_mask_info_retain(info), .start = &start, .first = i};
            assert_int_equal(pthread_create(&threads[i], NULL, read_all, &readers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(readers[i].failures, 0);
            for (int f = 0; f < FORMS_READ; f++)
                assert_ptr_equal(readers[i].seen[f], readers[0].seen[f]);
        }
        pthread_barrier_destroy(&start);
        ejk_mask_info_release(info);
        ejk_mask_info_release(base);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_tensor_for_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
