/* SPDX-License-Identifier: Apache-2.0 */
/* Values against rules. Rows of int32 and int64, which almost all are, are looked through without a call. */
#include "record/domain.h"
#include "record/line.h"
#include "record/rows.h"
#include "tensor/access.h"

/* " at element [2,5]", " at element 5" of a tensor of one axis, nothing of one without. */
static const char *place_of(const ejki_rows *rows, int64_t index, ejki_line *line) {
    const int32_t last = rows->tensor->rank - 1;
    *line = (ejki_line){.used = 0};
    if (last >= 0) ejki_line_add(line, " at element ");
    for (int32_t i = 0; i <= last; i++)
        ejki_line_add(line, "%s%lld",
                      i > 0      ? ","
                      : last > 0 ? "["
                                 : "",
                      (long long)(i < last ? rows->at[i] : index));
    if (last > 0) ejki_line_add(line, "]");
    return line->text;
}

static int64_t value_at(const ejki_rows *rows, int64_t index) {
    return ejki_load_i64(rows->tensor->dtype, rows->tensor->data,
                         rows->start + index * rows->stride);
}

static ejk_status refuse(const ejki_rows *rows, int64_t index, const char *name,
                         const char *expected, int64_t bound, const char *more) {
    ejki_line place;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %lld%s, expected %s%lld%s", name,
                     (long long)value_at(rows, index), place_of(rows, index, &place), expected,
                     (long long)bound, more);
}

/* ---- Ranges ----------------------------------------------------------------------------------------- */

#define FIND(type)                                                                                 \
    do {                                                                                           \
        const type *at = (const type *)rows->tensor->data + rows->start;                           \
        for (int64_t i = 0; i < rows->count; i++, at += rows->stride)                              \
            if (*at < rule->low || *at > rule->high) return i;                                     \
        return rows->count;                                                                        \
    } while (0)

/* The first element outside, or their number. */
static int64_t find_outside(const ejki_domain_rule *rule, const ejki_rows *rows) {
    const ejk_dtype dtype = rows->tensor->dtype;
    if (dtype == EJK_DTYPE_I32 && (uintptr_t)rows->tensor->data % sizeof(int32_t) == 0)
        FIND(int32_t);
    if (dtype == EJK_DTYPE_I64 && (uintptr_t)rows->tensor->data % sizeof(int64_t) == 0)
        FIND(int64_t);
    for (int64_t i = 0; i < rows->count; i++) {
        const int64_t value = value_at(rows, i);
        if (value < rule->low || value > rule->high) return i;
    }
    return rows->count;
}

static ejk_status check_whole(const ejki_domain_rule *rule, const ejki_rows *rows,
                              const char *name) {
    const int64_t found = find_outside(rule, rows);
    char more[32];
    if (found == rows->count) return EJK_OK;
    if (rule->low == INT64_MIN) return refuse(rows, found, name, "at most ", rule->high, "");
    if (rule->high == INT64_MAX) return refuse(rows, found, name, "at least ", rule->low, "");
    snprintf(more, sizeof more, " to %lld", (long long)rule->high);
    return refuse(rows, found, name, "", rule->low, more);
}

static ejk_status check_floats(const ejki_domain_rule *rule, const ejki_rows *rows,
                               const char *name) {
    const double low = (double)rule->low, high = (double)rule->high;
    for (int64_t i = 0; i < rows->count; i++) {
        const double value =
            ejki_load_f64(rows->tensor->dtype, rows->tensor->data, rows->start + i * rows->stride);
        const bool above = rule->low_excluded ? value > low : value >= low;
        const bool below = rule->high_excluded ? value < high : value <= high;
        ejki_line place;
        if (above && below) continue;
        return ejki_fail(
            EJK_STATUS_INVALID_ARGUMENT, "%s is %.9g%s, expected a number in %c%lld,%lld%c", name,
            value, place_of(rows, i, &place), rule->low_excluded ? '(' : '[', (long long)rule->low,
            (long long)rule->high, rule->high_excluded ? ')' : ']');
    }
    return EJK_OK;
}

/* ---- Rows ------------------------------------------------------------------------------------------- */

/* `before` and `value` never lie further apart than int64 reaches: both are at least `low`, at most `high`. */
static ejk_status check_ascending(const ejki_domain_rule *rule, const ejki_rows *rows,
                                  const char *name) {
    int64_t before = value_at(rows, 0);
    ejki_line place;
    if (before != rule->low)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s starts at %lld, expected %lld", name,
                         (long long)before, (long long)rule->low);
    for (int64_t i = 0; i < rows->count; i++) {
        const int64_t value = value_at(rows, i);
        if (value < before)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s falls from %lld to %lld%s, expected no decrease", name,
                             (long long)before, (long long)value, place_of(rows, i, &place));
        if (value > rule->high) return refuse(rows, i, name, "at most ", rule->high, "");
        if ((uint64_t)value - (uint64_t)before > (uint64_t)rule->step)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s rises from %lld to %lld%s, expected at most %lld more", name,
                             (long long)before, (long long)value, place_of(rows, i, &place),
                             (long long)rule->step);
        before = value;
    }
    return EJK_OK;
}

static ejk_status check_sum(const ejki_domain_rule *rule, const ejki_rows *rows, const char *name) {
    int64_t left = rule->high;
    ejki_line place;
    for (int64_t i = 0; i < rows->count; i++) {
        const int64_t value = value_at(rows, i);
        if (value < 0) return refuse(rows, i, name, "at least ", 0, "");
        if (value > left)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s is %lld%s, where at most %lld are left of %lld, expected "
                             "elements that add up to no more",
                             name, (long long)value, place_of(rows, i, &place), (long long)left,
                             (long long)rule->high);
        left -= value;
    }
    return EJK_OK;
}

ejk_status ejki_domain_verify(const ejki_domain_rule *rule, const char *name,
                              const ejk_tensor *tensor) {
    const bool floats = ejki_is_float(tensor->dtype);
    if (rule->kind == EJK_DOMAIN_NONE) return EJK_OK;
    for (ejki_rows rows = ejki_rows_of(tensor); rows.more; ejki_rows_next(&rows)) {
        if (rule->kind == EJK_DOMAIN_ASCENDING)
            EJKI_TRY(check_ascending(rule, &rows, name));
        else if (rule->kind == EJK_DOMAIN_SUM)
            EJKI_TRY(check_sum(rule, &rows, name));
        else
            EJKI_TRY(floats ? check_floats(rule, &rows, name) : check_whole(rule, &rows, name));
    }
    return EJK_OK;
}
