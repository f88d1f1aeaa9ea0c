/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention as its kernels take it, by value: an ejki_flash_problem with device pointers, 32-bit sizes and all
 * that follows from the options resolved. It is not the struct of the CPU, as kernels index with 32-bit numbers, and
 * as a launch pays for its bytes. Read by the C compiler and by NVRTC, so that both agree on every offset; plain types
 * only.
 *
 * Rows are packed by query group: row r of a KV head is query r / group of query head kv_head * group + r % group. So a
 * key is loaded once for all heads of its group, and a few queries fill a tile.
 */
#ifndef EJKI_ATTENTION_CUDA_PROBLEM_CUH
#define EJKI_ATTENTION_CUDA_PROBLEM_CUH

#include "kernels/cuda/views.cuh"

typedef struct ejki_cuda_ids {
    const void *data;
    long long stride_b;
} ejki_cuda_ids;

/*
 * Visibility beyond the offsets of the problem, from an ejki_block_mask and ejki_positions. A block mask has an entry
 * for each block of scores, which block_mask.cu writes. A predicate and chunks that follow from indices are part of
 * the offsets and of `chunk`; others are a function of the row.
 */
enum { EJKI_CUDA_EMPTY = -2, EJKI_CUDA_FULL = -1 }; /* else the index of a partial block */

typedef struct ejki_cuda_visibility {
    const int *block_mask;       /* [mask_heads, T / MASK_QUERIES, S / MASK_KEYS] */
    const unsigned char *blocks; /* elements of partial blocks, not 0 = visible */
    long long block_stride, query_stride, key_stride;
    long long chunk, chunk_offset; /* CHUNKED: nothing before the chunk of i + chunk_offset */
    /* FUNCTION: row i visible positions[i] + first … + last, and nothing before its chunk if that is not 0. */
    const int *positions; /* NULL = i */
    long long function_first, function_last, function_chunk;
    /* POSITIONS: the key's has to be of the query's plus first … last, and not before its chunk. */
    const void *query_positions, *key_positions; /* NULL = indices */
    long long query_positions_b, key_positions_b;
    long long position_first, position_last, position_chunk, position_offset;
    int heads_per_mask; /* query head h reads mask head h / heads_per_mask */
    int positions_are_i64;
} ejki_cuda_visibility;

/*
 * Keys in pages of a cache, for sm90/forward.cu compiled with PAGES: sequence n has lens[n] of them, of which key t
 * lies at row t mod page of the page that entry t / page of its table names. Its table begins at entry n * step or, if
 * there are lists, at lists[n], and ends at lists[n + 1]. All of it is untrusted. Sequences of at most `few` rows of a
 * KV head, and those of fewer than `least` or more than `many` tokens are left to others; those from *count on, if that
 * is given, are none.
 */
typedef struct ejki_cuda_pages {
    const void *table, *lists, *lens, *count; /* 32 or, as said below, 64 bits */
    long long step, key_page, value_page; /* strides of a page in elements */
    int entries;                          /* of a table, or of all lists */
    int page, pages, few, least, many;
    int table_is_i64, lists_are_i64, lens_are_i64, count_is_i64;
} ejki_cuda_pages;

/* A block index list of a MaskInfo: integers of `size` bytes. */
typedef struct ejki_cuda_block_list {
    const void *data;
    long long stride_p, stride_r;
    int size;
} ejki_cuda_block_list;

/* What block_mask.cu makes a block mask of. */
typedef struct ejki_cuda_block_lists {
    ejki_cuda_block_list next, state, id;
    int *block_mask;                /* [mask_heads, block_rows, block_columns] */
    long long block_count;     /* partial blocks; -1 = a partial one shows what a full one does */
    int mask_heads, rows, columns; /* of the lists */
    int block_rows, block_columns;
    int by_column;
} ejki_cuda_block_lists;

/* Values of ejki_flash_layout; a kernel is compiled for one. */
enum { EJKI_CUDA_DENSE, EJKI_CUDA_TOKENS, EJKI_CUDA_PADDED };

typedef struct ejki_cuda_problem {
    ejki_cuda_bthd query, key, value, out;
    ejki_cuda_bhts lse, row_max, row_sum; /* f32; NULL data = not wanted */
    ejki_cuda_bhts bias, mask;
    ejki_cuda_ids query_segments, key_segments;
    const void *sinks; /* NULL = none */
    const void *query_sums, *key_sums;
    long long sink_stride_h;
    long long first_offset, last_offset; /* of visible keys; beyond ±2^60 = no limit */
    long long first_sequence;
    unsigned long long dropout_seed;
    long long entries;  /* of the batch axis: 1 where tokens lie one after the other */
    int batch;          /* sequences */
    int queries, keys;  /* of the tensors */
    int kv_heads, group;
    int sink_count, sink_group, mask_group;
    int sums_are_i64, segments_are_i64, ends_together, normalize;
    int tiles;          /* of rows, of all sequences of one KV head */
    int splits;         /* parts of the keys */
    int split_keys;     /* keys of a part, whole blocks */
    unsigned drop_below; /* words below are dropped */
    float keep_factor;  /* what kept weights are multiplied with */
    float scale, soft_cap;
    ejki_cuda_visibility visibility;
    /* Where a part of the keys leaves its sums: [splits, rows, Dv], its maxima and sums [splits, rows]. */
    float *part_out, *part_max, *part_sum;
    ejki_cuda_pages pages;
} ejki_cuda_problem;

/*
 * Attention of few rows: what decode.cu needs of an ejki_cuda_problem, in few bytes and in the order in which it is
 * read. A launch fetches its arguments anew, 64 bytes at a time, while all else waits.
 */
typedef struct ejki_cuda_decode_problem {
    ejki_cuda_bthd key, value, query;
    int queries, keys, kv_heads, group, splits, split_keys;
    float scale, soft_cap;
    long long first_offset, last_offset;
    float *parts; /* sums [splits, rows, Dv], then maxima and sums of weights [splits, rows] */
    ejki_cuda_bthd out;
    int batch, normalize, sink_count, sink_group;
    const void *sinks; /* NULL = none */
    long long sink_stride_h;
    ejki_cuda_bhts lse, row_max, row_sum;
} ejki_cuda_decode_problem;

/* ejki_attention_problem. */
typedef struct ejki_cuda_weights_problem {
    ejki_cuda_problem forward;
    ejki_cuda_bhts weights; /* of the element type, written */
} ejki_cuda_weights_problem;

/* Gradients: ejki_flash_vjp_problem. */
typedef struct ejki_cuda_vjp_problem {
    ejki_cuda_problem forward;
    ejki_cuda_bthd out_cotangent, d_query, d_key, d_value; /* NULL data = not wanted */
    ejki_cuda_bhts lse_cotangent, d_bias;
    void *d_sinks;
    long long d_sink_stride_h;
    float *delta; /* [entries, Hq, T], written first */
    float *shift; /* as delta: -lse in units of log 2; -inf where lse is */
    int key_tiles; /* of all sequences of one KV head */
    /* Of sm90/backward.cu; what is not NULL is zeroed first, but for sums if they are added in order. */
    float *sums;      /* of d_query, tile by tile */
    unsigned *ticket; /* tiles of keys that were taken */
    unsigned *turns;  /* [entries, Hq, slots]: tiles of keys that have added */
    int *nonfinite; /* not 0: some sums are NaN. To other kernels: only NaN is written anew, if so */
    long long zeros, sum_zeros; /* how many, of 4 bytes at ticket, of 16 at sums */
    int jobs;                   /* tiles of all heads and entries */
    int slots;                  /* of tiles of one head's queries */
} ejki_cuda_vjp_problem;

/* Nonfinite flags of a CTA of sm90/forward.cu, one bit for each round n: bit n % 2048. */
enum { EJKI_CUDA_NONFINITE_WORDS = 64 };

/*
 * A soft cap as a polynomial of two or three terms: with t = z * z + shift, z * factor * t or z * factor * (t * t +
 * rest).
 */
typedef struct ejki_cuda_cap_terms {
    float shift, rest, factor;
} ejki_cuda_cap_terms;

/* forward_sm90.cu, recompute_sm90.cu: [D, T, H, B] of query, key and value. */
typedef struct ejki_cuda_sm90_problem {
    ejki_cuda_map query_map, key_map, value_map;
    ejki_cuda_problem all; /* but for `tiles`: of one query head */
    int heads_together; /* whose tiles are done side by side; 0 = scheduler.cuh */
    int copied; /* a tensor lies where no map or piece can begin: recompute_sm90.cu does all, and there are no maps */
    unsigned *nonfinite; /* EJKI_CUDA_NONFINITE_WORDS of each CTA */
    float unit;  /* of scores, in units of log 2; LOG2_E unless FOLDED */
    float lowest; /* product whose row has 0 as its reference, if all are negative; 0 = none has */
    float slack;  /* by which a reference may be exceeded, in units of log 2 */
    /*
     * Soft cap in units of log 2, of a product z: by cap_small where none of a row's in a block is larger than
     * cap_limit, else cap_high * (1 - 2 / (1 + 2^(cap_exponent * z))).
     */
    ejki_cuda_cap_terms cap_small;
    float cap_limit, cap_exponent, cap_high;
} ejki_cuda_sm90_problem;

#endif
