/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New rows to a cache. A worker has a run of tokens; a row of a head is copied where the types are the same, else it is
 * divided by its scale and rounded a few vectors at a time. Quotients are float32, rounded before they are stored.
 */
#include <ejkernel/device.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "kernels/simd/vec.h"
#include "kernels/simd/vec_bytes.h"
#include "operations/paged/shared/problem.cuh"

#include <math.h>

enum { PIECE = 64, TOKENS_A_WORKER = 16, PAST_CACHES = 4 << 20 };

/* Floats become elements of 8 bits. */
static void store_bytes(ejk_dtype dtype, uint8_t *to, const float *from, paged_size count) {
    if (dtype == EJK_DTYPE_I8)
        for (paged_size i = 0; i < count; i++) {
            const float v = from[i] == from[i] ? from[i] : 0;
            to[i] = (uint8_t)(int8_t)rintf(v < -128 ? -128 : v > 127 ? 127 : v);
        }
    else if (dtype == EJK_DTYPE_F8E4M3)
        for (paged_size i = 0; i < count; i++) to[i] = ejki_f32_to_e4m3(from[i]);
    else
        for (paged_size i = 0; i < count; i++) to[i] = ejki_f32_to_e5m2(from[i]);
}

/* Bytes as they are; whole vectors of long calls past the caches. */
static void copy_row(const char *from, char *to, paged_size bytes, bool stream) {
    enum { VECTOR = 4 * VL };
    if (bytes == 0) return;
    if (!stream || ((uintptr_t)to | (uintptr_t)bytes) % VECTOR != 0) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (paged_size at = 0; at < bytes; at += VECTOR) {
        float lane[VL];
        memcpy(lane, from + at, sizeof lane);
        v_stream((float *)(void *)(to + at), v_load(lane));
    }
}

static void put_row(ejk_dtype from_type, const char *from, ejk_dtype type, char *to, paged_size dim,
                    float scale, bool stream) {
    const paged_size size = stored_size(type);
    float piece[PIECE];
    if (from_type == type && scale == 1) {
        copy_row(from, to, dim * size, stream);
        return;
    }
    for (paged_size at = 0; at < dim; at += PIECE) {
        const paged_size count = ejki_min(dim - at, PIECE);
        for (paged_size d = 0; d < count; d += VL) {
            const vf v =
                v_div(v_widen_some(from_type, element_at(from_type, from, at + d), count - d),
                      v_set1(scale));
            if (size > 1)
                v_narrow_some(type, to + (at + d) * size, v, count - d);
            else
                v_store(piece + d, v);
        }
        if (size == 1) store_bytes(type, (uint8_t *)to + at, piece, count);
    }
}

static float largest_of(ejk_dtype type, const char *from, paged_size dim) {
    vf most = v_zero();
    for (paged_size d = 0; d < dim; d += VL)
        most = v_max(v_abs(v_widen_some(type, element_at(type, from, d), dim - d)), most);
    return v_largest(most);
}

/* The scale of a row; one of its own follows from its values and is stored. */
static float scale_of(const paged_cache *c, ejk_dtype from_type, const char *from, paged_size page,
                      paged_size row, paged_size h, paged_size dim) {
    const paged_size at = page * c->scale_page + row * c->scale_token + h * c->scale_head;
    if (!c->scaled) return c->factor;
    if (!c->scaled_rows) return c->factor * element_load(EJK_DTYPE_F32, c->scale, at);
    const double limit = c->dtype == EJK_DTYPE_I8       ? 127
                         : c->dtype == EJK_DTYPE_F8E4M3 ? 448
                         : c->dtype == EJK_DTYPE_F8E5M2 ? 57344
                                                        : 0;
    const float most = largest_of(from_type, from, dim);
    const float scale =
        limit > 0 && most > 0 && most < INFINITY ? (float)((double)most / limit) : 1;
    element_store(EJK_DTYPE_F32, (void *)(uintptr_t)c->scale, at, scale);
    return scale;
}

static void put(const paged_problem *p, const paged_cache *c, const paged_rows *from,
                paged_size token, paged_size page, paged_size row, paged_size dim, bool stream) {
    const ejk_dtype own = (ejk_dtype)from->dtype, type = (ejk_dtype)c->dtype;
    for (paged_size h = 0; h < p->kv_heads; h++) {
        const char *source = element_at(own, from->data, token * from->token + h * from->head);
        const paged_size at = page * c->page + row * c->token + h * c->head;
        put_row(own, source, type, (char *)c->data + at * stored_size(type), dim,
                scale_of(c, own, source, page, row, h, dim), stream);
    }
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const paged_problem *p = run->problem;
    paged_cache tail = p->key;
    tail.data = p->key_tail.data;
    const paged_size bytes =
        p->tokens * p->kv_heads * (p->dim + p->value_dim) * stored_size((ejk_dtype)p->key.dtype);
    const bool stream = bytes >= PAST_CACHES;
    for (paged_size token = p->tokens * index / run->workers;
         token < p->tokens * (index + 1) / run->workers; token++) {
        paged_size page, row;
        if (!paged_target(p, token, &page, &row)) continue;
        put(p, &p->key, &p->new_key, token, page, row, p->dim, stream);
        if (p->new_tail.data) put(p, &tail, &p->new_tail, token, page, row, p->tail_dim, stream);
        if (p->has_new_value)
            put(p, &p->value, &p->new_value, token, page, row, p->value_dim, stream);
    }
    v_streamed();
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const paged_problem *p = problem;
    (void)parameters;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, p->tokens / TOKENS_A_WORKER));
    return EJK_OK;
}

static bool applicable(const void *problem) {
    const paged_problem *p = problem;
    return p->key.dtype != EJK_DTYPE_F64 && p->value.dtype != EJK_DTYPE_F64;
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .applicable = applicable,
             .needs = "caches of 8, 16 or 32 bits", .prepare = prepare, .run = run)
