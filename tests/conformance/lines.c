/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/lines.h"

ejk_dtype lines_type(struct call *c) {
    return c->dtype != EJK_DTYPE_F64 && random_chance(&c->random, 0.5) ? EJK_DTYPE_F32 : c->dtype;
}

void lines_make(struct call *c, struct lines *l, int64_t batch, int64_t tokens) {
    struct random *r = &c->random;
    *l = (struct lines){.tokens = tokens, .packed = random_chance(r, 0.5)};
    l->batch = l->packed ? 1 : batch;
    l->count = l->packed ? random_int(r, tokens > 0 ? 0 : 1, 7) : batch;
    for (int64_t n = 0; n < l->count; n++) {
        l->row[n] = l->packed ? 0 : n;
        l->slot[n] = n;
        l->end[n] = tokens;
        if (!l->packed) continue;
        l->begin[n] = n > 0 ? l->end[n - 1] : 0;
        l->end[n] = random_chance(r, 0.3) ? l->begin[n] : random_int(r, l->begin[n], tokens);
    }
    if (!l->packed) return;
    l->ends = CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, l->count + 1);
    for (int64_t n = 0; n < l->count; n++) tensor_put(&l->ends, n + 1, (double)l->end[n]);
}

void lines_pool(struct call *c, struct lines *l) {
    struct random *r = &c->random;
    l->slots = l->count;
    if (random_chance(r, 0.3)) return; /* without indices */
    l->slots += random_int(r, 0, 3);
    l->indices = CALL_TENSOR(c, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, l->count);
    for (int64_t n = 0; n < l->count; n++) {
        const int64_t other = random_int(r, 0, n);
        l->slot[n] = l->slot[other];
        l->slot[other] = n + l->slots - l->count;
    }
    for (int64_t n = 0; n < l->count; n++) {
        if (random_chance(r, 0.2)) l->slot[n] = -1;
        tensor_put(&l->indices, n, (double)l->slot[n]);
    }
}

bool lines_have(const struct lines *l, int64_t token) {
    return !l->packed || (l->count > 0 && token < l->end[l->count - 1]);
}

bool lines_keep(const struct lines *l, int64_t slot) {
    for (int64_t n = 0; n < l->count; n++)
        if (l->slot[n] == slot) return false;
    return true;
}

void lines_hide(const struct lines *l, const ejk_tensor *t) {
    if (!l->packed || !ejk_tensor_present(t)) return;
    const int64_t end = l->count > 0 ? l->end[l->count - 1] : 0;
    const int64_t row = l->tokens > 0 ? ejk_tensor_count(t) / l->tokens : 0;
    tensor_hide(t, end * row, (l->tokens - end) * row);
}

void lines_hide_slots(const struct lines *l, const ejk_tensor *pool) {
    const int64_t size = l->slots > 0 ? ejk_tensor_count(pool) / l->slots : 0;
    for (int64_t slot = 0; slot < l->slots; slot++)
        if (lines_keep(l, slot)) tensor_hide(pool, slot * size, size);
}
