/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients against central differences of the operation itself, in f64 by its reference: with cotangents c,
 * L(x) = sum of c times results, and d a random direction of one input, (L(x + hd) - L(x - hd)) / 2h is <gradient, d>.
 * Inputs, results and gradients are found by name: x, d_x; a result y has the cotangent d_y among the arguments.
 */
#include "conformance/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ejk_field *find(const ejk_record *record, const char *prefix, const char *name) {
    char text[64];
    snprintf(text, sizeof text, "%s%s", prefix, name);
    for (int32_t i = 0; i < record->count; i++)
        if (strcmp(record->fields[i].name, text) == 0) return &record->fields[i];
    return NULL;
}

/* Arguments of the operation from those of its gradients: inputs by name, results in memory of the call. */
static void *forward_args(struct trial *t) {
    const ejk_record *to = t->line->kernel->forward->args, *from = t->line->kernel->args;
    char *args = call_memory(t->call, to->size);
    for (int32_t i = 0; i < to->count; i++) {
        const ejk_field *field = &to->fields[i], *other = find(from, "", field->name);
        if (!other || other->kind != field->kind) continue;
        const size_t end = i + 1 < to->count ? to->fields[i + 1].offset : to->size;
        const size_t own = end - field->offset;
        const int32_t at = (int32_t)(other - from->fields);
        const size_t most =
            (at + 1 < from->count ? from->fields[at + 1].offset : from->size) - other->offset;
        memcpy(args + field->offset, (const char *)t->call->args + other->offset,
               own < most ? own : most);
    }
    for (int32_t i = 0; i < to->count; i++) {
        ejk_tensor *y = field_tensor(&to->fields[i], args);
        if (!field_writes(&to->fields[i])) continue;
        const ejk_field *cotangent = find(from, "d_", to->fields[i].name);
        *y = cotangent ? *field_tensor(cotangent, t->call->args)
                       : (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
        if (ejk_tensor_present(y)) *y = call_tensor(t->call, y->dtype, y->rank, y->shape);
    }
    return args;
}

/* Sum of cotangents times results. */
static double loss(struct trial *t, const void *args) {
    const ejk_kernel *forward = t->line->kernel->forward;
    double sum = 0;
    if (ejk_call(t->suite->context, forward, args) != EJK_OK) {
        trial_fail(t, DERIVATIVE, ejk_last_error());
        return (double)NAN;
    }
    for (int32_t i = 0; i < forward->args->count; i++) {
        const ejk_field *field = &forward->args->fields[i];
        const ejk_field *cotangent = find(t->line->kernel->args, "d_", field->name);
        if (!field_writes(field) || !cotangent) continue;
        const ejk_tensor *y = field_tensor(field, args),
                         *c = field_tensor(cotangent, t->call->args);
        if (!ejk_tensor_present(y) || !ejk_tensor_present(c)) continue;
        for (int64_t n = 0; n < ejk_tensor_count(y); n++) {
            const double value = tensor_get(y, n), by = tensor_get(c, n);
            if (isfinite(value)) sum += value * by; /* a row that sees nothing has no logarithm */
        }
    }
    return sum;
}

/* Slopes between x and x + hd, and x - hd. */
struct slopes {
    double up, down;
};

static struct slopes slopes_of(struct trial *t, const void *args, const ejk_tensor *x,
                               const double *start, const double *direction, double h) {
    const int64_t count = ejk_tensor_count(x);
    double l[3];
    for (int side = -1; side <= 1; side++) {
        for (int64_t n = 0; n < count; n++) tensor_put(x, n, start[n] + side * h * direction[n]);
        l[side + 1] = loss(t, args);
    }
    for (int64_t n = 0; n < count; n++) tensor_put(x, n, start[n]);
    return (struct slopes){(l[2] - l[1]) / h, (l[1] - l[0]) / h};
}

static double centre(struct slopes s) {
    return (s.up + s.down) / 2;
}

/* Where two candidates of a maximum are equal the slopes differ by as much for any step, and the gradient is either. */
static bool is_between(struct slopes wide, struct slopes narrow, double product, double allowed) {
    const bool corner = fabs(narrow.up - narrow.down) > 0.75 * fabs(wide.up - wide.down);
    return corner && product >= fmin(narrow.up, narrow.down) - allowed &&
           product <= fmax(narrow.up, narrow.down) + allowed;
}

static void derive(struct trial *t, const void *args, const ejk_field *input, const ejk_tensor *dx,
                   const unsigned char *gradient, struct random *r) {
    const ejk_tensor *x = field_tensor(input, args);
    const int64_t count = ejk_tensor_count(x);
    if (!ejk_tensor_present(x) || count == 0 || count != ejk_tensor_count(dx)) return;
    double *start = calloc((size_t)count * 2, sizeof *start), *direction = start + count;
    double product = 0, size = 0;
    if (!start) abort();
    for (int64_t n = 0; n < count; n++) {
        const double g = element_load(EJK_DTYPE_F64, gradient, n);
        start[n] = tensor_get(x, n);
        direction[n] = random_normal(r);
        product += g * direction[n];
        size += fabs(g * direction[n]);
    }
    trial_begin(t, DERIVATIVE);
    const struct slopes wide = slopes_of(t, args, x, start, direction, 2e-5);
    const struct slopes narrow = slopes_of(t, args, x, start, direction, 1e-5);
    const double slope = centre(narrow);
    /* What the two steps differ by is what higher derivatives and rounding make of either. */
    const double allowed = 8 * fabs(centre(wide) - slope) + 1e-6 * (size + 1);
    if (isfinite(slope) && isfinite(product) && !(fabs(slope - product) <= allowed) &&
        !is_between(wide, narrow, product, allowed)) {
        char why[300];
        snprintf(why, sizeof why,
                 "d_%s along a direction is %.9g, differences say %.9g (within %.3g)", input->name,
                 product, slope, allowed);
        trial_fail(t, DERIVATIVE, why);
    }
    free(start);
}

/* Differences of results in f32 say nothing. */
static bool has_narrow_cotangent(const struct trial *t) {
    const ejk_record *record = t->line->kernel->args, *forward = t->line->kernel->forward->args;
    for (int32_t i = 0; i < forward->count; i++) {
        const ejk_field *cotangent = find(record, "d_", forward->fields[i].name);
        if (!field_writes(&forward->fields[i]) || !cotangent) continue;
        const ejk_tensor *c = field_tensor(cotangent, t->call->args);
        if (ejk_tensor_present(c) && c->dtype != EJK_DTYPE_F64) return true;
    }
    return false;
}

void check_derivative(struct trial *t, const struct taken *got, struct random *r) {
    const ejk_kernel *kernel = t->line->kernel;
    if (!kernel->forward || t->call->hostile || t->call->magnitude > 100 || has_narrow_cotangent(t))
        return;
    if (!t->suite->context && ejk_context_create(NULL, &t->suite->context) != EJK_OK) abort();
    void *args = forward_args(t);
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        if (!got->bytes[i] || strncmp(field->name, "d_", 2) != 0) continue;
        const ejk_field *input = find(kernel->forward->args, "", field->name + 2);
        const ejk_tensor *dx = field_tensor(field, t->call->args);
        if (!input || dx->dtype != EJK_DTYPE_F64) continue;
        if (field_tensor(input, args)->dtype == EJK_DTYPE_F64) /* else steps are rounded */
            derive(t, args, input, dx, got->bytes[i], r);
    }
}
