/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of decode.cu: a warp's blocks of 16 keys, through a ring of its own in shared memory, from unit to unit without
 * a pause. A block is fetched once its pages are known, which are asked for earlier; by the warp itself or, with APART,
 * by another that does nothing else, with two mbarriers for each stage. Stages are those of few_rows.cuh.
 */
#ifndef EJKI_PAGED_CUDA_DECODE_RING_CUH
#define EJKI_PAGED_CUDA_DECODE_RING_CUH

#include "operations/attention/cuda/common/few_rows.cuh"
#include "operations/paged/cuda/codes.cuh"
#include "operations/paged/cuda/few.cuh"
#if APART
#include "kernels/cuda/hopper.cuh"
/* Registers of a thread where there are two CTAs on an SM. */
enum { FETCHER_REGS = 88, OTHER_REGS = 168 };
#endif

/* Of those that multiply; those that fetch have the numbers of theirs. */
DEVICE int own_warp() {
    return threadIdx.x / 32 % WARPS;
}

/* ---- Into the ring ---------------------------------------------------------------------------------- */

/* A warp's next block to fetch. Where a block is of one page, lanes have those of its next 32 blocks, which go on from
 * a unit to the next of the same rows. */
struct fetcher {
    unit_cursor unit;
    u64 policy;          /* of copies */
    int key, turn;       /* the block's first; blocks since pages were asked for */
    paged_size entry;    /* of the page of the lane's key, or of its block */
    int page;            /* of the lane's block, if it has all of its rows in the cache; -1 */
    const u8 *keys, *values; /* where rows are copied whole: the lane's first piece of the head in page 0 */
    const float *scales;     /* with those of rows: of the lane's row of the head in page 0 */
    paged_size scale_page;
};

DEVICE void ask_for_pages(const paged_problem &p, fetcher &f) {
    const int lane = threadIdx.x % 32, key = f.key + (WHOLE ? lane * KEYS * WARPS : lane % KEYS);
    f.entry = f.unit.left > 0 && key < f.unit.q.end ? entry_of(p, f.unit.q.pages, key) : -1;
    f.turn = 0;
}

/* Whether pages have blocks whole, of 32 at once, when their numbers are there. */
DEVICE void know_pages(const paged_problem &p, fetcher &f, bool aligned) {
    const int key = f.key + threadIdx.x % 32 * KEYS * WARPS, last = (int)((u32)key % page_rows(p)) + KEYS - 1;
    f.page = aligned && f.entry < 1ll << 31 && is_in_cache(p, f.entry, last) ? (int)f.entry : -1;
}

/* What a lane copies of rows that lie one after the other begins here. */
template <int dim> DEVICE const u8 *place_of_lane(const paged_cache &c, int head) {
    enum { SIZE = CODE ? 1 : 2, PIECE = 16 / SIZE, PIECES = dim / PIECE };
    const int key = threadIdx.x % 32 / PIECES, piece = threadIdx.x % PIECES;
    return (const u8 *)c.data + (head * c.head + key * c.token + piece * PIECE) * SIZE;
}
DEVICE void know_head(const paged_problem &p, fetcher &f) {
    f.keys = place_of_lane<HEAD_DIM>(p.key, f.unit.head);
    f.values = place_of_lane<VALUE_DIM>(p.value, f.unit.head);
    if (SCALED != 2) return;
    const paged_cache &own = threadIdx.x % 32 < KEYS ? p.key : p.value;
    f.scales = own.scale + threadIdx.x % KEYS * own.scale_token + f.unit.head * own.scale_head;
    f.scale_page = own.scale_page;
}

/* Goes on to the unit's next block of this warp or, if it has none, to one of a later unit. */
DEVICE void find_block(const paged_problem &p, fetcher &f) {
    const paged_size n = f.unit.q.s.n;
    const int expected = f.key += KEYS * WARPS, head = f.unit.head;
    while (f.unit.left > 0 && f.key >= f.unit.last) {
        next_unit<ROWS>(p, f.unit);
        f.key = f.unit.first + KEYS * own_warp();
    }
    if (f.unit.head != head) know_head(p, f);
    if (!WHOLE || ++f.turn == 32 || f.key != expected || f.unit.q.s.n != n) ask_for_pages(p, f);
}

#if CODE
enum {
    RING_KEY_BYTES = KEYS * coded_pitch(HEAD_DIM),
    RING_BYTES = RING_KEY_BYTES + KEYS * coded_pitch(VALUE_DIM),
};
#else
enum { RING_KEY_BYTES = KEY_BYTES, RING_BYTES = STAGE_BYTES };
#endif
/* Scales of rows lie behind: of the keys, of the values. */
enum { RING_STAGE_BYTES = RING_BYTES + (SCALED == 2 ? 2 * KEYS * 4 : 0) };

DEVICE bool is_aligned(const paged_cache &c) {
    enum { SIZE = CODE ? 1 : 2, PIECE = 16 / SIZE };
    return (((u64)c.data / SIZE | c.page | c.token | c.head) & (PIECE - 1)) == 0 && (u64)c.data % SIZE == 0;
}

/* Rows of a block; `page` and `row` are those of the lane's key, page -1 of one that is not to be read. */
template <int dim, class place>
DEVICE void fetch_rows(const paged_cache &c, bool aligned, int head, paged_size page, int row, place where) {
    enum { SIZE = CODE ? 1 : 2, PIECE = 16 / SIZE, PIECES = dim / PIECE };
    const u8 *data = (const u8 *)c.data + head * c.head * SIZE;
    const i64 own = page < 0 ? NO_PLACE : page * c.page + row * c.token;
#pragma unroll(WHOLE ? 1 : KEYS * PIECES / 32)
    for (int n = 0; n < KEYS * PIECES / 32; n++) {
        const int index = n * 32 + threadIdx.x % 32, key = index / PIECES, piece = index % PIECES;
        const i64 at = __shfl_sync(~0u, own, key);
        const bool there = at != NO_PLACE;
        const u8 *from = data + (there ? (at + piece * PIECE) * SIZE : 0);
        if (aligned)
            copy_piece(where(key, piece), from, there);
        else if (CODE)
            copy_codes(where(key, piece), from, there);
        else
            copy_elements<dim>(where(key, piece), (const u16 *)from, piece * 8, there);
    }
}

/*
 * The same of rows that all are there and lie one after the other: a warp has few instructions under way, so that what
 * a copy costs besides itself is what bandwidth it reaches.
 */
template <int dim, class place>
DEVICE void fetch_whole_rows(const paged_cache &c, const u8 *from, u64 policy, place where) {
    enum { SIZE = CODE ? 1 : 2, PIECE = 16 / SIZE, PIECES = dim / PIECE, TOGETHER = PIECES < 32 ? 32 / PIECES : 1 };
    const int key = threadIdx.x % 32 / PIECES, piece = threadIdx.x % PIECES;
    const i64 step = TOGETHER * c.token * SIZE;
    const u32 to = where(key, piece);
#pragma unroll
    for (int n = 0; n < KEYS; n += TOGETHER, from += step)
        copy_whole_piece_once(CODE ? (to ^ turn_of(n) << 4) + n * coded_pitch(dim) : where(n + key, piece), from,
                              policy);
}

/* Whether it can be used: a warp then copies whole rows at a time. */
constexpr __host__ __device__ bool has_whole_rows(int dim) {
    return WHOLE && 32 % (dim * (CODE ? 1 : 2) / 16) == 0;
}

/* Scales of a block's rows, from row `first` of a page on: half of the lanes have those of the keys, half those of the
 * values. */
DEVICE void fetch_scales(const paged_problem &p, const fetcher &f, paged_size page, int first, bool there, u32 to) {
    const bool is_key = threadIdx.x % 32 < KEYS;
    const float *from = f.scales + (there ? page * f.scale_page : 0);
    if (there && PAGE_ROWS != KEYS) from += first * (is_key ? p.key.scale_token : p.value.scale_token);
    copy_float(to + threadIdx.x % 32 * 4, from, there);
}

#if CODE
DEVICE u32 ring_key(u32 stage, int key, int piece) {
    return coded_piece(stage, coded_pitch(HEAD_DIM), key, piece);
}
DEVICE u32 ring_value(u32 stage, int key, int piece) {
    return coded_piece(stage + RING_KEY_BYTES, coded_pitch(VALUE_DIM), key, piece);
}
#else
DEVICE u32 ring_key(u32 stage, int key, int piece) {
    return key_piece(stage, key, piece);
}
DEVICE u32 ring_value(u32 stage, int key, int piece) {
    return value_piece(stage, key, piece);
}
#endif

/* Fetches the block into a stage, and finds the next. */
DEVICE void fetch_block(const paged_problem &p, fetcher &f, u32 stage, bool aligned) {
    enum { SIZE = CODE ? 1 : 2, HAS_WHOLE = has_whole_rows(HEAD_DIM) && has_whole_rows(VALUE_DIM) };
    const auto key_at = [&](int key, int piece) { return ring_key(stage, key, piece); };
    const auto value_at = [&](int key, int piece) { return ring_value(stage, key, piece); };
    if (f.unit.left > 0) {
        const int lane = threadIdx.x % 32, head = f.unit.head;
        const int first = WHOLE ? (int)((u32)f.key % page_rows(p)) : 0; /* row of the page */
        if (HAS_WHOLE && f.turn == 0) know_pages(p, f, aligned);
        const int whole = HAS_WHOLE ? __shfl_sync(~0u, f.page, f.turn) : -1;
        if (whole >= 0 && f.key >= f.unit.q.low && f.key + KEYS <= f.unit.last) {
            const paged_size page = (u32)whole;
            const paged_size key = page * p.key.page + first * p.key.token;
            const paged_size value = page * p.value.page + first * p.value.token;
            fetch_whole_rows<HEAD_DIM>(p.key, f.keys + key * SIZE, f.policy, key_at);
            fetch_whole_rows<VALUE_DIM>(p.value, f.values + value * SIZE, f.policy, value_at);
            if (SCALED == 2) fetch_scales(p, f, page, first, true, stage + RING_BYTES);
        } else {
            const int key = f.key + lane % KEYS, row = WHOLE ? first + lane % KEYS : (int)((u32)key % page_rows(p));
            paged_size page = WHOLE ? __shfl_sync(~0u, f.entry, f.turn) : f.entry;
            if (key < f.unit.q.low || key >= f.unit.last || !is_in_cache(p, page, row)) page = -1;
            fetch_rows<HEAD_DIM>(p.key, aligned, head, page, row, key_at);
            fetch_rows<VALUE_DIM>(p.value, aligned, head, page, row, value_at);
            if (SCALED == 2) fetch_scales(p, f, page, row - lane % KEYS, page >= 0, stage + RING_BYTES);
        }
        find_block(p, f);
    }
    cp_async_commit();
}

/* Finds the warp's first block. */
DEVICE void begin_fetching(const paged_problem &p, const unit_cursor &c, fetcher &f) {
    f.unit = c;
    f.policy = once_policy();
    f.key = c.first + KEYS * own_warp() - KEYS * WARPS;
    f.turn = 31; /* asks */
    know_head(p, f);
    find_block(p, f);
}

/* ---- From stage to stage ------------------------------------------------------------------------------ */

#if APART
/* A warp's stages, the next of them, and of each two mbarriers: it has come, it is free again. */
struct ring_cursor {
    u32 stages, barriers;
    pipeline_state<STAGES> next;
};
DEVICE ring_cursor first_stage(u32 stages, u32 barriers) {
    return {stages, barriers + own_warp() * STAGES * 16, {0, 0}};
}
DEVICE u32 stage_of(const ring_cursor &r) {
    return r.stages + r.next.stage * RING_STAGE_BYTES;
}
DEVICE u32 barrier_of(const ring_cursor &r) {
    return r.barriers + r.next.stage * 16;
}
DEVICE void next_stage(ring_cursor &r) {
    r.next.next();
}

DEVICE void wait_for_stage(const ring_cursor &r) {
    mbarrier_wait(barrier_of(r), r.next.parity);
}
/* It has been read. */
DEVICE void leave_stage(const paged_problem &, fetcher &, const ring_cursor &r, bool) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier_of(r) + 8);
}

/* All blocks of the warp's share. */
DEVICE void fetch_blocks(const paged_problem &p, fetcher &f, ring_cursor r, bool aligned) {
#pragma unroll 1
    for (; f.unit.left > 0; next_stage(r)) {
        mbarrier_wait(barrier_of(r) + 8, r.next.parity ^ 1);
        fetch_block(p, f, stage_of(r), aligned);
        if (!aligned) cp_async_wait<0>();
        if (aligned)
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier_of(r)) : "memory");
        else
            mbarrier_arrive(barrier_of(r));
    }
}
#else
struct ring_cursor {
    u32 stages, next;
};
DEVICE ring_cursor first_stage(u32 stages, u32) {
    return {stages, stages};
}
DEVICE u32 stage_of(const ring_cursor &r) {
    return r.next;
}
DEVICE void next_stage(ring_cursor &r) {
    r.next = r.next == r.stages + (STAGES - 1) * RING_STAGE_BYTES ? r.stages : r.next + RING_STAGE_BYTES;
}

DEVICE void wait_for_stage(const ring_cursor &) {
    cp_async_wait<STAGES - 1>();
    __syncwarp();
}
/* It has been read: another block takes its place. */
DEVICE void leave_stage(const paged_problem &p, fetcher &f, const ring_cursor &r, bool aligned) {
    __syncwarp();
    fetch_block(p, f, stage_of(r), aligned);
}

/* As many blocks as there are stages. */
DEVICE void fetch_blocks(const paged_problem &p, fetcher &f, ring_cursor r, bool aligned) {
#pragma unroll 1
    for (int n = 0; n < STAGES; n++, next_stage(r)) fetch_block(p, f, stage_of(r), aligned);
}
#endif

/* ---- Out of it -------------------------------------------------------------------------------------- */

/* Where the lane's first eight codes of keys and of values are in a stage. */
struct lane_places {
    u32 key, value;
};
DEVICE lane_places lane_places_of() {
    lane_places at = {0, 0};
#if CODE
    const int group = threadIdx.x % 32 / 4, own = threadIdx.x % 4;
    at.key = ring_key(0, key_row(0), own / 2) + own % 2 * 8;
    at.value = ring_value(0, value_row(0), group / 2) + group % 2 * 8;
    asm volatile("" : "+r"(at.key), "+r"(at.value)); /* not to be made anew for each block */
#endif
    return at;
}

#if CODE
/* Pieces of keys, and codes of values. */
struct block_of_keys {
    pieces x;
    uint2 value[4][VALUE_STEPS];
};

/* Keys, and values, of a stage; `seen` as look_for_nonfinite() has it. Stages begin at multiples of 128 bytes, so that
 * pieces turn by bits of the address. */
DEVICE void take_stage_keys(block_of_keys &b, lane_places at, u32 stage, u32 &seen) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int c = 0; c < HEAD_STEPS; c++)
            b.x.key[n][c] = elements_of(load_codes(
                ((stage + at.key) ^ c % 4 << 5) + n * 8 * coded_pitch(HEAD_DIM) + c / 4 * 128, seen));
}
DEVICE void take_stage_values(block_of_keys &b, lane_places at, u32 stage, u32 &seen) {
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int h = 0; h < VALUE_STEPS; h++)
            b.value[n][h] = load_codes(((stage + at.value) ^ (h % 2 << 6 | turn_of(n % 2) << 4)) +
                                           (n % 2 + n / 2 * 8) * coded_pitch(VALUE_DIM) + h / 2 * 128,
                                       seen);
}
DEVICE void add_stage_values(const float (&z)[2][4], const block_of_keys &b, row_sums &out) {
    add_turned_values(z, out, [&](int h, int n, u32(&left)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const uint2 low = b.value[i][h], high = b.value[i + 1][h];
            const u32 both = __byte_perm(n < 2 ? low.x : low.y, n < 2 ? high.x : high.y, n % 2 ? 0x7362 : 0x5140);
            left[i] = pair_of_codes(both, 0), left[i + 1] = pair_of_codes(both, 1);
        }
    });
}
#else
struct block_of_keys {
    pieces x;
};
DEVICE void take_stage_keys(block_of_keys &b, lane_places, u32 stage, u32 &) {
    take_keys(b.x, stage);
}
DEVICE void take_stage_values(block_of_keys &b, lane_places, u32 stage, u32 &) {
    take_values(b.x, stage);
}
DEVICE void add_stage_values(const float (&z)[2][4], const block_of_keys &b, row_sums &out) {
    add_values(z, b.x, out);
}
#endif

/* What scores, or weights, of the lane's keys are multiplied by: `which` 0 of the keys, 1 of the values. */
DEVICE void take_scales(float (&scale)[4], u32 stage, int which) {
    const u32 at = stage + RING_BYTES + which * KEYS * 4 + threadIdx.x % 4 * 8;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(scale[0]), "=f"(scale[1]) : "r"(at) : "memory");
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(scale[2]), "=f"(scale[3]) : "r"(at + 32) : "memory");
}

#endif
