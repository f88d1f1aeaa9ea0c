/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of every case with one or two things changed at random, whatever comes of it: numbers in lists, lengths,
 * strides, types, addresses, options. They succeed, or fail with a sentence and write nothing; nothing else happens,
 * which sanitizers look at. What refusal.c does is always refused; this may be a good call still.
 */
#include "conformance/all_cases.h"
#include "support/expect.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUDGET = 3000, MOST_ELEMENTS = 200000 };

static const int64_t numbers[] = {
    0,         1,         2,         7,         16,        64,        255,
    65536,     -1,        -2,        -128,      -65536,    INT32_MAX, INT32_MIN,
    INT64_MAX, INT64_MIN, 1LL << 31, 1LL << 32, 1LL << 40, 1LL << 62, INT64_MAX - 1};

/* ---- Calls ------------------------------------------------------------------------------------------- */

/* Arguments with each tensor in memory of its own size. */
struct hostile {
    const ejk_record *record;
    void *args;
    unsigned char *memory[MOST_FIELDS], *before[MOST_FIELDS];
    size_t size[MOST_FIELDS];
    char text[200]; /* what was changed */
};

static void open(struct hostile *h, const struct call *c) {
    *h = (struct hostile){.record = c->kernel->args, .args = malloc(c->kernel->args->size)};
    if (!h->args) abort();
    memcpy(h->args, c->args, h->record->size);
    for (int32_t i = 0; i < h->record->count; i++) {
        const ejk_field *field = &h->record->fields[i];
        ejk_tensor *t = field->kind == EJK_FIELD_TENSOR ? field_tensor(field, h->args) : NULL;
        if (!t || !ejk_tensor_present(t) || !t->data) continue;
        int64_t low, high;
        ejk_tensor_span(t, &low, &high);
        h->size[i] = (size_t)(high - low);
        h->memory[i] = malloc(h->size[i] + !h->size[i]);
        h->before[i] = malloc(h->size[i] + !h->size[i]);
        if (!h->memory[i] || !h->before[i]) abort();
        memcpy(h->memory[i], t->data, h->size[i]);
        t->data = h->memory[i];
    }
}

static void remember(const struct hostile *h) {
    for (int32_t i = 0; i < h->record->count; i++)
        if (h->memory[i]) memcpy(h->before[i], h->memory[i], h->size[i]);
}

static void expect_untouched(const struct hostile *h, bool inputs_only) {
    for (int32_t i = 0; i < h->record->count; i++)
        if (h->memory[i] && !(inputs_only && field_writes(&h->record->fields[i])) &&
            memcmp(h->before[i], h->memory[i], h->size[i]) != 0)
            fail_msg("%s was written", h->record->fields[i].name);
}

static void close(struct hostile *h) {
    for (int32_t i = 0; i < h->record->count; i++) {
        free(h->memory[i]);
        free(h->before[i]);
    }
    free(h->args);
}

/* ---- Changes ----------------------------------------------------------------------------------------- */

/* A list's entry becomes another's, its neighbour, or any number. */
static void spoil_list(struct random *r, const ejk_tensor *t) {
    const int64_t count = ejk_tensor_count(t), at = random_int(r, 0, count - 1);
    const bool wide = t->dtype == EJK_DTYPE_I64;
    int64_t *wides = t->data, from = random_int(r, 0, count - 1);
    int32_t *narrows = t->data;
    const int64_t other = wide ? wides[from] : narrows[from];
    const int64_t value = random_chance(r, 0.5) || other < INT32_MIN || other >= INT32_MAX
                              ? RANDOM_OF(r, numbers)
                              : other + random_int(r, -1, 1);
    if (wide)
        wides[at] = value;
    else
        narrows[at] = (int32_t)value;
}

/* Never more memory than there is. */
static void spoil_view(struct random *r, const struct hostile *h, ejk_tensor *t) {
    const int32_t axis = t->rank > 0 ? (int32_t)random_int(r, 0, t->rank - 1) : 0;
    const int64_t stride = t->strides[axis], length = t->shape[axis];
    const int64_t bytes = (int64_t)ejk_dtype_size(t->dtype);
    const int32_t other = (int32_t)random_int(r, 0, h->record->count - 1);
    const ejk_dtype type = (ejk_dtype)random_int(r, -1, 18);
    switch (t->rank > 0 ? random_int(r, 0, 10) : random_int(r, 7, 10)) {
    case 0: t->shape[axis] = 0; break;
    case 1: t->shape[axis] = RANDOM_OF(r, numbers), t->strides[axis] = 0; break;
    case 2: t->shape[axis] -= length > 0; break;
    case 3: t->strides[axis] = 0; break;
    case 4: t->shape[axis] = length > 0, t->strides[axis] = RANDOM_OF(r, numbers); break;
    case 5: /* backwards */
        if (!t->data || length < 2) break;
        t->data = (char *)t->data + (length - 1) * stride * bytes;
        t->strides[axis] = -stride;
        break;
    case 6: t->rank = axis; break;
    case 7: *t = (ejk_tensor){.dtype = EJK_DTYPE_UNSET}; break;
    case 8: t->device_type = (int32_t)random_int(r, -1, 12), t->device_index = INT32_MAX; break;
    case 9:
        if (ejk_dtype_bits(type) <= ejk_dtype_bits(t->dtype)) t->dtype = type;
        break;
    default: /* where another one lies */
        for (int32_t i = 0; i < h->record->count; i++)
            if (h->memory[other] && t->data == h->memory[i] && h->size[other] >= h->size[i]) {
                t->data = h->memory[other];
                break;
            }
    }
}

static void spoil_option(struct random *r, const ejk_field *field, void *at) {
    static const double reals[] = {
        0, -1, -0.0, 0.5, 1e-300, 1e308, NAN, DBL_MIN, 1e40, (double)INFINITY, -(double)INFINITY};
    static const char *const names[] = {"",       "x",    "auto",   "simd",   "reference",
                                        "silu",   "none", "swiglu", "nf4",    "value_key",
                                        "signed", "gptq", "%s%n",   "affine", "default"};
    switch (field->kind) {
    case EJK_FIELD_BOOL: *(bool *)at = !*(bool *)at; break;
    case EJK_FIELD_INT: *(int64_t *)at = RANDOM_OF(r, numbers); break;
    case EJK_FIELD_FLOAT: *(double *)at = RANDOM_OF(r, reals); break;
    case EJK_FIELD_OPT_INT: *(ejk_opt_int *)at = ejk_int(RANDOM_OF(r, numbers)); break;
    case EJK_FIELD_OPT_FLOAT: *(ejk_opt_float *)at = ejk_float(RANDOM_OF(r, reals)); break;
    case EJK_FIELD_DTYPE: *(ejk_dtype *)at = (ejk_dtype)random_int(r, -1, 18); break;
    case EJK_FIELD_WINDOW:
        *(ejk_window *)at =
            (ejk_window){ejk_int(RANDOM_OF(r, numbers)), ejk_int(RANDOM_OF(r, numbers))};
        break;
    case EJK_FIELD_NAME:
        memset(at, 'A', EJK_NAME_SIZE); /* without an end */
        if (random_chance(r, 0.9)) snprintf(at, EJK_NAME_SIZE, "%s", RANDOM_OF(r, names));
        break;
    default: break;
    }
}

static void spoil(struct random *r, struct hostile *h) {
    const int32_t i = (int32_t)random_int(r, 0, h->record->count - 1);
    const ejk_field *field = &h->record->fields[i];
    const size_t used = strlen(h->text);
    snprintf(h->text + used, sizeof h->text - used, " %s", field->name);
    if (field->kind != EJK_FIELD_TENSOR) {
        spoil_option(r, field, (char *)h->args + field->offset);
        return;
    }
    ejk_tensor *t = field_tensor(field, h->args);
    const bool list = t->dtype == EJK_DTYPE_I32 || t->dtype == EJK_DTYPE_I64;
    if (!ejk_tensor_present(t)) return;
    if (list && h->memory[i] && t->data == h->memory[i] && h->size[i] > 0 &&
        ejk_tensor_check(t, "t") == EJK_OK && ejk_tensor_is_contiguous(t) && random_chance(r, 0.7))
        spoil_list(r, t);
    else
        spoil_view(r, h, t);
}

/* ---- Tests ------------------------------------------------------------------------------------------- */

static bool is_small(const struct call *c) {
    int64_t sum = 0;
    for (int32_t i = 0; i < c->kernel->args->count; i++)
        if (c->kernel->args->fields[i].kind == EJK_FIELD_TENSOR)
            sum += ejk_tensor_count(field_tensor(&c->kernel->args->fields[i], c->args));
    return sum < MOST_ELEMENTS;
}

static void try_call(ejk_context *context, const struct call *c, uint64_t seed) {
    struct random r = {.state = seed ^ UINT64_C(0x5bd1e9955bd1e995)};
    struct hostile h;
    open(&h, c);
    for (int64_t left = random_int(&r, 1, 2); left > 0; left--) spoil(&r, &h);
    remember(&h);
    const ejk_status status = ejk_call(context, c->kernel, h.args);
    if (status == EJK_STATUS_INTERNAL || (status != EJK_OK && ejk_last_error()[0] == '\0'))
        fail_msg("%s, seed %d:%s answers %s, \"%s\"", c->kernel->op_id, (int)seed, h.text,
                 ejk_status_name(status), ejk_last_error());
    expect_untouched(&h, status == EJK_OK);
    close(&h);
}

static void test_changed_calls_do_no_harm(void **state) {
    const char *asked = getenv("EJK_TEST_CASES");
    const uint64_t calls = asked ? strtoull(asked, NULL, 10) : 12;
    ejk_context *context;
    (void)state;
    EXPECT_OK(ejk_context_create(NULL, &context));
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (uint64_t seed = 1, tried = 0; tried < calls && seed < 10 * calls; seed++) {
            struct call call;
            if (call_open(&call, cases[n], kernels[n], seed, BUDGET, NULL) && is_small(&call)) {
                try_call(context, &call, seed);
                tried++;
            }
            call_close(&call);
        }
    ejk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_changed_calls_do_no_harm)};
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
