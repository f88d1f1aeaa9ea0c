/* SPDX-License-Identifier: Apache-2.0 */
/* Mask infos: constructors, reads, copies, shardings, trace, errors; documented examples as data. */
#include "support/mask_world.h"

#include <string.h>

#define READ(info, call)                                                                           \
    ejk_tensor t;                                                                                  \
    EXPECT_OK(ejk_mask_info_##call(info, &t))

static void segments(void **state) {
    (void)state;
    ejk_mask_info *info = of_segments(IDS(1, 0, 0, 1, -1), NULL);
    READ(info, attention_mask);
    assert_int_equal(t.rank, 4);
    HOLDS(t, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0);
    EXPECT_OK(ejk_mask_info_kv_segment_ids(info, &t));
    HOLDS(t, 0, 0, 1, -1);
    assert_true(ejk_mask_info_is_self_attention(info));
    ejk_tensor kv;
    EXPECT_OK(ejk_mask_info_get_or_compute_segment_ids(info, true, &t, &kv));
    assert_int_equal(t.rank, 3);
    HOLDS(kv, 0, 0, 1, -1);
    ejk_mask_info_release(info);
    ejk_tensor valid = IDS(1, 5, -1, 0);
    EXPECT_OK(ejk_mask_info_from_segments(&valid, NULL, true, NULL, &info));
    EXPECT_OK(ejk_mask_info_q_segment_ids(info, &t));
    HOLDS(t, 0, 0, -1);
    ejk_mask_info_release(info);
}

static void masks_by_rank(void **state) {
    (void)state;
    ejk_mask_info *info = NULL;
    ejk_tensor tokens = IDS(1, 0, 1, 2), t;
    EXPECT_OK(ejk_mask_info_from_attention_mask(&tokens, NULL, &info));
    EXPECT_OK(ejk_mask_info_q_segment_ids(info, &t));
    HOLDS(t, -1, 0, 1);
    EXPECT_OK(ejk_mask_info_attention_mask(info, &t));
    HOLDS(t, 0, 0, 0, 0, 1, 0, 0, 0, 1);
    ejk_mask_info_release(info);
    float numbers[2][2][3] = {{{0, 3, 0}, {0, 0, 0}}, {{1, 1, 1}, {1, 1, 0}}};
    ejk_tensor three = ejk_tensor_3d(numbers, EJK_DTYPE_F32, 2, 2, 3);
    EXPECT_OK(ejk_mask_info_from_attention_mask(&three, NULL, &info));
    EXPECT_OK(ejk_mask_info_attention_mask(info, &t));
    HOLDS(t, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0);
    EXPECT_OK(ejk_mask_info_q_segment_ids(info, &t)); /* computed: 0 and −1 only */
    HOLDS(t, 0, -1, 0, 0);
    EXPECT_OK(ejk_mask_info_kv_segment_ids(info, &t));
    HOLDS(t, -1, 0, -1, 0, 0, 0);
    ejk_mask_info *groups = NULL;
    EXPECT_OK(ejk_mask_info_materialize_segment_ids(info, false, &groups));
    EXPECT_OK(ejk_mask_info_q_segment_ids(groups, &t));
    HOLDS(t, 0, -1, 0, 1);
    EXPECT_OK(ejk_mask_info_kv_segment_ids(groups, &t));
    HOLDS(t, -1, 0, -1, 0, 0, 1);
    ejk_mask_info_release(groups);
    ejk_mask_info_release(info);
    uint8_t heads[1][2][2][2] = {{{{1, 1}, {0, 1}}, {{0, 1}, {0, 0}}}};
    ejk_tensor four = ejk_tensor_4d(heads, EJK_DTYPE_BOOL, 1, 2, 2, 2), kv;
    EXPECT_OK(ejk_mask_info_from_attention_mask(&four, NULL, &info));
    EXPECT_OK(ejk_mask_info_q_segment_ids(info, &t)); /* what both heads allow */
    HOLDS(t, 0, -1);
    EXPECT_OK(ejk_mask_info_get_or_compute_segment_ids(info, true, &t, &kv));
    HOLDS(t, 0, 0, 0, -1);
    HOLDS(kv, 0, 0, -1, 0);
    ejk_mask_info_release(info);
}

static void positions_and_runs(void **state) {
    (void)state;
    ejk_mask_info *info = of_segments(IDS(1, 1, 1, 2, 2, -1), NULL);
    ejk_tensor q, kv;
    EXPECT_OK(ejk_mask_info_get_or_compute_positions(info, &q, &kv));
    HOLDS(q, 0, 1, 0, 1, -1);
    HOLDS(kv, 0, 1, 0, 1, 2147483647);
    EXPECT_OK(ejk_mask_info_q_positions(info, &q)); /* none was given */
    assert_false(ejk_tensor_present(&q));
    EXPECT_OK(ejk_mask_info_q_attention_mask(info, &q));
    HOLDS(q, 1, 1, 1, 1, 0);
    ejk_mask_info_release(info);
    info = of_segments(IDS(2, 1, 1, -1, 1, 1, -1, -1, 1, 1, 1), NULL);
    EXPECT_OK(ejk_mask_info_q_position_ids(info, &q));
    HOLDS(q, 0, 1, 1, 2, 3, 0, 0, 0, 1, 2);
    ejk_mask_info_release(info);
}

static void qkv_masks_and_bias(void **state) {
    (void)state;
    ejk_mask_info *info = of_segments(IDS(1, 0, -1), NULL), *causal = NULL;
    EXPECT_OK(ejk_mask_info_apply_causal(info, NULL, &causal));
    ejk_tensor q, kv, mask, bias;
    EXPECT_OK(ejk_mask_info_get_qkv_masks(causal, EJK_DTYPE_I32, &q, &kv, &mask));
    HOLDS(q, 1, 0);
    HOLDS(kv, 1, 0);
    HOLDS(mask, 1, 0, 0, 0);
    static const struct {
        ejk_dtype dtype;
        double lowest;
    } types[] = {{EJK_DTYPE_F64, -1.7976931348623157e308},
                 {EJK_DTYPE_F32, -3.4028234663852886e38},
                 {EJK_DTYPE_BF16, -3.3895313892515355e38},
                 {EJK_DTYPE_F16, -65504}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        double values[4];
        EXPECT_OK(ejk_mask_info_create_bias(causal, types[i].dtype, &bias));
        ejk_tensor view = ejk_tensor_4d(values, EJK_DTYPE_F64, 1, 1, 2, 2);
        EXPECT_OK(ejk_tensor_copy(&bias, &view));
        assert_true(values[0] == 0 && values[1] == types[i].lowest);
    }
    EXPECT_FAIL(INVALID_DTYPE, "int32", ejk_mask_info_create_bias(causal, EJK_DTYPE_I32, &bias));
    ejk_mask_info_release(causal);
    ejk_mask_info_release(info);
}

static void random_masks(void **state) {
    (void)state;
    ejk_mask_info *info = NULL, *again = NULL;
    ejk_opt_int unset = {0};
    const double parts[] = {0, 0.25, 1};
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(
            ejk_mask_info_from_random(2, 40, ejk_int(50), ejk_float(parts[i]), 3, NULL, &info));
        EXPECT_OK(
            ejk_mask_info_from_random(2, 40, ejk_int(50), ejk_float(parts[i]), 3, NULL, &again));
        int hidden = 0;
        for (int64_t x = 0; x < 4000; x++) {
            bool seen = mask_at(info, x / 2000, 0, x / 50 % 40, x % 50);
            assert_int_equal(seen, mask_at(again, x / 2000, 0, x / 50 % 40, x % 50));
            hidden += !seen;
        }
        EXPECT_NEAR(hidden / 4000.0, parts[i], i == 1 ? 0.05 : 0);
        ejk_mask_info_release(info);
        ejk_mask_info_release(again);
    }
    info = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "sparsity is 1.5",
                ejk_mask_info_from_random(1, 2, unset, ejk_float(1.5), 0, NULL, &info));
    EXPECT_FAIL(INVALID_SHAPE, "-2",
                ejk_mask_info_from_random(1, -2, unset, ejk_float(0.5), 0, NULL, &info));
    assert_null(info);
}

static void first_that_is_there(void **state) {
    (void)state;
    ejk_mask_info *info = NULL, *same = NULL;
    ejk_tensor t;
    ejk_mask_info_source source = {.attention_mask = IDS(1, 1, 2, 0), .input_ids = IDS(1, 9, 9)};
    EXPECT_OK(ejk_mask_info_dynamic_init(&source, NULL, &info));
    EXPECT_OK(ejk_mask_info_q_segment_ids(info, &t)); /* only 1 is valid */
    HOLDS(t, 0, -1, -1);
    source.mask_info = info;
    EXPECT_OK(ejk_mask_info_dynamic_init(&source, NULL, &same));
    assert_ptr_equal(same, info);
    ejk_mask_info_release(same);
    ejk_mask_info_release(info);
    source = (ejk_mask_info_source){.inputs_embeds =
                                        ejk_tensor_3d((float[6]){0}, EJK_DTYPE_F32, 1, 2, 3)};
    EXPECT_OK(ejk_mask_info_dynamic_init(&source, NULL, &info));
    EXPECT_OK(ejk_mask_info_attention_mask(info, &t));
    HOLDS(t, 1, 1, 1, 1);
    ejk_mask_info_release(info);
    source = (ejk_mask_info_source){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "nothing set", ejk_mask_info_dynamic_init(&source, NULL, &info));
}

static void trees_and_copies(void **state) {
    (void)state;
    ejk_mask_info *info = of_segments(IDS(1, 0, 0, 1), NULL), *causal = NULL, *copy = NULL;
    ejk_mask_info_fields fields, other;
    EXPECT_OK(ejk_mask_info_apply_causal(info, NULL, &causal));
    EXPECT_OK(ejk_mask_info_tree_flatten(info, &fields));
    assert_false(ejk_tensor_present(&fields.attention_mask));
    EXPECT_OK(ejk_mask_info_tree_flatten(causal, &fields));
    EXPECT_OK(ejk_mask_info_tree_unflatten(&fields, &copy));
    EXPECT_OK(ejk_mask_info_tree_flatten(copy, &other));
    HOLDS(other.attention_mask, 1, 0, 0, 1, 1, 0, 0, 0, 1);
    HOLDS(other.q_segment_ids, 0, 0, 1);
    ejk_mask_info_release(copy);
    fields = (ejk_mask_info_fields){.q_segment_ids = IDS(1, 4, 5, 4)};
    EXPECT_OK(ejk_mask_info_replace(causal, &fields, &copy));
    EXPECT_OK(ejk_mask_info_tree_flatten(copy, &other));
    HOLDS(other.attention_mask, 1, 0, 0, 1, 1, 0, 0, 0, 1); /* the mask stays */
    HOLDS(other.q_segment_ids, 4, 5, 4);
    HOLDS(other.kv_segment_ids, 0, 0, 1);
    ejk_mask_info_release(copy);
    fields.q_segment_ids = IDS(1, 4, 5);
    EXPECT_FAIL(INVALID_SHAPE, "q_segment_ids is [1,2]",
                ejk_mask_info_replace(causal, &fields, &copy));
    ejk_mask_info *typed = NULL;
    EXPECT_OK(ejk_mask_info_to_dtype(causal, EJK_DTYPE_F16, &typed));
    READ(typed, attention_mask);
    assert_int_equal(t.dtype, EJK_DTYPE_F16);
    EXPECT_OK(ejk_mask_info_materialize_attention_mask(causal, EJK_DTYPE_BOOL, &copy));
    assert_ptr_equal(copy, causal); /* it already does */
    ejk_mask_info_release(copy);
    char *text = NULL;
    EXPECT_OK(ejk_mask_info_text(causal, &text));
    assert_string_equal(text, "MaskInfo(attention_mask=(1, 1, 3, 3), q_segment_ids=(1, 3), "
                              "kv_segment_ids=(1, 3), self_attn=true)");
    ejk_free(text);
    ejk_mask_info_release(typed);
    ejk_mask_info_release(causal);
    ejk_mask_info_release(info);
}

static ejk_mesh mesh_of(int64_t dp, int64_t fsdp, int64_t tp, int64_t sp) {
    return (ejk_mesh){4, {"dp", "fsdp", "tp", "sp"}, {dp, fsdp, tp, sp}};
}

static void shardings(void **state) {
    (void)state;
    ejk_mask_info *info = NULL;
    ejk_opt_int unset = {0};
    ejk_mask_sharding s;
    ejk_mesh mesh = mesh_of(2, 1, 4, 2);
    EXPECT_OK(ejk_mask_info_from_random(4, 8, unset, ejk_float(0.5), 0, NULL, &info));
    EXPECT_OK(ejk_mask_info_get_shardings(info, true, &mesh, &s));
    assert_int_equal(s.attention_mask.rank, 4);
    assert_int_equal(s.attention_mask.axes[0].count, 2);
    assert_int_equal(s.attention_mask.axes[1].count, -1); /* one head over four */
    assert_string_equal(s.attention_mask.axes[2].names[0], "sp");
    assert_false(s.q_segment_ids.present);
    EXPECT_OK(ejk_mask_info_get_shardings(info, false, &mesh, &s));
    assert_int_equal(s.attention_mask.axes[2].count, -1);
    ejk_mask_info_release(info);
    int32_t ids[21] = {0};
    info = of_segments(ejk_tensor_2d(ids, EJK_DTYPE_I32, 3, 7), NULL);
    EXPECT_OK(ejk_mask_info_get_shardings(info, true, &mesh, &s));
    assert_true(s.q_segment_ids.present && s.q_segment_ids.rank == 0);
    assert_false(s.attention_mask.present);
    mesh.count = 2;
    EXPECT_FAIL(INVALID_ARGUMENT, "tp", ejk_mask_info_get_shardings(info, false, &mesh, &s));
    mesh = mesh_of(0, 1, 1, 1);
    EXPECT_FAIL(INVALID_ARGUMENT, "size 0", ejk_mask_info_get_shardings(info, false, &mesh, &s));
    s = ejk_mask_info_get_empty_sharding();
    assert_false(s.q_positions.present);
    ejk_axis_names names;
    EXPECT_OK(ejk_axis_names_of("a,bc", &names));
    assert_true(names.count == 2 && strcmp(names.names[1], "bc") == 0);
    EXPECT_FAIL(INVALID_ARGUMENT, "a,,b", ejk_axis_names_of("a,,b", &names));
    EXPECT_OK(ejk_axis_names_of("", &names));
    assert_int_equal(names.count, -1);
    ejk_mask_info_release(info);
}

/* Names travel through transforms, each by default or as given; wishes that cannot be are dropped. */
static void names_of_axes(void **state) {
    (void)state;
    ejk_mask_info *info = NULL, *causal = NULL;
    ejk_tensor ids = IDS(2, 0, 0, 0, 0);
    ejk_mask_info_options options = {0};
    EXPECT_OK(ejk_axis_names_of("data", &options.axes.batch_axis_name));
    EXPECT_OK(ejk_axis_names_of("", &options.axes.kvheads_axis_name));
    EXPECT_OK(ejk_mask_info_from_segments(&ids, NULL, false, &options, &info));
    EXPECT_OK(ejk_mask_info_apply_causal(info, NULL, &causal));
    ejk_mask_axes axes;
    ejk_mask_info_axes(causal, &axes);
    assert_string_equal(axes.batch_axis_name.names[0], "data");
    assert_string_equal(axes.qheads_axis_name.names[0], "tp");
    assert_int_equal(axes.kvheads_axis_name.count, -1);
    assert_string_equal(axes.sequence_axis_name.names[0], "sp");
    ejk_mask_info_release(causal);
    ejk_mask_info_release(info);
    info = NULL;
    options.axes.batch_axis_name.count = 9;
    EXPECT_FAIL(INVALID_ARGUMENT, "batch_axis_name has a count of 9",
                ejk_mask_info_from_segments(&ids, NULL, false, &options, &info));
    assert_null(info);

    ejk_mesh mesh = mesh_of(2, 1, 4, 2);
    ejk_partition wish = {.rank = 3}, got;
    EXPECT_OK(ejk_axis_names_of("dp,tp", &wish.axes[0]));
    EXPECT_OK(ejk_axis_names_of("sp", &wish.axes[1]));
    EXPECT_OK(ejk_axis_names_of("nowhere", &wish.axes[2]));
    EXPECT_OK(ejk_get_corrected_partition((int64_t[]){16, 3, 4, 5}, 4, &wish, &mesh, &got));
    assert_true(got.rank == 4 && got.axes[0].count == 2);
    for (int i = 1; i < 4; i++) assert_int_equal(got.axes[i].count, -1);
    EXPECT_OK(ejk_get_corrected_partition((int64_t[]){7}, 1, &wish, &mesh, &got));
    assert_int_equal(got.rank, 0);
}

static void masks_of_ids(void **state) {
    (void)state;
    ejk_tensor q = IDS(1, 0, -1), kv = IDS(1, 0, 1, 0);
    uint8_t q_valid[2], kv_valid[3], pairs[6];
    ejk_tensor q_mask = ejk_tensor_2d(q_valid, EJK_DTYPE_BOOL, 1, 2);
    ejk_tensor kv_mask = ejk_tensor_2d(kv_valid, EJK_DTYPE_BOOL, 1, 3);
    ejk_tensor mask = ejk_tensor_4d(pairs, EJK_DTYPE_BOOL, 1, 1, 2, 3);
    EXPECT_OK(ejk_segment_ids_to_qkv_masks(&q, &kv, &q_mask, &kv_mask, &mask));
    HOLDS(q_mask, 1, 0);
    HOLDS(kv_mask, 1, 1, 1);
    HOLDS(mask, 1, 0, 1, 0, 0, 0);
}

static void note(void *user, const char *line) {
    char *notes = user;
    strncat(notes, line, 400 - strlen(notes));
    strncat(notes, "\n", 400 - strlen(notes));
}

static void trace(void **state) {
    (void)state;
    char notes[512] = "";
    ejk_mask_info *info = NULL;
    ejk_tensor ids = IDS(1, 0, 0);
    ejk_mask_info_set_debug_mode(note, notes);
    assert_true(ejk_mask_info_get_debug_mode());
    EXPECT_OK(ejk_mask_info_from_segments(&ids, NULL, false, NULL, &info));
    assert_int_equal(ejk_mask_info_q_len(info), 2);
    ejk_mask_info_set_debug_mode(NULL, NULL);
    assert_int_equal(ejk_mask_info_q_len(info), 2);
    assert_false(ejk_mask_info_get_debug_mode());
    assert_string_equal(notes, "[MaskInfo Debug] Calling MaskInfo.from_segments()\n"
                               "[MaskInfo Debug] Property access: q_len\n");
    ejk_mask_info_release(info);
}

static void errors(void **state) {
    (void)state;
    ejk_mask_info *info = NULL, *none = NULL;
    ejk_tensor ids = IDS(1, 0, 0), longer = IDS(2, 0, 0, 0, 0), t = {.rank = 77}, odd;
    EXPECT_FAIL(INVALID_ARGUMENT, "q_ids is NULL",
                ejk_mask_info_from_segments(NULL, NULL, false, NULL, &info));
    EXPECT_FAIL(INVALID_SHAPE, "batch of 2",
                ejk_mask_info_from_segments(&ids, &longer, false, NULL, &info));
    odd = ejk_tensor_2d((float[]){1, 2}, EJK_DTYPE_F32, 1, 2);
    EXPECT_FAIL(INVALID_DTYPE, "q_ids has type float32",
                ejk_mask_info_from_segments(&odd, NULL, false, NULL, &info));
    odd = ejk_tensor_2d((float[]){1, 0.5f}, EJK_DTYPE_F32, 1, 2);
    EXPECT_FAIL(INVALID_ARGUMENT, "element 1 of attention_mask [B,S] is 0.5",
                ejk_mask_info_from_attention_mask(&odd, NULL, &info));
    odd = ejk_tensor_2d((int64_t[]){1, INT64_C(1) << 40}, EJK_DTYPE_I64, 1, 2);
    EXPECT_FAIL(OVERFLOW, "1099511627776",
                ejk_mask_info_from_segments(&odd, NULL, false, NULL, &info));
    odd = ejk_tensor_1d((int32_t[]){1}, EJK_DTYPE_I32, 1);
    EXPECT_FAIL(INVALID_SHAPE, "rank 1", ejk_mask_info_from_attention_mask(&odd, NULL, &info));
    ids.device_type = EJK_DEVICE_CUDA;
    EXPECT_FAIL(UNAVAILABLE, "q_ids", ejk_mask_info_from_segments(&ids, NULL, false, NULL, &info));
    ids.device_type = EJK_DEVICE_CPU;
    ejk_mask_info_options options = {.kv_positions = IDS(1, 0, 1, 2)};
    EXPECT_FAIL(INVALID_SHAPE, "kv_positions is [1,3], expected [1,2]",
                ejk_mask_info_from_segments(&ids, NULL, false, &options, &info));
    assert_null(info);
    EXPECT_OK(ejk_mask_info_tree_unflatten(&(ejk_mask_info_fields){0}, &none));
    EXPECT_FAIL(INVALID_ARGUMENT, "neither", ejk_mask_info_attention_mask(none, &t));
    EXPECT_FAIL(INVALID_ARGUMENT, "neither", ejk_mask_info_q_segment_ids(none, &t));
    EXPECT_FAIL(INVALID_ARGUMENT, "neither", ejk_mask_info_q_position_ids(none, &t));
    assert_int_equal(t.rank, 77);
    assert_int_equal(ejk_mask_info_kv_len(none), -1);
    int64_t shape[3] = {0};
    ejk_mask_info_shape(none, shape);
    assert_true(shape[0] == -1 && shape[1] == -1 && shape[2] == -1);
    assert_int_equal(ejk_mask_info_batch_size(none), -1);
    assert_false(ejk_mask_info_is_self_attention(none));
    ejk_mask_info_release(none);
    ejk_mask_info_release(NULL);
}

static void empty_axes(void **state) {
    (void)state;
    int32_t nothing = 0;
    ejk_mask_info *info = of_segments(ejk_tensor_2d(&nothing, EJK_DTYPE_I32, 2, 0), NULL),
                  *c = NULL;
    EXPECT_OK(ejk_mask_info_apply_chunked(info, 3, NULL, &c));
    READ(c, attention_mask);
    assert_int_equal(ejk_tensor_count(&t), 0);
    ejk_tensor q, kv;
    EXPECT_OK(ejk_mask_info_get_or_compute_positions(c, &q, &kv));
    ejk_mask_info_release(c);
    ejk_mask_info_release(info);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments),
        cmocka_unit_test(masks_by_rank),
        cmocka_unit_test(positions_and_runs),
        cmocka_unit_test(qkv_masks_and_bias),
        cmocka_unit_test(random_masks),
        cmocka_unit_test(first_that_is_there),
        cmocka_unit_test(trees_and_copies),
        cmocka_unit_test(shardings),
        cmocka_unit_test(trace),
        cmocka_unit_test(errors),
        cmocka_unit_test(empty_axes),
        cmocka_unit_test(names_of_axes),
        cmocka_unit_test(masks_of_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
