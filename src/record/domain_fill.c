/* SPDX-License-Identifier: Apache-2.0 */
/* Values that rules allow, from a seed. */
#include "record/domain.h"
#include "record/rows.h"
#include "tensor/access.h"

/* S. Vigna's splitmix64 as a function of its position. */
static uint64_t number_at(uint64_t key, uint64_t index) {
    uint64_t z = key + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static bool share_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a != 1;
}

/* The whole numbers that a type holds. */
static void limits_of(ejk_dtype dtype, int64_t *low, int64_t *high) {
    const int bits = dtype == EJK_DTYPE_BOOL ? 1 : (int)ejk_dtype_bits(dtype);
    const bool natural = dtype == EJK_DTYPE_U8 || dtype == EJK_DTYPE_U32 || dtype == EJK_DTYPE_U4 ||
                         dtype == EJK_DTYPE_BOOL;
    *high = bits == 64 ? INT64_MAX : (INT64_C(1) << (natural ? bits : bits - 1)) - 1;
    *low = natural ? 0 : -*high - 1;
}

static void put(const ejki_rows *rows, int64_t index, int64_t value) {
    ejki_store_i64(rows->tensor->dtype, rows->tensor->data, rows->start + index * rows->stride,
                   value);
}

/* ---- Ranges ----------------------------------------------------------------------------------------- */

/* i -> (first + i * step) mod count is a permutation if step and count share no divisor. */
static void fill_whole(int64_t low, int64_t high, const ejk_tensor *tensor, uint64_t key) {
    const uint64_t count = (uint64_t)high - (uint64_t)low + 1; /* 0 = all 2^64 */
    uint64_t step = number_at(key, 0), number = number_at(key, 1);
    if (count > 0) {
        step %= count;
        while (count > 1 && (step == 0 || share_divisor(step, count))) step = (step + 1) % count;
        number %= count;
    }
    for (ejki_rows rows = ejki_rows_of(tensor); rows.more; ejki_rows_next(&rows))
        for (int64_t i = 0; i < rows.count; i++) {
            put(&rows, i, (int64_t)((uint64_t)low + number));
            number = count == 0 ? number + (step | 1)
                                : (uint64_t)(((unsigned __int128)number + step) % count);
        }
}

static void fill_floats(const ejki_domain_rule *rule, const ejk_tensor *tensor, uint64_t key) {
    const double low = (double)rule->low, high = (double)rule->high;
    uint64_t number = 0;
    for (ejki_rows rows = ejki_rows_of(tensor); rows.more; ejki_rows_next(&rows))
        for (int64_t i = 0; i < rows.count; i++) {
            const int64_t at = rows.start + i * rows.stride;
            const double part = ((double)(number_at(key, number++) >> 12) + 0.5) * 0x1p-52;
            ejki_store_f64(tensor->dtype, tensor->data, at, low + part * (high - low));
            const double rounded = ejki_load_f64(tensor->dtype, tensor->data, at);
            if (rounded <= low || rounded >= high)
                ejki_store_f64(tensor->dtype, tensor->data, at, low + (high - low) / 2);
        }
}

/* ---- Cuts ------------------------------------------------------------------------------------------- */

/* Where part `i` of `parts` of [0, whole) begins: even, but moved by up to a quarter of a part. */
static int64_t cut_at(uint64_t whole, int64_t parts, int64_t i, uint64_t seed) {
    const uint64_t even = (uint64_t)((unsigned __int128)whole * (uint64_t)i / (uint64_t)parts);
    const uint64_t quarter = whole / (uint64_t)parts / 4;
    if (i == 0 || i == parts || quarter == 0) return (int64_t)even;
    const uint64_t moved = number_at(seed, (uint64_t)i) % (2 * quarter + 1);
    return (int64_t)(even - quarter + moved);
}

static void fill_ascending(const ejki_domain_rule *rule, int64_t high, const ejk_tensor *tensor,
                           uint64_t seed) {
    const uint64_t whole = (uint64_t)high - (uint64_t)rule->low;
    for (ejki_rows rows = ejki_rows_of(tensor); rows.more; ejki_rows_next(&rows)) {
        uint64_t before = 0; /* above low */
        for (int64_t i = 0; i < rows.count; i++) {
            uint64_t value = i == 0 ? 0 : (uint64_t)cut_at(whole, rows.count - 1, i, seed);
            if (value < before) value = before;
            if (value - before > (uint64_t)rule->step) value = before + (uint64_t)rule->step;
            put(&rows, i, (int64_t)((uint64_t)rule->low + value));
            before = value;
        }
    }
}

static void fill_parts(int64_t whole, const ejk_tensor *tensor, uint64_t seed) {
    for (ejki_rows rows = ejki_rows_of(tensor); rows.more; ejki_rows_next(&rows))
        for (int64_t i = 0; i < rows.count; i++)
            put(&rows, i,
                cut_at((uint64_t)whole, rows.count, i + 1, seed) -
                    cut_at((uint64_t)whole, rows.count, i, seed));
}

/* ---- The whole -------------------------------------------------------------------------------------- */

static ejk_status nothing_allowed(const ejki_domain_rule *rule, const char *name,
                                  const ejk_tensor *tensor) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s: no %s lies between %lld and %lld, expected one at least", name,
                     ejk_dtype_name(tensor->dtype), (long long)rule->low, (long long)rule->high);
}

ejk_status ejki_domain_generate(const ejki_domain_rule *rule, const char *name,
                                const ejk_tensor *tensor, uint64_t seed, int32_t index) {
    const uint64_t key = number_at(seed, (uint64_t)index);
    int64_t low, high;
    if (rule->kind == EJK_DOMAIN_NONE || ejk_tensor_count(tensor) == 0) return EJK_OK;
    if (ejki_is_float(tensor->dtype)) {
        if (rule->kind != EJK_DOMAIN_RANGE || rule->low > rule->high)
            return nothing_allowed(rule, name, tensor);
        fill_floats(rule, tensor, key);
        return EJK_OK;
    }
    limits_of(tensor->dtype, &low, &high);
    low = ejki_max(low, rule->low);
    high = ejki_min(high, rule->high);
    if (low > high || (rule->kind == EJK_DOMAIN_ASCENDING && low > rule->low) || rule->step < 0)
        return nothing_allowed(rule, name, tensor);
    if (rule->kind == EJK_DOMAIN_RANGE)
        fill_whole(high >= 0 ? ejki_max(low, 0) : low, high, tensor, key);
    else if (rule->kind == EJK_DOMAIN_ASCENDING)
        fill_ascending(rule, high, tensor, seed);
    else
        fill_parts(high, tensor, seed);
    return EJK_OK;
}
