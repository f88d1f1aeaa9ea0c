/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results may not lie where anything else of the call lies. Two views whose spans meet may still have no
 * byte in common, as two slices of one buffer. That is recognised as follows: split the axes of both at
 * some length into coarse ones (stride at least that) and fine ones. All coarse strides are multiples of
 * their greatest common divisor, so modulo it each view occupies one run of bytes, as long as its fine
 * axes reach. If those runs are apart, so are the views. What is not recognised is refused.
 */
#include "ops/core/core.h"
#include "record/tensors.h"

#include <stdlib.h>

static const ejk_tensor *tensor_at(const void *args, size_t offset) {
    return (const void *)((const char *)args + offset);
}

/* Elements an axis steps by, without sign; 0 for an axis that never steps. */
static int64_t elements(const ejk_tensor *t, int32_t axis) {
    return t->shape[axis] < 2 ? 0 : llabs(t->strides[axis]);
}

/* The same in bytes. Of elements that share a byte, an axis steps by whole ones, or by less than one: 0. */
static int64_t step(const ejk_tensor *t, int32_t axis) {
    const int64_t size = (int64_t)ejk_dtype_size(t->dtype);
    return size > 0 ? elements(t, axis) * size : elements(t, axis) / 2;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Joins the coarse strides into *period; [*low, *high) are the bytes that the fine axes reach. */
static void split(const ejk_tensor *t, int64_t coarse, int64_t *period, int64_t *low,
                  int64_t *high) {
    ejk_tensor fine = *t;
    for (int32_t i = 0; i < t->rank; i++) {
        if (step(t, i) < coarse) continue;
        *period = common_divisor(*period, step(t, i));
        fine.shape[i] = 1;
    }
    ejk_tensor_span(&fine, low, high);
}

/* Adds the period that splitting at `coarse` gives, if the two runs can be apart in it. */
static void add_period(ejki_pair *pair, const ejk_tensor *a, const ejk_tensor *b, int64_t coarse) {
    int64_t period = 0, low_a, high_a, low_b, high_b;
    if (coarse == 0 || pair->period_count == EJKI_MAX_PERIODS) return;
    split(a, coarse, &period, &low_a, &high_a);
    split(b, coarse, &period, &low_b, &high_b);
    ejki_period made = {period, low_b - low_a, high_a - low_a, high_b - low_b};
    if (made.first > period || made.second > period - made.first) return;
    for (int32_t i = 0; i < pair->period_count; i++)
        if (pair->periods[i].length == period) return;
    pair->periods[pair->period_count++] = made;
}

static int64_t difference(int64_t a, int64_t b) {
    int64_t result;
    return __builtin_sub_overflow(a, b, &result) ? (a < 0 ? INT64_MIN : INT64_MAX) : result;
}

static ejki_pair pair_of(const void *args, const ejki_operand *first, const ejki_operand *second) {
    const ejk_tensor *a = tensor_at(args, first->offset), *b = tensor_at(args, second->offset);
    int64_t low_a, high_a, low_b, high_b;
    ejk_tensor_span(a, &low_a, &high_a);
    ejk_tensor_span(b, &low_b, &high_b);
    ejki_pair pair = {.first = *first,
                      .second = *second,
                      .low = difference(low_a, high_b),
                      .high = difference(high_a, low_b)};
    for (int32_t i = 0; i < a->rank; i++) add_period(&pair, a, b, step(a, i));
    for (int32_t i = 0; i < b->rank; i++) add_period(&pair, a, b, step(b, i));
    return pair;
}

/* Every axis must step over all that the finer ones reach. */
static ejk_status check_distinct(const ejk_tensor *t, const char *name) {
    for (int32_t i = 0; i < t->rank; i++) {
        int64_t reach = 1;
        for (int32_t k = 0; k < t->rank; k++)
            if (elements(t, k) < elements(t, i) || (elements(t, k) == elements(t, i) && k < i))
                reach += (ejki_max(t->shape[k], 1) - 1) * elements(t, k);
        if (t->shape[i] > 1 && elements(t, i) < reach)
            return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                             "%s is a result whose axis %d steps by %lld elements, onto other "
                             "elements of its own: expected a view that holds each element once",
                             name, (int)i, (long long)t->strides[i]);
    }
    return EJK_OK;
}

/* Tensors of a call, counted while the list is NULL, then written: the same walk does both. */
typedef struct collection {
    ejki_operand *tensors; /* those that have elements, nested ones too */
    size_t count;
    bool results, empty_results;
} collection;

static ejk_status collect(const ejk_record *record, const void *args, collection *out) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, args);
        const bool output = ejk_field_is_output(w.field), present = ejk_tensor_present(tensor);
        const bool empty = !present || ejk_tensor_count(tensor) == 0;
        out->results |= output && !empty;
        out->empty_results |= output && present && empty;
        if (empty) continue;
        if (output) EJKI_TRY(check_distinct(tensor, w.field->name));
        if (out->tensors)
            out->tensors[out->count] = (ejki_operand){w.field->name, w.member, output, w.offset};
        out->count++;
    }
    return EJK_OK;
}

static void make_pairs(const void *args, ejki_operands *out) {
    for (size_t i = 0; i < out->tensor_count; i++)
        for (size_t k = 0; k < out->tensor_count; k++) {
            const ejki_operand *result = &out->tensors[i], *other = &out->tensors[k];
            if (result->output && (!other->output || k > i))
                out->pairs[out->pair_count++] = pair_of(args, result, other);
        }
}

ejk_status ejki_operands_create(const ejk_record *record, const void *args, ejki_operands *out) {
    collection found = {0};
    EJKI_TRY(collect(record, args, &found));
    size_t count = found.count;
    ejki_operands made = {.tensors = calloc(count + 1, sizeof *made.tensors),
                          .pairs = calloc(count * count + 1, sizeof *made.pairs),
                          .tensor_count = count,
                          .idle = found.empty_results && !found.results};
    if (!made.tensors || !made.pairs) {
        ejki_operands_close(&made);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a plan's tensors");
    }
    found = (collection){.tensors = made.tensors};
    ejk_status status = collect(record, args, &found);
    if (status == EJK_OK) {
        make_pairs(args, &made);
        *out = made;
    } else {
        ejki_operands_close(&made);
    }
    return status;
}

void ejki_operands_close(ejki_operands *operands) {
    free(operands->tensors);
    free(operands->pairs);
    *operands = (ejki_operands){0};
}

static bool apart(const ejki_pair *pair, int64_t distance) {
    for (int32_t i = 0; i < pair->period_count; i++) {
        const ejki_period *p = &pair->periods[i];
        int64_t start = (distance % p->length + p->shift % p->length) % p->length;
        if (start < 0) start += p->length;
        if (start >= p->first && start <= p->length - p->second) return true;
    }
    return false;
}

static ejk_status no_address(const ejki_operand *t) {
    char name[EJKI_PREFIX_SIZE];
    ejki_member_name(t->name, t->member, name);
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s has elements but its data pointer is NULL, expected an address", name);
}

static ejk_status refuse_overlap(const ejki_pair *p, int64_t distance) {
    char first[EJKI_PREFIX_SIZE], second[EJKI_PREFIX_SIZE];
    ejki_member_name(p->first.name, p->first.member, first);
    ejki_member_name(p->second.name, p->second.member, second);
    return ejki_fail(
        EJK_STATUS_INVALID_LAYOUT,
        "%s overlaps %s (which begins %lld bytes after it): expected results in memory "
        "of their own",
        first, second, (long long)distance);
}

ejk_status ejki_operands_check(const ejki_operands *operands, const void *args) {
    for (const ejki_operand *t = operands->tensors, *end = t + operands->tensor_count; t < end; t++)
        if (!tensor_at(args, t->offset)->data) return no_address(t);
    for (const ejki_pair *p = operands->pairs, *end = p + operands->pair_count; p < end; p++) {
        int64_t distance = (int64_t)((uintptr_t)tensor_at(args, p->second.offset)->data -
                                     (uintptr_t)tensor_at(args, p->first.offset)->data);
        if (distance > p->low && distance < p->high && !apart(p, distance))
            return refuse_overlap(p, distance);
    }
    return EJK_OK;
}
