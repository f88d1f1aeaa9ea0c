/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every member of the recurrent family: a run in chunks that is gone on with token by token is the whole run, with the
 * same state behind it, and packed sequences are the sequences alone.
 */
#include "support/context.h"
#include "support/expect.h"

#include <ejkernel/ejkernel.h>

/* Heads share query and key by twos; tokens are chunks and a rest, then steps. */
enum { TOKENS = 100, FIRST = 90, HEADS = 4, KEY_HEADS = 2, DK = 32, DV = 20, MOST_TENSORS = 6 };
enum { STATE = HEADS * DK * DV, MOST = TOKENS * HEADS * DK };

/* A tensor of tokens: elements of a head, 0 for a number of it; what they are times numbers of -1 to 1, and more. */
typedef struct input {
    const char *name;
    int heads, size;
    float factor, offset;
} input;

/* Keys are short, rates positive, decays moderate; what rank-one updates add is less than the state. */
#define QK(q, k, v)                                                                                \
    {q, KEY_HEADS, DK, 1, 0}, {k, KEY_HEADS, DK, 0.2f, 0}, {                                       \
        v, HEADS, DV, 1, 0                                                                         \
    }
#define GATE(name, size)                                                                           \
    { name, HEADS, size, 0.2f, -0.2f }

typedef struct member {
    const ejk_kernel *kernel;
    input inputs[MOST_TENSORS];
} member;

static const member members[] = {
    {&ejk_recurrent_attention_kernel, {QK("query", "key", "value"), GATE("g", 0), GATE("gv", DV)}},
    {&ejk_recurrent_attention_kernel, {QK("query", "key", "value"), GATE("g", 0)}},
    {&ejk_gla_attention_kernel, {QK("query", "key", "value"), GATE("g", DK)}},
    {&ejk_lightning_attention_kernel, {QK("query", "key", "value")}},
    {&ejk_gated_delta_rule_kernel,
     {QK("query", "key", "value"), {"beta", HEADS, 0, 0.5f, 0.5f}, GATE("decay", 0)}},
    {&ejk_kda_attention_kernel,
     {QK("query", "key", "value"), {"beta", HEADS, 0, 0.5f, 0.5f}, GATE("decay", DK)}},
    {&ejk_rwkv6_kernel, {QK("r", "k", "v"), GATE("w", DK)}},
    {&ejk_rwkv7_kernel,
     {QK("r", "k", "v"), GATE("w", DK), {"a", HEADS, DK, 0.1f, 0}, {"b", HEADS, DK, 0.1f, 0}}},
    {&ejk_rwkv7_mul_kernel,
     {QK("r", "k", "v"), GATE("w", DK), {"kk", HEADS, DK, 0.2f, 0}, {"a", HEADS, DK, 0.5f, 0}}},
};
enum { MEMBERS = sizeof members / sizeof *members };

static float data[MOST_TENSORS][MOST], whole[TOKENS * HEADS * DV], part[TOKENS * HEADS * DV];
static float at_once[STATE], on_the_way[STATE];

/* A call of tokens first to end - 1. */
typedef struct call {
    const member *m;
    _Alignas(16) char args[4096];
    int first, end;
} call;

static void put(call *c, const char *name, const void *value, size_t bytes) {
    size_t offset;
    assert_non_null(ejk_record_find(c->m->kernel->args, name, &offset));
    memcpy(c->args + offset, value, bytes);
}

static void set(call *c, const char *name, ejk_tensor t) {
    put(c, name, &t, sizeof t);
}

static ejk_tensor tokens_of(const call *c, float *from, int heads, int size) {
    float *at = from + c->first * heads * (size > 0 ? size : 1);
    const int tokens = c->end - c->first;
    return size > 0 ? ejk_tensor_4d(at, EJK_DTYPE_F32, 1, tokens, heads, size)
                    : ejk_tensor_3d(at, EJK_DTYPE_F32, 1, tokens, heads);
}

static ejk_tensor state_in(float *at) {
    return ejk_tensor_4d(at, EJK_DTYPE_F32, 1, HEADS, DK, DV);
}

static call call_of(const member *m, int first, int end, float *out) {
    static const int64_t layers = 2;
    call c = {.m = m, .first = first, .end = end};
    assert_true(m->kernel->args->size <= sizeof c.args);
    for (int i = 0; i < MOST_TENSORS && m->inputs[i].name; i++)
        set(&c, m->inputs[i].name, tokens_of(&c, data[i], m->inputs[i].heads, m->inputs[i].size));
    set(&c, "out", tokens_of(&c, out, HEADS, DV));
    if (m->kernel == &ejk_lightning_attention_kernel) put(&c, "num_layers", &layers, sizeof layers);
    return c;
}

static void fill(const member *m) {
    uint32_t bits = 1;
    for (int i = 0; i < MOST_TENSORS && m->inputs[i].name; i++)
        for (int n = 0; n < MOST; n++) {
            bits = bits * 1664525u + 1013904223u;
            data[i][n] =
                m->inputs[i].offset + m->inputs[i].factor * ((float)(bits >> 8) / 8388608.0f - 1);
        }
}

static void expect_same(const float *got, const float *wanted, int count) {
    for (int n = 0; n < count; n++) EXPECT_NEAR((double)got[n], (double)wanted[n], 1e-5);
}

static void run_whole(const member *m) {
    fill(m);
    call c = call_of(m, 0, TOKENS, whole);
    set(&c, "final_state", state_in(at_once));
    EXPECT_OK(ejk_call(context, m->kernel, c.args));
}

static void steps_go_on_where_chunks_end(void **unused) {
    (void)unused;
    for (int i = 0; i < MEMBERS; i++) {
        const member *m = &members[i];
        run_whole(m);
        call c = call_of(m, 0, FIRST, part);
        set(&c, "final_state", state_in(on_the_way));
        EXPECT_OK(ejk_call(context, m->kernel, c.args));
        for (int t = FIRST; t < TOKENS; t++) {
            c = call_of(m, t, t + 1, part);
            set(&c, "state", state_in(on_the_way));
            EXPECT_OK(ejk_call(context, m->kernel, c.args));
        }
        expect_same(part, whole, TOKENS * HEADS * DV);
        expect_same(on_the_way, at_once, STATE);
    }
}

/* The second half by itself begins with no state, as a sequence does. */
static void packed_sequences_are_alone(void **unused) {
    (void)unused;
    static int32_t ends[] = {0, FIRST / 2, FIRST / 2, TOKENS};
    for (int i = 0; i < MEMBERS; i++) {
        const member *m = &members[i];
        fill(m);
        call c = call_of(m, 0, TOKENS, whole);
        set(&c, "cu_seqlens", ejk_tensor_1d(ends, EJK_DTYPE_I32, 4));
        EXPECT_OK(ejk_call(context, m->kernel, c.args));
        for (int n = 0; n < 3; n += 2) {
            c = call_of(m, ends[n], ends[n + 1], part);
            EXPECT_OK(ejk_call(context, m->kernel, c.args));
        }
        expect_same(part, whole, TOKENS * HEADS * DV);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_go_on_where_chunks_end),
        cmocka_unit_test(packed_sequences_are_alone),
    };
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
