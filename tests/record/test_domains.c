/* SPDX-License-Identifier: Apache-2.0 */
/* What the values of tensors are: said in units, checked with a sentence, generated from a seed. */
#include "record/domain.h"
#include "support/domains.h"
#include "support/expect.h"
#include "tensor/access.h"

#include <stdio.h>
#include <string.h>

#define CALL(F, R)                                                                                 \
    F(TENSOR, tokens, EJK_OPTIONAL, "", "[T] float", "")                                           \
    F(TENSOR, starts, EJK_OPTIONAL, "", "[N+1] int ascending from 0 to T", "")                     \
    F(TENSOR, padded, EJK_OPTIONAL, "", "[N+1] int ascending from 0 to N*longest by longest", "")  \
    F(TENSOR, table, EJK_OPTIONAL, "", "[N,W] index in [-1,pages)", "")                            \
    F(TENSOR, sizes, EJK_OPTIONAL, "", "[E] int sum <= T", "")                                     \
    F(TENSOR, gates, EJK_OPTIONAL, "", "[T] float in (0,1]", "")                                   \
    F(TENSOR, choice, EJK_OPTIONAL, "", "[] table in [1,2]", "")                                   \
    F(TENSOR, plain, EJK_OPTIONAL, "", "[T] int", "")                                              \
    F(INT, pages, EJK_OPTIONAL, "", "", "")                                                        \
    F(INT, longest, EJK_OPTIONAL, "", "", "")
EJK_RECORD_STRUCT(call, CALL);
#define EJK_RECORD_SELF call
EJK_RECORD_DEFINE(call_record, call, CALL);
#undef EJK_RECORD_SELF

static const ejk_field *field_of(const char *name) {
    return ejk_record_find(&call_record, name, NULL);
}

static ejk_axes axes_of(const char *text) {
    ejk_axes axes;
    EXPECT_OK(ejk_axes_parse(text, &axes));
    return axes;
}

/* ---- Said ------------------------------------------------------------------------------------------- */

static void units_say_domains(void **state) {
    (void)state;
    static const struct {
        const char *name;
        ejk_domain wanted;
        ejk_domain_bounds bounds;
    } cases[] = {
        {"starts", {EJK_DOMAIN_ASCENDING, false, false, "0", "T", ""}, {0, 9, INT64_MAX}},
        {"padded", {EJK_DOMAIN_ASCENDING, false, false, "0", "N*longest", "longest"}, {0, 20, 5}},
        {"table", {EJK_DOMAIN_RANGE, false, true, "-1", "pages", ""}, {-1, 6, INT64_MAX}},
        {"sizes", {EJK_DOMAIN_SUM, false, false, "", "T", ""}, {0, 9, INT64_MAX}},
        {"gates", {EJK_DOMAIN_RANGE, true, false, "0", "1", ""}, {0, 1, INT64_MAX}},
        {"plain", {EJK_DOMAIN_NONE, false, false, "", "", ""}, {INT64_MIN, INT64_MAX, INT64_MAX}},
    };
    const ejk_axes axes = axes_of("T=9,N=4,longest=5,pages=7");
    EXPECT_OK(ejk_record_check(&call_record));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ejk_domain domain;
        ejk_domain_bounds bounds;
        EXPECT_OK(ejk_field_domain(field_of(cases[i].name), &domain));
        assert_int_equal(domain.kind, cases[i].wanted.kind);
        assert_int_equal(domain.low_excluded, cases[i].wanted.low_excluded);
        assert_int_equal(domain.high_excluded, cases[i].wanted.high_excluded);
        assert_string_equal(domain.low, cases[i].wanted.low);
        assert_string_equal(domain.high, cases[i].wanted.high);
        assert_string_equal(domain.step, cases[i].wanted.step);
        EXPECT_OK(ejk_field_domain_bounds(field_of(cases[i].name), &axes, &bounds));
        assert_memory_equal(&bounds, &cases[i].bounds, sizeof bounds);
    }
}

static void faults_are_named(void **state) {
    (void)state;
    ejk_domain domain;
    ejk_domain_bounds bounds;
    const ejk_axes none = {.count = 0}, odd = axes_of("N=9223372036854775807,longest=2");
    EXPECT_FAIL(INVALID_ARGUMENT, "pages: not a tensor",
                ejk_field_domain(field_of("pages"), &domain));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_field_domain(NULL, &domain));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_field_domain(field_of("table"), NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL",
                ejk_field_domain_bounds(field_of("table"), NULL, &bounds));
    EXPECT_FAIL(INVALID_ARGUMENT, "table: the bound pages needs pages, which is not bound",
                ejk_field_domain_bounds(field_of("table"), &none, &bounds));
    EXPECT_FAIL(INVALID_ARGUMENT,
                "padded: the bound N*longest is no whole number with N=9223372036854775807, "
                "longest=2",
                ejk_field_domain_bounds(field_of("padded"), &odd, &bounds));
    ejk_field field = {"ids", EJK_FIELD_TENSOR, EJK_OPTIONAL, 0, "", "[T] int in [0,P)", "", NULL};
    const ejk_record record = {
        .name = "strange", .size = sizeof(ejk_tensor), .fields = &field, .count = 1};
    EXPECT_FAIL(INVALID_ARGUMENT, "P is neither a symbol of a shape nor an integer field",
                ejk_record_check(&record));
    field.unit = "[T] int in [0,"
                 "1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1)";
    EXPECT_FAIL(INVALID_ARGUMENT, "expected at most 63", ejk_record_check(&record));
}

/* ---- Checked ---------------------------------------------------------------------------------------- */

static const char *check(const char *name, const char *axes_text, ejk_tensor tensor) {
    call object = {.pages = 7};
    const ejk_field *field = field_of(name);
    const ejk_axes axes = axes_of(axes_text);
    memcpy((char *)&object + field->offset, &tensor, sizeof tensor);
    return check_domain(&call_record, field, &object, &axes) == EJK_OK ? "" : ejk_last_error();
}

#define VALUES(type, code, ...)                                                                    \
    ejk_tensor_1d((type[]){__VA_ARGS__}, EJK_DTYPE_##code,                                         \
                  (int64_t)(sizeof((type[]){__VA_ARGS__}) / sizeof(type)))
#define INTS(...)         VALUES(int32_t, I32, __VA_ARGS__)
#define EXPECT(wanted, x) assert_string_equal(x, wanted)

static void values_are_checked(void **state) {
    (void)state;
    EXPECT("", check("starts", "T=9", INTS(0, 3, 3, 9)));
    EXPECT("starts starts at 1, expected 0", check("starts", "T=9", INTS(1, 3)));
    EXPECT("starts falls from 3 to 2 at element 2, expected no decrease",
           check("starts", "T=9", INTS(0, 3, 2, 9)));
    EXPECT("starts is 10 at element 1, expected at most 9", check("starts", "T=9", INTS(0, 10)));
    EXPECT("", check("padded", "N=3,longest=4", INTS(0, 4, 8, 9)));
    EXPECT("padded rises from 4 to 9 at element 2, expected at most 4 more",
           check("padded", "N=3,longest=4", INTS(0, 4, 9, 9)));
    EXPECT("", check("sizes", "T=9", VALUES(int64_t, I64, 0, 4, 5)));
    EXPECT("sizes is -1 at element 1, expected at least 0",
           check("sizes", "T=9", VALUES(int64_t, I64, 0, -1, 5)));
    EXPECT(
        "sizes is 6 at element 2, where at most 5 are left of 9, expected elements that add up to "
        "no more",
        check("sizes", "T=9", VALUES(int64_t, I64, 0, 4, 6)));
    EXPECT("sizes is 9223372036854775807 at element 1, where at most 8 are left of 9, expected "
           "elements that add up to no more",
           check("sizes", "T=9", VALUES(int64_t, I64, 1, INT64_MAX)));
    EXPECT("", check("gates", "T=2", VALUES(float, F32, 0.5f, 1)));
    EXPECT("gates is 0 at element 1, expected a number in (0,1]",
           check("gates", "T=2", VALUES(float, F32, 0.5f, 0)));
    EXPECT("gates is nan at element 0, expected a number in (0,1]",
           check("gates", "T=1", VALUES(float, F32, __builtin_nanf(""))));
    EXPECT("", check("plain", "T=2", INTS(INT32_MIN, INT32_MAX)));
    EXPECT("", check("starts", "T=9", (ejk_tensor){0}));
}

static void elements_are_named_by_their_place(void **state) {
    (void)state;
    int8_t bytes[2][3] = {{-1, 6, 0}, {1, 2, 7}};
    ejk_tensor table = ejk_tensor_2d(bytes, EJK_DTYPE_I8, 2, 3);
    EXPECT("table is 7 at element [1,2], expected -1 to 6", check("table", "pages=7", table));
    table.strides[0] = -3;
    table.data = bytes[1];
    EXPECT("table is 7 at element [0,2], expected -1 to 6", check("table", "pages=7", table));
    table.shape[1] = 2;
    EXPECT("", check("table", "pages=7", table));
    int32_t wide[2][2][4] = {{{0}}};
    wide[1][0][2] = -2;
    ejk_tensor cube = ejk_tensor_3d(wide, EJK_DTYPE_I32, 2, 2, 2);
    cube.strides[0] = 8;
    cube.strides[1] = 4;
    EXPECT("", check("table", "pages=7", cube)); /* beside the view */
    cube.data = &wide[0][0][1];
    EXPECT("table is -2 at element [1,0,1], expected -1 to 6", check("table", "pages=7", cube));
    cube.shape[1] = 0;
    EXPECT("", check("table", "pages=7", cube));
    const int64_t three = 3;
    EXPECT("choice is 3, expected 1 to 2",
           check("choice", "T=1",
                 ejk_tensor_contiguous((void *)(uintptr_t)&three, EJK_DTYPE_I64, 0, NULL)));
}

static void odd_addresses_are_read(void **state) {
    (void)state;
    char room[64];
    const int32_t values[] = {0, 6, 9};
    memcpy(room + 1, values, sizeof values);
    EXPECT("table is 9 at element 2, expected -1 to 6",
           check("table", "pages=7", ejk_tensor_1d(room + 1, EJK_DTYPE_I32, 3)));
}

/* ---- Generated -------------------------------------------------------------------------------------- */

enum { MOST = 4096 };
static char memory[MOST * 8];

static ejk_tensor fill(const char *name, const char *axes_text, ejk_dtype dtype, int32_t rank,
                       const int64_t *shape, uint64_t seed) {
    const ejk_axes axes = axes_of(axes_text);
    const ejk_tensor tensor = ejk_tensor_contiguous(memory, dtype, rank, shape);
    bool filled = false;
    memset(memory, 0x55, sizeof memory);
    EXPECT_OK(ejki_domain_fill(&call_record, field_of(name), -1, &tensor, &axes, seed, 3, &filled));
    assert_true(filled);
    EXPECT("", check(name, axes_text, tensor));
    return tensor;
}

static void generated_values_are_allowed(void **state) {
    (void)state;
    static const ejk_dtype types[] = {EJK_DTYPE_I32, EJK_DTYPE_I64};
    static const int64_t wholes[] = {0, 1, 7, 100, 1 << 20, INT32_MAX};
    char axes[80];
    for (uint64_t seed = 0; seed < 20; seed++)
        for (size_t w = 0; w < sizeof wholes / sizeof *wholes; w++)
            for (int64_t n = 1; n < 70; n += 17) {
                const int64_t shape[] = {2, n};
                snprintf(axes, sizeof axes, "T=%lld,N=%lld,longest=%lld", (long long)wholes[w],
                         (long long)(n - 1), (long long)wholes[w] / 7);
                fill("starts", axes, types[seed % 2], 2, shape, seed);
                fill("sizes", axes, types[seed % 2], 2, shape, seed);
                fill("padded", axes, types[seed % 2], 2, shape, seed);
            }
    static const ejk_dtype floats[] = {EJK_DTYPE_F64, EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    const int64_t many = MOST;
    for (int i = 0; i < 4; i++) fill("gates", "T=4096", floats[i], 1, &many, 7);
}

static void cuts_use_the_whole(void **state) {
    (void)state;
    const int64_t shape[] = {9};
    const ejk_tensor starts = fill("starts", "T=4000", EJK_DTYPE_I32, 1, shape, 1);
    const int32_t *at = starts.data;
    int32_t even = 0;
    assert_int_equal(at[8], 4000);
    for (int i = 0; i < 8; i++) {
        assert_in_range(at[i + 1] - at[i], 250, 750);
        even += at[i + 1] - at[i] == 500;
    }
    assert_in_range(even, 0, 2); /* not all alike */
    const ejk_tensor sizes = fill("sizes", "T=4000", EJK_DTYPE_I32, 1, shape, 1);
    int64_t sum = 0;
    for (int i = 0; i < 9; i++) sum += ((const int32_t *)sizes.data)[i];
    assert_int_equal(sum, 4000);
}

static void choices_do_not_repeat_before_they_must(void **state) {
    (void)state;
    char axes[40];
    for (int64_t pages = 1; pages < 300; pages += 7) {
        const int64_t shape[] = {2, (pages + 1) / 2};
        unsigned char seen[300] = {0};
        snprintf(axes, sizeof axes, "pages=%lld", (long long)pages);
        const ejk_tensor table = fill("table", axes, EJK_DTYPE_I32, 2, shape, (uint64_t)pages);
        int64_t repeats = 0;
        for (int64_t i = 0; i < 2 * shape[1]; i++) {
            const int32_t value = ((const int32_t *)table.data)[i];
            assert_in_range(value, 0, pages - 1); /* not -1, which says that nothing is there */
            repeats += seen[value]++ > 0;
        }
        assert_int_equal(repeats, 2 * shape[1] - pages);
    }
}

static void values_depend_on_the_seed_and_not_on_strides(void **state) {
    (void)state;
    const ejk_axes axes = axes_of("pages=1000");
    int64_t plain[4][5], other[4][5], apart[4][20];
    bool filled;
    const ejk_field *table = field_of("table");
    ejk_tensor tensor = ejk_tensor_2d(plain, EJK_DTYPE_I64, 4, 5);
    EXPECT_OK(ejki_domain_fill(&call_record, table, -1, &tensor, &axes, 5, 0, &filled));
    tensor.data = other;
    EXPECT_OK(ejki_domain_fill(&call_record, table, -1, &tensor, &axes, 6, 0, &filled));
    assert_memory_not_equal(plain, other, sizeof plain);
    EXPECT_OK(ejki_domain_fill(&call_record, table, -1, &tensor, &axes, 5, 1, &filled));
    assert_memory_not_equal(plain, other, sizeof plain);
    tensor = ejk_tensor_2d(apart, EJK_DTYPE_I64, 4, 5);
    tensor.strides[0] = 20;
    tensor.strides[1] = 4;
    EXPECT_OK(ejki_domain_fill(&call_record, table, -1, &tensor, &axes, 5, 0, &filled));
    for (int i = 0; i < 20; i++) assert_int_equal(apart[i / 5][i % 5 * 4], plain[i / 5][i % 5]);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    const ejk_axes none = axes_of("pages=0"), some = axes_of("T=5");
    bool filled = true;
    ejk_domain_bounds bounds;
    ejk_tensor tensor = ejk_tensor_1d(memory, EJK_DTYPE_I32, 4);
    EXPECT_OK(ejk_field_domain_bounds(field_of("table"), &none, &bounds));
    assert_int_equal(bounds.high, -1); /* -1 alone is left */
    EXPECT_OK(ejki_domain_fill(&call_record, field_of("table"), -1, &tensor, &none, 1, 0, &filled));
    for (int i = 0; i < 4; i++) assert_int_equal(((const int32_t *)tensor.data)[i], -1);
    tensor.dtype = EJK_DTYPE_U8;
    EXPECT_FAIL(
        INVALID_ARGUMENT, "table: no uint8 lies between -1 and -1",
        ejki_domain_fill(&call_record, field_of("table"), -1, &tensor, &none, 1, 0, &filled));
    tensor.dtype = EJK_DTYPE_I32;
    EXPECT_OK(ejki_domain_fill(&call_record, field_of("plain"), -1, &tensor, &some, 1, 0, &filled));
    assert_false(filled);
    assert_int_equal(((const int32_t *)tensor.data)[0], -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_say_domains),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(values_are_checked),
        cmocka_unit_test(elements_are_named_by_their_place),
        cmocka_unit_test(odd_addresses_are_read),
        cmocka_unit_test(generated_values_are_allowed),
        cmocka_unit_test(cuts_use_the_whole),
        cmocka_unit_test(choices_do_not_repeat_before_they_must),
        cmocka_unit_test(values_depend_on_the_seed_and_not_on_strides),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
