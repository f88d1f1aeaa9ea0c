/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of backward_sm90.cu: where everything lies in shared memory, the jobs of a CTA, and how rows of sums
 * are written.
 */
#ifndef EJKI_CUDA_BACKWARD_SM90_CUH
#define EJKI_CUDA_BACKWARD_SM90_CUH

#define WARPS 12
#include "kernels/cuda/hopper.cuh"
#include "operations/attention/cuda/common/visibility.cuh"

#ifndef D_QUERY
#define D_QUERY 1
#endif

enum {
    KEYS = 128,
    STAGES = 2,
    HEAD = round_up(HEAD_DIM, 64),
    VALUE = round_up(VALUE_DIM, 64),
    COMPUTING = 256, /* threads */
    /* Of d_query each warpgroup's share. */
    SHARE = ROWS == 128 ? HEAD : HEAD / 2,
    ROW_SHARES = ROWS / 64,
    /* Bytes of tiles. */
    KEY_BYTES = KEYS * HEAD * 2,
    VALUE_BYTES = KEYS * VALUE * 2,
    QUERY_BYTES = ROWS * HEAD * 2,
    OUT_BYTES = ROWS * VALUE * 2,
    DS_BYTES = KEYS * ROWS * 2,
    SHARE_BYTES = 64 * SHARE * 4,
    ROW_BYTES =
        ROWS * 8 + 16, /* shifts, deltas, the tile's first row, and whether it lies at an edge */
    /* Places in shared memory. */
    KEY_AT = 0,
    VALUE_AT = KEY_AT + KEY_BYTES,
    QUERY_AT = VALUE_AT + VALUE_BYTES,
    OUT_AT = QUERY_AT + STAGES * QUERY_BYTES,
    DS_AT = OUT_AT + STAGES * OUT_BYTES,
    SHARE_AT = DS_AT + 2 * DS_BYTES,
    ROW_AT = SHARE_AT + 4 * SHARE_BYTES,
    JOB_AT = ROW_AT + STAGES * ROW_BYTES,
    BARRIERS = JOB_AT + 2 * 64,
    /* Barriers; those of a ring one for each stage. */
    KEY_FULL = BARRIERS,
    VALUE_FULL = KEY_FULL + 8,
    KEYS_EMPTY = VALUE_FULL + 8,
    JOB_FULL = KEYS_EMPTY + 8,
    JOB_EMPTY = JOB_FULL + 16,
    QUERY_FULL = JOB_EMPTY + 16,
    QUERY_EMPTY = QUERY_FULL + 16,
    OUT_FULL = QUERY_EMPTY + 16,
    OUT_EMPTY = OUT_FULL + 16,
    SHARE_FULL = OUT_EMPTY + 16,
    SHARE_EMPTY = SHARE_FULL + 16,
    MEMORY = SHARE_EMPTY + 16,
    DS_READY = 1, /* hardware barrier */
};
static_assert(MEMORY <= 227 * 1024, "shared memory");
static_assert(ROWS == 64 || (HEAD + VALUE == 128 && !SOFT_CAP), "registers");

/* ---- What there is to do ------------------------------------------------------------------------------ */

/* A tile of keys; what each role needs of it. */
struct job {
    int there;              /* 0: there are no more */
    int entry, head;        /* of the batch axis; KV head */
    int first_key, start;   /* its first key in the sequence, and in the tensor */
    int count, keys;        /* keys of the tile that are written; of the sequence */
    int query, known;       /* the sequence's first row in the tensor, its rows */
    int first_tile, tiles;  /* of queries */
    int low, high;          /* key - row of what is visible */
    int all_begin, all_end; /* rows that see all keys of the tile */
    int slot;               /* where sums of the sequence begin */
};
static_assert(sizeof(job) <= 64, "its place");

/*
 * The nth tile of queries of a job: the last first, so that under a causal mask tiles of keys that start together
 * use the same one at a time. It stays in L2, and each waits for its turn but once.
 */
DEVICE int tile_at(const job *x, int n) {
    return x->first_tile + x->tiles - 1 - n;
}

DEVICE int offset_of(i64 offset) {
    const i64 most = 1 << 30;
    return (int)(offset < -most ? -most : offset > most ? most : offset);
}

/* By all lanes of a warp, one of which writes. False if the number is of no tile. */
DEVICE bool find_job(const ejki_cuda_vjp_problem &v, int index, job *to) {
    const ejki_cuda_problem &p = v.forward;
    tile_place at;
    if (!place_of_block(p, index, v.key_tiles, false, KEYS, 1, p.key_sums, p.keys, &at))
        return false;
    const sequence &s = at.s;
    /* The tokens of no sequence are the tail of the tensor. */
    const bool unowned = LAYOUT == EJKI_CUDA_TOKENS && s.number == p.batch;
    const int start = unowned ? (int)sum_before(p, p.key_sums, p.batch, p.keys) : s.key;
    const int count = unowned ? p.keys - start : LAYOUT == EJKI_CUDA_PADDED ? p.keys : s.keys;
    int begin = 0, all_end = 0, all_begin = 0, end = 0;
    job x;
    x.entry = (int)s.entry;
    x.head = at.head;
    x.first_key = at.own * KEYS;
    x.start = start + x.first_key;
    x.count = count - x.first_key;
    x.keys = s.keys;
    x.query = s.query;
    x.known = s.known;
    x.low = offset_of(s.first);
    x.high = offset_of(s.last);
    if (x.first_key < s.keys && s.first <= s.last) {
        visible_queries(s, x.first_key, &begin, &all_end);
        visible_queries(s, lesser(x.first_key + KEYS, s.keys) - 1, &all_begin, &end);
        if (all_end == s.known) all_end = 1 << 30; /* rows beyond weigh nothing */
        if (x.first_key + KEYS > s.keys) all_end = 0;
    }
    x.first_tile = begin / ROWS;
    x.tiles = begin < end ? cdiv(end, ROWS) - x.first_tile : 0;
    x.all_begin = all_begin;
    x.all_end = all_end;
    x.slot =
        LAYOUT == EJKI_CUDA_TOKENS ? tiles_before(p, s.number, ROWS, p.query_sums, p.queries) : 0;
    x.tiles = larger(0, lesser(x.tiles, v.slots - x.slot - x.first_tile));
    if (threadIdx.x % 32 == 0) *to = x;
    return true;
}

/* A ring of two jobs, filled by warp 0. */
struct jobs {
    u32 base;
    u8 *memory;
    pipeline_state<2> at;

    /* By all lanes of a warp: a job, good until it is done with. */
    DEVICE_MEMBER const job *next() {
        mbarrier_wait(base + JOB_FULL + 8 * at.stage, at.parity);
        return (const job *)(memory + JOB_AT + 64 * at.stage);
    }
    DEVICE_MEMBER void done() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(base + JOB_EMPTY + 8 * at.stage);
        at.next();
    }
};

/* ---- Rows in memory ----------------------------------------------------------------------------------- */

/* Transposes 4 x 4 pairs of columns between the lanes of a quad: each gets its 8 columns in one piece. */
DEVICE void turn_quad(u32 (&x)[4]) {
    const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
    u32 a = high ? x[0] : x[2], b = high ? x[1] : x[3];
    a = __shfl_xor_sync(~0u, a, 2);
    b = __shfl_xor_sync(~0u, b, 2);
    if (high)
        x[0] = a, x[1] = b;
    else
        x[2] = a, x[3] = b;
    a = odd ? x[0] : x[1];
    b = odd ? x[2] : x[3];
    a = __shfl_xor_sync(~0u, a, 1);
    b = __shfl_xor_sync(~0u, b, 1);
    if (odd)
        x[0] = a, x[2] = b;
    else
        x[1] = a, x[3] = b;
}

/* Where rows go. */
struct target {
    element *data; /* of row 0 */
    i64 stride;
    int rows;   /* those that are there */
    bool whole; /* pieces lie at multiples of 16 bytes */
};

DEVICE target target_of(const ejki_cuda_bthd &t, i64 entry, int token, int head, int rows) {
    target x;
    x.data = (element *)t.data + entry * t.stride_b + token * t.stride_t + head * t.stride_h;
    x.stride = t.stride_t;
    x.rows = rows;
    x.whole = (((u64)t.data >> 1 | t.stride_b | t.stride_t | t.stride_h) & 7) == 0;
    return x;
}

DEVICE void write_piece(const target &to, int row, int column, int dim, const u32 (&x)[4]) {
    if (row >= to.rows || column >= dim) return;
    element *at = to.data + row * to.stride + column;
    if (to.whole && column + 8 <= dim) {
        *(uint4 *)at = make_uint4(x[0], x[1], x[2], x[3]);
        return;
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
        if (column + n < dim) at[n] = (element)(x[n / 2] >> (n % 2 * 16));
}

/* Writes 64 rows of a warpgroup's sums, columns from `first` on. True if one of them is NaN. */
template <int columns>
DEVICE bool write_sums(const target &to, int first, int dim, const float (&sums)[columns / 2],
                       float factor) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
    bool nan = false;
#pragma unroll
    for (int n = 0; n < columns / 32; n++) {
        u32 low[4], high[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *x = sums + (n * 4 + k) * 4;
            const bool odd = !(x[0] * 0 == 0 && x[1] * 0 == 0),
                       odd_2 = !(x[2] * 0 == 0 && x[3] * 0 == 0);
            if (first + n * 32 + k * 8 < dim)
                nan = nan || (odd && row < to.rows) || (odd_2 && row + 8 < to.rows);
            low[k] = pack(x[0] * factor, x[1] * factor);
            high[k] = pack(x[2] * factor, x[3] * factor);
        }
        turn_quad(low);
        turn_quad(high);
        write_piece(to, row, first + n * 32 + lane * 8, dim, low);
        write_piece(to, row + 8, first + n * 32 + lane * 8, dim, high);
    }
    return nan;
}

#endif
