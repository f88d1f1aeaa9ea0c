/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights that gguf and bitsandbytes wrote, and some packed as GPTQ and AWQ pack theirs: imported, their values are
 * what these packages say (tools/make_weight_samples.py).
 */
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

#include <math.h>
#include <string.h>

#define DATA EJK_SOURCE_DIR "/tests/data/weights/"
enum { MOST = 32 * 64 }; /* of these matrices */

static ejk_context *context;
static ejk_safetensors *values;
static ejk_gguf *blocks;
static uint32_t w[MOST];
static float scales[MOST], zeros[MOST], out[MOST];
static int32_t permutation[MOST];

static ejk_tensor value(const char *name) {
    ejk_tensor t = {0};
    EXPECT_OK(ejk_safetensors_tensor(values, name, &t));
    return t;
}

/* Imports and takes values of it; `size` values share a scale. */
static void import(ejk_import_weights_args *args, const char *mode, int64_t rows, int64_t columns,
                   int64_t bits, int64_t size, bool has_zeros, ejk_dtype scale) {
    args->w = ejk_tensor_2d(w, EJK_DTYPE_U32, rows, columns * bits / 32);
    args->scales = ejk_tensor_2d(scales, scale, rows, columns / size);
    memset(zeros, 0, sizeof zeros);
    if (has_zeros) args->zeros = ejk_tensor_2d(zeros, EJK_DTYPE_F32, rows, columns / size);
    EXPECT_OK(ejk_import_weights(context, args));
    ejk_dequantize_args back = {.w = args->w,
                                .scales = args->scales,
                                .zeros = args->zeros,
                                .group_size = ejk_int(size),
                                .out = ejk_tensor_2d(out, EJK_DTYPE_F32, rows, columns)};
    if (strcmp(mode, "affine") == 0) back.bits = ejk_int(bits);
    strcpy(back.mode, mode);
    EXPECT_OK(ejk_dequantize(context, &back));
}

/*
 * `rounded` where the package adds what is a zero here, or has another last bit in its table: two units in the last
 * place of the larger term.
 */
static void compare(const char *name, int64_t rows, int64_t columns, int64_t size, bool rounded) {
    const ejk_tensor t = value(name);
    assert_int_equal(ejk_tensor_count(&t), rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        const double wanted = (double)((const float *)t.data)[i];
        const double term = fabs((double)zeros[i / size] * (double)scales[i / size]);
        const double most = rounded ? ldexp(fmax(fabs(wanted), term), -22) : 0;
        EXPECT_NEAR((double)out[i], wanted, most);
    }
}

static void blocks_of_gguf_have_their_values(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t bits, size;
        bool zeros;
    } types[] = {{"q4_0", 4, 32, false}, {"q4_1", 4, 32, true},  {"q5_0", 5, 32, false},
                 {"q5_1", 5, 32, true},  {"q8_0", 8, 32, false}, {"q4_k", 4, 32, true},
                 {"q5_k", 5, 32, true},  {"q6_k", 6, 16, false}, {"mxfp4", 4, 32, false}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const bool mx = strcmp(types[i].name, "mxfp4") == 0;
        ejk_import_weights_args args = {0};
        const char *type = NULL;
        EXPECT_OK(ejk_gguf_tensor(blocks, types[i].name, &args.packed));
        EXPECT_OK(ejk_gguf_type(blocks, types[i].name, &type));
        strcpy(args.layout, type);
        import(&args, mx ? "mxfp4" : "affine", 3, 512, types[i].bits, types[i].size, types[i].zeros,
               mx ? EJK_DTYPE_F8E8M0 : EJK_DTYPE_F32);
        compare(types[i].name, 3, 512, types[i].size, types[i].zeros);
    }
}

static void codes_of_bitsandbytes_have_their_values(void **state) {
    (void)state;
    ejk_import_weights_args args = {.layout = "bnb_nf4", .columns = ejk_int(512)};
    args.packed = value("bnb.packed");
    args.packed_scales = value("bnb.scales");
    import(&args, "nf4", 3, 512, 4, 64, false, EJK_DTYPE_F32);
    compare("bnb", 3, 512, 64, true);
    args.packed = value("bnb_nested.packed");
    args.packed_scales = value("bnb_nested.scales");
    args.nested_scales = value("bnb_nested.nested_scales");
    args.nested_table = value("bnb_nested.nested_table");
    args.nested_offset = value("bnb_nested.nested_offset");
    import(&args, "nf4", 3, 512, 4, 64, false, EJK_DTYPE_F32);
    compare("bnb_nested", 3, 512, 64, true);
}

static void words_of_gptq_and_awq_have_their_values(void **state) {
    (void)state;
    ejk_import_weights_args args = {.layout = "gptq", .bits = ejk_int(3)};
    args.packed = value("gptq3.packed");
    args.packed_scales = value("gptq3.scales");
    args.packed_zeros = value("gptq3.zeros");
    import(&args, "affine", 32, 64, 3, 32, true, EJK_DTYPE_F32);
    compare("gptq3", 32, 64, 32, false);
    args = (ejk_import_weights_args){.layout = "awq"};
    args.packed = value("awq.packed");
    args.packed_scales = value("awq.scales");
    args.packed_zeros = value("awq.zeros");
    import(&args, "affine", 32, 64, 4, 32, true, EJK_DTYPE_F32);
    compare("awq", 32, 64, 32, false);
}

/* Groups of inputs in any order: columns are inputs by the permutation. */
static void inputs_in_any_order_are_permuted(void **state) {
    (void)state;
    ejk_import_weights_args args = {.layout = "gptq"};
    args.packed = value("gptq4.packed");
    args.packed_scales = value("gptq4.scales");
    args.packed_zeros = value("gptq4.zeros");
    args.g_idx = value("gptq4.g_idx");
    args.permutation = ejk_tensor_1d(permutation, EJK_DTYPE_I32, 64);
    import(&args, "affine", 32, 64, 4, 32, true, EJK_DTYPE_F32);
    const ejk_tensor t = value("gptq4");
    int moved = 0;
    for (int row = 0; row < 32; row++)
        for (int c = 0; c < 64; c++) {
            moved += permutation[c] != c;
            assert_true(out[row * 64 + c] == ((const float *)t.data)[row * 64 + permutation[c]]);
        }
    assert_true(moved > 0);
}

static int open_data(void **state) {
    (void)state;
    return ejk_context_create(NULL, &context) != EJK_OK ||
           ejk_safetensors_open(DATA "values.safetensors", &values) != EJK_OK ||
           ejk_gguf_open(DATA "weights.gguf", &blocks) != EJK_OK;
}

static int close_data(void **state) {
    (void)state;
    ejk_gguf_close(blocks);
    ejk_safetensors_close(values);
    ejk_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_gguf_have_their_values),
        cmocka_unit_test(codes_of_bitsandbytes_have_their_values),
        cmocka_unit_test(words_of_gptq_and_awq_have_their_values),
        cmocka_unit_test(inputs_in_any_order_are_permuted),
    };
    return cmocka_run_group_tests(tests, open_data, close_data);
}
