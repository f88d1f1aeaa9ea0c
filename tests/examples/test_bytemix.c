/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hybrid model of the examples against its goldens: recurrent layers, caches and experts from end to end.
 * `test_bytemix gpu` computes on a GPU.
 */
#include "model.h"

#include "support/expect.h"
#include "support/gpu_driver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 1000, VOCABULARY = BYTEMIX_VOCABULARY, READ = 600, GREEDY = 60 };

#define MEAN_LOSS 0.526417

static char folder[512];
static const char *device = "cpu";
static ejk_context *context;
static bytemix *model;
static uint8_t prompt[PROMPT];
static float logits[PROMPT * VOCABULARY];
static ejk_owned_tensor exact;

static const char *in_folder(const char *name) {
    static char path[640];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void read_bytes(const char *name, void *to, size_t size) {
    FILE *file = fopen(in_folder(name), "rb");
    assert_non_null(file);
    assert_int_equal(fread(to, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static bytemix *open_model(bytemix_options options) {
    bytemix *out;
    options.folder = folder;
    options.device = device;
    EXPECT_OK(bytemix_open(context, &options, &out));
    return out;
}

static void expect_logits(const float *got, int first, int count) {
    const float *wanted = (const float *)exact.tensor.data + first * VOCABULARY;
    double largest = 0;
    for (int i = 0; i < count * VOCABULARY; i++) {
        const double difference = fabs((double)got[i] - wanted[i]);
        /* Not fmax(), which would pass over a NaN. */
        if (!(difference <= largest)) largest = difference;
    }
    EXPECT_NEAR(largest, 0, 1e-4);
}

/* Nats per byte that the model needs for each byte of the prompt after the first. */
static double mean_loss(void) {
    double loss = 0;
    for (int i = 0; i + 1 < PROMPT; i++) {
        const float *row = &logits[i * VOCABULARY];
        double sum = 0;
        for (int k = 0; k < VOCABULARY; k++) sum += exp((double)row[k]);
        loss += log(sum) - row[prompt[i + 1]];
    }
    return loss / (PROMPT - 1);
}

static void test_prefill(void **state) {
    (void)state;
    bytemix *whole = open_model((bytemix_options){.rows = PROMPT});
    EXPECT_OK(bytemix_read(whole, 0, prompt, PROMPT, logits));
    expect_logits(logits, 0, PROMPT);
    EXPECT_NEAR(mean_loss(), MEAN_LOSS, 2e-6);
    bytemix_close(whole);
}

/* In chunks, few of which start where pages or chunks of recurrences do; the last bytes one by one. */
static void test_chunks(void **state) {
    (void)state;
    static const int chunks[] = {1, 130, 7, 333, 0, 2, 427};
    int position = 0;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; position += chunks[i++])
        EXPECT_OK(bytemix_read(model, position, &prompt[position], chunks[i],
                               &logits[position * VOCABULARY]));
    for (; position < PROMPT; position++)
        EXPECT_OK(
            bytemix_read(model, position, &prompt[position], 1, &logits[position * VOCABULARY]));
    expect_logits(logits, 0, PROMPT);
}

static void test_greedy(void **state) {
    (void)state;
    uint8_t wanted[GREEDY], got[GREEDY];
    read_bytes("greedy_600_60.txt", wanted, GREEDY);
    EXPECT_OK(bytemix_read(model, 0, prompt, READ, logits));
    got[0] = bytemix_likeliest(&logits[(READ - 1) * VOCABULARY]);
    for (int i = 1; i < GREEDY; i++) {
        EXPECT_OK(bytemix_read(model, READ + i - 1, &got[i - 1], 1, logits));
        got[i] = bytemix_likeliest(logits);
    }
    assert_memory_equal(got, wanted, GREEDY);
}

/*
 * Two texts beside each other, with pages and slots in disorder, have the bits of each alone: where texts have 32 bytes
 * or more on average, and so recurrences go in chunks for both.
 */
static void test_batch(void **state) {
    (void)state;
    static float alone[2][41 * VOCABULARY];
    int32_t starts[] = {0, 33, 74}, lengths[] = {33, 41}, slots[] = {2, 0};
    int32_t pages[2 * BYTEMIX_TABLE] = {5, 1, 2};
    memcpy(&pages[BYTEMIX_TABLE], (int32_t[]){4, 0, 6}, 3 * sizeof *pages);
    for (int i = 0; i < 2; i++)
        EXPECT_OK(bytemix_read(model, 0, &prompt[starts[i]], lengths[i], alone[i]));
    bytemix *both = open_model((bytemix_options){.pages = 7, .slots = 3});
    const bytemix_batch batch = {2, 74, prompt, starts, lengths, pages, slots};
    EXPECT_OK(bytemix_step(both, &batch, logits));
    for (int i = 0; i < 2; i++)
        assert_memory_equal(&logits[starts[i] * VOCABULARY], alone[i],
                            (size_t)lengths[i] * VOCABULARY * sizeof(float));
    /* The second goes on from a copy of its states. */
    EXPECT_OK(bytemix_copy_slot(both, 0, 1));
    EXPECT_OK(bytemix_read(model, 41, &prompt[74], 1, alone[1]));
    starts[1] = 1;
    lengths[0] = 42;
    slots[0] = 1;
    const bytemix_batch next = {1, 1, &prompt[74], starts, lengths, &pages[BYTEMIX_TABLE], slots};
    EXPECT_OK(bytemix_step(both, &next, logits));
    assert_memory_equal(logits, alone[1], VOCABULARY * sizeof(float));
    bytemix_close(both);
}

/* What does not fit is refused, and so are pages and slots that do not exist. */
static void test_refusals(void **state) {
    (void)state;
    bytemix *none = NULL;
    EXPECT_FAIL(INVALID_SHAPE, "text", bytemix_read(model, 1000, prompt, 25, logits));
    EXPECT_FAIL(INVALID_SHAPE, "text", bytemix_read(model, 0, prompt, -1, logits));
    int32_t starts[] = {0, 1}, length = 1, slot = 1, pages[BYTEMIX_TABLE] = {BYTEMIX_TABLE};
    bytemix_batch batch = {1, 1, prompt, starts, &length, pages, &slot};
    EXPECT_FAIL(INVALID_SHAPE, "slot", bytemix_step(model, &batch, logits));
    slot = 0;
    EXPECT_FAIL(INVALID_ARGUMENT, "page 0 of sequence 0", bytemix_step(model, &batch, logits));
    batch.rows = 257;
    EXPECT_FAIL(INVALID_SHAPE, "rows", bytemix_step(model, &batch, logits));
    bytemix_options wrong = {.folder = in_folder("nowhere")};
    EXPECT_FAIL(IO, "model.safetensors", bytemix_open(context, &wrong, &none));
    wrong = (bytemix_options){.folder = folder, .weights = "3bit"};
    assert_int_equal(bytemix_open(context, &wrong, &none), EJK_STATUS_UNKNOWN_NAME);
    assert_null(none);
    bytemix_close(NULL);
}

/* Root of the mean square of what is wrong with a row of logits. */
static double error_of_row(int row) {
    const float *wanted = (const float *)exact.tensor.data + row * VOCABULARY;
    double squares = 0;
    for (int i = 0; i < VOCABULARY; i++) {
        const double difference = (double)logits[row * VOCABULARY + i] - wanted[i];
        squares += difference * difference;
    }
    return sqrt(squares / VOCABULARY);
}

/*
 * Layers on numbers of 8 and 11 bits. The smallest margin of the router is 9e-4: what bf16 rounds away sends two or
 * three bytes of the thousand to other experts, whose logits are others; they count in the loss only. On a GPU what
 * runs through the layers is rounded, too.
 */
static void test_narrow_types(void **state) {
    (void)state;
    static const struct {
        ejk_dtype dtype;
        int others;
        double logits, loss;
    } types[] = {{EJK_DTYPE_BF16, 8, 0.02, 2e-3}, {EJK_DTYPE_F16, 3, 0.004, 2e-4}};
    const int rounded = strcmp(device, "cpu") == 0 ? 1 : 4;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bytemix *narrow = open_model((bytemix_options){.dtype = types[i].dtype});
        double squares = 0;
        int others = 0;
        EXPECT_OK(bytemix_read(narrow, 0, prompt, PROMPT - 100, logits));
        for (int at = PROMPT - 100; at < PROMPT; at++)
            EXPECT_OK(bytemix_read(narrow, at, &prompt[at], 1, &logits[at * VOCABULARY]));
        for (int row = 0; row < PROMPT; row++) {
            const double error = error_of_row(row);
            if (error > 0.1 && others < rounded * types[i].others)
                others++;
            else
                squares += error * error;
        }
        print_message("%s: %d bytes of other experts, logits off by %.2g, loss by %.2g\n",
                      ejk_dtype_name(types[i].dtype), others, sqrt(squares / PROMPT),
                      mean_loss() - MEAN_LOSS);
        EXPECT_NEAR(sqrt(squares / PROMPT), 0, rounded * types[i].logits);
        EXPECT_NEAR(mean_loss(), MEAN_LOSS, rounded * types[i].loss);
        /* Else layers were given float32 after all. */
        assert_true(sqrt(squares / PROMPT) > types[i].logits / 30);
        bytemix_close(narrow);
    }
}

static void test_quantised_weights(void **state) {
    (void)state;
    static const double bounds[] = {0.002, 0.06, 0.06, 0.06};
    for (int i = 0; bytemix_formats[i]; i++) {
        bytemix *quantised = open_model((bytemix_options){.weights = bytemix_formats[i]});
        EXPECT_OK(bytemix_read(quantised, 0, prompt, PROMPT, logits));
        EXPECT_NEAR(mean_loss(), MEAN_LOSS, bounds[i]);
        assert_true(fabs(mean_loss() - MEAN_LOSS) > 1e-5);
        bytemix_close(quantised);
    }
}

/* ---- Layers alone ----------------------------------------------------------------------------------- */

static ejk_tensor golden(const char *name, ejk_owned_tensor *owned) {
    char file[64];
    snprintf(file, sizeof file, "%s.npy", name);
    EXPECT_OK(ejk_npy_read(in_folder(file), owned));
    return owned->tensor;
}

/* The error of float32 results against float64 ones, relative to these. */
static double error_of(const float *got, const ejk_tensor *wanted) {
    const double *right = wanted->data;
    double error = 0, size = 0;
    for (int64_t i = 0; i < ejk_tensor_count(wanted); i++) {
        error += (got[i] - right[i]) * (got[i] - right[i]);
        size += right[i] * right[i];
    }
    return sqrt(error / size);
}

enum { ROWS = 300, HEADS = 4, LATENT = 64, NOPE = 32 };

/* The dense form, and the absorbed one over pages. */
static void test_latent_attention(void **state) {
    (void)state;
    static float out[ROWS * HEADS * NOPE], query[ROWS * HEADS * LATENT],
        latents[ROWS * HEADS * LATENT], cache[BYTEMIX_TABLE * BYTEMIX_PAGE * (LATENT + NOPE)];
    int32_t length = ROWS, starts[] = {0, ROWS}, pages[BYTEMIX_TABLE], distribution[] = {0, 0, 1};
    ejk_owned_tensor files[7];
    const ejk_tensor nope = golden("mla_query_nope", &files[0]),
                     rope = golden("mla_query_rope", &files[1]),
                     latent = golden("mla_latent", &files[2]),
                     key_rope = golden("mla_key_rope", &files[3]),
                     w_kc = golden("mla_w_kc", &files[4]), w_vc = golden("mla_w_vc", &files[5]),
                     wanted = golden("mla_output", &files[6]);
    const ejk_flash_mla_args dense = {
        .query = nope,
        .key_value = latent,
        .w_kc = w_kc,
        .w_vc = w_vc,
        .b_q = rope,
        .b_k = key_rope,
        .causal = true,
        .out = ejk_tensor_contiguous(out, EJK_DTYPE_F32, 4, wanted.shape)};
    EXPECT_OK(ejk_flash_mla(context, &dense));
    EXPECT_NEAR(error_of(out, &wanted), 0, 1e-6);

    memset(out, 0, sizeof out);
    for (int i = 0; i < BYTEMIX_TABLE; i++) pages[i] = (7 * i + 3) % BYTEMIX_TABLE;
    const ejk_tensor q = ejk_tensor_3d(query, EJK_DTYPE_F32, ROWS, HEADS, LATENT),
                     o = ejk_tensor_3d(latents, EJK_DTYPE_F32, ROWS, HEADS, LATENT),
                     heads = ejk_tensor_3d(nope.data, EJK_DTYPE_F32, ROWS, HEADS, NOPE),
                     result = ejk_tensor_3d(out, EJK_DTYPE_F32, ROWS, HEADS, NOPE);
    const ejk_matmul_args absorb = {.lhs = ejk_tensor_transpose(heads, 0, 1),
                                    .rhs = ejk_tensor_transpose(w_kc, 0, 1),
                                    .transpose_rhs = true,
                                    .out = ejk_tensor_transpose(q, 0, 1)},
                          values = {.lhs = ejk_tensor_transpose(o, 0, 1),
                                    .rhs = ejk_tensor_transpose(w_vc, 0, 1),
                                    .out = ejk_tensor_transpose(result, 0, 1)};
    const ejk_multi_latent_ragged_page_attention_args paged = {
        .queries_nope = q,
        .queries_pe = ejk_tensor_3d(rope.data, EJK_DTYPE_F32, ROWS, HEADS, NOPE),
        .keys_values = ejk_tensor_2d(latent.data, EJK_DTYPE_F32, ROWS, LATENT),
        .keys_pe = ejk_tensor_2d(key_rope.data, EJK_DTYPE_F32, ROWS, NOPE),
        .kv_cache = ejk_tensor_3d(cache, EJK_DTYPE_F32, BYTEMIX_TABLE, BYTEMIX_PAGE, LATENT + NOPE),
        .kv_lens = ejk_tensor_1d(&length, EJK_DTYPE_I32, 1),
        .block_tables = ejk_tensor_1d(pages, EJK_DTYPE_I32, BYTEMIX_TABLE),
        .query_start_loc = ejk_tensor_1d(starts, EJK_DTYPE_I32, 2),
        .distribution = ejk_tensor_1d(distribution, EJK_DTYPE_I32, 3),
        .softmax_scale = ejk_float(0.125),
        .out = o};
    EXPECT_OK(ejk_matmul(context, &absorb));
    EXPECT_OK(ejk_multi_latent_ragged_page_attention(context, &paged));
    EXPECT_OK(ejk_matmul(context, &values));
    EXPECT_NEAR(error_of(out, &wanted), 0, 1e-6);
    for (int i = 0; i < 7; i++) ejk_owned_tensor_close(&files[i]);
}

static void test_experts(void **state) {
    (void)state;
    static float out[ROWS * 256];
    static const char *const names[] = {"layers.1.mlp.w_gate_up", "layers.1.mlp.w_down"};
    ejk_owned_tensor files[4], weights[2];
    ejk_safetensors *file;
    EXPECT_OK(ejk_safetensors_open(in_folder("model.safetensors"), &file));
    for (int i = 0; i < 2; i++) {
        ejk_tensor source;
        EXPECT_OK(ejk_safetensors_tensor(file, names[i], &source));
        EXPECT_OK(ejk_owned_tensor_create(EJK_DTYPE_F32, 3, source.shape, &weights[i]));
        EXPECT_OK(ejk_tensor_copy(&source, &weights[i].tensor));
    }
    ejk_safetensors_close(file);
    const ejk_tensor hidden = golden("moe_hidden", &files[0]),
                     index = golden("moe_expert_index", &files[1]),
                     weight = golden("moe_expert_weight", &files[2]),
                     wanted = golden("moe_output", &files[3]);
    const ejk_moe_args args = {.hidden = ejk_tensor_2d(hidden.data, EJK_DTYPE_F32, ROWS, 256),
                               .expert_index = ejk_tensor_2d(index.data, EJK_DTYPE_I32, ROWS, 2),
                               .expert_weight = ejk_tensor_2d(weight.data, EJK_DTYPE_F32, ROWS, 2),
                               .w_gate_up = weights[0].tensor,
                               .w_down = weights[1].tensor,
                               .transpose = true,
                               .out = ejk_tensor_2d(out, EJK_DTYPE_F32, ROWS, 256)};
    EXPECT_OK(ejk_moe(context, &args));
    EXPECT_NEAR(error_of(out, &wanted), 0, 1e-6);
    for (int i = 0; i < 4; i++) ejk_owned_tensor_close(&files[i]);
    for (int i = 0; i < 2; i++) ejk_owned_tensor_close(&weights[i]);
}

static int set_up(void **state) {
    (void)state;
    read_bytes("prompt.txt", prompt, PROMPT);
    EXPECT_OK(ejk_npy_read(in_folder("logits.npy"), &exact));
    assert_int_equal(ejk_tensor_count(&exact.tensor), PROMPT * VOCABULARY);
    EXPECT_OK(ejk_context_create(NULL, &context));
    model = open_model((bytemix_options){0});
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    bytemix_close(model);
    ejk_owned_tensor_close(&exact);
    ejk_context_destroy(context);
    return 0;
}

/* What is not said of CPUs alone. */
static int on_a_gpu(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_narrow_types),
        cmocka_unit_test(test_quantised_weights),
    };
    if (!gpu_is_here()) return GPU_SKIPPED;
    device = "cuda";
    return cmocka_run_group_tests_name("bytemix_cuda", tests, set_up, tear_down);
}

int main(int count, char **words) {
    const char *data = getenv("EJK_TEST_DATA");
    snprintf(folder, sizeof folder, "%s/bytemix", data ? data : EJK_SOURCE_DIR "/examples/data");
    if (count > 1 && strcmp(words[1], "gpu") == 0) return on_a_gpu();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_narrow_types),
        cmocka_unit_test(test_quantised_weights),
        cmocka_unit_test(test_latent_attention),
        cmocka_unit_test(test_experts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
