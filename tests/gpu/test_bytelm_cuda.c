/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The example's language model with attention on a GPU, against its goldens: prefill, decoding over a cache that
 * grows, and pieces of both. EJK_TEST_DATA is the folder above bytelm where the tree is not here. Answers 77 where
 * there is no GPU.
 */
#include "model.h"

#include "support/expect.h"
#include "support/gpu_driver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 1000, VOCABULARY = BYTELM_VOCABULARY, READ = 600, GREEDY = 120 };

#define MEAN_LOSS      0.9205
#define LOSS_TOLERANCE 0.002

static char folder[2048];
static ejk_context *context;
static ejk_owned_tensor exact;
static uint8_t prompt[PROMPT];
static float logits[PROMPT * VOCABULARY];

static void read_bytes(const char *name, void *to, size_t size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(to, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* The norm of what is wrong with all logits over that of the right ones. NaN is not below anything. */
static double error_of_logits(void) {
    const float *wanted = exact.tensor.data;
    double squares = 0, norm = 0;
    for (int i = 0; i < PROMPT * VOCABULARY; i++) {
        const double difference = (double)logits[i] - (double)wanted[i];
        squares += difference * difference;
        norm += (double)wanted[i] * (double)wanted[i];
    }
    return sqrt(squares / norm);
}

/* Nats per byte that the model needs for each byte of the prompt after the first. */
static double mean_loss(void) {
    double loss = 0;
    for (int i = 0; i + 1 < PROMPT; i++) {
        const float *row = &logits[i * VOCABULARY];
        double sum = 0;
        for (int j = 0; j < VOCABULARY; j++) sum += exp((double)row[j]);
        loss += log(sum) - (double)row[prompt[i + 1]];
    }
    return loss / (PROMPT - 1);
}

/* All but the last `alone` bytes at once, those one by one. */
static void read_all(ejk_dtype dtype, int alone) {
    bytelm *model;
    memset(logits, 0xff, sizeof logits);
    EXPECT_OK(bytelm_open(context, folder, dtype, 0, &model));
    EXPECT_OK(bytelm_read(model, prompt, PROMPT - alone, logits));
    for (int at = PROMPT - alone; at < PROMPT; at++)
        EXPECT_OK(bytelm_read(model, &prompt[at], 1, &logits[at * VOCABULARY]));
    bytelm_close(model);
}

static void expect_right(ejk_dtype dtype, int alone, double tolerance) {
    read_all(dtype, alone);
    const double error = error_of_logits(), loss = mean_loss();
    print_message("%s, the last %d one by one: logits off by %.2g, mean loss %.5f\n",
                  ejk_dtype_name(dtype), alone, error, loss);
    assert_true(error <= tolerance);
    assert_true(fabs(loss - MEAN_LOSS) <= LOSS_TOLERANCE);
}

static void prefill(void **state) {
    (void)state;
    expect_right(EJK_DTYPE_F32, 0, 1e-5);
    expect_right(EJK_DTYPE_F16, 0, 1e-2);
    expect_right(EJK_DTYPE_BF16, 0, 1e-2);
}

static void decoding(void **state) {
    (void)state;
    expect_right(EJK_DTYPE_F32, PROMPT / 2, 1e-5);
    expect_right(EJK_DTYPE_BF16, PROMPT / 2, 1e-2);
    expect_right(EJK_DTYPE_BF16, PROMPT - 1, 1e-2);
}

static void pieces(void **state) {
    (void)state;
    static const int counts[] = {1, 130, 7, 333, 529};
    bytelm *model;
    int position = 0;
    EXPECT_OK(bytelm_open(context, folder, EJK_DTYPE_F32, 0, &model));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; position += counts[i++])
        EXPECT_OK(bytelm_read(model, &prompt[position], counts[i], &logits[position * VOCABULARY]));
    bytelm_close(model);
    assert_int_equal(position, PROMPT);
    assert_true(error_of_logits() <= 1e-5);
}

static void the_likeliest_text(void **state) {
    (void)state;
    uint8_t wanted[GREEDY], got[GREEDY];
    bytelm *model;
    read_bytes("greedy_600_120.txt", wanted, GREEDY);
    EXPECT_OK(bytelm_open(context, folder, EJK_DTYPE_F32, 0, &model));
    EXPECT_OK(bytelm_read(model, prompt, READ, logits));
    got[0] = bytelm_likeliest(&logits[(READ - 1) * VOCABULARY]);
    for (int i = 1; i < GREEDY; i++) {
        EXPECT_OK(bytelm_read(model, &got[i - 1], 1, logits));
        got[i] = bytelm_likeliest(logits);
    }
    bytelm_close(model);
    assert_memory_equal(got, wanted, GREEDY);
}

static int set_up(void **state) {
    char path[4096];
    const char *data = getenv("EJK_TEST_DATA");
    (void)state;
    snprintf(folder, sizeof folder, "%s/bytelm", data ? data : EJK_SOURCE_DIR "/examples/data");
    snprintf(path, sizeof path, "%s/logits.npy", folder);
    read_bytes("prompt.txt", prompt, PROMPT);
    EXPECT_OK(ejk_npy_read(path, &exact));
    assert_int_equal(ejk_tensor_count(&exact.tensor), PROMPT * VOCABULARY);
    EXPECT_OK(ejk_context_create(NULL, &context));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    ejk_context_destroy(context);
    ejk_owned_tensor_close(&exact);
    return 0;
}

int main(void) {
    if (!gpu_is_here()) return GPU_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill),
        cmocka_unit_test(decoding),
        cmocka_unit_test(pieces),
        cmocka_unit_test(the_likeliest_text),
    };
    return cmocka_run_group_tests_name("bytelm_cuda", tests, set_up, tear_down);
}
