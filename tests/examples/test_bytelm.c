/* SPDX-License-Identifier: Apache-2.0 */
/* The example's language model against its goldens: attention as a model uses it, from end to end. */
#include "model.h"

#include "support/expect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER EJK_SOURCE_DIR "/examples/data/bytelm"

enum { PROMPT = 1000, VOCABULARY = BYTELM_VOCABULARY, READ = 600, GREEDY = 120 };

#define MEAN_LOSS 0.9205

/* Largest difference of two logits; they reach 30 or so, and were rounded to float32 themselves. */
#define LOGITS_TOLERANCE 1e-4

static ejk_context *context;
static bytelm *model;
static uint8_t prompt[PROMPT];
static float logits[PROMPT * VOCABULARY];

static void read_bytes(const char *path, void *to, size_t size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(to, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void expect_logits(const float *got, int first, int count) {
    ejk_owned_tensor exact;
    EXPECT_OK(ejk_npy_read(FOLDER "/logits.npy", &exact));
    assert_int_equal(ejk_tensor_count(&exact.tensor), PROMPT * VOCABULARY);
    const float *wanted = (const float *)exact.tensor.data + first * VOCABULARY;
    double largest = 0;
    for (int i = 0; i < count * VOCABULARY; i++) {
        double difference = fabs((double)got[i] - wanted[i]);
        /* Not fmax(), which would pass over a NaN. */
        if (!(difference <= largest)) largest = difference;
    }
    EXPECT_NEAR(largest, 0, LOGITS_TOLERANCE);
    ejk_owned_tensor_close(&exact);
}

/* Nats per byte that the model needs for each byte of the prompt after the first. */
static double mean_loss(void) {
    double loss = 0;
    for (int i = 0; i + 1 < PROMPT; i++) {
        const float *row = &logits[i * VOCABULARY];
        double sum = 0;
        for (int j = 0; j < VOCABULARY; j++) sum += exp(row[j]);
        loss += log(sum) - row[prompt[i + 1]];
    }
    return loss / (PROMPT - 1);
}

static void test_prefill(void **state) {
    (void)state;
    bytelm_forget(model);
    EXPECT_OK(bytelm_read(model, prompt, PROMPT, logits));
    expect_logits(logits, 0, PROMPT);
    EXPECT_NEAR(mean_loss(), MEAN_LOSS, 5e-5);
}

/* The same bytes one by one, all over the cache. */
static void test_decode(void **state) {
    (void)state;
    memset(logits, 0, sizeof logits);
    bytelm_forget(model);
    for (int i = 0; i < PROMPT; i++)
        EXPECT_OK(bytelm_read(model, &prompt[i], 1, &logits[i * VOCABULARY]));
    expect_logits(logits, 0, PROMPT);
}

/* And in pieces, few of which start where attention's blocks do. */
static void test_pieces(void **state) {
    (void)state;
    static const int pieces[] = {1, 130, 7, 333, 0, 529};
    int position = 0;
    memset(logits, 0, sizeof logits);
    bytelm_forget(model);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; position += pieces[i++])
        EXPECT_OK(bytelm_read(model, &prompt[position], pieces[i], &logits[position * VOCABULARY]));
    assert_int_equal(position, PROMPT);
    expect_logits(logits, 0, PROMPT);
}

static void test_greedy(void **state) {
    (void)state;
    uint8_t wanted[GREEDY], got[GREEDY];
    read_bytes(FOLDER "/greedy_600_120.txt", wanted, GREEDY);
    bytelm_forget(model);
    EXPECT_OK(bytelm_read(model, prompt, READ, logits));
    got[0] = bytelm_likeliest(&logits[(READ - 1) * VOCABULARY]);
    for (int i = 1; i < GREEDY; i++) {
        EXPECT_OK(bytelm_read(model, &got[i - 1], 1, logits));
        got[i] = bytelm_likeliest(logits);
    }
    assert_memory_equal(got, wanted, GREEDY);
}

/* What does not fit is refused, and what was read before stays as it was. */
static void test_full(void **state) {
    (void)state;
    const int before = 200, too_many = BYTELM_CONTEXT - before + 1;
    bytelm_forget(model);
    EXPECT_OK(bytelm_read(model, prompt, before, logits));
    memset(logits, 0, sizeof logits);
    EXPECT_FAIL(INVALID_SHAPE, "cache", bytelm_read(model, prompt, too_many, logits));
    EXPECT_FAIL(INVALID_SHAPE, "cache", bytelm_read(model, prompt, -1, logits));
    for (int i = 0; i < PROMPT * VOCABULARY; i++) assert_true(logits[i] == 0);
    EXPECT_OK(bytelm_read(model, &prompt[before], 1, logits));
    expect_logits(logits, before, 1);
}

/* Root of the mean square of what is wrong with all logits. */
static double error_of_logits(void) {
    ejk_owned_tensor exact;
    double squares = 0;
    EXPECT_OK(ejk_npy_read(FOLDER "/logits.npy", &exact));
    for (int i = 0; i < PROMPT * VOCABULARY; i++) {
        double difference = (double)logits[i] - ((const float *)exact.tensor.data)[i];
        squares += difference * difference;
    }
    ejk_owned_tensor_close(&exact);
    return sqrt(squares / (PROMPT * VOCABULARY));
}

/*
 * Attention on numbers of 8 and 11 bits, at once and after half of the prompt one by one. What they round away
 * is a hundredth of a logit and a thousandth; the bounds are two or three times what was seen.
 */
static void test_narrow_types(void **state) {
    (void)state;
    static const struct {
        ejk_dtype dtype;
        double logits, loss;
    } types[] = {{EJK_DTYPE_BF16, 0.05, 1e-3}, {EJK_DTYPE_F16, 0.006, 1.5e-4}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int alone = 0; alone <= PROMPT / 2; alone += PROMPT / 2) {
            bytelm *narrow;
            EXPECT_OK(bytelm_open(context, FOLDER, types[i].dtype, -1, &narrow));
            EXPECT_OK(bytelm_read(narrow, prompt, PROMPT - alone, logits));
            for (int at = PROMPT - alone; at < PROMPT; at++)
                EXPECT_OK(bytelm_read(narrow, &prompt[at], 1, &logits[at * VOCABULARY]));
            EXPECT_NEAR(error_of_logits(), 0, types[i].logits);
            EXPECT_NEAR(mean_loss(), MEAN_LOSS, types[i].loss);
            /* Else attention was given float32 after all. */
            assert_true(error_of_logits() > types[i].logits / 30);
            bytelm_close(narrow);
        }
}

static void test_no_model(void **state) {
    (void)state;
    bytelm *none = NULL;
    EXPECT_FAIL(IO, "model.safetensors",
                bytelm_open(context, FOLDER "/nowhere", EJK_DTYPE_F32, -1, &none));
    assert_null(none);
    EXPECT_FAIL(INVALID_DTYPE, "", bytelm_open(context, FOLDER, EJK_DTYPE_UNSET, -1, &none));
    assert_null(none);
    bytelm_close(NULL);
}

static int set_up(void **state) {
    (void)state;
    read_bytes(FOLDER "/prompt.txt", prompt, PROMPT);
    EXPECT_OK(ejk_context_create(NULL, &context));
    EXPECT_OK(bytelm_open(context, FOLDER, EJK_DTYPE_F32, -1, &model));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    bytelm_close(model);
    ejk_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill),  cmocka_unit_test(test_decode),
        cmocka_unit_test(test_pieces),   cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_full),     cmocka_unit_test(test_narrow_types),
        cmocka_unit_test(test_no_model),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
