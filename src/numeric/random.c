/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JAX's stream of random numbers. Element i takes the block of the 64-bit counter i, high word first, and
 * its 32 bits are the exclusive or of both words of the block.
 */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"
#include "numeric/random.h"

#include <Random123/threefry.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static ejk_random_key block_of(ejk_random_key key, uint64_t counter) {
    threefry2x32_ctr_t at = {{(uint32_t)(counter >> 32), (uint32_t)counter}};
    threefry2x32_key_t by = {{key.words[0], key.words[1]}};
    threefry2x32_ctr_t block = threefry2x32(at, by);
    return (ejk_random_key){{block.v[0], block.v[1]}};
}

uint32_t ejki_random_bits(ejk_random_key key, uint64_t counter) {
    ejk_random_key block = block_of(key, counter);
    return block.words[0] ^ block.words[1];
}

ejk_random_key ejk_prng_key(uint64_t seed) {
    return (ejk_random_key){{(uint32_t)(seed >> 32), (uint32_t)seed}};
}

ejk_status ejk_prng_split(ejk_random_key key, int64_t count, ejk_random_key *keys_out) {
    if (count < 0 || (count > 0 && !keys_out)) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "count is %" PRId64 " with keys_out %s, expected room for at least 0 keys",
                         count, keys_out ? "given" : "NULL");
    }
    for (int64_t i = 0; i < count; i++) keys_out[i] = block_of(key, (uint64_t)i);
    return EJK_OK;
}

typedef struct fill {
    ejk_tensor out;
    ejk_random_key key;
    int64_t count;
    float low, width; /* of uniform numbers */
    float scale;      /* of normal ones */
    bool normal;
} fill;

/* 23 bits as a number of [1, 2), less 1, brought to [low, low + width). */
static float uniform(uint32_t bits, float low, float width) {
    uint32_t above_one = bits >> 9 | 0x3f800000u;
    float number;
    memcpy(&number, &above_one, sizeof number);
    return fmaxf(low, (number - 1) * width + low);
}

static float horner(const float *coefficients, int count, float w) {
    float sum = coefficients[0];
    for (int i = 1; i < count; i++) sum = coefficients[i] + sum * w;
    return sum;
}

/* Approximating the erfinv function (M. Giles, 2010), in single precision as JAX evaluates it. */
static float inverse_erf(float x) {
    static const float middle[] = {2.81022636e-08f,  3.43273939e-07f, -3.5233877e-06f,
                                   -4.39150654e-06f, 0.00021858087f,  -0.00125372503f,
                                   -0.00417768164f,  0.246640727f,    1.50140941f};
    static const float tail[] = {-0.000200214257f, 0.000100950558f, 0.00134934322f,
                                 -0.00367342844f,  0.00573950773f,  -0.0076224613f,
                                 0.00943887047f,   1.00167406f,     2.83297682f};
    float w = -log1pf(-x * x);
    return x * (w < 5 ? horner(middle, 9, w - 2.5f) : horner(tail, 9, sqrtf(w) - 3));
}

static void fill_part(void *argument, int64_t index) {
    const fill *f = argument;
    int64_t end = ejki_min((index + 1) * EJKI_TASK, f->count);
    for (int64_t at = index * EJKI_TASK, count; at < end; at += count) {
        float values[EJKI_RUN];
        count = ejki_min(end - at, EJKI_RUN);
        for (int64_t i = 0; i < count; i++) {
            float u = uniform(ejki_random_bits(f->key, (uint64_t)(at + i)), f->low, f->width);
            values[i] = f->normal ? 1.41421356f * inverse_erf(u) * f->scale : u;
        }
        ejki_array_store(&f->out, at, count, EJK_DTYPE_F32, values);
    }
}

static void run_fill(fill f, ejk_threads *threads, const ejk_tensor *out) {
    f.count = ejk_tensor_count(out);
    if (f.count == 0) return;
    f.out = ejki_array_flat(out);
    ejk_parallel_for(threads, ejki_cdiv(f.count, EJKI_TASK), fill_part, &f);
}

ejk_status ejk_random_normal(ejk_random_key key, double scale, ejk_threads *threads,
                             const ejk_tensor *out) {
    EJKI_TRY(ejki_array_floating_output(out, "out"));
    if (!isfinite((float)scale)) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "scale is %g, expected a finite number of float32", scale);
    }
    float low = nextafterf(-1, 0);
    fill f = {.key = key, .low = low, .width = 1 - low, .scale = (float)scale, .normal = true};
    run_fill(f, threads, out);
    return EJK_OK;
}

ejk_status ejk_random_uniform(ejk_random_key key, double low, double high, ejk_threads *threads,
                              const ejk_tensor *out) {
    EJKI_TRY(ejki_array_floating_output(out, "out"));
    float width = (float)high - (float)low;
    if (!isfinite((float)low) || !isfinite((float)high) || !isfinite(width) || width < 0) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "low is %g and high %g, expected finite numbers of float32 in this order, "
                         "and so their difference",
                         low, high);
    }
    run_fill((fill){.key = key, .low = (float)low, .width = width}, threads, out);
    return EJK_OK;
}
