/* SPDX-License-Identifier: Apache-2.0 */
/*
 * import_weights: codes, scales and zeros are made up and packed as the packages do it that write such weights, so that
 * what has to come out is known.
 */
#include "conformance/cases.h"
#include "tensor/access.h"

#include <string.h>

enum family { BLOCKS, GPTQ, AWQ, BNB };

static const struct layout {
    const char *name;
    enum family family;
    int64_t bits, block, bytes, size;
    bool zeros;
} layouts[] = {
    {"q4_0", BLOCKS, 4, 32, 18, 32, false},  {"q4_1", BLOCKS, 4, 32, 20, 32, true},
    {"q5_0", BLOCKS, 5, 32, 22, 32, false},  {"q5_1", BLOCKS, 5, 32, 24, 32, true},
    {"q8_0", BLOCKS, 8, 32, 34, 32, false},  {"q4_k", BLOCKS, 4, 256, 144, 32, true},
    {"q5_k", BLOCKS, 5, 256, 176, 32, true}, {"q6_k", BLOCKS, 6, 256, 210, 16, false},
    {"mxfp4", BLOCKS, 4, 32, 17, 32, false}, {"gptq", GPTQ, 0, 0, 0, 0, true},
    {"gptq_v2", GPTQ, 0, 0, 0, 0, true},     {"awq", AWQ, 4, 0, 0, 0, true},
    {"bnb_nf4", BNB, 4, 0, 0, 64, false},
};

struct import {
    struct layout l;
    int64_t matrices, rows, columns, groups; /* matrices: of all, 1 without a first axis */
    unsigned char *codes;                    /* [matrices,rows,columns] */
    float *scales, *zeros;                   /* [matrices,rows,groups]; scales of blocks */
    int32_t *order;                          /* input of each column; NULL: in order */
};

/* ---- Blocks ------------------------------------------------------------------------------------------ */

static void pack_halves(const unsigned char *codes, unsigned char *low) {
    for (int j = 0; j < 16; j++)
        low[j] = (unsigned char)((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

static void pack_fifths(const unsigned char *codes, unsigned char *high) {
    for (int j = 0; j < 32; j++)
        high[j / 8] = (unsigned char)(high[j / 8] | (codes[j] >> 4) << j % 8);
}

static void pack_k(const unsigned char *codes, unsigned char *low, unsigned char *high) {
    for (int chunk = 0; chunk < 4; chunk++)
        for (int j = 0; j < 32; j++) {
            const unsigned char a = codes[64 * chunk + j], b = codes[64 * chunk + 32 + j];
            low[32 * chunk + j] = (unsigned char)((a & 15) | (b & 15) << 4);
            if (high)
                high[j] =
                    (unsigned char)(high[j] | (a >> 4) << 2 * chunk | (b >> 4) << (2 * chunk + 1));
        }
}

static void pack_six(const unsigned char *codes, unsigned char *low, unsigned char *high) {
    for (int part = 0; part < 2; part++, codes += 128, low += 64, high += 32)
        for (int l = 0; l < 32; l++) {
            low[l] = (unsigned char)((codes[l] & 15) | (codes[l + 64] & 15) << 4);
            low[l + 32] = (unsigned char)((codes[l + 32] & 15) | (codes[l + 96] & 15) << 4);
            high[l] = (unsigned char)(codes[l] >> 4 | (codes[l + 32] >> 4) << 2 |
                                      (codes[l + 64] >> 4) << 4 | (codes[l + 96] >> 4) << 6);
        }
}

static void pack_k_scales(const int *scales, const int *leasts, unsigned char *at) {
    for (int j = 0; j < 4; j++) {
        at[j] = (unsigned char)(scales[j] | (scales[j + 4] >> 4) << 6);
        at[j + 4] = (unsigned char)(leasts[j] | (leasts[j + 4] >> 4) << 6);
        at[j + 8] = (unsigned char)((scales[j + 4] & 15) | (leasts[j + 4] & 15) << 4);
    }
}

static float put_half(struct random *r, unsigned char *at) {
    const uint16_t half = ejk_f32_to_f16((float)random_real(r) - 0.5f);
    memcpy(at, &half, sizeof half);
    return ejk_f16_to_f32(half);
}

/* A scale and what is subtracted: with a scale of 0 all of the group is that. */
static void set_group(struct import *p, int64_t at, float scale, float least) {
    const bool constant = p->l.zeros && scale == 0;
    p->scales[at] = constant ? 1 : scale;
    p->zeros[at] = constant ? least : least / scale;
    for (int64_t i = 0; constant && i < p->l.size; i++) p->codes[at * p->l.size + i] = 0;
}

/* Scales of a block, and its codes by what they are. */
static void pack_block(struct random *r, struct import *p, int64_t index, unsigned char *to) {
    unsigned char *codes = p->codes + index * p->l.block;
    const int64_t group = index * p->l.block / p->l.size;
    int scales[16], leasts[16];
    float d, m;
    switch (p->l.bytes) {
    case 17:
        to[0] = (unsigned char)random_int(r, 0, 254);
        set_group(p, group, ejk_e8m0_to_f32(to[0]), 0);
        pack_halves(codes, to + 1);
        return;
    case 18: set_group(p, group, put_half(r, to), 0), pack_halves(codes, to + 2); return;
    case 20:
    case 24:
        d = put_half(r, to), m = put_half(r, to + 2);
        if (p->l.bytes == 24) pack_fifths(codes, to + 4);
        pack_halves(codes, to + (p->l.bytes == 20 ? 4 : 8));
        set_group(p, group, d, -m);
        return;
    case 22:
        set_group(p, group, put_half(r, to), 0);
        pack_fifths(codes, to + 2);
        pack_halves(codes, to + 6);
        return;
    case 34:
        set_group(p, group, put_half(r, to), 0);
        for (int j = 0; j < 32; j++) to[2 + j] = (unsigned char)(codes[j] - 128);
        return;
    case 210:
        pack_six(codes, to, to + 128);
        d = put_half(r, to + 208);
        for (int g = 0; g < 16; g++) {
            scales[g] = (int)random_int(r, -128, 127);
            to[192 + g] = (unsigned char)scales[g];
            set_group(p, group + g, d * (float)scales[g], 0);
        }
        return;
    default:
        d = put_half(r, to), m = put_half(r, to + 2);
        pack_k(codes, to + (p->l.bytes == 144 ? 16 : 48), p->l.bytes == 144 ? NULL : to + 16);
        for (int g = 0; g < 8; g++) {
            scales[g] = (int)random_int(r, 0, 63), leasts[g] = (int)random_int(r, 0, 63);
            set_group(p, group + g, d * (float)scales[g], m * (float)leasts[g]);
        }
        pack_k_scales(scales, leasts, to + 4);
    }
}

/* ---- Words ------------------------------------------------------------------------------------------- */

static void put_bits(const ejk_tensor *t, int64_t start, int64_t step, int64_t bit, int64_t bits,
                     uint32_t code) {
    for (int64_t i = 0; i < bits; i++, bit++) {
        uint32_t *word = (uint32_t *)t->data + start + bit / 32 * step;
        *word |= (code >> i & 1) << bit % 32;
    }
}

/* The places of eight codes in a word of awq. */
static int64_t awq_bit(int64_t index) {
    static const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    for (int64_t i = 0; i < 8; i++)
        if (order[i] == index % 8) return index / 8 * 32 + 4 * i;
    return 0;
}

static void pack_zeros(struct call *c, struct import *p, ejk_import_weights_args *args) {
    const int64_t words = (p->rows * p->l.bits + 31) / 32;
    const uint32_t mask = (1u << p->l.bits) - 1, less = strcmp(p->l.name, "gptq") == 0;
    args->packed_zeros = CALL_TENSOR(c, EJK_DTYPE_I32, p->groups, words);
    for (int64_t i = 0; i < p->rows * p->groups; i++) {
        const int64_t row = i / p->groups, g = i % p->groups;
        const uint32_t zero = (uint32_t)random_int(&c->random, 0, mask);
        p->zeros[i] = (float)zero;
        put_bits(&args->packed_zeros, g * words, 1,
                 p->l.family == AWQ ? awq_bit(row) : row * p->l.bits, p->l.bits,
                 (zero - less) & mask);
    }
}

static void pack_words(struct call *c, struct import *p, ejk_import_weights_args *args) {
    const bool awq = p->l.family == AWQ;
    const int64_t words = (awq ? p->rows : p->columns) * p->l.bits / 32;
    args->packed = awq ? CALL_TENSOR(c, EJK_DTYPE_I32, p->columns, words)
                       : CALL_TENSOR(c, EJK_DTYPE_I32, words, p->rows);
    for (int64_t i = 0; i < p->rows * p->columns; i++) {
        const int64_t row = i / p->columns, column = i % p->columns;
        const int64_t input = p->order ? p->order[column] : column;
        if (awq)
            put_bits(&args->packed, input * words, 1, awq_bit(row), 4, p->codes[i]);
        else
            put_bits(&args->packed, row, p->rows, input * p->l.bits, p->l.bits, p->codes[i]);
    }
    args->packed_scales = CALL_TENSOR(c, EJK_DTYPE_F16, p->groups, p->rows);
    for (int64_t i = 0; i < p->rows * p->groups; i++)
        tensor_put(&args->packed_scales, i, random_real(&c->random));
    pack_zeros(c, p, args);
}

static void pack_flat(struct call *c, struct import *p, ejk_import_weights_args *args) {
    const int64_t count = p->rows * p->columns, blocks = p->rows * p->groups;
    args->packed = random_chance(&c->random, 0.5) ? CALL_TENSOR(c, EJK_DTYPE_U8, count / 2)
                                                  : CALL_TENSOR(c, EJK_DTYPE_U8, count / 2, 1);
    args->columns = ejk_int(p->columns);
    for (int64_t i = 0; i < count; i += 2)
        ((unsigned char *)args->packed.data)[i / 2] =
            (unsigned char)(p->codes[i] << 4 | p->codes[i + 1]);
    const bool nested = random_chance(&c->random, 0.5);
    args->packed_scales = CALL_TENSOR(c, nested ? EJK_DTYPE_U8 : EJK_DTYPE_F32, blocks);
    if (nested) {
        args->nested_scales = CALL_TENSOR(c, EJK_DTYPE_F32, (blocks + 255) / 256);
        args->nested_table = CALL_TENSOR(c, EJK_DTYPE_F32, 256);
        args->nested_offset = CALL_TENSOR(c, EJK_DTYPE_F32, 1);
        for (int64_t i = 0; i < args->nested_scales.shape[0]; i++)
            tensor_put(&args->nested_scales, i, random_real(&c->random));
        for (int64_t i = 0; i < 256; i++)
            tensor_put(&args->nested_table, i, random_real(&c->random));
        tensor_put(&args->nested_offset, 0, random_real(&c->random));
    }
    for (int64_t i = 0; i < blocks; i++)
        tensor_put(&args->packed_scales, i,
                   nested ? (double)random_int(&c->random, 0, 255) : random_real(&c->random));
}

/* Scale of a group outside of blocks. */
static float scale_of(const struct import *p, const ejk_import_weights_args *args, int64_t i) {
    if (p->l.family != BNB)
        return (float)tensor_get(&args->packed_scales, i % p->groups * p->rows + i / p->groups);
    const float given = (float)tensor_get(&args->packed_scales, i);
    if (args->packed_scales.dtype != EJK_DTYPE_U8) return given;
    const float entry = (float)tensor_get(&args->nested_table, (int64_t)given);
    const float scale = entry * (float)tensor_get(&args->nested_scales, i / 256);
    return scale + (float)tensor_get(&args->nested_offset, 0);
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

/* Inputs dealt to groups at random; columns are their inputs in the order of groups. */
static void shuffle(struct call *c, struct import *p, ejk_import_weights_args *args) {
    int32_t *input = call_memory(c, (size_t)(p->columns + 1) * sizeof *input);
    args->g_idx = CALL_TENSOR(c, EJK_DTYPE_I32, p->columns);
    args->permutation = CALL_TENSOR(c, EJK_DTYPE_I32, p->columns);
    p->order = call_memory(c, (size_t)(p->columns + 1) * sizeof *p->order);
    for (int64_t i = 0; i < p->columns; i++) input[i] = (int32_t)i;
    for (int64_t i = p->columns - 1; i > 0; i--) {
        const int64_t j = random_int(&c->random, 0, i);
        const int32_t kept = input[i];
        input[i] = input[j], input[j] = kept;
    }
    for (int64_t i = 0; i < p->columns; i++)
        tensor_put(&args->g_idx, input[i], (double)(i / p->l.size));
    for (int64_t g = 0, at = 0; g < p->groups; g++)
        for (int64_t k = 0; k < p->columns; k++)
            if ((int64_t)tensor_get(&args->g_idx, k) == g) p->order[at++] = (int32_t)k;
}

static void choose(struct call *c, struct import *p, ejk_import_weights_args *args) {
    static const int64_t bits[] = {2, 3, 4, 8};
    struct random *r = &c->random;
    p->l = RANDOM_OF(r, layouts);
    p->rows = random_int(r, 0, 6);
    p->matrices = p->l.family == BLOCKS && random_chance(r, 0.3) ? random_int(r, 1, 3) : 0;
    if (p->l.family == BLOCKS) p->columns = p->l.block * random_int(r, 0, 3);
    if (p->l.family == BNB) p->columns = p->l.size * random_int(r, 1, 4);
    if (p->l.family == AWQ) p->rows = 8 * random_int(r, 1, 3);
    if (p->l.family == GPTQ) {
        p->l.bits = RANDOM_OF(r, bits);
        args->bits = ejk_int(p->l.bits);
    }
    if (p->l.zeros && p->l.family != BLOCKS) {
        p->l.size = random_chance(r, 0.5) ? 32 : 24;
        p->columns = 32 * random_int(r, 1, 4);
        if (p->l.size == 24) args->group_size = ejk_int(24);
    }
    p->groups = (p->columns + p->l.size - 1) / p->l.size;
    strcpy(args->layout, p->l.name);
}

static ejk_tensor rows_of(struct call *c, const struct import *p, ejk_dtype type, int64_t width) {
    if (p->matrices) return CALL_TENSOR(c, type, p->matrices, p->rows, width);
    return CALL_TENSOR(c, type, p->rows, width);
}

static void pack_blocks(struct call *c, struct import *p, ejk_import_weights_args *args) {
    const int64_t blocks = p->columns / p->l.block,
                  all = (p->matrices ? p->matrices : 1) * p->rows * blocks;
    args->packed = rows_of(c, p, EJK_DTYPE_U8, blocks * p->l.bytes);
    for (int64_t i = 0; i < all; i++)
        pack_block(&c->random, p, i, (unsigned char *)args->packed.data + i * p->l.bytes);
}

static void make_results(struct call *c, const struct import *p, ejk_import_weights_args *args) {
    static const ejk_dtype types[] = {EJK_DTYPE_U8, EJK_DTYPE_I32, EJK_DTYPE_F32, EJK_DTYPE_F16};
    const int64_t unit = random_chance(&c->random, 0.5) ? 8 : 32;
    const bool k = p->l.family == BLOCKS && p->l.block == 256, mx = p->l.bytes == 17;
    const ejk_dtype narrow = k || p->l.family == BNB ? EJK_DTYPE_F32 : EJK_DTYPE_F16;
    const ejk_dtype scale = random_chance(&c->random, 0.5) ? narrow : EJK_DTYPE_F32;
    args->w = rows_of(c, p, unit == 8 ? EJK_DTYPE_U8 : EJK_DTYPE_U32,
                      (p->columns * p->l.bits + unit - 1) / unit);
    args->scales = rows_of(c, p, mx ? EJK_DTYPE_F8E8M0 : scale, p->groups);
    if (!p->l.zeros) return;
    args->zeros = rows_of(
        c, p, p->l.family == BLOCKS ? EJK_DTYPE_F32 : RANDOM_OF(&c->random, types), p->groups);
}

static bool generate(struct call *c) {
    ejk_import_weights_args *args = c->args;
    struct import *p = call_memory(c, sizeof *p);
    c->own = p;
    choose(c, p, args);
    const int64_t rows = (p->matrices ? p->matrices : 1) * p->rows;
    p->codes = call_memory(c, (size_t)(rows * p->columns + 1));
    p->scales = call_memory(c, (size_t)(rows * p->groups + 1) * sizeof(float));
    p->zeros = call_memory(c, (size_t)(rows * p->groups + 1) * sizeof(float));
    for (int64_t i = 0; i < rows * p->columns; i++)
        p->codes[i] = (unsigned char)random_int(&c->random, 0, (1 << p->l.bits) - 1);
    if (p->l.family == GPTQ && random_chance(&c->random, 0.5)) shuffle(c, p, args);
    if (p->l.family == BLOCKS)
        pack_blocks(c, p, args);
    else if (p->l.family == BNB)
        pack_flat(c, p, args);
    else
        pack_words(c, p, args);
    make_results(c, p, args);
    return true;
}

static void exact(struct call *c) {
    const ejk_import_weights_args *args = c->args;
    const struct import *p = c->own;
    double *w = call_result(c, "w", EXACT, ELEMENT),
           *scales = call_result(c, "scales", EXACT, ELEMENT);
    double *zeros = call_result(c, "zeros", EXACT, ELEMENT);
    double *order = call_result(c, "permutation", EXACT, ELEMENT);
    const int64_t rows = (p->matrices ? p->matrices : 1) * p->rows;
    const int64_t unit = args->w.dtype == EJK_DTYPE_U8 ? 8 : 32,
                  width = args->w.shape[args->w.rank - 1];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < p->columns * p->l.bits; i++) {
            const int code = p->codes[row * p->columns + i / p->l.bits];
            if (code >> (i % p->l.bits) & 1) w[row * width + i / unit] += ldexp(1, (int)(i % unit));
        }
    for (int64_t i = 0; i < rows * p->groups; i++) {
        scales[i] = (double)(p->l.family == BLOCKS ? p->scales[i] : scale_of(p, args, i));
        if (zeros) zeros[i] = (double)p->zeros[i];
    }
    for (int64_t i = 0; order && i < p->columns; i++) order[i] = p->order[i];
}

REFUSED_CALL(ejk_import_weights)
static const struct refused refused[] = {
    {EJK_STATUS_UNKNOWN_NAME, "layout is \"q2\", expected q4_0", "layout=q2"},
    {EJK_STATUS_UNKNOWN_NAME, "layout is \"\"", "layout="},
    {EJK_STATUS_INVALID_SHAPE, "packed has rows of 143 bytes, expected whole blocks of 144",
     "packed=uint8[2,143]"},
    {EJK_STATUS_INVALID_DTYPE, "packed: int32 given, expected uint8", "packed=int32[2,144]"},
    {EJK_STATUS_INVALID_ARGUMENT, "bits is 5, expected those of layout q4_k", "bits=5"},
    {EJK_STATUS_INVALID_ARGUMENT, "zeros have to be given", "zeros="},
    {EJK_STATUS_INVALID_ARGUMENT, "zeros are given, of which there are none",
     "layout=q6_k packed=uint8[2,210] w=uint8[2,192] scales=[2,16] zeros=[2,16]"},
    {EJK_STATUS_INVALID_DTYPE, "scales: float16 given, expected float32", "scales=float16[2,8]"},
    {EJK_STATUS_INVALID_SHAPE, "w has rows of [2,127]", "w=uint8[2,127]"},
    {EJK_STATUS_INVALID_ARGUMENT, "packed_scales [G,N] and packed_zeros have to be given",
     "layout=gptq packed=int32[4,8]"},
    {EJK_STATUS_INVALID_SHAPE, "packed_scales is [3,8], expected [2,8] for groups of 16",
     "layout=gptq packed=int32[4,8] packed_scales=[3,8] packed_zeros=int32[3,1] group_size=16"},
    {EJK_STATUS_INVALID_SHAPE, "packed_zeros is [2,2], expected [2,1]",
     "layout=gptq packed=int32[4,8] packed_scales=[2,8] packed_zeros=int32[2,2]"},
    {EJK_STATUS_INVALID_ARGUMENT, "bits is 5, expected 2, 3, 4 or 8",
     "layout=gptq bits=5 packed=int32[4,8] packed_scales=[2,8] packed_zeros=int32[2,1]"},
    {EJK_STATUS_INVALID_ARGUMENT, "g_idx has group 0 more than 2 times",
     "layout=gptq bits=8 packed=int32[1,8] packed_scales=[2,8] packed_zeros=int32[2,2] "
     "w=uint8[8,4] "
     "scales=[8,2] zeros=[8,2] g_idx={0,0,0,1}"},
    {EJK_STATUS_INVALID_ARGUMENT, "expected a permutation to be asked for",
     "layout=gptq bits=8 packed=int32[1,8] packed_scales=[2,8] packed_zeros=int32[2,2] "
     "w=uint8[8,4] "
     "scales=[8,2] zeros=[8,2] g_idx={0,1,0,1}"},
    {EJK_STATUS_INVALID_ARGUMENT, "g_idx is 2 at element 3, expected 0 to 1",
     "layout=gptq bits=8 packed=int32[1,8] packed_scales=[2,8] packed_zeros=int32[2,2] "
     "w=uint8[8,4] "
     "scales=[8,2] zeros=[8,2] g_idx={0,0,1,2}"},
    {EJK_STATUS_INVALID_SHAPE, "g_idx has 4 entries, expected 32",
     "layout=gptq packed=int32[4,8] packed_scales=[2,8] packed_zeros=int32[2,1] g_idx={0,0,1,1}"},
    {EJK_STATUS_INVALID_ARGUMENT, "columns is 0, expected a multiple of group_size 64",
     "layout=bnb_nf4 packed=uint8[64] packed_scales=[2]"},
    {EJK_STATUS_INVALID_SHAPE, "packed has 65 bytes of two codes, expected rows of 64",
     "layout=bnb_nf4 packed=uint8[65] packed_scales=[2] columns=64"},
    {EJK_STATUS_INVALID_ARGUMENT, "packed_scales are uint8, expected nested_scales [1]",
     "layout=bnb_nf4 packed=uint8[64] packed_scales=uint8[2] columns=64"},
    {0}};

const struct operation import_weights_case = {
    .op = "import_weights",
    .cases = 200,
    .only = EJK_DTYPE_F32,
    .generate = generate,
    .exact = exact,
    .call = ejk_import_weights_call,
    .good = "layout=q4_k packed=uint8[2,144] w=uint8[2,128] scales=[2,8] zeros=[2,8]",
    .refused = refused};
