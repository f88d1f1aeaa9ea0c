/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/compare.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

struct norms {
    double squares; /* of which the Frobenius norm is the root */
    double frobenius, largest;
};

static void add(struct norms *norms, double value) {
    const double size = fabs(value);
    norms->squares += value * value;
    if (size > norms->largest) norms->largest = size;
}

static void close(struct norms *norms) {
    norms->frobenius = sqrt(norms->squares);
}

/* One result of a call. */
struct result {
    const char *name;
    const struct expected *e;
    ejk_dtype dtype;
    const unsigned char *got;
    struct norms size, spread, error, naive;
    int64_t farthest, numbers; /* numbers: of those expected that are not 0 */
    bool fresh;                /* it held a pattern before, not what is updated */
    bool overflows; /* beyond what f16 holds, where the infinity is a matter of rounding */
};

static double epsilon(ejk_dtype dtype) {
    switch (dtype) {
    case EJK_DTYPE_F64: return DBL_EPSILON;
    case EJK_DTYPE_BF16: return 0x1p-7;
    case EJK_DTYPE_F16: return 0x1p-10;
    default: return (double)FLT_EPSILON;
    }
}

static double rounded(ejk_dtype dtype, double value) {
    double place;
    element_store(dtype, &place, 0, value);
    return element_load(dtype, &place, 0);
}

/* What a number of the type stands for: f16 ends at 65520, and infinity is whatever lies beyond. */
static double clipped(ejk_dtype dtype, double value) {
    const double end = 65520;
    return dtype == EJK_DTYPE_F16 && fabs(value) > end ? copysign(end, value) : value;
}

/*
 * What is not finite has to be so in the same way. In a row with a NaN or +inf among its scores, every element is
 * NaN, sums of exponentials are NaN or +inf, depending on how they are arrived at, and a maximum may or may not
 * have noticed the NaN.
 */
static bool same_kind(const struct call *c, const struct result *r, double exact, double got) {
    if (c->gradient) return isnan(exact) && !isfinite(got);
    if (isinf(exact) && exact < 0) return isinf(got) && got < 0;
    if (r->e->kind == MAXIMUM && isnan(exact)) return true;
    if (r->e->kind != ELEMENT) return isnan(got) || isinf(got);
    return isnan(exact) ? isnan(got) : got == exact;
}

static void worse(struct norms *norms, const struct norms *other) {
    norms->frobenius = fmax(norms->frobenius, other->frobenius);
    norms->largest = fmax(norms->largest, other->largest);
}

/* Errors of the result and of naive ones; false where something is not finite that should be, or the other way. */
static bool measure(const struct call *c, struct result *r) {
    const struct expected *e = r->e;
    const size_t element = ejk_dtype_size(r->dtype);
    /* An error of a logarithm is relative to 1: it stands for a factor. */
    const double least = e->kind == LOG_SUM || e->kind == MAXIMUM ? 1 : 0;
    struct norms naive[ORDERS] = {{0}};
    r->size = r->spread = r->error = r->naive = (struct norms){0};
    r->numbers = 0;
    for (int64_t n = 0; n < e->count; n++) {
        const double raw = element_load(r->dtype, r->got, n);
        const double got = clipped(r->dtype, raw), exact = clipped(r->dtype, e->exact[n]);
        const bool whole = r->dtype > EJK_DTYPE_F16; /* of these a result may look like it */
        if (r->fresh && *(r->got + (size_t)n * element) == GUARDED_FILL &&
            is_poison(r->got + (size_t)n * element, element) && !(whole && raw == exact)) {
            r->farthest = n;
            return false;
        }
        if (e->open && isinf(e->exact[n])) continue;
        if (!isfinite(exact) || !isfinite(got)) {
            r->farthest = n;
            if (!same_kind(c, r, exact, got)) return false;
            continue;
        }
        if (isinf(raw) && fabs(exact) < 0.99 * 65520) {
            r->farthest = n;
            return false;
        }
        if (fabs(got - exact) > r->error.largest) r->farthest = n;
        if (exact != 0) r->numbers++;
        add(&r->size, fmax(fabs(exact), least));
        add(&r->spread, e->spread ? e->spread[n] : fabs(exact));
        add(&r->error, got - exact);
        for (int i = 0; i < ORDERS && e->naive[i]; i++) {
            const double off = clipped(r->dtype, rounded(r->dtype, e->naive[i][n])) - exact;
            if (isfinite(off)) add(&naive[i], off);
        }
        if (!e->naive[0]) add(&naive[0], rounded(r->dtype, exact) - exact);
    }
    close(&r->size);
    close(&r->spread);
    close(&r->error);
    for (int i = 0; i < ORDERS; i++) {
        close(&naive[i]);
        worse(&r->naive, &naive[i]);
    }
    return true;
}

/*
 * Twice the naive error plus 4 eps, with three exceptions where the naive error says too little: with few numbers, or
 * where everything cancels, it is a matter of luck, and eps counts relative to what is rounded, not to what remains of
 * it; with exponents in the thousands the few rows with nearly equal ones decide, which is luck too; what is relative
 * to a large number, as a sum to its maximum, cannot be better known than that number. Terms of gradients cancel in
 * part in most calls: there 4 eps of the type of the sums, relative to the sizes of the terms, come on top.
 */
static struct norms tolerance(const struct call *c, const struct result *r) {
    const struct expected *e = r->e;
    const double relative_to = e->relative_to > 0 ? e->relative_to : 1;
    const double eps = 4 * epsilon(r->dtype) * relative_to;
    double size_f = r->size.frobenius, size_l = r->size.largest;
    const bool cancels = c->gradient && size_f < 0x1p-10 * r->spread.frobenius;
    if (c->scarce || r->numbers < 64 || cancels) {
        size_f = (1 + c->magnitude) * fmax(size_f, r->spread.frobenius);
        size_l = (1 + c->magnitude) * fmax(size_l, r->spread.largest);
    }
    struct norms step = {0};
    if (c->gradient) {
        const double of_sums = 4 * epsilon(c->dtype == EJK_DTYPE_F64 ? c->dtype : EJK_DTYPE_F32);
        step.frobenius = of_sums * r->spread.frobenius;
        step.largest = of_sums * r->spread.largest;
    }
    const double times = c->magnitude > 1000 ? 4 : 2;
    /* Below the normal numbers of f16 all are the same distance apart; weights below those of f32 may be 0, and
     * exponentials of some hundreds are known as well as their exponents. */
    const double tiny = c->dtype == EJK_DTYPE_F64 ? 0x1p-600 : c->gradient ? 0x1p-108 : 0;
    const double least = r->dtype == EJK_DTYPE_F16 ? 0x1p-24 : tiny;
    return (struct norms){
        .frobenius = times * r->naive.frobenius + eps * size_f + step.frobenius +
                     least * sqrt((double)e->count),
        .largest = times * r->naive.largest + eps * size_l + step.largest + least,
    };
}

/* 0: as it should be; 1: too far off, other orders may tell more; 2: never. */
static int judge(const struct call *c, struct result *r, double *worst, char *why, size_t size) {
    if (!measure(c, r)) {
        const double got = element_load(r->dtype, r->got, r->farthest);
        const size_t element = ejk_dtype_size(r->dtype);
        const bool blank = r->fresh && is_poison(r->got + (size_t)r->farthest * element, element);
        snprintf(why, size, "%s element %lld is %g%s, expected %g", r->name, (long long)r->farthest,
                 got, blank ? " (not written)" : "", r->e->exact[r->farthest]);
        return 2;
    }
    if (r->error.largest == 0) return 0;
    const struct norms most = tolerance(c, r);
    const double used = fmax(r->error.frobenius / most.frobenius, r->error.largest / most.largest);
    if (used <= 1) {
        *worst = fmax(*worst, used);
        return 0;
    }
    snprintf(why, size,
             "%s is off by %.3g of %.3g (allowed %.3g), largest %.3g (allowed %.3g); element %lld "
             "is %.9g, expected %.9g",
             r->name, r->error.frobenius, r->size.frobenius, most.frobenius, r->error.largest,
             most.largest, (long long)r->farthest, element_load(r->dtype, r->got, r->farthest),
             r->e->exact[r->farthest]);
    return 1;
}

static void evaluate(struct call *c, int orders) {
    while (c->operation->naive && c->orders < orders) c->operation->naive(c, c->orders++);
}

bool compare_results(struct call *c, const struct taken *got, double *worst, char *why,
                     size_t size) {
    evaluate(c, 2);
    for (int32_t i = 0; i < c->kernel->args->count; i++) {
        const ejk_field *field = &c->kernel->args->fields[i];
        struct result r = {.name = field->name, .e = &c->expected[i], .got = got->bytes[i]};
        if (!got->bytes[i]) continue;
        r.dtype = field_tensor(field, c->args)->dtype;
        r.fresh = !ejk_field_is_input(field);
        if (!r.e->exact) {
            snprintf(why, size, "the case does not say what %s should be", field->name);
            return false;
        }
        int verdict = judge(c, &r, worst, why, size);
        if (verdict == 1 && c->operation->naive && c->orders < ORDERS) {
            evaluate(c, ORDERS);
            verdict = judge(c, &r, worst, why, size);
        }
        if (verdict != 0) return false;
    }
    return true;
}

bool same_element(ejk_dtype dtype, const unsigned char *a, const unsigned char *b) {
    if (memcmp(a, b, ejk_dtype_size(dtype)) == 0) return true;
    if (dtype > EJK_DTYPE_F16) return false;
    return isnan(element_load(dtype, a, 0)) && isnan(element_load(dtype, b, 0));
}

int64_t first_difference(ejk_dtype dtype, const unsigned char *a, const unsigned char *b,
                         int64_t from, int64_t to) {
    const size_t element = ejk_dtype_size(dtype), start = (size_t)from * element;
    if (to <= from || memcmp(a + start, b + start, (size_t)(to - from) * element) == 0) return to;
    while (from < to && same_element(dtype, a + (size_t)from * element, b + (size_t)from * element))
        from++;
    return from;
}
