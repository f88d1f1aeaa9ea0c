/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/product.h"

#include <string.h>

static long double gelu(long double x) {
    return x * erfcl(-x * 0.70710678118654752440L) / 2;
}
static long double silu(long double x, long double slope) {
    return x / (1 + expl(-slope * x));
}
static long double gelu_tanh(long double x) {
    return silu(x, 1 * 2 * 0.79788456080286535588L * (1 + 0.044715L * x * x));
}

long double product_activate(const char *name, double limit, long double gate, long double value) {
    const long double most = (long double)limit;
    if (strcmp(name, "relu") == 0) return gate < 0 ? 0 : gate;
    if (strcmp(name, "silu") == 0) return silu(gate, 1);
    if (strcmp(name, "gelu") == 0) return gelu(gate);
    if (strcmp(name, "gelu_tanh") == 0) return gelu_tanh(gate);
    if (strcmp(name, "swiglu") == 0) return silu(gate, 1) * value;
    if (strcmp(name, "geglu") == 0) return gelu(gate) * value;
    if (strcmp(name, "geglu_tanh") == 0) return gelu_tanh(gate) * value;
    if (strcmp(name, "swiglu_clamped") == 0)
        return silu(gate > most ? most : gate, 1.702L) * ((value > most    ? most
                                                           : value < -most ? -most
                                                                           : value) +
                                                          1);
    return gate;
}

const char *product_activation(struct random *r, bool *gated) {
    static const char *plain[] = {"", "", "", "none", "relu", "silu", "gelu", "gelu_tanh"};
    static const char *pairs[] = {"swiglu", "geglu", "geglu_tanh", "swiglu_clamped"};
    *gated = random_chance(r, 0.25);
    return *gated ? RANDOM_OF(r, pairs) : RANDOM_OF(r, plain);
}

double *product_rounded(struct call *c, const double *values, int64_t count) {
    double *rounded = call_memory(c, (size_t)count * sizeof *rounded), place;
    for (int64_t i = 0; i < count; i++) {
        element_store(c->dtype, &place, 0, values[i]);
        rounded[i] = element_load(c->dtype, &place, 0);
    }
    return rounded;
}

void product_fill(struct call *c, const ejk_tensor *t, bool loud) {
    static const double values[] = {INFINITY, -INFINITY, NAN, 1e-39, 1e-30};
    const int64_t count = ejk_tensor_count(t);
    for (int64_t n = 0; n < count; n++) tensor_put(t, n, random_normal(&c->random));
    if (!loud || count == 0 || !random_chance(&c->random, 0.06)) return;
    tensor_put(t, random_int(&c->random, 0, count - 1), RANDOM_OF(&c->random, values));
    c->hostile = true;
}

ejk_dtype product_type(struct call *c) {
    static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    return c->dtype == EJK_DTYPE_F64 ? c->dtype : RANDOM_OF(&c->random, types);
}

/* Elements first to end - 1 of a row as whole numbers of up to 127 times a scale. */
static void round_block(double *row, int64_t first, int64_t end) {
    float most = 0;
    for (int64_t k = first; k < end; k++) most = fmaxf(most, fabsf((float)row[k]));
    if (most == 0) return;
    const float by = 127 / most, scale = most / 127;
    for (int64_t k = first; k < end; k++)
        row[k] = (double)rintf((float)row[k] * by) * (double)scale;
}

void product_round_row(double *row, int64_t depth, int64_t size) {
    for (int64_t k = 0; k < depth; k++)
        if (row[k] != 0 && !(fabs(row[k]) <= 0x1p60 && fabs(row[k]) >= 0x1p-100)) return;
    for (int64_t group = 0; group < depth; group += size)
        for (int64_t first = group; first < group + size && first < depth; first += 128) {
            int64_t end = first + 128;
            if (end > group + size) end = group + size;
            round_block(row, first, end < depth ? end : depth);
        }
}
