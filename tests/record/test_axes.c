/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes as symbols: the grammar of units, binding, every sentence about a tensor that does not fit. */
#include "support/expect.h"

#include <ejkernel/record.h>
#include <stdio.h>

#define INNER(F, R) F(TENSOR, table, EJK_OPTIONAL, "", "[B,P] int32", "pages")
EJK_RECORD_STRUCT(inner, INNER);
#define EJK_RECORD_SELF inner
EJK_RECORD_DEFINE(inner_record, inner, INNER);
#undef EJK_RECORD_SELF

#define CALL(F, R)                                                                                 \
    F(TENSOR, query, EJK_REQUIRED, "", "[B,T,Hq,D] float", "")                                     \
    F(TENSOR, key, EJK_OPTIONAL, "", "[B,S,Hkv,D] query", "")                                      \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[B,T,Hq,D] query", "")                                \
    F(TENSOR, copy, EJK_OUTPUT, "", "[B,S,Hkv,D] key", "")                                         \
    F(TENSOR, mask, EJK_OPTIONAL, "", "[B|1,Hq|Hkv|1,T|1,S] bool", "")                             \
    F(TENSOR, sinks, EJK_OPTIONAL, "", "[n] or [Hq,n] or [Hkv,n] float32", "")                     \
    F(TENSOR, starts, EJK_OPTIONAL, "", "[N+1] int", "")                                           \
    F(TENSOR, ids, EJK_OPTIONAL, "", "[N,2] int", "")                                              \
    F(TENSOR, scale, EJK_OPTIONAL, "", "[] float", "")                                             \
    F(TENSOR, bias, EJK_OPTIONAL, "", "[W|1,N+1|N] float", "")                                     \
    F(INT, seed, EJK_OPTIONAL, "", "", "")                                                         \
    R(inner, pages, inner_record, "")
EJK_RECORD_STRUCT(call, CALL);
#define EJK_RECORD_SELF call
EJK_RECORD_DEFINE(call_record, call, CALL);
#undef EJK_RECORD_SELF

static char memory[4096];

#define TENSOR(type, ...)                                                                          \
    ejk_tensor_contiguous(memory, EJK_DTYPE_##type,                                                \
                          (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),           \
                          (int64_t[]){__VA_ARGS__})

/* B=2, T=3, Hq=4, D=5, S=7, Hkv=6 */
static call good(void) {
    return (call){.query = TENSOR(F32, 2, 3, 4, 5),
                  .key = TENSOR(F32, 2, 7, 6, 5),
                  .out = TENSOR(F32, 2, 3, 4, 5)};
}

static void expect_axes(const call *object, const char *wanted) {
    ejk_axes axes = {.count = 0};
    EXPECT_OK(ejk_record_check_tensors(&call_record, object, &axes));
    char text[400] = "";
    for (int32_t i = 0; i < axes.count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s=%lld", i == 0 ? "" : ",",
                 axes.axis[i].name, (long long)axes.axis[i].length);
    assert_string_equal(text, wanted);
}

#define BASE "B=2,T=3,Hq=4,D=5,S=7,Hkv=6"
#define ACCEPTS(wanted, ...)                                                                       \
    do {                                                                                           \
        call object = good();                                                                      \
        __VA_ARGS__;                                                                               \
        expect_axes(&object, wanted);                                                              \
    } while (0)
#define REFUSES(status, sentence, ...)                                                             \
    do {                                                                                           \
        call object = good();                                                                      \
        ejk_axes axes = {.count = 0};                                                              \
        __VA_ARGS__;                                                                               \
        EXPECT_FAIL(status, "", ejk_record_check_tensors(&call_record, &object, &axes));           \
        assert_string_equal(ejk_last_error(), sentence);                                           \
        assert_int_equal(axes.count, 0);                                                           \
    } while (0)

static void symbols_are_bound_in_field_order(void **state) {
    (void)state;
    EXPECT_OK(ejk_record_check(&call_record));
    ACCEPTS(BASE);
    ACCEPTS("B=2,T=3,Hq=4,D=5", object.key = (ejk_tensor){0});
    ACCEPTS("B=0,T=3,Hq=4,D=5", object.query.shape[0] = object.out.shape[0] = 0;
            object.query.data = object.out.data = NULL; object.key = (ejk_tensor){0});
    ACCEPTS(BASE ",P=9", object.pages.table = TENSOR(I32, 2, 9));
}

static void lengths_that_disagree_are_named(void **state) {
    (void)state;
    REFUSES(INVALID_SHAPE, "key: axis 0 (B) has length 3, expected 2 as in query",
            object.key.shape[0] = 3);
    REFUSES(INVALID_SHAPE, "out: axis 1 (T) has length 1, expected 3 as in query",
            object.out.shape[1] = 1);
    REFUSES(INVALID_SHAPE, "copy: axis 1 (S) has length 8, expected 7 as in key",
            object.copy = TENSOR(F32, 2, 8, 6, 5));
    REFUSES(INVALID_SHAPE, "key: rank 3 given, expected [B,S,Hkv,D]",
            object.key = TENSOR(F32, 2, 7, 5));
    REFUSES(INVALID_SHAPE, "pages.table: axis 0 (B) has length 3, expected 2 as in query",
            object.pages.table = TENSOR(I32, 3, 9));
    REFUSES(INVALID_SHAPE, "ids: axis 1 (2) has length 3, expected 2",
            object.ids = TENSOR(I32, 4, 3));
}

static void broadcast_axes_take_any_of_their_lengths(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++)
        ACCEPTS(BASE, object.mask = TENSOR(BOOL, i & 1 ? 2 : 1,
                                           i % 3 == 0   ? 4
                                           : i % 3 == 1 ? 6
                                                        : 1,
                                           i & 2 ? 3 : 1, 7));
    REFUSES(INVALID_SHAPE,
            "mask: axis 1 (Hq|Hkv|1) has length 2, expected 4 as in query or 6 as in key or 1",
            object.mask = TENSOR(BOOL, 2, 2, 1, 7));
    REFUSES(INVALID_SHAPE, "mask: axis 3 (S) has length 1, expected 7 as in key",
            object.mask = TENSOR(BOOL, 2, 4, 3, 1));
    /* Without a key Hkv is unbound and skipped, and the mask is what binds S. */
    ACCEPTS("B=2,T=3,Hq=4,D=5,S=9", object.key = (ejk_tensor){0};
            object.mask = TENSOR(BOOL, 1, 4, 1, 9));
    REFUSES(INVALID_SHAPE, "mask: axis 1 (Hq|Hkv|1) has length 6, expected 4 as in query or 1",
            object.key = (ejk_tensor){0};
            object.mask = TENSOR(BOOL, 1, 6, 1, 9));
    /* A length of 1 is the broadcast, so W stays free; another length binds it. */
    ACCEPTS(BASE ",N=4", object.bias = TENSOR(F32, 1, 5));
    ACCEPTS(BASE ",W=3,N=4", object.bias = TENSOR(F32, 3, 5));
}

static void shapes_are_tried_in_their_order(void **state) {
    (void)state;
    ACCEPTS(BASE ",n=9", object.sinks = TENSOR(F32, 9));
    ACCEPTS(BASE ",n=9", object.sinks = TENSOR(F32, 4, 9));
    ACCEPTS(BASE ",n=9", object.sinks = TENSOR(F32, 6, 9));
    REFUSES(INVALID_SHAPE,
            "sinks: shape [5,9] given, expected [n] or [Hq,n] or [Hkv,n] with B=2, T=3, Hq=4, D=5, "
            "S=7, Hkv=6",
            object.sinks = TENSOR(F32, 5, 9));
    REFUSES(INVALID_SHAPE, "sinks: rank 3 given, expected [n] or [Hq,n] or [Hkv,n]",
            object.sinks = TENSOR(F32, 1, 4, 9));
    /* A shape that fails half-way binds nothing: [Hkv,n] is taken because Hq is 4 already. */
    ACCEPTS("B=2,T=3,Hq=4,D=5,Hkv=6,n=9", object.key = (ejk_tensor){0};
            object.sinks = TENSOR(F32, 6, 9));
}

static void a_symbol_may_have_a_constant_added(void **state) {
    (void)state;
    ACCEPTS(BASE ",N=4", object.starts = TENSOR(I32, 5));
    ACCEPTS(BASE ",N=0", object.starts = TENSOR(I64, 1));
    ACCEPTS(BASE ",N=4", object.starts = TENSOR(I32, 5); object.ids = TENSOR(I64, 4, 2));
    REFUSES(INVALID_SHAPE, "starts: axis 0 (N+1) has length 0, expected at least 1",
            object.starts = TENSOR(I32, 0));
    REFUSES(INVALID_SHAPE, "ids: axis 0 (N) has length 5, expected 4 as in starts",
            object.starts = TENSOR(I32, 5);
            object.ids = TENSOR(I32, 5, 2));
    REFUSES(INVALID_SHAPE,
            "bias: axis 1 (N+1|N) has length 6, expected 5 with N=4 as in starts or 4 as in starts",
            object.starts = TENSOR(I32, 5);
            object.bias = TENSOR(F32, 1, 6));
}

static void symbols_bound_before_must_agree(void **state) {
    (void)state;
    call object = good();
    ejk_axes axes = {.count = 0}, before;
    EXPECT_OK(ejk_axes_parse("D=5,X=1", &axes));
    EXPECT_OK(ejk_record_check_tensors(&call_record, &object, &axes));
    assert_int_equal(ejk_axes_get(&axes, "X"), 1);
    assert_int_equal(ejk_axes_get(&axes, "Hkv"), 6);
    EXPECT_OK(ejk_axes_parse("D=6", &axes));
    before = axes;
    EXPECT_FAIL(INVALID_SHAPE, "query: axis 3 (D) has length 5, expected 6 as given",
                ejk_record_check_tensors(&call_record, &object, &axes));
    assert_memory_equal(&axes, &before, sizeof axes);
    axes.count = 33;
    EXPECT_FAIL(INVALID_ARGUMENT, "axes: count is 33, expected 0 to 32",
                ejk_record_check_tensors(&call_record, &object, &axes));
    axes.count = -1;
    EXPECT_FAIL(INVALID_ARGUMENT, "axes: count is -1",
                ejk_record_check_tensors(&call_record, &object, &axes));
    axes.count = 1;
    memset(axes.axis[0].name, 'x', sizeof axes.axis[0].name); /* no closing zero */
    EXPECT_FAIL(INVALID_ARGUMENT, "axis \"xxxxxxxxxxxxxxxxxxxxxxxx\"",
                ejk_record_check_tensors(&call_record, &object, &axes));
    axes.count = 0;
    for (int i = 0; i < 32; i++) {
        const char name[] = {'a', (char)('0' + i / 10), (char)('0' + i % 10), '\0'};
        EXPECT_OK(ejk_axes_set(&axes, name, i));
    }
    EXPECT_FAIL(INVALID_ARGUMENT, "axis B: there are 32 symbols already",
                ejk_record_check_tensors(&call_record, &object, &axes));
}

static void element_types_are_checked(void **state) {
    (void)state;
    static const struct {
        ejk_dtype dtype;
        bool is_float, is_int, is_bool;
    } types[] = {
        {EJK_DTYPE_F64, 1, 0, 0},  {EJK_DTYPE_F32, 1, 0, 0}, {EJK_DTYPE_BF16, 1, 0, 0},
        {EJK_DTYPE_F16, 1, 0, 0},  {EJK_DTYPE_I64, 0, 1, 0}, {EJK_DTYPE_I32, 0, 1, 0},
        {EJK_DTYPE_I16, 0, 0, 0},  {EJK_DTYPE_I8, 0, 0, 0},  {EJK_DTYPE_U8, 0, 0, 1},
        {EJK_DTYPE_BOOL, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        ejk_axes axes = {.count = 0};
        call object = good();
        object.scale = ejk_tensor_contiguous(memory, types[i].dtype, 0, NULL);
        assert_int_equal(ejk_record_check_tensors(&call_record, &object, &axes) == EJK_OK,
                         types[i].is_float);
        object = good();
        object.starts = ejk_tensor_1d(memory, types[i].dtype, 3);
        axes.count = 0;
        assert_int_equal(ejk_record_check_tensors(&call_record, &object, &axes) == EJK_OK,
                         types[i].is_int);
        object = good();
        object.mask = ejk_tensor_4d(memory, types[i].dtype, 1, 1, 1, 7);
        axes.count = 0;
        assert_int_equal(ejk_record_check_tensors(&call_record, &object, &axes) == EJK_OK,
                         types[i].is_bool);
    }
    REFUSES(INVALID_DTYPE, "query: int32 given, expected float64, float32, bfloat16 or float16",
            object.query.dtype = EJK_DTYPE_I32);
    REFUSES(INVALID_DTYPE, "mask: float32 given, expected bool or uint8",
            object.mask = TENSOR(F32, 1, 1, 1, 7));
    REFUSES(INVALID_DTYPE, "starts: int16 given, expected int32 or int64",
            object.starts = TENSOR(I16, 3));
    REFUSES(INVALID_DTYPE, "sinks: float64 given, expected float32", object.sinks = TENSOR(F64, 9));
    REFUSES(INVALID_DTYPE, "key: float16 given, expected float32 as query",
            object.key.dtype = EJK_DTYPE_F16);
    /* The type of a field that is absent is what that field's own unit says: here, the query's. */
    ACCEPTS("B=2,T=3,Hq=4,D=5,S=7,Hkv=6", object.key = (ejk_tensor){0};
            object.copy = TENSOR(F32, 2, 7, 6, 5));
    REFUSES(INVALID_DTYPE, "copy: float16 given, expected float32 as query",
            object.key = (ejk_tensor){0};
            object.copy = TENSOR(F16, 2, 7, 6, 5));
}

static void views_are_checked(void **state) {
    (void)state;
    REFUSES(INVALID_ARGUMENT, "query: missing, expected a tensor [B,T,Hq,D] float",
            object.query = (ejk_tensor){0});
    REFUSES(INVALID_ARGUMENT, "out: missing, expected a tensor [B,T,Hq,D] query",
            object.out = (ejk_tensor){0});
    REFUSES(INVALID_ARGUMENT,
            "key: lies on cuda:1, but query on the CPU; expected all "
            "tensors of a call in one place",
            object.key.device_type = EJK_DEVICE_CUDA;
            object.key.device_index = 1);
    REFUSES(UNAVAILABLE, "key: lies on device type 10, expected 0, the CPU, or 2, a CUDA device",
            object.key.device_type = 10);
    REFUSES(INVALID_LAYOUT, "key: axis 3, the last, has stride 2, expected 1",
            object.key.strides[3] = 2);
    ACCEPTS(BASE, object.key.strides[0] = object.key.strides[1] = -3);
    ACCEPTS("B=2,T=3,Hq=4,D=1,S=7,Hkv=6", object.query.shape[3] = object.out.shape[3] = 1;
            object.key.shape[3] = 1; object.key.strides[3] = 99);
    /* What ejk_tensor_check() refuses, with its sentence. */
    call object = good();
    ejk_axes axes = {.count = 0};
    object.key.data = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "key", ejk_record_check_tensors(&call_record, &object, &axes));
    object = good();
    object.key.rank = 9;
    EXPECT_FAIL(INVALID_SHAPE, "key", ejk_record_check_tensors(&call_record, &object, &axes));
    object = good();
    object.key.dtype = (ejk_dtype)40;
    EXPECT_FAIL(INVALID_DTYPE, "key", ejk_record_check_tensors(&call_record, &object, &axes));
    object = good();
    object.key.strides[0] = INT64_MAX;
    EXPECT_FAIL(OVERFLOW, "key", ejk_record_check_tensors(&call_record, &object, &axes));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_check_tensors(NULL, &object, &axes));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_check_tensors(&call_record, NULL, &axes));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_record_check_tensors(&call_record, &object, NULL));
}

/* ---- Units ---------------------------------------------------------------------------------------- */

/* The shape of a unit under B=2, T=3, N=4, as "2,3"; or the sentence. */
static const char *shape_of(const char *unit) {
    static char text[400];
    const ejk_field field = {"field", EJK_FIELD_TENSOR, EJK_OPTIONAL, 0, "", unit, "", NULL};
    ejk_axes axes;
    EXPECT_OK(ejk_axes_parse("B=2,T=3,N=4", &axes));
    int32_t rank = -1;
    int64_t shape[EJK_MAX_RANK];
    if (ejk_field_shape(&field, &axes, &rank, shape) != EJK_OK) {
        assert_int_equal(rank, -1);
        return ejk_last_error();
    }
    text[0] = '\0';
    for (int32_t i = 0; i < rank; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", i == 0 ? "" : ",",
                 (long long)shape[i]);
    return text;
}

static void shapes_follow_from_symbols(void **state) {
    (void)state;
    assert_string_equal(shape_of("[B,T] float"), "2,3");
    assert_string_equal(shape_of("[] float"), "");
    assert_string_equal(shape_of("[N+1,7] int64"), "5,7");
    assert_string_equal(shape_of("[B|1,1|T] bool"), "2,1");
    assert_string_equal(shape_of("[1,2,3,4,5,6,7,8] bool"), "1,2,3,4,5,6,7,8");
    assert_string_equal(shape_of("[B,x] or [T] or [B] float"), "3");
    assert_string_equal(shape_of("[B,x] or [y] float"),
                        "field: the shape [B,x] or [y] needs x, which is not bound to a length");
    assert_string_equal(shape_of("[B+9223372036854775807] int"),
                        "field: the shape [B+9223372036854775807] needs B+9223372036854775807, "
                        "which is no length with B=2");
    assert_string_equal(shape_of("[2*T,T*B/3,ceil(N/T),floor(N/T),(B+T)*N-1,N/B/2] float"),
                        "6,2,2,1,19,1");
    assert_string_equal(shape_of("[T-B-1,1-1] float"), "0,0");
    assert_string_equal(shape_of("[B-T] float"),
                        "field: the shape [B-T] needs B-T, which is no length with B=2, T=3");
    assert_string_equal(shape_of("[N/T] float"),
                        "field: the shape [N/T] needs N/T, which is no length with N=4, T=3");
    assert_string_equal(
        shape_of("[N/(T-3)] float"),
        "field: the shape [N/(T-3)] needs N/(T-3), which is no length with N=4, T=3");
    assert_string_equal(shape_of("[2*(x+1)] float"),
                        "field: the shape [2*(x+1)] needs x, which is not bound to a length");
    assert_string_equal(shape_of("[B*4611686018427387904*N] int"),
                        "field: the shape [B*4611686018427387904*N] needs "
                        "B*4611686018427387904*N, which is no length with B=2, N=4");
    assert_string_equal(shape_of("[9223372036854775807-9223372036854775807*B+B] int"),
                        "field: the shape [9223372036854775807-9223372036854775807*B+B] needs "
                        "9223372036854775807-9223372036854775807*B+B, which is no length with B=2");
    assert_string_equal(shape_of("[a] or [b] or [c] or [d] or [e] or [f] or [g] or [B] float"),
                        "2");
    const ejk_field *seed = ejk_record_find(&call_record, "seed", NULL);
    ejk_axes axes = {.count = 0};
    int32_t rank;
    int64_t shape[EJK_MAX_RANK];
    EXPECT_FAIL(INVALID_ARGUMENT, "seed: not a tensor", ejk_field_shape(seed, &axes, &rank, shape));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_field_shape(NULL, &axes, &rank, shape));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_field_shape(seed, NULL, &rank, shape));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_field_shape(seed, &axes, NULL, shape));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_field_shape(seed, &axes, &rank, NULL));
}

static void units_that_cannot_be_read_are_named(void **state) {
    (void)state;
    static const struct {
        const char *unit, *place;
    } wrong[] = {
        {"", "at \"\""},
        {"float", "at \"float\""},
        {"[B", "at \"\""},
        {"[B] ", "at \"\""},
        {"[B]", "at \"\""},
        {"[B]float", "at \"float\""},
        {"[B,] float", "at \"] float\""},
        {"[B||1] float", "at \"|1] float\""},
        {"[B+] float", "at \"] float\""},
        {"[B+C+] float", "at \"] float\""},
        {"[2*] float", "at \"] float\""},
        {"[*2] float", "at \"*2] float\""},
        {"[ceil(B] float", "at \"] float\""},
        {"[(B] float", "at \"] float\""},
        {"[B)] float", "at \")] float\""},
        {"[((((((((((((((((((B))))))))))))))))))] float", "cannot be read"},
        {"[-1] float", "at \"-1] float\""},
        {"[B, T] float", "at \" T] float\""},
        {"[a23456789012345678901234] float", "at \"a2345678901234"},
        {"[99999999999999999999] float", "cannot be read"},
        {"[1,2,3,4,5,6,7,8,9] float", "at \"9] float\""},
        {"[a|b|c|d|e|f|g|h|i] float", "at \"i] float\""},
        {"[a] or float", "at \"float\""},
        {"[a] or [b] or [c] or [d] or [e] or [f] or [g] or [h] or [i] float", "at \"[i] float\""},
        {"[B] float or int", "at \"or int\""},
        {"[B] int ", "at \"\""},
        {"[B] int in", "at \"in\""},
        {"[B] int in 0,B)", "at \"0,B)\""},
        {"[B] int in [0,B", "at \"\""},
        {"[B] int in [0 ,B)", "at \" ,B)\""},
        {"[B] int in [--1,B)", "at \"-1,B)\""},
        {"[B] int in [0,B) ", "at \" \""},
        {"[B] int ascending", "at \"ascending\""},
        {"[B] int ascending from 0 to", "at \" to\""},
        {"[B] int ascending from 0 to B by", "at \" by\""},
        {"[B] int sum <= ", "at \"\""},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *sentence = shape_of(wrong[i].unit);
        if (strstr(sentence, "field: unit ") == NULL || strstr(sentence, wrong[i].place) == NULL)
            fail_msg("unit \"%s\": %s", wrong[i].unit, sentence);
    }
}

/* ---- Axes ----------------------------------------------------------------------------------------- */

static void axes_are_set_and_got(void **state) {
    (void)state;
    ejk_axes axes = {.count = 0};
    assert_int_equal(ejk_axes_get(&axes, "B"), -1);
    EXPECT_OK(ejk_axes_set(&axes, "B", 0));
    EXPECT_OK(ejk_axes_set(&axes, "letters", INT64_MAX));
    EXPECT_OK(ejk_axes_set(&axes, "B", 4));
    assert_int_equal(axes.count, 2);
    assert_int_equal(ejk_axes_get(&axes, "B"), 4);
    assert_int_equal(ejk_axes_get(&axes, "letters"), INT64_MAX);
    assert_int_equal(ejk_axes_get(&axes, "letter"), -1);
    assert_int_equal(ejk_axes_get(&axes, "lettersX"), -1);
    assert_int_equal(ejk_axes_get(&axes, ""), -1);
    assert_int_equal(ejk_axes_get(NULL, "B"), -1);
    assert_int_equal(ejk_axes_get(&axes, NULL), -1);

    const ejk_axes before = axes;
    EXPECT_FAIL(INVALID_ARGUMENT, "axis \"\"", ejk_axes_set(&axes, "", 1));
    EXPECT_FAIL(INVALID_ARGUMENT, "axis \"1B\"", ejk_axes_set(&axes, "1B", 1));
    EXPECT_FAIL(INVALID_ARGUMENT, "axis \"a+b\"", ejk_axes_set(&axes, "a+b", 1));
    EXPECT_FAIL(INVALID_ARGUMENT, "axis \"a23456789012345678901234\"",
                ejk_axes_set(&axes, "a23456789012345678901234", 1));
    EXPECT_FAIL(INVALID_ARGUMENT, "length -1 is negative", ejk_axes_set(&axes, "T", -1));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_axes_set(&axes, NULL, 1));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_axes_set(NULL, "T", 1));
    assert_memory_equal(&axes, &before, sizeof axes);

    /* Counts from hostile hands lead nowhere outside the array. */
    axes.count = INT32_MAX;
    assert_int_equal(ejk_axes_get(&axes, "B"), 4);
    assert_int_equal(ejk_axes_get(&axes, "T"), -1);
    axes.count = -1;
    assert_int_equal(ejk_axes_get(&axes, "B"), -1);
    EXPECT_OK(ejk_axes_set(&axes, "T", 1));
    assert_int_equal(axes.count, 1);
}

static void axes_are_parsed(void **state) {
    (void)state;
    ejk_axes axes = {.count = 3};
    EXPECT_OK(ejk_axes_parse("B=1,Hq=8,T=1024", &axes));
    assert_int_equal(axes.count, 3);
    assert_int_equal(ejk_axes_get(&axes, "Hq"), 8);
    assert_int_equal(ejk_axes_get(&axes, "T"), 1024);
    const ejk_axes before = axes;
    static const struct {
        const char *text, *words;
    } wrong[] = {
        {"B", "\"B\" at byte 0"},
        {"B=", "\"B=\" at byte 0"},
        {"=1", "\"=1\" at byte 0"},
        {"B=-1", "at byte 0"},
        {"B=1,", "\"B=1,\" at byte 0"},
        {"B=1,,T=2", "\",T=2\" at byte 4"},
        {"B=1,T=x", "\"T=x\" at byte 4"},
        {"B=1, T=2", "\" T=2\" at byte 4"},
        {"B=1,B=1", "\"B=1\" at byte 4"},
        {"B=1 ", "at byte 0"},
        {"B=9223372036854775808", "at byte 0"},
        {"a23456789012345678901234=1", "at byte 0"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_FAIL(MALFORMED, wrong[i].words, ejk_axes_parse(wrong[i].text, &axes));
    char many[33 * 6] = "";
    for (int i = 0; i < 33; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%sa%d=1", i == 0 ? "" : ",", i);
    EXPECT_FAIL(MALFORMED, "\"a32=1\"", ejk_axes_parse(many, &axes));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_axes_parse(NULL, &axes));
    EXPECT_FAIL(INVALID_ARGUMENT, "NULL", ejk_axes_parse("B=1", NULL));
    assert_memory_equal(&axes, &before, sizeof axes);
    EXPECT_OK(ejk_axes_parse("", &axes));
    assert_int_equal(axes.count, 0);
}

static void symbols_are_bound_from_what_is_there(void **state) {
    (void)state;
    ejk_axes axes = {.count = 0}, before;
    call object = {.key = TENSOR(F32, 2, 7, 6, 5)};
    EXPECT_OK(ejk_record_bind_axes(&call_record, &object, &axes));
    assert_int_equal(ejk_axes_get(&axes, "S"), 7);
    assert_int_equal(ejk_axes_get(&axes, "D"), 5);
    assert_int_equal(ejk_axes_get(&axes, "T"), -1);
    before = axes;
    object.query = TENSOR(F32, 2, 3, 4, 8);
    EXPECT_FAIL(INVALID_SHAPE, "query", ejk_record_bind_axes(&call_record, &object, &axes));
    EXPECT_FAIL(INVALID_ARGUMENT, "ejk_record_bind_axes",
                ejk_record_bind_axes(NULL, &object, &axes));
    assert_memory_equal(&axes, &before, sizeof axes);
}

static void expect_symbols(const call *object, const char *wanted) {
    ejk_axes axes;
    char text[200] = "";
    EXPECT_OK(ejk_record_symbols(&call_record, object, &axes));
    for (int32_t i = 0; i < axes.count; i++) {
        assert_int_equal(axes.axis[i].length, 0);
        snprintf(text + strlen(text), sizeof text - strlen(text), " %s", axes.axis[i].name);
    }
    assert_string_equal(text, wanted);
}

static void symbols_are_listed(void **state) {
    (void)state;
    call object = good();
    expect_symbols(NULL, " B T Hq D S Hkv n N W P");
    expect_symbols(&object, " B T Hq D S Hkv");
    object = (call){.sinks = TENSOR(F32, 1), .pages = {.table = TENSOR(I32, 1, 1)}};
    expect_symbols(&object, " n Hq Hkv B P");
    object = (call){.seed = 1};
    expect_symbols(&object, "");
    ejk_axes axes = {.count = 7};
    EXPECT_FAIL(INVALID_ARGUMENT, "record", ejk_record_symbols(NULL, &object, &axes));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_record_symbols(&call_record, &object, NULL));
    assert_int_equal(axes.count, 7);
}

static ejk_dtype dtype_of(const char *name, const void *object, ejk_dtype number) {
    ejk_dtype dtype = EJK_DTYPE_UNSET;
    EXPECT_OK(ejk_field_dtype(&call_record, ejk_record_find(&call_record, name, NULL), object,
                              number, &dtype));
    return dtype;
}

static void units_ask_for_element_types(void **state) {
    (void)state;
    const call none = {.seed = 1}, some = {.query = TENSOR(F64, 1, 1, 1, 1)};
    static const struct {
        const char *name;
        ejk_dtype none, some;
    } cases[] = {
        {"query", EJK_DTYPE_BF16, EJK_DTYPE_BF16}, {"key", EJK_DTYPE_BF16, EJK_DTYPE_F64},
        {"copy", EJK_DTYPE_BF16, EJK_DTYPE_F64}, /* that of key, which has that of query */
        {"mask", EJK_DTYPE_BOOL, EJK_DTYPE_BOOL},  {"sinks", EJK_DTYPE_F32, EJK_DTYPE_F32},
        {"starts", EJK_DTYPE_I32, EJK_DTYPE_I32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(dtype_of(cases[i].name, NULL, EJK_DTYPE_BF16), cases[i].none);
        assert_int_equal(dtype_of(cases[i].name, &none, EJK_DTYPE_BF16), cases[i].none);
        assert_int_equal(dtype_of(cases[i].name, &some, EJK_DTYPE_BF16), cases[i].some);
    }
    assert_int_equal(dtype_of("copy", NULL, EJK_DTYPE_UNSET), EJK_DTYPE_UNSET);
    const ejk_field *seed = ejk_record_find(&call_record, "seed", NULL);
    ejk_dtype dtype = EJK_DTYPE_U8;
    EXPECT_FAIL(INVALID_ARGUMENT, "seed: not a tensor",
                ejk_field_dtype(&call_record, seed, NULL, EJK_DTYPE_F32, &dtype));
    EXPECT_FAIL(INVALID_ARGUMENT, "field",
                ejk_field_dtype(&call_record, NULL, NULL, EJK_DTYPE_F32, &dtype));
    assert_int_equal(dtype, EJK_DTYPE_U8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(symbols_are_bound_from_what_is_there),
        cmocka_unit_test(symbols_are_bound_in_field_order),
        cmocka_unit_test(lengths_that_disagree_are_named),
        cmocka_unit_test(broadcast_axes_take_any_of_their_lengths),
        cmocka_unit_test(shapes_are_tried_in_their_order),
        cmocka_unit_test(a_symbol_may_have_a_constant_added),
        cmocka_unit_test(symbols_bound_before_must_agree),
        cmocka_unit_test(element_types_are_checked),
        cmocka_unit_test(views_are_checked),
        cmocka_unit_test(shapes_follow_from_symbols),
        cmocka_unit_test(units_that_cannot_be_read_are_named),
        cmocka_unit_test(axes_are_set_and_got),
        cmocka_unit_test(axes_are_parsed),
        cmocka_unit_test(symbols_are_listed),
        cmocka_unit_test(units_ask_for_element_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
