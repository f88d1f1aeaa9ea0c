/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_kl_divergence: values known beforehand, classes that cannot be, and recorded defects of another implementation,
 * shown absent: the teacher's gradient was held back in one direction at one temperature only, and a teacher's logit of
 * -inf made the loss NaN.
 */
#include "support/context.h"
#include "support/expect.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const platforms[] = {"reference", "simd"};
static const char *const directions[] = {"forward", "reverse", "jsd"};
enum { PLATFORMS = 2, DIRECTIONS = 3, V = 5 };
#define INF ((float)INFINITY)

static float student[2 * V], teacher[2 * V], d_student[2 * V], d_teacher[2 * V], loss[2],
    entropy[2];
static const float some[V] = {0.5f, -1, 2, 0.25f, -3}, other[V] = {1, 1.5f, -0.5f, 0, -2};

static ejk_fused_kl_divergence_args call(const char *platform, const char *direction) {
    ejk_fused_kl_divergence_args a = {.student = ejk_tensor_2d(student, EJK_DTYPE_F32, 1, V),
                                      .teacher = ejk_tensor_2d(teacher, EJK_DTYPE_F32, 1, V),
                                      .loss = ejk_tensor_1d(loss, EJK_DTYPE_F32, 1)};
    strcpy(a.platform, platform);
    strcpy(a.direction, direction);
    return a;
}

static ejk_fused_kl_divergence_vjp_args gradients(const char *platform, const char *direction) {
    static float one = 1;
    ejk_fused_kl_divergence_vjp_args a = {
        .student = ejk_tensor_2d(student, EJK_DTYPE_F32, 1, V),
        .teacher = ejk_tensor_2d(teacher, EJK_DTYPE_F32, 1, V),
        .d_loss = ejk_tensor_1d(&one, EJK_DTYPE_F32, 1),
        .d_student = ejk_tensor_2d(d_student, EJK_DTYPE_F32, 1, V),
        .d_teacher = ejk_tensor_2d(d_teacher, EJK_DTYPE_F32, 1, V)};
    strcpy(a.platform, platform);
    strcpy(a.direction, direction);
    return a;
}

static void set(float *to, const float *from) {
    memcpy(to, from, V * sizeof *to);
}

/* ---- Values ------------------------------------------------------------------------------------------ */

static double share(const float *x, double temperature, int v) {
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp((double)x[i] / temperature);
    return exp((double)x[v] / temperature) / sum;
}

static double divergence(const char *direction, double temperature, double beta) {
    double sum = 0;
    for (int v = 0; v < V; v++) {
        const double s = share(student, temperature, v), t = share(teacher, temperature, v);
        const double m = beta * t + (1 - beta) * s;
        sum += direction[0] == 'f'   ? t * log(t / s)
               : direction[0] == 'r' ? s * log(s / t)
                                     : beta * t * log(t / m) + (1 - beta) * s * log(s / m);
    }
    return temperature * temperature * sum;
}

static void values_are_those_of_the_formulas(void **state) {
    (void)state;
    for (int i = 0; i < PLATFORMS * DIRECTIONS; i++) {
        ejk_fused_kl_divergence_args a = call(platforms[i % 2], directions[i / 2]);
        set(student, some);
        set(teacher, other);
        a.teacher_entropy = ejk_tensor_1d(entropy, EJK_DTYPE_F32, 1);
        EXPECT_OK(ejk_fused_kl_divergence(context, &a));
        EXPECT_NEAR((double)loss[0], divergence(directions[i / 2], 1, 0.5), 1e-6);
        double wanted = 0;
        for (int v = 0; v < V; v++) wanted -= share(other, 1, v) * log(share(other, 1, v));
        EXPECT_NEAR((double)entropy[0], wanted, 1e-6);
        a.temperature = ejk_float(3);
        a.beta = ejk_float(0.2);
        EXPECT_OK(ejk_fused_kl_divergence(context, &a));
        EXPECT_NEAR((double)loss[0], divergence(directions[i / 2], 3, 0.2), 3e-6);
    }
}

/* The same distribution, up to a number that is added to all logits. */
static void equal_distributions_do_not_diverge(void **state) {
    (void)state;
    for (int i = 0; i < PLATFORMS * DIRECTIONS; i++) {
        const ejk_fused_kl_divergence_args a = call(platforms[i % 2], directions[i / 2]);
        set(student, some);
        for (int v = 0; v < V; v++) teacher[v] = some[v] + 64;
        EXPECT_OK(ejk_fused_kl_divergence(context, &a));
        EXPECT_NEAR((double)loss[0], 0, 2e-7);
    }
}

/* ---- Classes that cannot be -------------------------------------------------------------------------- */

static double loss_of(int platform, const char *direction, int student_without,
                      int teacher_without) {
    const ejk_fused_kl_divergence_args a = call(platforms[platform], direction);
    set(student, some);
    set(teacher, other);
    if (student_without >= 0) student[student_without] = -INF;
    if (teacher_without >= 0) teacher[teacher_without] = -INF;
    EXPECT_OK(ejk_fused_kl_divergence(context, &a));
    return (double)loss[0];
}

static void divergences_are_infinite_where_they_are(void **state) {
    (void)state;
    for (int k = 0; k < PLATFORMS; k++) {
        assert_true(isfinite(loss_of(k, "forward", -1, 2)));
        assert_true(isfinite(loss_of(k, "reverse", 2, -1)));
        assert_true(loss_of(k, "forward", 2, -1) == HUGE_VAL);
        assert_true(loss_of(k, "reverse", -1, 2) == HUGE_VAL);
        assert_true(loss_of(k, "forward", 2, 1) == HUGE_VAL);
        for (int d = 0; d < DIRECTIONS; d++) assert_true(isfinite(loss_of(k, directions[d], 2, 2)));
        assert_true(isfinite(loss_of(k, "jsd", 2, 1)));
    }
}

/* However unlikely the class is: its probability is below what float32 holds. */
static void an_unlikely_class_is_infinite_too(void **state) {
    (void)state;
    for (int k = 0; k < PLATFORMS; k++) {
        const ejk_fused_kl_divergence_args a = call(platforms[k], "forward");
        set(student, some);
        set(teacher, other);
        student[4] = -INF;
        teacher[4] = -200;
        EXPECT_OK(ejk_fused_kl_divergence(context, &a));
        assert_true(loss[0] == INF);
    }
}

static void what_cannot_be_adds_nothing(void **state) {
    (void)state;
    for (int k = 0; k < PLATFORMS * DIRECTIONS; k++) {
        const char *direction = directions[k / 2];
        (void)loss_of(k % 2, direction, 4, 4);
        const double both = (double)loss[0];
        ejk_fused_kl_divergence_args a = call(platforms[k % 2], direction);
        a.student.shape[1] = a.teacher.shape[1] = 4;
        EXPECT_OK(ejk_fused_kl_divergence(context, &a));
        EXPECT_NEAR(both, (double)loss[0], 1e-6);
    }
}

/* ---- Gradients --------------------------------------------------------------------------------------- */

static double moved(ejk_fused_kl_divergence_args *a, float *x, float by) {
    const float kept = *x;
    *x = kept + by;
    EXPECT_OK(ejk_fused_kl_divergence(context, a));
    *x = kept;
    return (double)loss[0];
}

static void both_distributions_have_gradients_everywhere(void **state) {
    (void)state;
    static const double temperatures[] = {1, 0.5, 4};
    for (int i = 0; i < PLATFORMS * DIRECTIONS * 3; i++) {
        const char *platform = platforms[i % 2], *direction = directions[i / 2 % 3];
        ejk_fused_kl_divergence_args forward = call(platform, direction);
        ejk_fused_kl_divergence_vjp_args a = gradients(platform, direction);
        forward.temperature = a.temperature = ejk_float(temperatures[i / 6]);
        set(student, some);
        set(teacher, other);
        EXPECT_OK(ejk_fused_kl_divergence_vjp(context, &a));
        double sizes = 0;
        for (int v = 0; v < V; v++) {
            const float h = 1.0f / 64;
            const double by_student =
                (moved(&forward, student + v, h) - moved(&forward, student + v, -h)) / (2 / 64.0);
            const double by_teacher =
                (moved(&forward, teacher + v, h) - moved(&forward, teacher + v, -h)) / (2 / 64.0);
            EXPECT_NEAR((double)d_student[v], by_student, 1e-3);
            EXPECT_NEAR((double)d_teacher[v], by_teacher, 1e-3);
            sizes += fabs((double)d_teacher[v]);
        }
        assert_true(sizes > 0.01);
    }
}

static void gradients_of_what_cannot_be_are_0(void **state) {
    (void)state;
    for (int i = 0; i < PLATFORMS * DIRECTIONS; i++) {
        const ejk_fused_kl_divergence_vjp_args a = gradients(platforms[i % 2], directions[i / 2]);
        set(student, some);
        set(teacher, other);
        student[1] = teacher[1] = -INF;
        EXPECT_OK(ejk_fused_kl_divergence_vjp(context, &a));
        assert_true(d_student[1] == 0 && d_teacher[1] == 0);
        for (int v = 0; v < V; v++) assert_true(isfinite(d_student[v]) && isfinite(d_teacher[v]));
    }
}

/* The student has gradients where its loss is infinite, too. */
static void the_student_learns_from_an_infinite_loss(void **state) {
    (void)state;
    for (int k = 0; k < PLATFORMS; k++) {
        ejk_fused_kl_divergence_vjp_args a = gradients(platforms[k], "forward");
        set(student, some);
        set(teacher, other);
        student[1] = -INF;
        a.d_teacher = (ejk_tensor){.rank = 0};
        EXPECT_OK(ejk_fused_kl_divergence_vjp(context, &a));
        EXPECT_NEAR((double)d_student[1], -share(other, 1, 1), 1e-6);
        for (int v = 0; v < V; v++) assert_true(isfinite(d_student[v]));
    }
}

/* ---- Many logits ------------------------------------------------------------------------------------- */

enum { MANY = 70, CLASSES = 131071, CHECKED = 2 };

/* Rows that begin at every multiple of 4 bytes, more than 32 MiB of them: gradients are written past the caches. */
static void gradients_past_the_caches_are_right(void **state) {
    (void)state;
    static float one = 1;
    float *x[6];
    uint32_t bits = 1;
    for (int k = 0; k < 6; k++) {
        x[k] = calloc((size_t)MANY * CLASSES, sizeof **x);
        assert_non_null(x[k]);
    }
    for (size_t i = 0; i < (size_t)MANY * CLASSES; i++) {
        bits = bits * 1664525u + 1013904223u;
        x[0][i] = (float)(bits >> 24) / 64;
        x[1][i] = (float)(bits >> 16 & 255) / 64;
    }
    for (int direction = 0; direction < DIRECTIONS; direction++) {
        for (int k = 0; k < 2; k++) {
            const int64_t rows = k ? CHECKED : MANY;
            ejk_fused_kl_divergence_vjp_args a = {
                .student = ejk_tensor_2d(x[0], EJK_DTYPE_F32, rows, CLASSES),
                .teacher = ejk_tensor_2d(x[1], EJK_DTYPE_F32, rows, CLASSES),
                .d_loss = ejk_tensor_1d(&one, EJK_DTYPE_F32, 1),
                .d_student = ejk_tensor_2d(x[2 + k], EJK_DTYPE_F32, rows, CLASSES),
                .d_teacher = ejk_tensor_2d(x[4 + k], EJK_DTYPE_F32, rows, CLASSES)};
            strcpy(a.platform, k ? "reference" : "simd");
            strcpy(a.direction, directions[direction]);
            strcpy(a.reduction, "sum");
            EXPECT_OK(ejk_fused_kl_divergence_vjp(context, &a));
        }
        for (size_t i = 0; i < (size_t)CHECKED * CLASSES; i++)
            for (int k = 2; k < 6; k += 2)
                EXPECT_NEAR((double)x[k][i], (double)x[k + 1][i],
                            1e-9 + 1e-5 * fabs((double)x[k + 1][i]));
    }
    for (int k = 0; k < 6; k++) free(x[k]);
}

/* ---- Sizes ------------------------------------------------------------------------------------------- */

static void no_tokens_and_no_classes_are_0(void **state) {
    (void)state;
    for (int i = 0; i < PLATFORMS * DIRECTIONS; i++) {
        ejk_fused_kl_divergence_args a = call(platforms[i % 2], directions[i / 2]);
        for (int64_t v = 0; v < 2; v++) {
            a.student = a.teacher = ejk_tensor_2d(student, EJK_DTYPE_F32, v ? 2 : 0, v ? 0 : V);
            loss[0] = -7;
            EXPECT_OK(ejk_fused_kl_divergence(context, &a));
            assert_true(loss[0] == 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_formulas),
        cmocka_unit_test(equal_distributions_do_not_diverge),
        cmocka_unit_test(divergences_are_infinite_where_they_are),
        cmocka_unit_test(an_unlikely_class_is_infinite_too),
        cmocka_unit_test(what_cannot_be_adds_nothing),
        cmocka_unit_test(both_distributions_have_gradients_everywhere),
        cmocka_unit_test(gradients_of_what_cannot_be_are_0),
        cmocka_unit_test(the_student_learns_from_an_infinite_loss),
        cmocka_unit_test(gradients_past_the_caches_are_right),
        cmocka_unit_test(no_tokens_and_no_classes_are_0)};
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
