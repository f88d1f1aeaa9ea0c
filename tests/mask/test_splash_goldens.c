/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worked examples of MaskInfo, every entry and element type of them, entries that are never read
 * included. They stand in data/splash/examples.txt: rows are separated by "/", planes by "||", blocks
 * begin with "#", and "~" marks an entry that is never read.
 */
#include "support/splash_masks.h"

#include <ctype.h>

/* A call: its heads as splash_mask() reads them, or the name of a mask that is made below. */
struct example {
    const char *name;
    const char *heads[4];
    int64_t q, kv, bq, bkv;
    int64_t head_shards, q_shards;
    bool keep_grid, keep_width, dynamic;
};

#define USUAL   16, 16, 4, 4
#define CAUSAL  "~causal 0"
#define LOCAL   "~local 2 2 0"
#define SLIDING "~local 3 0 0"
#define NOTHING "~local -1 -1 0"

static const struct example examples[] = {
    {"E01", {"full"}, USUAL, 1, 1, false, false, false},
    {"E01", {"full"}, USUAL, 1, 1, true, false, false},
    {"E01", {"~full"}, USUAL, 1, 1, false, false, false},
    {"E02", {CAUSAL}, USUAL, 1, 1, false, false, false},
    {"E03", {"causal 0"}, USUAL, 1, 1, false, false, false},
    {"E04", {"~causal 2"}, USUAL, 1, 1, false, false, false},
    {"E05", {"~causal -5"}, USUAL, 1, 1, false, false, false},
    {"E05n", {"~causal -5"}, USUAL, 1, 1, true, false, false},
    {"E06", {LOCAL}, USUAL, 1, 1, false, false, false},
    {"E07", {LOCAL}, USUAL, 1, 1, true, false, false},
    {"E08", {"local 2 2 0"}, USUAL, 1, 1, false, false, false},
    {"E09", {SLIDING}, USUAL, 1, 1, false, false, false},
    {"E10", {"~local 1 1 4"}, USUAL, 1, 1, false, false, false},
    {"E10n", {"~local 1 1 4"}, USUAL, 1, 1, true, false, false},
    {"E11a", {"~local 5 x 0"}, USUAL, 1, 1, false, false, false},
    {"E11b", {"~local x 5 0"}, USUAL, 1, 1, false, false, false},
    {"E12", {"holes"}, USUAL, 1, 1, false, false, false},
    {"E12n", {"holes"}, USUAL, 1, 1, true, false, false},
    {"E13", {"~chunk 6"}, USUAL, 1, 1, false, false, false},
    {"E13c", {"chunk 6"}, USUAL, 1, 1, false, false, false},
    {"E14", {CAUSAL, CAUSAL}, USUAL, 1, 1, false, false, false},
    {"E15", {CAUSAL, LOCAL}, USUAL, 1, 1, false, false, false},
    {"E15s", {CAUSAL, LOCAL}, USUAL, 2, 1, false, false, false},
    {"E16a", {CAUSAL, CAUSAL, LOCAL, LOCAL}, USUAL, 2, 1, false, false, false},
    {"E16b", {CAUSAL, LOCAL, CAUSAL, LOCAL}, USUAL, 2, 1, false, false, false},
    {"E17", {SLIDING, SLIDING, SLIDING, SLIDING}, USUAL, 2, 1, false, false, false},
    {"E18", {CAUSAL}, USUAL, 1, 2, false, false, false},
    {"E19", {CAUSAL, LOCAL}, USUAL, 1, 2, false, false, false},
    {"E20", {"causal over local"}, 32, 16, 4, 4, 1, 2, false, false, false},
    {"E21", {"local over sliding"}, 32, 16, 4, 4, 1, 2, false, false, false},
    {"E22w", {CAUSAL}, 8, 16, 2, 4, 1, 1, false, false, false},
    {"E22t", {CAUSAL}, 16, 8, 2, 4, 1, 1, false, false, false},
    {"E23and", {"and"}, USUAL, 1, 1, false, false, false},
    {"E23or", {"or"}, USUAL, 1, 1, false, false, false},
    {"E24", {"causal 0", "full"}, USUAL, 2, 1, false, false, false},
    {"E25", {NOTHING}, USUAL, 1, 1, true, false, false},
    {"E26", {CAUSAL}, 8, 8, 2, 4, 1, 1, false, false, true},
    {"E27", {CAUSAL, "~local 1 1 0", "~full", NOTHING}, 8, 8, 2, 4, 2, 2, false, false, true},
    {"E27u", {CAUSAL, "~local 1 1 0", "~full", NOTHING}, 8, 8, 2, 4, 1, 1, false, false, true},
    {"E28", {"full"}, USUAL, 1, 2, true, false, false},
    {"E29", {"zigzag"}, USUAL, 1, 1, false, false, false},
    {"E30", {"~local 0 0 0"}, USUAL, 1, 1, false, false, false},
    {"E30q", {"~local 0 0 0"}, USUAL, 1, 2, false, false, false},
    {"E31", {LOCAL, LOCAL}, USUAL, 2, 2, false, false, false},
    {"E32", {CAUSAL, LOCAL, CAUSAL, CAUSAL}, USUAL, 2, 2, false, false, false},
    {"E33", {SLIDING}, USUAL, 1, 1, false, true, false},
};
enum { EXAMPLES = sizeof examples / sizeof *examples };

/* ---- Masks of the examples ------------------------------------------------------------------------- */

static ejk_splash_mask *stacked(const char *upper, const char *lower) {
    uint8_t bytes[32 * 16];
    const char *halves[2] = {upper, lower};
    for (int i = 0; i < 2; i++) {
        ejk_splash_mask *half = splash_mask(halves[i], 16, 16);
        uint8_t *elements = splash_elements(half);
        memcpy(bytes + i * 256, elements, 256);
        free(elements);
        ejk_splash_mask_release(half);
    }
    return splash_dense(bytes, 32, 16);
}

static ejk_splash_mask *joined(ejk_status (*join)(const ejk_splash_mask *, const ejk_splash_mask *,
                                                  ejk_splash_mask **),
                               const char *window) {
    ejk_splash_mask *left = splash_mask("causal 0", 16, 16), *both = NULL;
    ejk_splash_mask *right = splash_mask(window, 16, 16);
    EXPECT_OK(join(left, right, &both));
    ejk_splash_mask_release(left);
    ejk_splash_mask_release(right);
    return both;
}

static ejk_splash_mask *holes(void) {
    static const char rows[] = "0000111100000000"
                               "0000111100000000"
                               "0000111100000000"
                               "0000111100000000"
                               "0000000000000000"
                               "0000000000000000"
                               "0000000000000000"
                               "0000000000000000"
                               "1000000000001111"
                               "1100000000001111"
                               "1110000000001111"
                               "1111000000001111"
                               "0000100000000000"
                               "0000000000001000"
                               "0000000000000000"
                               "0000000000000000";
    uint8_t bytes[256];
    for (int i = 0; i < 256; i++) bytes[i] = rows[i] == '1';
    return splash_dense(bytes, 16, 16);
}

static ejk_splash_mask *zigzag(void) {
    const int32_t order[16] = {0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 8, 9, 10, 11};
    ejk_computable_mask_options options = {.q_sequence = order, .q_sequence_length = 16};
    ejk_splash_mask *mask = NULL;
    EXPECT_OK(ejk_causal_mask_create((int64_t[]){16, 16}, 0, &options, &mask));
    return mask;
}

static ejk_splash_mask *head_of(const struct example *example, const char *text) {
    if (strcmp(text, "causal over local") == 0) return stacked("causal 0", "local 2 2 0");
    if (strcmp(text, "local over sliding") == 0) return stacked("local 2 2 0", "local 3 0 0");
    if (strcmp(text, "and") == 0) return joined(ejk_logical_and_create, "local 2 2 0");
    if (strcmp(text, "or") == 0) return joined(ejk_logical_or_create, "local 0 3 0");
    if (strcmp(text, "holes") == 0) return holes();
    if (strcmp(text, "zigzag") == 0) return zigzag();
    return splash_mask(text, example->q, example->kv);
}

static ejk_splash_mask *heads_of(const struct example *example) {
    ejk_splash_mask *heads[4], *all = NULL;
    int64_t count = 0;
    while (count < 4 && example->heads[count] != NULL) {
        heads[count] = head_of(example, example->heads[count]);
        count++;
    }
    EXPECT_OK(ejk_multi_head_mask_create((const ejk_splash_mask *const *)heads, count, &all));
    for (int64_t i = 0; i < count; i++) ejk_splash_mask_release(heads[i]);
    return all;
}

static void run(const struct example *example, bool dkv, ejk_splash_mask_info *info) {
    ejk_splash_mask *heads = heads_of(example);
    ejk_opt_bool shrink = example->keep_grid ? EJK_FALSE : EJK_UNSET;
    ejk_opt_bool narrow = example->keep_width ? EJK_FALSE : EJK_UNSET;
    if (example->dynamic) {
        int64_t shape[3];
        uint8_t *bytes = splash_elements(heads);
        int32_t rank = ejk_splash_mask_shape(heads, shape);
        ejk_process_dynamic_mask_args args = {
            .mask = ejk_tensor_contiguous(bytes, EJK_DTYPE_BOOL, rank, shape),
            .block_shape = {example->bq, example->bkv},
            .head_shards = ejk_int(example->head_shards),
            .q_seq_shards = ejk_int(example->q_shards)};
        EXPECT_OK((dkv ? ejk_process_dynamic_mask_dkv : ejk_process_dynamic_mask)(&args, info));
        free(bytes);
    } else {
        ejk_process_mask_args args = {.mask = heads,
                                      .block_shape = {example->bq, example->bkv},
                                      .shrink_grid = shrink,
                                      .downcast_smem_data = narrow,
                                      .head_shards = ejk_int(example->head_shards),
                                      .q_seq_shards = ejk_int(example->q_shards)};
        EXPECT_OK((dkv ? ejk_process_mask_dkv : ejk_process_mask)(&args, info));
    }
    bool function = strcmp(example->name, "E03") == 0 || strcmp(example->name, "E08") == 0 ||
                    strcmp(example->name, "E13c") == 0 || strcmp(example->name, "E29") == 0;
    assert_ptr_equal(info->mask_function, function ? ejk_splash_mask_head(heads, 0) : NULL);
    ejk_splash_mask_release(heads);
}

/* ---- Expected text --------------------------------------------------------------------------------- */

static char *read_examples(void) {
    FILE *file = fopen(EJK_SOURCE_DIR "/tests/data/splash/examples.txt", "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 18);
    assert_non_null(text);
    assert_in_range(fread(text, 1, (1 << 18) - 1, file), 1, (1 << 18) - 2);
    fclose(file);
    return text;
}

/* A field's value as written, copied; at most `size` bytes. */
static void field_of(const char *text, const char *example, const char *way, const char *field,
                     char *out, size_t size) {
    char title[32];
    snprintf(title, sizeof title, "[%s.%s]", example, way);
    const char *at = strstr(text, title);
    assert_non_null(at);
    at = strchr(strstr(at, field), ':') + 2;
    size_t length = strcspn(at, "\n");
    assert_true(length < size);
    memcpy(out, at, length);
    out[length] = '\0';
}

static int64_t integer_at(const ejk_tensor *tensor, int64_t index) {
    if (tensor->dtype == EJK_DTYPE_I8) return ((const int8_t *)tensor->data)[index];
    if (tensor->dtype == EJK_DTYPE_I16) return ((const int16_t *)tensor->data)[index];
    if (tensor->dtype == EJK_DTYPE_I32) return ((const int32_t *)tensor->data)[index];
    return ((const uint8_t *)tensor->data)[index];
}

/* "i8 [1,4,2] =", as the tensor says of itself. */
static void head_text(const ejk_tensor *tensor, char *out, size_t size) {
    const char *type = tensor->dtype == EJK_DTYPE_I8    ? "i8"
                       : tensor->dtype == EJK_DTYPE_I16 ? "i16"
                       : tensor->dtype == EJK_DTYPE_I32 ? "i32"
                                                        : ejk_dtype_name(tensor->dtype);
    size_t used = (size_t)snprintf(out, size, "%s [", type);
    for (int32_t i = 0; i < tensor->rank; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? "," : "",
                                 (long long)tensor->shape[i]);
    snprintf(out + used, size - used, "] =");
}

/* The values after the head; a block's number behind "#" is not one, and its digits stand together. */
static void expect_values(const char *title, const char *at, const ejk_tensor *tensor) {
    int64_t index = 0, count = ejk_tensor_count(tensor);
    bool digits = tensor->dtype == EJK_DTYPE_BOOL;
    if (strcmp(at, " 0..15") == 0) {
        for (; index < 16; index++) assert_int_equal(integer_at(tensor, index), index);
        at = "";
    }
    while (*at != '\0') {
        if (*at == '#') {
            at += strcspn(at, " ");
        } else if (isdigit((unsigned char)*at)) {
            char *end;
            long value = digits ? *at - '0' : strtol(at, &end, 10);
            at = digits ? at + 1 : end;
            if (index >= count || integer_at(tensor, index) != value)
                fail_msg("%s: entry %lld is %lld, expected %ld", title, (long long)index,
                         (long long)(index < count ? integer_at(tensor, index) : -1), value);
            index++;
        } else {
            at++;
        }
    }
    assert_int_equal(index, count);
}

static void expect_field(const char *text, const char *example, const char *way, const char *field,
                         const ejk_tensor *tensor) {
    char value[8192], head[128], title[64];
    snprintf(title, sizeof title, "%s.%s %s", example, way, field);
    field_of(text, example, way, field, value, sizeof value);
    if (strcmp(value, "none") == 0) {
        if (ejk_tensor_present(tensor)) fail_msg("%s is given, expected none", title);
        return;
    }
    head_text(tensor, head, sizeof head);
    if (strncmp(value, head, strlen(head)) != 0)
        fail_msg("%s is %s, expected %.30s", title, head, value);
    assert_true(ejk_tensor_is_contiguous(tensor));
    expect_values(title, value + strlen(head), tensor);
}

static void every_example_is_met_bit_for_bit(void **state) {
    (void)state;
    char *text = read_examples();
    for (int i = 0; i < EXAMPLES; i++)
        for (int dkv = 0; dkv < 2; dkv++) {
            const char *name = examples[i].name, *way = dkv ? "dkv" : "fwd";
            char value[256];
            ejk_splash_mask_info info;
            run(&examples[i], dkv != 0, &info);
            expect_field(text, name, way, "block_mask", &info.block_mask);
            expect_field(text, name, way, "data_next", &info.data_next);
            expect_field(text, name, way, "mask_next", &info.mask_next);
            expect_field(text, name, way, "partial_mask_blocks", &info.partial_mask_blocks);
            expect_field(text, name, way, "q_sequence", &info.q_sequence);
            field_of(text, name, way, "mask_function", value, sizeof value);
            assert_true((strncmp(value, "none", 4) != 0) == (info.mask_function != NULL));
            assert_true((strstr(value, "true") != NULL) == info.is_dynamic_mask);
            ejk_splash_mask_info_close(&info);
            assert_null(info.owner);
        }
    free(text);
}

/* Every title of the file is one of the table, so that none is forgotten. */
static void every_example_is_run(void **state) {
    (void)state;
    char *text = read_examples();
    int titles = 0;
    for (char *at = strchr(text, '['); at != NULL; at = strstr(at + 1, "\n[")) {
        at += *at == '\n';
        bool found = false;
        size_t length = strcspn(at + 1, ".");
        for (int i = 0; i < EXAMPLES; i++)
            found |= strlen(examples[i].name) == length &&
                     strncmp(at + 1, examples[i].name, length) == 0;
        assert_true(found);
        titles++;
    }
    assert_int_equal(titles, 88);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_example_is_met_bit_for_bit),
        cmocka_unit_test(every_example_is_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
