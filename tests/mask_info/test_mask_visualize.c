/* SPDX-License-Identifier: Apache-2.0 */
/* The documented text picture of a mask with its segments. */
#include "support/expect.h"

#include <ejkernel/mask_drawing.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 8 };

/* Causal within segments of [1,1,1,1,2,2,2,-1], as the documentation draws it. */
static void fill_documented(uint8_t mask[T * T], int32_t ids[T]) {
    for (int i = 0; i < T; i++) ids[i] = i < 4 ? 1 : i < 7 ? 2 : -1;
    for (int i = 0; i < T; i++)
        for (int j = 0; j < T; j++) mask[i * T + j] = ids[i] == ids[j] && ids[i] >= 0 && j <= i;
}

static ejk_mask_visualize_args args_of(uint8_t *mask, int64_t q, int64_t kv, int64_t block) {
    return (ejk_mask_visualize_args){.mask = ejk_tensor_4d(mask, EJK_DTYPE_BOOL, 1, 1, q, kv),
                                     .block_size = {ejk_int(block)}};
}

static void expect_text(const ejk_mask_visualize_args *args, const char *wanted) {
    char *text = NULL;
    size_t length = 0;
    EXPECT_OK(ejk_mask_visualize(args, &text, &length));
    assert_int_equal(strlen(text), length);
    assert_string_equal(text, wanted);
    ejk_free(text);
}

static void the_documented_picture(void **state) {
    (void)state;
    uint8_t mask[T * T];
    int32_t ids[T];
    fill_documented(mask, ids);
    ejk_mask_visualize_args args = args_of(mask, T, T, 2);
    args.q_segment_ids = args.kv_segment_ids = ejk_tensor_2d(ids, EJK_DTYPE_I32, 1, T);
    expect_text(&args, "Attention mask: batch 0, head 0, blocks of 2 x 2, mask 8 x 8\n"
                       "         010102??\n"
                       "        ========  \n"
                       "     1 ||░░      ||\n"
                       "     1 ||██░░    ||\n"
                       "     2 ||    ░░  ||\n"
                       "   MIX ||    ░░░░||\n"
                       "        ========  \n"
                       "██ full, ░░ partial, blank empty\n"
                       "segments: rows q, columns kv; PAD or blank padding, MIX or ?? several\n");
    args.ascii = true;
    args.show_segments = EJK_FALSE;
    expect_text(&args, "Attention mask: batch 0, head 0, blocks of 2 x 2, mask 8 x 8\n"
                       "  ========  \n"
                       "||..      ||\n"
                       "||##..    ||\n"
                       "||    ..  ||\n"
                       "||    ....||\n"
                       "  ========  \n"
                       "## full, .. partial, blank empty\n");
}

/* A block that the mask does not fill is never full; the two block sizes may differ. */
static void edges_are_padding(void **state) {
    (void)state;
    uint8_t mask[3 * 5];
    memset(mask, 255, sizeof mask);
    ejk_mask_visualize_args args = args_of(mask, 3, 5, 1);
    args.block_size[1] = ejk_int(2);
    args.show_segments = EJK_FALSE;
    args.ascii = true;
    expect_text(&args, "Attention mask: batch 0, head 0, blocks of 1 x 2, mask 3 x 5\n"
                       "  ======  \n"
                       "||####..||\n"
                       "||####..||\n"
                       "||####..||\n"
                       "  ======  \n"
                       "## full, .. partial, blank empty\n");
}

/* Rows and columns are grouped where no ids are given; merged blocks of two labels are mixed. */
static void blocks_are_merged_and_rows_grouped(void **state) {
    (void)state;
    uint8_t mask[2][T * T];
    int32_t ids[T];
    memset(mask[0], 0, sizeof mask[0]);
    fill_documented(mask[1], ids);
    for (int i = 0; i < T; i++)
        for (int j = 0; j < T; j++) mask[1][i * T + j] = ids[i] == ids[j] && ids[i] >= 0;
    ejk_mask_visualize_args args = args_of(mask[0], T, T, 1);
    args.mask = ejk_tensor_4d(mask, EJK_DTYPE_BOOL, 2, 1, T, T);
    args.batch = 1;
    args.ascii = true;
    args.max_rows = ejk_int(4);
    args.max_cols = ejk_int(2);
    expect_text(&args, "Attention mask: batch 1, head 0, blocks of 1 x 1, mask 8 x 8\n"
                       "         00??\n"
                       "        ====  \n"
                       "     0 ||##  ||\n"
                       "     0 ||##  ||\n"
                       "     1 ||  ..||\n"
                       "   MIX ||  ..||\n"
                       "        ====  \n"
                       "## full, .. partial, blank empty\n"
                       "segments: rows q, columns kv; PAD or blank padding, MIX or ?? several\n");
    args.batch = 0;
    args.mask = ejk_tensor_transpose(args.mask, 0, 1);
    args.head = 1;
    args.fit_in_screen = EJK_FALSE;
    args.block_size[0] = ejk_int(4);
    expect_text(&args, "Attention mask: batch 0, head 1, blocks of 4 x 4, mask 8 x 8\n"
                       "         00??\n"
                       "        ====  \n"
                       "     0 ||##  ||\n"
                       "   MIX ||  ..||\n"
                       "        ====  \n"
                       "## full, .. partial, blank empty\n"
                       "segments: rows q, columns kv; PAD or blank padding, MIX or ?? several\n");
    args.head = 0;
    expect_text(&args, "Attention mask: batch 0, head 0, blocks of 4 x 4, mask 8 x 8\n"
                       "             \n"
                       "        ====  \n"
                       "   PAD ||    ||\n"
                       "   PAD ||    ||\n"
                       "        ====  \n"
                       "## full, .. partial, blank empty\n"
                       "segments: rows q, columns kv; PAD or blank padding, MIX or ?? several\n");
}

#define EXPECT_REFUSED(status, words, change)                                                      \
    do {                                                                                           \
        ejk_mask_visualize_args args = args_of(mask, T, T, 2);                                     \
        char *text = (char *)8;                                                                    \
        size_t length = 5;                                                                         \
        change;                                                                                    \
        EXPECT_FAIL(status, words, ejk_mask_visualize(&args, &text, &length));                     \
        assert_ptr_equal(text, (char *)8);                                                         \
        assert_int_equal(length, 5);                                                               \
    } while (0)

static void wrong_calls_are_refused(void **state) {
    (void)state;
    uint8_t mask[T * T] = {0};
    int32_t ids[T] = {0};
    ejk_tensor good = ejk_tensor_2d(ids, EJK_DTYPE_I32, 1, T);
    EXPECT_REFUSED(INVALID_ARGUMENT, "block_size[0] is 0", args.block_size[0] = ejk_int(0));
    EXPECT_REFUSED(INVALID_ARGUMENT, "block_size[1] is -2", args.block_size[1] = ejk_int(-2));
    EXPECT_REFUSED(INVALID_ARGUMENT, "max_rows is 0", args.max_rows = ejk_int(0));
    EXPECT_REFUSED(INVALID_ARGUMENT, "max_cols is 0", args.max_cols = ejk_int(0));
    EXPECT_REFUSED(INVALID_ARGUMENT, "batch is 1, expected 0 to 0", args.batch = 1);
    EXPECT_REFUSED(INVALID_ARGUMENT, "head is -1", args.head = -1);
    EXPECT_REFUSED(INVALID_DTYPE, "expected bool", args.mask.dtype = EJK_DTYPE_I8);
    EXPECT_REFUSED(INVALID_SHAPE, "expected [B,H,Q,K]",
                   args.mask = ejk_tensor_2d(mask, EJK_DTYPE_BOOL, T, T));
    EXPECT_REFUSED(INVALID_SHAPE, "none empty",
                   args.mask = ejk_tensor_4d(mask, EJK_DTYPE_BOOL, 1, 1, 0, T));
    EXPECT_REFUSED(UNAVAILABLE, "the CPU", args.mask.device_type = 2);
    EXPECT_REFUSED(INVALID_ARGUMENT, "q_segment_ids is given without kv_segment_ids",
                   args.q_segment_ids = good);
    EXPECT_REFUSED(INVALID_SHAPE, "kv_segment_ids has to have the shape [1, 8]",
                   args.q_segment_ids = good;
                   args.kv_segment_ids = ejk_tensor_2d(ids, EJK_DTYPE_I32, 1, T - 1));
    EXPECT_REFUSED(INVALID_DTYPE, "q_segment_ids has the dtype float32",
                   args.q_segment_ids = args.kv_segment_ids =
                       ejk_tensor_2d(ids, EJK_DTYPE_F32, 1, T));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_mask_visualize(NULL, NULL, NULL));
}

/* Blocks beyond every size. */
static void huge_blocks_are_one(void **state) {
    (void)state;
    uint8_t mask[T * T];
    memset(mask, 1, sizeof mask);
    ejk_mask_visualize_args args = args_of(mask, T, T, INT64_MAX);
    args.show_segments = EJK_FALSE;
    args.ascii = true;
    char *text = NULL;
    size_t length = 0;
    EXPECT_OK(ejk_mask_visualize(&args, &text, &length));
    assert_non_null(strstr(text, "||..||"));
    ejk_free(text);
}

/* The documented example, from the object itself; and one that has no ids stored. */
static void a_mask_info_shows_itself(void **state) {
    (void)state;
    int32_t ids[T] = {1, 1, 1, 1, 2, 2, 2, -1};
    const ejk_tensor tensor = ejk_tensor_2d(ids, EJK_DTYPE_I32, 1, T);
    ejk_mask_info *packed, *causal;
    EXPECT_OK(ejk_mask_info_from_segments(&tensor, NULL, false, NULL, &packed));
    EXPECT_OK(ejk_mask_info_apply_causal(packed, NULL, &causal));
    ejk_mask_visualize_args args = {.block_size = {ejk_int(2)}};
    char *text = NULL;
    size_t length = 0;
    EXPECT_OK(ejk_mask_info_visualize(causal, &args, &text, &length));
    assert_non_null(strstr(text, "         010102?"
                                 "?\n"));
    assert_non_null(strstr(text, "   MIX ||    ░░░░||\n"));
    assert_int_equal(strlen(text), length);
    ejk_free(text);
    EXPECT_OK(ejk_mask_info_visualize(causal, NULL, &text, &length));
    assert_non_null(strstr(text, "blocks of 32"));
    ejk_free(text);
    uint8_t mask[T * T] = {1};
    args.mask = ejk_tensor_4d(mask, EJK_DTYPE_BOOL, 1, 1, T, T);
    text = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "beside those of the MaskInfo",
                ejk_mask_info_visualize(causal, &args, &text, &length));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_mask_info_visualize(NULL, NULL, &text, &length));
    assert_null(text);
    ejk_mask_info *dense;
    EXPECT_OK(ejk_mask_info_from_attention_mask(&args.mask, NULL, &dense));
    args.mask = (ejk_tensor){0};
    EXPECT_OK(ejk_mask_info_visualize(dense, &args, &text, &length));
    ejk_free(text);
    ejk_mask_info_release(dense);
    ejk_mask_info_release(causal);
    ejk_mask_info_release(packed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_documented_picture),
        cmocka_unit_test(edges_are_padding),
        cmocka_unit_test(blocks_are_merged_and_rows_grouped),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(huge_blocks_are_one),
        cmocka_unit_test(a_mask_info_shows_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
