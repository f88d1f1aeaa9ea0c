/* SPDX-License-Identifier: Apache-2.0 */
/* Equality and hashes: what counts as one mask. */
#include "mask/mask.h"

#include <string.h>

static bool same_side(ejk_opt_int a, ejk_opt_int b) {
    return a.set == b.set && (!a.set || a.value == b.value);
}

static bool same_sequence(const ejk_splash_mask *a, const ejk_splash_mask *b) {
    if (a->q_sequence == NULL || b->q_sequence == NULL) return a->q_sequence == b->q_sequence;
    return memcmp(a->q_sequence, b->q_sequence, (size_t)a->q * sizeof(int32_t)) == 0;
}

static bool same_elements(const ejk_splash_mask *a, const ejk_splash_mask *b) {
    for (int64_t i = 0; i < a->q; i++) {
        const uint8_t *x = a->elements + i * a->row_stride, *y = b->elements + i * b->row_stride;
        bool differ = false;
        for (int64_t j = 0; j < a->kv; j++) differ |= (x[j] != 0) != (y[j] != 0);
        if (differ) return false;
    }
    return true;
}

static bool same_parts(const ejk_splash_mask *a, const ejk_splash_mask *b) {
    if (a->part_count != b->part_count) return false;
    for (int64_t i = 0; i < a->part_count; i++)
        if (!ejk_splash_mask_equal(a->parts[i], b->parts[i])) return false;
    return true;
}

bool ejk_splash_mask_equal(const ejk_splash_mask *a, const ejk_splash_mask *b) {
    if (a == b) return true;
    if (a == NULL || b == NULL || a->kind != b->kind || a->q != b->q || a->kv != b->kv)
        return false;
    switch (a->kind) {
    case EJK_SPLASH_MASK_FULL: return true;
    case EJK_SPLASH_MASK_CAUSAL: return a->offset == b->offset && same_sequence(a, b);
    case EJK_SPLASH_MASK_LOCAL:
        return a->offset == b->offset && same_side(a->window.left, b->window.left) &&
               same_side(a->window.right, b->window.right) && same_sequence(a, b);
    case EJK_SPLASH_MASK_CHUNKED_CAUSAL:
        return a->chunk_size == b->chunk_size && same_sequence(a, b);
    case EJK_SPLASH_MASK_FUNCTION:
        return a->function == b->function && a->user == b->user && same_sequence(a, b);
    case EJK_SPLASH_MASK_NUMPY: return same_elements(a, b);
    case EJK_SPLASH_MASK_LOGICAL_AND:
    case EJK_SPLASH_MASK_LOGICAL_OR:
    case EJK_SPLASH_MASK_LOGICAL_NOT:
    case EJK_SPLASH_MASK_MULTI_HEAD: return same_parts(a, b);
    }
    return false;
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static uint64_t mix_side(uint64_t hash, ejk_opt_int side) {
    return side.set ? mix(mix(hash, 1), (uint64_t)side.value) : mix(hash, 2);
}

static uint64_t mix_elements(uint64_t hash, const ejk_splash_mask *mask) {
    for (int64_t i = 0; i < mask->q; i++) {
        const uint8_t *row = mask->elements + i * mask->row_stride;
        uint64_t bits = 0;
        for (int64_t j = 0; j < mask->kv; j++) {
            bits = bits << 1 | (row[j] != 0);
            if (j % 64 == 63) hash = mix(hash, bits);
        }
        hash = mix(hash, bits);
    }
    return hash;
}

uint64_t ejk_splash_mask_hash(const ejk_splash_mask *mask) {
    if (mask == NULL) return 0;
    uint64_t hash = mix(mix(mix(0, (uint64_t)mask->kind), (uint64_t)mask->q), (uint64_t)mask->kv);
    hash = mix(mix(hash, (uint64_t)mask->offset), (uint64_t)mask->chunk_size);
    hash = mix_side(mix_side(hash, mask->window.left), mask->window.right);
    if (mask->function != NULL) hash = mix(hash, (uint64_t)(uintptr_t)mask->user);
    for (int64_t i = 0; mask->q_sequence != NULL && i < mask->q; i++)
        hash = mix(hash, (uint32_t)mask->q_sequence[i]);
    if (mask->elements != NULL) hash = mix_elements(hash, mask);
    for (int64_t i = 0; i < mask->part_count; i++)
        hash = mix(hash, ejk_splash_mask_hash(mask->parts[i]));
    return hash;
}
