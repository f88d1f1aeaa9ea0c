/* SPDX-License-Identifier: Apache-2.0 */
#include "support/dense_case.h"

#include "operations/attention/shared/dropout.h"

#include <math.h>
#include <string.h>

static double load(ejk_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case EJK_DTYPE_F64: return ((const double *)data)[i];
    case EJK_DTYPE_F32: return (double)((const float *)data)[i];
    case EJK_DTYPE_BF16: return (double)ejk_bf16_to_f32(((const uint16_t *)data)[i]);
    default: return (double)ejk_f16_to_f32(((const uint16_t *)data)[i]);
    }
}

static void store(ejk_dtype dtype, void *data, int64_t i, double x) {
    switch (dtype) {
    case EJK_DTYPE_F64: ((double *)data)[i] = x; break;
    case EJK_DTYPE_F32: ((float *)data)[i] = (float)x; break;
    case EJK_DTYPE_BF16: ((uint16_t *)data)[i] = ejk_f32_to_bf16((float)x); break;
    default: ((uint16_t *)data)[i] = ejk_f32_to_f16((float)x); break;
    }
}

/* Random numbers as the type can hold them, both ways. */
static ejk_tensor tensor(dense_case *c, struct random *r, double *numbers, int place, int rank,
                         const int64_t *shape) {
    ejk_tensor t = ejk_tensor_contiguous(c->storage[place], c->dtype, rank, shape);
    for (int64_t i = 0; i < ejk_tensor_count(&t); i++) {
        store(c->dtype, c->storage[place], i, random_normal(r));
        numbers[i] = load(c->dtype, c->storage[place], i);
    }
    return t;
}

static int64_t one_or(struct random *r, int64_t size) {
    return random_chance(r, 0.5) ? 1 : size;
}

static void fill_numbers(dense_case *c, struct random *r, uint64_t seed) {
    ejk_attention_args *a = &c->args;
    a->causal = random_chance(r, 0.33);
    if (random_chance(r, 0.33)) a->sliding_window.left = ejk_int(random_int(r, 0, 5));
    if (random_chance(r, 0.33)) a->sliding_window.right = ejk_int(random_int(r, 0, 5));
    if (random_chance(r, 0.33)) a->causal_offset = ejk_int(random_int(r, -3, 6));
    if (random_chance(r, 0.33)) a->logits_soft_cap = ejk_float(1.5);
    if (random_chance(r, 0.33)) a->softmax_scale = ejk_float(0.7);
    if (random_chance(r, 0.33)) {
        a->dropout_prob = 0.3;
        a->dropout_seed = ejk_int((int64_t)seed + 11);
        a->deterministic = random_chance(r, 0.5) ? EJK_FALSE : EJK_UNSET;
    }
}

void dense_fill(dense_case *c, uint64_t seed, ejk_dtype dtype) {
    struct random r = {seed * 77 + 5};
    memset(c, 0, sizeof *c);
    c->dtype = dtype;
    c->b = random_int(&r, 1, 2), c->t = random_int(&r, 1, 11), c->s = random_int(&r, 1, 40);
    c->hkv = random_int(&r, 1, 2), c->hq = c->hkv * random_int(&r, 1, 2);
    c->d = random_int(&r, 1, 9), c->dv = random_int(&r, 1, 7);
    ejk_attention_args *a = &c->args;
    a->query = tensor(c, &r, c->query, 0, 4, (int64_t[]){c->b, c->t, c->hq, c->d});
    a->key = tensor(c, &r, c->key, 1, 4, (int64_t[]){c->b, c->s, c->hkv, c->d});
    a->value = tensor(c, &r, c->value, 2, 4, (int64_t[]){c->b, c->s, c->hkv, c->dv});
    if (random_chance(&r, 0.33)) {
        const int64_t shape[] = {one_or(&r, c->b), one_or(&r, c->hq), one_or(&r, c->t), c->s};
        a->bias = tensor(c, &r, c->bias, 3, 4, shape);
    }
    if (random_chance(&r, 0.33)) {
        const int64_t shape[] = {random_chance(&r, 0.5) ? c->hq : c->hkv, random_int(&r, 1, 3)};
        const int flat = random_chance(&r, 0.5);
        a->softmax_aux = tensor(c, &r, c->sinks, 4, 2 - flat, shape + flat);
    }
    for (int i = 0; i < DENSE_MOST; i++) c->mask[i] = random_chance(&r, 0.6);
    if (random_chance(&r, 0.33)) {
        const int64_t heads = random_chance(&r, 0.5) ? c->hkv : c->hq;
        const int64_t shape[] = {one_or(&r, c->b), one_or(&r, heads), one_or(&r, c->t), c->s};
        a->attention_mask = ejk_tensor_contiguous(c->mask, EJK_DTYPE_BOOL, 4, shape);
    }
    for (int i = 0; i < 256; i++) {
        c->query_ids[i] = random_int(&r, -1, 1);
        c->key_ids[i] = random_int(&r, -1, 1);
    }
    if (random_chance(&r, 0.25)) {
        a->q_segment_ids =
            ejk_tensor_contiguous(c->query_ids, EJK_DTYPE_I64, 2, (int64_t[]){c->b, c->t});
        a->kv_segment_ids =
            ejk_tensor_contiguous(c->key_ids, EJK_DTYPE_I64, 2, (int64_t[]){c->b, c->s});
    }
    fill_numbers(c, &r, seed);
    a->out = ejk_tensor_contiguous(c->out_storage, dtype, 4, (int64_t[]){c->b, c->t, c->hq, c->dv});
    a->weights =
        ejk_tensor_contiguous(c->weights_storage, dtype, 4, (int64_t[]){c->b, c->hq, c->t, c->s});
    a->lse = ejk_tensor_contiguous(c->lse, EJK_DTYPE_F32, 3, (int64_t[]){c->b, c->hq, c->t});
    memset(c->out_storage, 0xff, sizeof c->out_storage);
    memset(c->weights_storage, 0xff, sizeof c->weights_storage);
    memset(c->lse, 0xff, sizeof c->lse);
}

/* Where an element lies in a contiguous tensor whose axes may be broadcast. */
static int64_t at(const ejk_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t place[] = {b, h, i, j};
    int64_t index = 0;
    for (int axis = 0; axis < 4; axis++)
        index = index * t->shape[axis] + (t->shape[axis] == 1 ? 0 : place[axis]);
    return index;
}

static bool sees(const dense_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
    const ejk_attention_args *a = &c->args;
    const int64_t p = i + (a->causal_offset.set ? a->causal_offset.value : c->s - c->t);
    const ejk_window w = a->sliding_window;
    if (a->causal && j > p) return false;
    if ((w.left.set && j < p - w.left.value) || (w.right.set && j > p + w.right.value))
        return false;
    if (ejk_tensor_present(&a->attention_mask)) {
        const int64_t heads = a->attention_mask.shape[1];
        const int64_t head = heads == c->hq ? h : h / (c->hq / c->hkv);
        if (!c->mask[at(&a->attention_mask, b, head, i, j)]) return false;
    }
    if (!ejk_tensor_present(&a->q_segment_ids)) return true;
    const int64_t id = c->query_ids[b * c->t + i];
    return id >= 0 && id == c->key_ids[b * c->s + j];
}

static double score(const dense_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
    const ejk_attention_args *a = &c->args;
    double z = 0;
    for (int64_t d = 0; d < c->d; d++)
        z += c->query[((b * c->t + i) * c->hq + h) * c->d + d] *
             c->key[((b * c->s + j) * c->hkv + h / (c->hq / c->hkv)) * c->d + d];
    z *= a->softmax_scale.set ? a->softmax_scale.value : 1 / sqrt((double)c->d);
    if (a->logits_soft_cap.set) z = a->logits_soft_cap.value * tanh(z / a->logits_soft_cap.value);
    return ejk_tensor_present(&a->bias) ? z + c->bias[at(&a->bias, b, h, i, j)] : z;
}

static double sinks_of(const dense_case *c, int64_t h) {
    const ejk_tensor *t = &c->args.softmax_aux;
    double sum = 0;
    if (!ejk_tensor_present(t)) return 0;
    const int64_t n = t->shape[t->rank - 1];
    const int64_t row = t->rank == 1 ? 0 : t->shape[0] == c->hq ? h : h / (c->hq / c->hkv);
    for (int64_t m = 0; m < n; m++) sum += exp(c->sinks[row * n + m]);
    return sum;
}

/* Scores are small here, so nothing has to be subtracted before exp. */
static void expect_row(dense_case *c, int64_t b, int64_t h, int64_t i) {
    const ejk_attention_args *a = &c->args;
    double total = sinks_of(c, h), *weights = c->weights + ((b * c->hq + h) * c->t + i) * c->s;
    double *out = c->out + ((b * c->t + i) * c->hq + h) * c->dv;
    for (int64_t j = 0; j < c->s; j++) {
        weights[j] = sees(c, b, h, i, j) ? exp(score(c, b, h, i, j)) : 0;
        total += weights[j];
    }
    c->logs[(b * c->hq + h) * c->t + i] = log(total);
    const ejki_flash_problem p = {.dropout = a->dropout_prob,
                                  .dropout_seed = (uint64_t)a->dropout_seed.value};
    for (int64_t d = 0; d < c->dv; d++) out[d] = 0;
    for (int64_t j = 0; j < c->s; j++) {
        if (weights[j] != 0) weights[j] /= total;
        if (a->deterministic == EJK_FALSE && p.dropout > 0)
            weights[j] = ejki_dropout_keeps(&p, b, h, i, j) ? weights[j] / (1 - p.dropout) : 0;
        for (int64_t d = 0; d < c->dv; d++)
            out[d] +=
                weights[j] * c->value[((b * c->s + j) * c->hkv + h / (c->hq / c->hkv)) * c->dv + d];
    }
}

void dense_expect(dense_case *c) {
    for (int64_t b = 0; b < c->b; b++)
        for (int64_t h = 0; h < c->hq; h++)
            for (int64_t i = 0; i < c->t; i++) expect_row(c, b, h, i);
}

double dense_out(const dense_case *c, int64_t index) {
    return load(c->dtype, c->out_storage, index);
}

double dense_weight(const dense_case *c, int64_t index) {
    return load(c->dtype, c->weights_storage, index);
}

#define SHARED                                                                                     \
    .query = a->query, .key = a->key, .value = a->value, .bias = a->bias,                          \
    .attention_mask = a->attention_mask, .softmax_scale = a->softmax_scale, .causal = a->causal,   \
    .causal_offset = a->causal_offset, .sliding_window = a->sliding_window,                        \
    .q_segment_ids = a->q_segment_ids, .kv_segment_ids = a->kv_segment_ids, .out = a->out,         \
    .lse = a->lse

ejk_flash_attention_args dense_flash(const dense_case *c) {
    const ejk_attention_args *a = &c->args;
    return (ejk_flash_attention_args){
        SHARED, .softmax_aux = a->softmax_aux, .logits_soft_cap = a->logits_soft_cap,
        .dropout_prob = a->deterministic == EJK_FALSE ? a->dropout_prob : 0,
        .dropout_seed = a->dropout_seed};
}

ejk_scaled_dot_product_attention_args dense_sdpa(const dense_case *c) {
    const ejk_attention_args *a = &c->args;
    return (ejk_scaled_dot_product_attention_args){SHARED};
}
