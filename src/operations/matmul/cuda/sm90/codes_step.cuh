/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of products with codes of 4 or 8 bits on sm_90a: 128 bytes of each row of codes, and rows of a. A warp has 32
 * rows of codes, the left operand of mma.sync, made in registers: of a chunk of 16 bytes four lanes have a word each,
 * eight codes or four, which are one or two times 16 of the depth. The depth is taken in the order in which codes
 * become pairs of elements, and rows of a are read from shared memory in the same order. A group's products are summed
 * up by themselves and then times the scale, in float32. Numbers of codes are exact, but for those of nf4, which are
 * rounded to the type of a. Zeros count by the sum of a group's elements of a; what is not finite by that is added up
 * once more, code by code.
 *
 * Steps are dealt in turn to parts of the depth, whose sums are added in pairs: bits depend on how many there are.
 *
 * Constants: those of finish.cuh; ELEMENT; MODE and BITS as mm_quant; TABLE, of modes whose codes are places in one;
 * LINES, rows of a, 8 to 64; COLUMNS; GROUP, chunks with one scale; WINDOW, steps whose scales are made at once; SCALE
 * and ZERO, types, ZERO 0 = none; FACTOR; ROW_PITCH, bytes from a row of a to the next in shared memory, or 0: boxes of
 * 64 of the depth under a swizzle of 128 bytes; SCALES_AT_ONCE, steps whose scales are asked for before any is there.
 */
#ifndef EJKI_MATMUL_CUDA_SM90_CODES_STEP_CUH
#define EJKI_MATMUL_CUDA_SM90_CODES_STEP_CUH

#ifndef PHASES
#define PHASES CODE_PHASES
#define TILES  2 /* of 16 rows of codes, a warp has */
#endif
#define TILE_WARPS (COLUMNS / 16 / TILES) /* of a phase */
#define PART_WARPS (TILE_WARPS * PHASES)
#define ROWS       LINES
#include "operations/matmul/cuda/sm90/codes.cuh"
#include "kernels/cuda/hopper.cuh"
#include "operations/matmul/cuda/quant.cuh"
#include "operations/matmul/cuda/sm90/finish.cuh"
#include "operations/matmul/cuda/sm90/parts.cuh"

enum {
    DEPTH = CODE_BYTES * 8 / BITS, /* of a step */
    BOX_COLUMNS = GATED == 1 ? HALF : COLUMNS,
    CODE_BOX = BOX_COLUMNS * CODE_BYTES,
    BOXES = COLUMNS / BOX_COLUMNS,
    BOX = LINES * 64 * 2,  /* rows of a, 64 of the depth */
    OWN_ROWS = 16 * TILES,   /* of a warp */
    SHARERS = 32 / OWN_ROWS, /* lanes that make scales of the same row, of other steps */
    EIGHTS = LINES / 8,    /* rows of a, eight at a time */
    GROUPS = CODE_CHUNKS / GROUP,
    WINDOW_GROUPS = WINDOW * GROUPS,
    CENTRE = 1 << (BITS - 1), /* of affine codes: what is taken off before they are multiplied */
    NUMBERS_OVER = !TABLE && MODE != MM_FP8 && ELEMENT == BF16 ? 64 : 1, /* products are those of numbers over this */
};

/* Of a warp's rows: those of rows that are eight apart side by side, as a lane has them. */
struct __align__(16) group_scales {
    float scale[OWN_ROWS];
#if ZERO
    float offset[OWN_ROWS]; /* (centre - zero) scale */
#endif
};

/* Of box n of a tile: its first column of b. */
DEVICE mm_size box_column(const mm_product &p, mm_size column, int n) {
    if (GATED == 1) return column + HALF * (n / 2) + (n % 2 ? p.columns : 0);
    return (GATED ? 2 * column : column) + BOX_COLUMNS * n;
}

/* ---- Scales ------------------------------------------------------------------------------------------- */

/* A number of a type as it is stored, in the low bits. */
template <int TYPE> DEVICE float number_of_bits(u32 bits) {
    if constexpr (TYPE == F32) return __int_as_float(bits);
    if constexpr (TYPE == BF16 || TYPE == F16) return value_of<TYPE>((u16)bits);
    if constexpr (TYPE == F8E4M3) return value_of_e4m3(bits & 0xff);
    if constexpr (TYPE == F8E5M2) return value_of_e5m2(bits & 0xff);
    if constexpr (TYPE == F8E8M0) return value_of_e8m0(bits & 0xff);
    if constexpr (TYPE == U8) return (float)(bits & 0xff);
    if constexpr (TYPE == I32) return (float)(int)bits;
    return (float)(signed char)(bits & 0xff);
}

/* Numbers of a step's groups, of a row, as words: at once where all are there and addresses allow. */
template <int TYPE> struct stored_groups {
    enum {
        SIZE = TYPE == F32 || TYPE == I32 ? 4 : TYPE == BF16 || TYPE == F16 ? 2 : 1,
        BYTES = GROUPS * SIZE,
        WORDS = BYTES < 4 ? GROUPS : BYTES / 4,
        AT_ONCE = BYTES < 4 ? 1 : WORDS < 4 ? WORDS : 4, /* words */
    };
    u32 word[WORDS];

    /* May a row that begins at this index be read at once, from a whole step on? */
    DEVICE_MEMBER static bool is_aligned(const void *data, mm_size index) {
        return BYTES < 4 || ((u64)data + index * SIZE) % (4 * AT_ONCE) == 0;
    }
    DEVICE_MEMBER void load(const void *data, mm_size index) {
        const u8 *at = (const u8 *)data + index * SIZE;
        if constexpr (BYTES < 4) {
            load_some(data, index, GROUPS);
        } else {
#pragma unroll
            for (int w = 0; w < WORDS; w += AT_ONCE) {
                if constexpr (AT_ONCE == 4) {
                    const uint4 own = ((const uint4 *)at)[w / 4];
                    word[w] = own.x, word[w + 1] = own.y, word[w + 2] = own.z, word[w + 3] = own.w;
                } else if constexpr (AT_ONCE == 2) {
                    const uint2 own = ((const uint2 *)at)[w / 2];
                    word[w] = own.x, word[w + 1] = own.y;
                } else {
                    word[w] = ((const u32 *)at)[w];
                }
            }
        }
    }
    /* The first `left` of them, others 0. */
    DEVICE_MEMBER void load_some(const void *data, mm_size index, int left) {
        const u8 *at = (const u8 *)data + index * SIZE;
#pragma unroll
        for (int w = 0; w < WORDS; w++) word[w] = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (g >= left) continue;
            const u32 own = SIZE == 4 ? ((const u32 *)at)[g] : SIZE == 2 ? ((const u16 *)at)[g] : at[g];
            if (BYTES < 4)
                word[g] = own;
            else
                word[g * SIZE / 4] |= own << (SIZE == 4 ? 0 : g * SIZE % 4 * 8);
        }
    }
    DEVICE_MEMBER float number(int g) const {
        return BYTES < 4 ? number_of_bits<TYPE>(word[g])
                         : number_of_bits<TYPE>(word[g * SIZE / 4] >> (SIZE == 4 ? 0 : g * SIZE % 4 * 8));
    }
};

/* This lane's row of codes: where its scales and zeros begin. */
struct scale_row {
    mm_size scale, zero;
    bool is_there;
};
DEVICE scale_row scale_row_of(const mm_product &p, const place &at, int tile) {
    const mm_quant &q = p.quant;
    const int own = tile * OWN_ROWS + threadIdx.x % OWN_ROWS;
    const mm_size column = box_column(p, at.column, own / BOX_COLUMNS) + own % BOX_COLUMNS;
    return {at.s.held * q.scale_group + column * q.scale_row, at.s.held * q.zero_group + column * q.zero_row,
            column < mm_columns_of_b(&p)};
}

/* That of a tile, where rows are not dealt out to groups. */
DEVICE place place_of(const codes_arguments &a, u32 tile) {
    const u32 tiles = (u32)a.tiles;
    place at = {};
    at.s.rows = a.p.rows;
    at.s.depth = a.p.depth;
    at.column = (mm_size)(tile / tiles) * out_columns(a.p);
    at.row = tile % tiles * ROWS;
    return at;
}

/*
 * Scales of WINDOW steps: of one row of codes for each lane and each of `to`, of steps that are `apart` from each
 * other, from one on, which is that of the lane where SHARERS have a row.
 */
template <int count>
DEVICE void load_scales(const mm_product &p, group_scales *const (&to)[count], const scale_row (&row)[count], int step,
                        int apart) {
    const mm_quant &q = p.quant;
    const u32 size = (u32)mm_least(q.size, p.depth), groups = ((u32)p.depth + size - 1) / size;
    const float factor = FACTOR ? *(const float *)q.factor : 1;
    const int own = threadIdx.x % 8 * (OWN_ROWS / 8) + threadIdx.x % OWN_ROWS / 8;
    const int begin = threadIdx.x % 32 / OWN_ROWS;
    enum { STEPS_OF_LANE = (WINDOW + SHARERS - 1) / SHARERS };
    const auto index_of = [&](int n) {
        const u32 at = (u32)(step + n * apart);
        return size > DEPTH ? at * DEPTH / size : at * GROUPS;
    };
    bool whole = index_of(STEPS_OF_LANE - 1) + GROUPS <= groups; /* no branch stands between loads then */
#pragma unroll
    for (int r = 0; r < count; r++) {
        whole = whole && row[r].is_there && stored_groups<SCALE>::is_aligned(q.scales, row[r].scale);
#if ZERO
        whole = whole && stored_groups<ZERO>::is_aligned(q.zeros, row[r].zero);
#endif
    }
#pragma unroll 1
    for (int first = 0; first < STEPS_OF_LANE; first += SCALES_AT_ONCE) {
        stored_groups<SCALE> scale[SCALES_AT_ONCE][count];
#if ZERO
        stored_groups<ZERO> zero[SCALES_AT_ONCE][count];
#endif
        if (whole) {
#pragma unroll
            for (int n = 0; n < SCALES_AT_ONCE; n++)
#pragma unroll
                for (int r = 0; r < count; r++) {
                    const u32 index = index_of(mm_least(first + n, STEPS_OF_LANE - 1));
                    scale[n][r].load(q.scales, row[r].scale + index);
#if ZERO
                    zero[n][r].load(q.zeros, row[r].zero + index);
#endif
                }
        } else {
#pragma unroll
            for (int n = 0; n < SCALES_AT_ONCE; n++)
#pragma unroll
                for (int r = 0; r < count; r++) {
                    const u32 index = index_of(first + n);
                    const int left = row[r].is_there && index < groups ? (int)(groups - index) : 0;
                    scale[n][r].load_some(q.scales, row[r].scale + index, left);
#if ZERO
                    zero[n][r].load_some(q.zeros, row[r].zero + index, left);
#endif
                }
        }
#pragma unroll
        for (int n = 0; n < SCALES_AT_ONCE; n++)
#pragma unroll
            for (int r = 0; r < count; r++)
#pragma unroll
                for (int g = 0; g < GROUPS; g++) {
                    const int place = begin + (first + n) * SHARERS;
                    const bool is_there = row[r].is_there && index_of(first + n) + g < groups;
                    float x = is_there ? scale[n][r].number(g) : 0;
                    if (SCALE == I8 && is_there) x = power_of_two((int)x);
                    if (FACTOR) x *= factor;
                    if (place >= WINDOW) continue;
                    to[r][place * GROUPS + g].scale[own] = x;
#if ZERO
                    to[r][place * GROUPS + g].offset[own] = (CENTRE - zero[n][r].number(g)) * x / NUMBERS_OVER;
#endif
                }
    }
    __syncwarp();
}

/* ---- Codes as elements -------------------------------------------------------------------------------- */

DEVICE u32 pair_of(float x) {
    return (u32)narrow(x) * 0x10001u;
}
DEVICE u32 add_pairs(u32 a, u32 b) {
    u32 sum;
    if (ELEMENT == BF16)
        asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    else
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

DEVICE u32 multiply_add_pairs(u32 a, u32 b, u32 c) {
    u32 sum;
    if (ELEMENT == BF16)
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    else
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
DEVICE u32 multiply_add_pairs(u32 a, float b, float c) {
    return multiply_add_pairs(a, pair_of(b), pair_of(c));
}
/*
 * Whole numbers in the lowest eight bits of a bf16, alone, count 2^-133 each, subnormal or not: less the centre, over
 * NUMBERS_OVER; exact. `step`: what neighbours differ by.
 */
DEVICE u32 pair_of_subnormals(u32 pair, float step) {
    return multiply_add_pairs(pair, 0x1p127f / step, -(float)CENTRE / NUMBERS_OVER);
}
/* Codes n and n + 4 of a word of 4 bits each, less their centre, over NUMBERS_OVER. */
DEVICE u32 pair_of_codes(u32 word, int n) {
    const u32 part = n < 2 ? word : word >> 8;
    if (ELEMENT == BF16)
        return n % 2 ? pair_of_subnormals(part & 0x00f000f0, 16) : pair_of_subnormals(part & 0x000f000f, 1);
    u32 whole; /* (part & mask) | base: two operations if it is left to the compiler */
    asm("lop3.b32 %0, %1, %2, %3, 0xea;"
        : "=r"(whole)
        : "r"(part), "r"(n % 2 ? 0x00f000f0 : 0x000f000f), "r"(0x64006400u));
    return n % 2 ? multiply_add_pairs(whole, 0.0625f, -64.0f - CENTRE) : add_pairs(whole, pair_of(-1024.0f - CENTRE));
}

#if TABLE
typedef u32 code_table[256][32]; /* of each byte, for each lane: both of its codes' numbers */
DEVICE void make_table(code_table &table) {
    for (int n = threadIdx.x; n < 256 * 32; n += THREADS) {
        const int byte = n / 32;
        table[byte][n % 32] = pack(number_of(MODE, byte & 15, 0), number_of(MODE, (u32)byte >> 4, 0));
    }
}
#endif

/* Two bytes as numbers. */
DEVICE u32 pair_of_e4m3(u32 bytes) {
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)bytes));
    return ELEMENT == F16 ? pair : pack(value_of<F16>((u16)pair), value_of<F16>((u16)(pair >> 16)));
}

/* A word of codes as pairs, for each 16 of the depth two: what becomes left[0] and left[2] of a product. */
enum { PAIRS = BITS == 4 ? 4 : 2 };
DEVICE void take_word(u32 (&pair)[PAIRS], u32 word, u32 table) {
    if (MODE == MM_INT8) word ^= 0x80808080u;
#pragma unroll
    for (int n = 0; n < PAIRS; n++) {
        if constexpr (TABLE) {
            const u32 at = (n ? word >> (8 * n - 7) : word << 7) & 0x7f80;
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair[n]) : "r"(table + at));
        } else if constexpr (BITS == 4) {
            pair[n] = pair_of_codes(word, n);
        } else if constexpr (MODE == MM_FP8) {
            pair[n] = pair_of_e4m3(word >> 16 * n);
        } else if constexpr (ELEMENT == F16) {
            pair[n] = add_pairs(__byte_perm(word, 0x64006400u, n ? 0x7372 : 0x7170), pair_of(-(1024.0f + CENTRE)));
        } else {
            pair[n] = pair_of_subnormals(__byte_perm(word, 0, n ? 0x4342 : 0x4140), 1);
        }
    }
}

/* ---- Products ----------------------------------------------------------------------------------------- */

/* Left operands of a word of codes and a tile, one for each 16 of the depth. */
enum { SIXTEENS = PAIRS / 2 };
typedef u32 left_words[SIXTEENS][4];

/*
 * A lane has a run of words in SPAN chunks, the first lane of four the first ones: two words where two chunks have one
 * scale, so that one load brings both.
 */
enum {
    SPAN = GROUP > 1 ? 2 : 1,
    CHUNK_BYTES = 16 * 8 / BITS * 2,      /* of a row of a */
    LANE_BYTES = SPAN * CHUNK_BYTES / 4,
    SPREADS_ROWS = LANE_BYTES < 32,       /* neighbours in a row of a are those of 16 bytes that lanes load at once */
};

typedef u32 code_words[SPAN];
DEVICE void load_words(code_words &x, u32 from) {
    if constexpr (SPAN == 2)
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
    else
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x[0]) : "r"(from) : "memory");
}

/* The row of codes, of eight, that is row n of a product, and the row of a that is column n: banks differ. */
DEVICE int row_of_codes(int n) {
    return SPAN == 2 ? n % 4 * 2 + n / 4 : n;
}
DEVICE int row_of_column(int n) {
    return SPREADS_ROWS ? n % 2 * 4 + n / 2 % 2 * 2 + n / 4 : n;
}

/* Where this lane's codes of a tile lie in a step, from a chunk on, and its elements of the first eight rows of a. */
DEVICE u32 lane_codes(int chunk) {
    const int row = row_of_codes(threadIdx.x % 32 / 4), at = threadIdx.x % 4 * 4 * SPAN;
    return row * CODE_BYTES + ((chunk + at / 16) ^ row) * 16 + at % 16;
}
DEVICE u32 lane_rows(int chunk) {
    const int row = row_of_column(threadIdx.x % 32 / 4), at = chunk * CHUNK_BYTES + threadIdx.x % 4 * LANE_BYTES;
    return ROW_PITCH ? row * ROW_PITCH + at : at / 128 * BOX + row * 128 + (at % 128 ^ row * 16);
}

/* What right operands of a span, or of a word of four bits a code, are made of, for eight rows; and those. */
enum { ROW_WORDS = BITS == 4 || SPAN == 2 ? 4 : 2 };
typedef u32 row_words[ROW_WORDS];
/* `bytes` on from this lane's first ones. */
DEVICE void load_rows(row_words &x, u32 rows, int bytes) {
    const u32 at = ROW_PITCH ? rows + bytes : (rows ^ bytes % 128) + bytes / 128 * BOX;
    if constexpr (ROW_WORDS == 4) {
        const uint4 piece = load_piece(at);
        x[0] = piece.x, x[1] = piece.y, x[2] = piece.z, x[3] = piece.w;
    } else {
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(at) : "memory");
    }
}
/* Into the order of pairs of codes. */
DEVICE void order_rows(row_words &x) {
    enum { LAST = ROW_WORDS - 1 };
    const u32 low = x[0], next = x[1], high = x[LAST - 1], last = x[LAST];
    if (BITS == 8 || TABLE) return;
    x[0] = __byte_perm(low, high, 0x5410), x[1] = __byte_perm(low, high, 0x7632);
    x[LAST - 1] = __byte_perm(next, last, 0x5410), x[LAST] = __byte_perm(next, last, 0x7632);
}

typedef float tile_sums[EIGHTS][4];

/* Scales, or offsets, of this lane's rows of codes. */
typedef float lane_scales[2 * TILES];
DEVICE void load_lane_scales(lane_scales &x, const float (&all)[OWN_ROWS]) {
    const float *own = all + row_of_codes(threadIdx.x % 32 / 4) * (2 * TILES);
    if constexpr (TILES == 2) {
        const float4 four = *(const float4 *)own;
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
        const float2 two = *(const float2 *)own;
        x[0] = two.x, x[1] = two.y;
    }
}

/*
 * Sums of the groups of `count` chunks of a step, scaled and added: of a warp's rows of codes and of so many eights of
 * rows of a, whose places are this lane's of the first chunk.
 */
template <int count, int eights = EIGHTS>
DEVICE void compute_step(u32 codes, u32 rows, const group_scales *scales, u32 table, tile_sums (&sums)[TILES]) {
    enum { EACH = GROUP < count ? GROUP : count };
    const u32 ones[4] = {pair_of(1), pair_of(1), pair_of(1), pair_of(1)};
#pragma unroll
    for (int first = 0; first < count; first += EACH) {
        tile_sums products[TILES] = {}, all = {};
#pragma unroll
        for (int chunk = first; chunk < first + EACH; chunk += SPAN) {
            code_words words[TILES][2];
            row_words right[eights];
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    load_words(words[t][half], (codes ^ chunk * 16) + (2 * t + half) * (8 * CODE_BYTES));
#pragma unroll
            for (int w = 0; w < SPAN; w++) {
                left_words left[TILES];
                if (BITS == 4 || w == 0) {
#pragma unroll
                    for (int n = 0; n < eights; n++) {
                        load_rows(right[n], rows + n * 8 * (ROW_PITCH ? ROW_PITCH : 128), chunk * CHUNK_BYTES + w * 16);
                        order_rows(right[n]);
                    }
                }
#pragma unroll
                for (int t = 0; t < TILES; t++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        u32 pair[PAIRS];
                        take_word(pair, words[t][half][w], table);
#pragma unroll
                        for (int n = 0; n < PAIRS; n++) left[t][n / 2][n % 2 * 2 + half] = pair[n];
                    }
#pragma unroll
                for (int n = 0; n < eights; n++)
#pragma unroll
                    for (int k = 0; k < SIXTEENS; k++) {
                        const u32 *own = right[n] + (BITS == 4 ? 0 : 2 * w) + 2 * k;
#pragma unroll
                        for (int t = 0; t < TILES; t++) mma(products[t][n], left[t][k], own[0], own[1]);
                        if (ZERO) mma(all[n], ones, own[0], own[1]);
                    }
            }
        }
        lane_scales scale;
        load_lane_scales(scale, scales[first / GROUP].scale);
#if ZERO
        lane_scales offset;
        load_lane_scales(offset, scales[first / GROUP].offset);
#endif
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int n = 0; n < eights; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sums[t][n][i] = fmaf(products[t][n][i], scale[2 * t + i / 2], sums[t][n][i]);
#if ZERO
                    sums[t][n][i] = fmaf(all[n][i], offset[2 * t + i / 2], sums[t][n][i]);
#endif
                }
    }
}

/* Into shared memory, rows of a being rows. */
DEVICE void put_sums(part_sums &to, int tile, const tile_sums (&sums)[TILES]) {
    const int own = tile * OWN_ROWS + row_of_codes(threadIdx.x % 32 / 4);
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int n = 0; n < EIGHTS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int line = 8 * n + row_of_column(threadIdx.x % 4 * 2 + i % 2);
                to[line][own + 16 * t + i / 2 * 8] = sums[t][n][i] * NUMBERS_OVER;
            }
}

/* Those of this block's phases, of the first `lines` rows. */
DEVICE void add_phases(part_sums (&sums)[PHASES], int lines) {
    for (int n = threadIdx.x; n < lines * COLUMNS; n += CONSUMERS) {
        const int line = n / COLUMNS, column = n % COLUMNS;
        float part[PHASES];
#pragma unroll
        for (int phase = 0; phase < PHASES; phase++) part[phase] = sums[phase][line][column];
        sums[0][line][column] = sum_in_pairs(part);
    }
}

/* The sum of one element, code by code. */
static __device__ __noinline__ float sum_again(const mm_product &p, mm_size held, mm_size line, mm_size column) {
    const element *row = (const element *)p.a.data + line * p.a.row;
    float sum = 0;
    for (mm_size k = 0; k < p.depth; k++)
        sum = fmaf(widen(row[k]), value_at(p.quant, held, column, k), sum);
    return sum;
}

#endif
