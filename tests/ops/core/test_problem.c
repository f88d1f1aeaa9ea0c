/* SPDX-License-Identifier: Apache-2.0 */
/* Problems as text: what a line means, what is wrong with one, there and back, lists. */
#include "support/expect.h"
#include "support/toy.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Every kind of field and of tensor, and names that could be mistaken for words of the grammar. */
#define PAGES(F, R) F(TENSOR, table, EJK_OPTIONAL, "", "[B,P] int", "pages")
EJK_RECORD_STRUCT(pages, PAGES);
#define EJK_RECORD_SELF pages
EJK_RECORD_DEFINE(pages_record, pages, PAGES);
#undef EJK_RECORD_SELF
#define ODD(F, R)                                                                                  \
    F(TENSOR, x, EJK_REQUIRED, "", "[B,T,Hq,D] float", "")                                         \
    F(TENSOR, starts, EJK_OPTIONAL, "", "[N+1] int", "")                                           \
    F(TENSOR, weights, EJK_OPTIONAL, "", "[W|1,layout] x", "")                                     \
    F(TENSOR, bytes, EJK_OPTIONAL, "", "[T] bool", "")                                             \
    F(FLOAT, layout, EJK_OPTIONAL, "0", "", "not a layout")                                        \
    F(TENSOR, packed, EJK_OPTIONAL, "", "[K*bits/8] uint8", "")                                    \
    F(INT, bits, EJK_OPTIONAL, "0", "", "")                                                        \
    F(INT, seed, EJK_OPTIONAL, "0", "", "")                                                        \
    F(FLOAT, rate, EJK_OPTIONAL, "0", "", "")                                                      \
    F(OPT_FLOAT, scale, EJK_OPTIONAL, "", "", "")                                                  \
    F(OPT_BOOL, exact, EJK_OPTIONAL, "", "", "")                                                   \
    F(WINDOW, window, EJK_OPTIONAL, "", "", "")                                                    \
    F(INTS, levels, EJK_OPTIONAL, "", "", "")                                                      \
    F(NAME, label, EJK_OPTIONAL, "", "", "")                                                       \
    F(DTYPE, sums, EJK_OPTIONAL, "", "", "")                                                       \
    R(pages, pages, pages_record, "")                                                              \
    F(TENSOR, y, EJK_OUTPUT, "", "[B,T,Hq,D] float", "")
EJK_RECORD_STRUCT(odd, ODD);
#define EJK_RECORD_SELF odd
EJK_RECORD_DEFINE_WITH(odd_record, odd, ODD, "B=1,Hq,T,D", NULL);
#undef EJK_RECORD_SELF
static const ejk_input_option odd_options[] = {{"lengths", "of something"}, {"share", ""}};
static ejk_status odd_inputs(void *args, const ejk_axes *axes, const ejk_inputs *how) {
    (void)args;
    (void)axes;
    (void)how;
    return EJK_OK;
}
static const ejk_kernel odd_kernel = {.op_id = "odd",
                                      .args = &odd_record,
                                      .inputs = odd_inputs,
                                      .input_options = odd_options,
                                      .input_option_count = 2};

static ejk_context *context;

static int setup(void **state) {
    (void)state;
    context = toy_context(NULL);
    EXPECT_OK(ejk_context_add_kernel(context, &odd_kernel));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

static ejk_problem *parse(const char *text) {
    ejk_problem *problem = NULL;
    const ejk_status status = ejk_problem_parse(context, text, &problem);
    if (status != EJK_OK) fail_msg("%s\n  %s", text, ejk_last_error());
    return problem;
}

/* Strides that lead nowhere, of axes at most one long and of empty tensors, are made the same. */
static void *without_idle_strides(const ejk_record *record, const void *args) {
    char *copy = malloc(record->size);
    assert_non_null(copy);
    memcpy(copy, args, record->size);
    for (int32_t i = 0; i < record->count; i++) {
        if (record->fields[i].kind != EJK_FIELD_TENSOR) continue;
        ejk_tensor *tensor = (ejk_tensor *)(void *)(copy + record->fields[i].offset);
        for (int32_t k = 0; k < tensor->rank; k++)
            if (tensor->shape[k] <= 1 || ejk_tensor_count(tensor) == 0) tensor->strides[k] = 1;
    }
    return copy;
}

static bool same(const ejk_record *record, const void *a, const void *b) {
    void *x = without_idle_strides(record, a), *y = without_idle_strides(record, b);
    const bool equal = ejk_record_equal(record, x, y);
    free(x);
    free(y);
    return equal;
}

/* The canonical line of what a line means; it has to mean the same, and to be its own. */
static void expect_line(const char *text, const char *wanted) {
    ejk_problem *problem = parse(text), *again;
    const ejk_kernel *kernel = ejk_problem_kernel(problem);
    char *line, *second;
    EXPECT_OK(ejk_problem_to_text(kernel, ejk_problem_args(problem), &line));
    assert_string_equal(line, wanted);
    again = parse(line);
    assert_ptr_equal(ejk_problem_kernel(again), kernel);
    assert_true(same(kernel->args, ejk_problem_args(problem), ejk_problem_args(again)));
    EXPECT_OK(ejk_problem_to_text(kernel, ejk_problem_args(again), &second));
    assert_string_equal(second, wanted);
    ejk_free(line);
    ejk_free(second);
    ejk_problem_destroy(problem);
    ejk_problem_destroy(again);
}

#define FLASH "flash_attention:B=1,Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,dtype=float32"

static void lines_have_one_canonical_form(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"flash_attention:Hq=8,T=16,D=4", FLASH},
        {"  Flash_Attention :\tD = 4 , T=16 ,Hq=8  # what a comment may be: \"", FLASH},
        {FLASH, FLASH},
        {"flash_attention:Hq=8,T=16,D=4,causal", FLASH ",causal=true"},
        {"flash_attention:Hq=8,T=16,D=4,causal=false", FLASH},
        {"flash_attention:causal,sliding-window=127,0,Hq=8,T=16,D=4",
         FLASH ",causal=true,sliding_window=127,0"},
        {"flash_attention:sliding_window=127,Hq=8,T=16,D=4", FLASH ",sliding_window=127,127"},
        {"flash_attention:sliding_window=127,,Hq=8,T=16,D=4", FLASH ",sliding_window=127,"},
        {"flash_attention:sliding_window=127,,causal,Hq=8,T=16,D=4",
         FLASH ",causal=true,sliding_window=127,"},
        {"flash_attention:sliding_window=,0,Hq=8,T=16,D=4", FLASH ",sliding_window=,0"},
        {"flash_attention:sliding_window=\"127,0\",Hq=8,T=16,D=4", FLASH ",sliding_window=127,0"},
        {"flash_attention:Hq=8,T=16,D=4,sliding_window=3,", FLASH ",sliding_window=3,"},
        {"flash_attention:Hq=8,T=16,D=4,softmax_scale=0.1,normalize_output=false,out=float32",
         FLASH ",softmax_scale=0.1,normalize_output=false"},
        {"flash_attention:Hq=8,T=16,D=4,cfg.fwd_params.q_blocksize=128,cfg.platform=simd",
         FLASH ",cfg.platform=simd,cfg.fwd_params.q_blocksize=128"},
        {"flash_attention:Hq=8,T=16,D=4,cfg=\"{\\\"fwd_params\\\":{\\\"q_blocksize\\\":0}}\"",
         FLASH ",cfg.fwd_params.q_blocksize=0"},
        {"flash_attention:Hq=8,T=16,D=4,with=lse+bias", FLASH ",with=bias+lse"},
        {"flash_attention:Hq=8,T=16,D=4,with=lse,bias", FLASH ",with=bias+lse"},
        {"flash_attention:Hq=8,T=16,D=4,bias,lse", FLASH ",with=bias+lse"},
        {"flash_attention:Hq=8,T=16,D=4,with=softmax-aux,n=2",
         "flash_attention:B=1,Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,n=2,dtype=float32,with=softmax_aux"},
        {"flash_attention:Hq=8,Hkv=2,T=16,D=4,softmax_aux=[Hkv,3]",
         "flash_attention:B=1,Hq=8,Hkv=2,T=16,S=16,D=4,Dv=4,n=3,dtype=float32,softmax_aux=[2,3]"},
        {"flash_attention:Hq=8,T=16,D=4,bias=[1,Hq,1,S],attention_mask=uint8[1,1,1,16]",
         FLASH ",bias=[1,8,1,16],attention_mask=uint8[1,1,1,16]"},
        {"flash_attention:Hq=8,T=16,D=4,dtype=bf16,out=f32,q_segment_ids=i64,kv_segment_ids",
         "flash_attention:B=1,Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,dtype=bfloat16,with=kv_segment_ids,"
         "q_segment_ids=int64,out=float32"},
        {"flash_attention:query=float16[2,16,8,4],key=[2,32,2,4],value=[2,32,2,6],out=float16",
         "flash_attention:B=2,Hq=8,Hkv=2,T=16,S=32,D=4,Dv=6,dtype=float16"},
        {"flash_attention:Hq=8,T=16,D=4,layout=bhtd",
         "flash_attention:B=1,Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,dtype=float32,layout=bhtd"},
        {"flash_attention:Hq=8,T=16,D=4,layout=bhtd,out=@[512,32,4,1]",
         "flash_attention:B=1,Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,dtype=float32,layout=bhtd,"
         "out=@[512,32,4,1]"},
        {"flash_attention:Hq=8,T=16,D=4,key=@[0,64,8,1],bias=float32[1,1,16,16]@[0,0,-16,1]",
         FLASH ",key=@[0,64,8,1],bias=[1,1,16,16]@[0,0,-16,1]"},
        /* Strides of axes of length 1 say nothing. */
        {"flash_attention:Hq=8,T=16,D=4,key=@[512,32,4,1],query=@[77,32,4,1]", FLASH},
        {"flash_attention:B=0,Hq=8,T=16,D=4,layout=bhtd",
         "flash_attention:B=0,Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,dtype=float32"},
        /* Packed sequences have no batch, but a padded batch may have a number of them. */
        {"flash_attention:N=3,Hq=8,T=16,D=4,with=cum_seqlens_q+lse",
         "flash_attention:Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,N=3,dtype=float32,with=cum_seqlens_q+lse"},
        {"flash_attention:B=3,N=3,Hq=8,T=16,D=4,with=cum_seqlens_q",
         "flash_attention:B=3,Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,N=3,dtype=float32,with=cum_seqlens_q"},
        {"attention_merge:N=3,Hq=8,T=16,Dv=4",
         "attention_merge:B=1,Hq=8,T=16,Dv=4,N=3,dtype=float32"},
        /* Where no result is required and none is named, gradients of what is given are meant. */
        {"flash_attention_vjp:Hq=8,T=16,D=4,with=bias",
         "flash_attention_vjp:B=1,Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,dtype=float32,"
         "with=bias+d_query+d_key+d_value+d_bias"},
        {"flash_attention_vjp:Hq=8,T=16,D=4,d_key",
         "flash_attention_vjp:B=1,Hq=8,Hkv=8,T=16,S=16,D=4,Dv=4,dtype=float32,with=d_key"},
        {"toy:n=5,m=3", "toy:n=5,m=3,dtype=float32"},
        {"toy:m=3,n=5,factor=-2.5e-3,shift=-9223372036854775808,with=z,dtype=f64",
         "toy:n=5,m=3,dtype=float64,with=z,factor=-0.0025,shift=-9223372036854775808"},
        {"toy:m=3,flag=false,cfg.params.rows=8", "toy:n=1,m=3,dtype=float32,flag=false,"
                                                 "cfg.params.rows=8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_line(cases[i][0], cases[i][1]);
}

/* Of operations whose heads come first it is the other order that has to be said. */
static void orders_are_those_of_the_record(void **state) {
    (void)state;
#define SPARSE "blocksparse_attention:B=2,Hq=4,Hkv=2,T=16,S=8,D=4,Dv=6,dtype=float32"
    expect_line("blocksparse_attention:layout=bhtd,B=2,Hq=4,Hkv=2,T=16,S=8,D=4,Dv=6", SPARSE);
    expect_line("blocksparse_attention:layout=bthd,B=2,Hq=4,Hkv=2,T=16,S=8,D=4,Dv=6",
                SPARSE ",layout=bthd");
    ejk_problem *problem = parse(SPARSE ",layout=bthd,with=bias");
    const ejk_blocksparse_attention_args *args = ejk_problem_args(problem);
    const int64_t key[] = {8 * 2 * 4, 4, 2 * 4, 1}, bias[] = {4 * 16 * 8, 16 * 8, 8, 1};
    assert_memory_equal(args->key.strides, key, sizeof key);
    assert_memory_equal(args->bias.strides, bias, sizeof bias);
    ejk_problem_destroy(problem);
    expect_line("attention_merge:N=3,Hq=4,T=2,Dv=8,layout=bhtd",
                "attention_merge:B=1,Hq=4,T=2,Dv=8,N=3,dtype=float32,layout=bhtd");
}

static void odd_names_and_values_survive(void **state) {
    (void)state;
#define BASE "odd:B=1,Hq=2,T=3,D=4"
    static const char *const cases[][2] = {
        {BASE, BASE ",dtype=float32"},
        /* "layout" is a field here, and a symbol that only sizes can say. */
        {BASE ",layout=7", BASE ",dtype=float32,layout=7.0"},
        /* Integer fields count in lengths. */
        {BASE ",K=6,bits=4,packed", BASE ",K=6,dtype=float32,with=packed,bits=4"},
        {BASE ",bits=4,packed=[5]", BASE ",K=10,dtype=float32,with=packed,bits=4"},
        {BASE ",weights=[5,9]", "odd:B=1,Hq=2,T=3,D=4,W=5,dtype=float32,weights=[5,9]"},
        {BASE ",weights=[1,9],layout=-1", BASE ",dtype=float32,weights=[1,9],layout=-1.0"},
        {BASE ",x=@[24,4,12,1]", BASE ",dtype=float32,x=@[24,4,12,1]"},
        {BASE ",starts=[5]", BASE ",N=4,dtype=float32,with=starts"},
        {BASE ",N=4,starts", BASE ",N=4,dtype=float32,with=starts"},
        {BASE ",starts=int64[T+1]", BASE ",N=3,dtype=float32,starts=int64"},
        {BASE ",pages.table,P=0", BASE ",P=0,dtype=float32,with=pages.table"},
        {BASE ",pages.table=i64[B,6]", BASE ",P=6,dtype=float32,pages.table=int64"},
        {BASE ",label=f32/avx2+x", BASE ",dtype=float32,label=f32/avx2+x"},
        {BASE ",label=\"a b, c=\\\"d\\\" #\\n\\u00e9\xc3\xa4\"",
         BASE ",dtype=float32,label=\"a b, c=\\\"d\\\" #\\n\\u00E9\\u00E4\""},
        {BASE ",label=\"\"", BASE ",dtype=float32"},
        {BASE ",label=\"true\"", BASE ",dtype=float32,label=true"},
        {BASE ",sums=bf16,exact", BASE ",dtype=float32,exact=true,sums=bfloat16"},
        {BASE ",rate=1e300,scale=0.30000000000000004",
         BASE ",dtype=float32,rate=1e300,scale=0.30000000000000004"},
        {BASE ",rate=5e-324,scale=-0.0", BASE ",dtype=float32,rate=5e-324,scale=0.0"},
        {BASE ",levels=4,-5,6,label=x", BASE ",dtype=float32,levels=4,-5,6,label=x"},
        {BASE ",levels=4", BASE ",dtype=float32,levels=4"},
        {BASE ",window=-1,9223372036854775807",
         BASE ",dtype=float32,window=-1,9223372036854775807"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_line(cases[i][0], cases[i][1]);
}

static void what_was_read_is_there(void **state) {
    (void)state;
    ejk_problem *problem = parse("flash_attention:B=2,Hq=8,Hkv=2,T=3,S=5,D=4,Dv=6,dtype=f16,"
                                 "layout=bhtd,causal,sliding_window=,0,platform=reference,lse");
    const ejk_flash_attention_args *args = ejk_problem_args(problem);
    assert_ptr_equal(ejk_problem_kernel(problem), &ejk_flash_attention_kernel);
    assert_true(args->causal && !args->sliding_window.left.set && args->sliding_window.right.set);
    assert_string_equal(args->platform, "reference");
    assert_int_equal(args->value.dtype, EJK_DTYPE_F16);
    assert_int_equal(args->lse.dtype, EJK_DTYPE_F32);
    assert_false(ejk_tensor_present(&args->bias));
    const int64_t shape[] = {2, 5, 2, 6}, strides[] = {60, 6, 30, 1};
    assert_memory_equal(args->value.shape, shape, sizeof shape);
    assert_memory_equal(args->value.strides, strides, sizeof strides);
    assert_null(args->value.data);
    const ejk_axes *axes = ejk_problem_axes(problem);
    assert_int_equal(axes->count, 7);
    assert_int_equal(ejk_axes_get(axes, "Dv"), 6);
    assert_string_equal(axes->axis[2].name, "Hkv");
    ejk_problem_destroy(problem);
    ejk_problem_destroy(NULL);
    assert_null(ejk_problem_args(NULL));
    assert_null(ejk_problem_kernel(NULL));
    assert_null(ejk_problem_axes(NULL));
}

static void wishes_are_kept_beside_the_arguments(void **state) {
    (void)state;
    ejk_problem *problem = parse("odd:Hq=2,T=3,D=4,share=0.5,rate=2,lengths=\"1,2\"");
    const ejk_inputs *inputs = ejk_problem_inputs(problem);
    assert_int_equal(inputs->wish_count, 2);
    assert_int_equal(inputs->seed, 0);
    assert_string_equal(inputs->wishes[0].name, "share");
    assert_string_equal(inputs->wishes[0].value, "0.5");
    assert_string_equal(inputs->wishes[1].name, "lengths");
    assert_string_equal(inputs->wishes[1].value, "1,2");
    ejk_problem_destroy(problem);
    problem = parse("flash_attention:Hq=8,T=16,D=4");
    assert_int_equal(ejk_problem_inputs(problem)->wish_count, 0);
    ejk_problem_destroy(problem);
    assert_null(ejk_problem_inputs(NULL));
}

static void refused(ejk_status status, const char *text, const char *sentence, int line) {
    ejk_problem *untouched = (ejk_problem *)(void *)&context, *out = untouched;
    const ejk_status got = ejk_problem_parse(context, text, &out);
    if (got != status || !strstr(ejk_last_error(), sentence) || out != untouched)
        fail_msg("line %d: %s answered %s (%s), expected %s with '%s'", line, text,
                 ejk_status_name(got), ejk_last_error(), ejk_status_name(status), sentence);
}

#define REFUSED(status, text, sentence) refused(EJK_STATUS_##status, text, sentence, __LINE__)

static void lines_that_cannot_be_cut_name_the_place(void **state) {
    (void)state;
    REFUSED(MALFORMED, "", "byte 1");
    REFUSED(MALFORMED, "# toy:n=1", "byte 1");
    REFUSED(MALFORMED, "toy", "byte 1: 'toy' given, expected a kernel's name and ':'");
    REFUSED(MALFORMED, " :n=1", "byte 2");
    REFUSED(MALFORMED, "toy:=1", "byte 5: '=1' given, expected the name");
    REFUSED(MALFORMED, "toy:,n=1", "byte 5");
    REFUSED(MALFORMED, "toy:n=1#c", "byte 8: '#c' given, expected quotes");
    REFUSED(MALFORMED, "toy:#c", "byte 5");
    REFUSED(MALFORMED, "toy:flag#c", "byte 9");
    REFUSED(MALFORMED, "toy:flag,", "byte 10");
    REFUSED(MALFORMED, "toy:flag m=3", "byte 10: 'm=3' given, expected '=', ',' or the end");
    REFUSED(MALFORMED, "toy:n=1 m=3", "byte 9: 'm=3' given, expected ',' or the end");
    REFUSED(MALFORMED, "toy:n=1\nm=3", "byte 5");
    REFUSED(MALFORMED, "toy:n=,m=3", "byte 7: ',m=3' given, expected a value after '='");
    REFUSED(MALFORMED, "toy:n=", "byte 7");
    REFUSED(MALFORMED, "toy:n= # c", "byte 8");
    REFUSED(MALFORMED, "odd:label=\"ab", "byte 11: '\"ab' given, expected a closing quote");
    REFUSED(MALFORMED, "odd:label=\"ab\\", "closing quote");
    REFUSED(MALFORMED, "odd:label=\"a\\x\"", "byte 11");
    REFUSED(MALFORMED, "odd:label=\"a\\u0000\"", "byte 11");
    REFUSED(MALFORMED, "odd:label=\"\xff\"", "byte 11");
    REFUSED(MALFORMED, "odd:label=a\"b\"", "byte 12");
    REFUSED(MALFORMED, "odd:label=\"a\"b", "byte 14");
    char endless[EJK_PROBLEM_MAX_TEXT + 2];
    memset(endless, ' ', sizeof endless);
    memcpy(endless, "toy:n=5,m=3", 11);
    endless[sizeof endless - 1] = '\0';
    REFUSED(MALFORMED, endless, "longer than 4096 bytes");
    endless[EJK_PROBLEM_MAX_TEXT] = '\0';
    ejk_problem_destroy(parse(endless));
}

static void items_that_mean_nothing_name_the_place(void **state) {
    (void)state;
    REFUSED(UNKNOWN_NAME, "tony:n=1", "'tony' is no operation");
    REFUSED(UNAVAILABLE, "ring_attention:T=1", "not in this version");
    REFUSED(UNKNOWN_NAME, "toy:m=3,colour=4",
            "byte 9: 'colour' is no field of toy_args, none of dtype, with, and no symbol of its "
            "tensors, which have n m");
    REFUSED(UNKNOWN_NAME, "flash_attention:Hq=1,T=3,D=4,Hk=2",
            "'Hk' is no field of ejk_flash_attention_args, none of dtype, with, layout, and no "
            "symbol of its tensors, which have B T Hq D S Hkv Dv N n");
    REFUSED(UNKNOWN_NAME, "toy:M=3", "byte 5");
    REFUSED(UNKNOWN_NAME, "toy:cfg.params.row=3", "byte 5");
    REFUSED(MALFORMED, "toy:n=2,m=3,n=4", "byte 13: n is given twice");
    REFUSED(MALFORMED, "toy:m=3,cfg.params.rows=8,cfg=\"{}\"", "byte 27: cfg is given twice");
    REFUSED(MALFORMED, "toy:m=3,cfg=\"{}\",cfg.params.rows=8", "given twice");
    REFUSED(MALFORMED, "toy:m=3,z,with=z", "byte 11: z is given twice");
    REFUSED(MALFORMED, "toy:m=3,with=z,z=float32", "byte 16: z is given twice");
    REFUSED(MALFORMED, "toy:m=-3", "byte 5: m is '-3', expected a length");
    REFUSED(MALFORMED, "toy:m=3x", "m is '3x'");
    REFUSED(MALFORMED, "toy:m=99999999999999999999", "m is");
    REFUSED(MALFORMED, "toy:m=3,n", "byte 9: n stands alone");
    REFUSED(MALFORMED, "toy:m=3,shift", "byte 9: shift stands alone");
    REFUSED(MALFORMED, "toy:m=3,shift=1.5", "byte 9: shift");
    REFUSED(MALFORMED, "toy:m=3,flag=yes", "byte 9: flag");
    REFUSED(MALFORMED, "toy:m=3,with", "with stands alone");
    REFUSED(MALFORMED, "odd:T=1,share", "byte 9: share stands alone");
    REFUSED(MALFORMED, "odd:share=1,share=1", "byte 13: share is given twice");
    REFUSED(UNKNOWN_NAME, "toy:m=3,with=z+w", "byte 9: with has 'w', which is no tensor");
    REFUSED(UNKNOWN_NAME, "toy:m=3,with=factor", "with has 'factor'");
    REFUSED(UNKNOWN_NAME, "toy:m=3,with=z+", "with has ''");
    REFUSED(UNKNOWN_NAME, "toy:m=3,dtype=float", "byte 9: ");
    REFUSED(UNKNOWN_NAME, "toy:m=3,layout=nhwc", "byte 9: 'layout' is no field of toy_args");
    REFUSED(MALFORMED, "flash_attention:layout=nhwc,Hq=1,T=3,D=4",
            "byte 17: layout is 'nhwc', expected bthd or bhtd");
    REFUSED(MALFORMED,
            "odd:T=1,pages=\"{\\\"table\\\":{\\\"dtype\\\":\\\"int32\\\",\\\"shape\\\":"
            "[1,2]}}\"",
            "pages.table");
}

static void tensors_that_do_not_fit_are_refused(void **state) {
    (void)state;
    REFUSED(INVALID_ARGUMENT, "toy:n=3", "m");
    REFUSED(INVALID_ARGUMENT, "flash_attention:T=3,D=4", "Hq");
    REFUSED(INVALID_ARGUMENT, "flash_attention:Hq=1,T=3,D=4,n=4",
            "byte 30: n is the length of no tensor that is given");
    REFUSED(INVALID_ARGUMENT, "flash_attention:Hq=1,T=3,D=4,with=cum_seqlens_q", "byte 30: ");
    REFUSED(UNKNOWN_NAME, "toy:m=3,z=float33", "byte 9: ");
    REFUSED(MALFORMED, "toy:m=3,z=[1,3", "byte 9: '[1,3' cannot be read");
    REFUSED(MALFORMED, "toy:m=3,z=[1", "byte 9: '[1' cannot be read at ''");
    REFUSED(MALFORMED, "toy:m=3,z=@[1", "byte 9: '@[1' cannot be read at ''");
    REFUSED(MALFORMED, "toy:m=3,z=[1,]", "byte 9: '[1,]' cannot be read at ']'");
    REFUSED(MALFORMED, "toy:m=3,z=[1;3]", "cannot be read at ';3]'");
    REFUSED(MALFORMED, "toy:m=3,z=[1,3]x", "cannot be read at 'x'");
    REFUSED(MALFORMED, "toy:m=3,z=[-1,3]", "cannot be read at '-1,3]'");
    REFUSED(MALFORMED, "toy:m=3,z=@[3,-]", "cannot be read");
    REFUSED(MALFORMED, "toy:m=3,z=@3", "cannot be read at '@3'");
    REFUSED(MALFORMED, "toy:m=3,z=[a23456789012345678901234,3]", "cannot be read");
    REFUSED(MALFORMED, "toy:m=3,z=[1,1,1,1,1,1,1,1,1]", "cannot be read");
    REFUSED(MALFORMED, "toy:m=3,z=@[1,1,1,1,1,1,1,1,1]", "cannot be read");
    REFUSED(MALFORMED, "toy:m=3,z=\"\"", "cannot be read");
    REFUSED(INVALID_ARGUMENT, "toy:m=3,z=[k,3]", "byte 9: z: a size has a symbol");
    REFUSED(INVALID_ARGUMENT, "toy:m=3,z=[m+9223372036854775807,3]", "byte 9: z: a size");
    REFUSED(INVALID_SHAPE, "toy:n=1,m=3,z=[2,3]", "z: axis 0 (n) has length 2, expected 1");
    REFUSED(INVALID_SHAPE, "toy:x=[2,3],z=[2,4]", "z: axis 1 (m) has length 4, expected 3");
    REFUSED(INVALID_SHAPE, "toy:x=[2,3,4]", "x: rank 3");
    REFUSED(INVALID_SHAPE, "toy:m=3,z=@[1]", "byte 9: z: 1 strides given, expected 2");
    REFUSED(INVALID_LAYOUT, "toy:m=3,z=@[6,2]", "z: axis 1, the last, has stride 2");
    REFUSED(INVALID_DTYPE, "toy:m=3,dtype=int32", "x: int32 given");
    REFUSED(INVALID_DTYPE, "toy:m=3,y=float64", "y: float64 given, expected float32 as x");
    REFUSED(OVERFLOW, "toy:n=9223372036854775807,m=9223372036854775807", "");
    REFUSED(MALFORMED, "toy:m=3,x=@[99999999999999999999,1]", "byte 9: ");
}

static void null_arguments(void **state) {
    (void)state;
    ejk_problem *problem = parse("toy:n=5,m=3");
    ejk_problem *out = NULL;
    char *text = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "context", ejk_problem_parse(NULL, "toy:n=1", &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "text", ejk_problem_parse(context, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_problem_parse(context, "toy:n=1", NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "problem", ejk_problem_allocate(NULL, 0));
    const void *args = ejk_problem_args(problem);
    EXPECT_FAIL(INVALID_ARGUMENT, "kernel", ejk_problem_to_text(NULL, args, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_problem_to_text(&toy_kernel, NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_problem_to_text(&toy_kernel, args, NULL));
    assert_null(text);
    ejk_problem_destroy(problem);
}

/* ---- Calls as text --------------------------------------------------------------------------------- */

static void calls_without_a_text_are_refused(void **state) {
    (void)state;
    char *text = NULL;
    toy_args args = toy_call(NULL, NULL, 2, 3);
    args.x.data = args.y.data = &args; /* where tensors lie has no part in it */
    args.x.device_type = args.y.device_type = EJK_DEVICE_CUDA;
    EXPECT_OK(ejk_problem_to_text(&toy_kernel, &args, &text));
    assert_string_equal(text, "toy:n=2,m=3,dtype=float32,factor=2.0");
    ejk_free(text);
    text = NULL;
#define NO_TEXT(status, words, ...)                                                                \
    do {                                                                                           \
        toy_args call = toy_call(NULL, NULL, 2, 3);                                                \
        __VA_ARGS__;                                                                               \
        EXPECT_FAIL(status, words, ejk_problem_to_text(&toy_kernel, &call, &text));                \
        assert_null(text);                                                                         \
    } while (0)
    NO_TEXT(INVALID_ARGUMENT, "y: missing", call.y.dtype = EJK_DTYPE_UNSET);
    NO_TEXT(INVALID_SHAPE, "y: axis 0", call.y.shape[0] = 7);
    NO_TEXT(INVALID_ARGUMENT, "factor: inf", call.factor = 1 / (call.factor - 2));
    NO_TEXT(INVALID_ARGUMENT, "platform", memset(call.platform, 'p', sizeof call.platform));
    NO_TEXT(INVALID_ARGUMENT, "UTF-8", strcpy(call.platform, "\xff"));
    ejk_kernel named = toy_kernel;
    named.op_id = "to y";
    EXPECT_FAIL(INVALID_ARGUMENT, "'to y'", ejk_problem_to_text(&named, &args, &text));
    named.args = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_problem_to_text(&named, &args, &text));
    assert_null(text);
}

/* ---- Lists ----------------------------------------------------------------------------------------- */

static char seen[512];

static ejk_status note(void *user, int64_t line, ejk_problem *problem) {
    char *text;
    const size_t used = strlen(seen);
    EXPECT_OK(ejk_problem_to_text(ejk_problem_kernel(problem), ejk_problem_args(problem), &text));
    snprintf(seen + used, sizeof seen - used, "%lld %s|", (long long)line, text);
    ejk_free(text);
    return user && *(int64_t *)user == line ? EJK_STATUS_MISMATCH : EJK_OK;
}

static ejk_status read_list(const char *text, size_t size, void *user) {
    seen[0] = '\0';
    return ejk_problem_read_text(context, "list", text, size, note, user);
}

#define LIST(text) (text), sizeof(text) - 1

static void lists_are_read_line_by_line(void **state) {
    (void)state;
    EXPECT_OK(read_list(LIST("# what to tune\r\n\r\n toy:m=1 # one\r\n \t\n\ntoy:m=2\n#\ntoy:m=3"),
                        NULL));
    assert_string_equal(seen, "3 toy:n=1,m=1,dtype=float32|6 toy:n=1,m=2,dtype=float32|8 "
                              "toy:n=1,m=3,dtype=float32|");
    EXPECT_OK(read_list(NULL, 0, NULL));
    EXPECT_OK(read_list(LIST("\n\n"), NULL));
    assert_string_equal(seen, "");
    /* Nothing is called if any line cannot be read. */
    EXPECT_FAIL(MALFORMED, "list:3: byte 5: m is 'x'",
                read_list(LIST("toy:m=1\n\ntoy:m=x\n"), NULL));
    EXPECT_FAIL(UNKNOWN_NAME, "list:1: 'a' is no operation", read_list(LIST("a:b"), NULL));
    EXPECT_FAIL(MALFORMED, "list:2: the line has a zero byte",
                read_list(LIST("toy:m=1\ntoy:m=2\0,n=1\n"), NULL));
    assert_string_equal(seen, "");
    int64_t stop = 2;
    EXPECT_FAIL(MISMATCH, "", read_list(LIST("toy:m=1\ntoy:m=2\ntoy:m=3"), &stop));
    assert_string_equal(seen, "1 toy:n=1,m=1,dtype=float32|2 toy:n=1,m=2,dtype=float32|");
    char endless[EJK_PROBLEM_MAX_TEXT + 100];
    memset(endless, '#', sizeof endless);
    EXPECT_FAIL(MALFORMED, "list:1: the line is too long",
                read_list(endless, sizeof endless, NULL));
    EXPECT_OK(read_list(endless, EJK_PROBLEM_MAX_TEXT, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "context",
                ejk_problem_read_text(NULL, "list", "", 0, note, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "name", ejk_problem_read_text(context, NULL, "", 0, note, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "text",
                ejk_problem_read_text(context, "list", NULL, 1, note, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "each",
                ejk_problem_read_text(context, "list", "", 0, NULL, NULL));
}

static void lists_are_read_from_files(void **state) {
    (void)state;
    char path[] = "ejk-problems-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    const char text[] = "# list\ntoy:m=4\n";
    assert_int_equal(write(file, text, sizeof text - 1), sizeof text - 1);
    seen[0] = '\0';
    EXPECT_OK(ejk_problem_read_file(context, path, note, NULL));
    assert_string_equal(seen, "2 toy:n=1,m=4,dtype=float32|");
    assert_int_equal(ftruncate(file, 0), 0);
    EXPECT_OK(ejk_problem_read_file(context, path, note, NULL));
    assert_int_equal(ftruncate(file, (16 << 20) + 1), 0);
    EXPECT_FAIL(IO, "16777216 bytes", ejk_problem_read_file(context, path, note, NULL));
    close(file);
    unlink(path);
    EXPECT_FAIL(IO, path, ejk_problem_read_file(context, path, note, NULL));
    EXPECT_FAIL(IO, "regular file", ejk_problem_read_file(context, ".", note, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "path", ejk_problem_read_file(context, NULL, note, NULL));
    assert_string_equal(seen, "2 toy:n=1,m=4,dtype=float32|");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(lines_have_one_canonical_form),
        TEST(orders_are_those_of_the_record),
        TEST(odd_names_and_values_survive),
        TEST(what_was_read_is_there),
        TEST(wishes_are_kept_beside_the_arguments),
        TEST(lines_that_cannot_be_cut_name_the_place),
        TEST(items_that_mean_nothing_name_the_place),
        TEST(tensors_that_do_not_fit_are_refused),
        TEST(null_arguments),
        TEST(calls_without_a_text_are_refused),
        TEST(lists_are_read_line_by_line),
        TEST(lists_are_read_from_files),
    };
    return cmocka_run_group_tests_name("problem", tests, NULL, NULL);
}
