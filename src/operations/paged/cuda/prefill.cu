/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences of more than PAGED_FEW pairs of a row and a head over pages, by mma.sync from sm_80 up. A CTA has a tile of
 * ROWS pairs of a KV head, a warp 16 * ROW_TILES of them; keys come in blocks of KEYS through a ring of STAGES, row by
 * row from where the table says. Constants as in decode.cu, and ROW_TILES, KEYS, STAGES, WARPS.
 */
#include "kernels/cuda/mma.cuh"
#include "operations/paged/cuda/careful.cuh"
#include "operations/paged/cuda/rows.cuh"

enum {
    ROWS = 16 * ROW_TILES * WARPS,
    COLUMNS = KEYS / 8,              /* eights of keys */
    WIDTH = 2 * sixteens(VALUE_DIM), /* eights of the output */
    QUERY_BYTES = ROWS * pitch_of(HEAD_DIM) * 2,
    KEY_BYTES = KEYS * pitch_of(HEAD_DIM) * 2,
    STAGE_BYTES = KEY_BYTES + KEYS * pitch_of(VALUE_DIM) * 2,
};

struct tile {
    paged_sequence s;
    page_list pages;
    int head, first, pairs, begin, end; /* of the keys; the first pair; pairs of the sequence; keys that a row sees */
    int all_begin, all_end;             /* keys that all rows see */
};

/* Where the rows of a block's keys begin, in elements, or NO_PLACE. */
struct block_rows {
    i64 key[KEYS], value[KEYS];
};

/* ---- Tiles ---------------------------------------------------------------------------------------------- */

/* Tiles of a sequence have numbers from begin * group / ROWS + n on. */
DEVICE bool find_tile(const paged_problem &p, paged_size number, tile *t) {
    __shared__ int found;
    if (threadIdx.x == 0) found = -1;
    __syncthreads();
    const int count = (int)paged_count(&p);
#pragma unroll 1
    for (int n = threadIdx.x; n < count; n += THREADS) {
        const paged_sequence s = paged_sequence_of(&p, n);
        const paged_size first = s.begin * p.group / ROWS + n, pairs = s.rows * p.group;
        if (pairs > PAGED_FEW && number >= first && (number - first) * ROWS < pairs) found = n;
    }
    __syncthreads();
    if (found < 0) return false;
    t->s = paged_sequence_of(&p, found);
    t->pages = pages_of(p, found);
    t->first = (int)(number - (t->s.begin * p.group / ROWS + found)) * ROWS;
    t->pairs = (int)(t->s.rows * p.group);
    const paged_size first = t->first / p.group, last = (lesser(t->first + ROWS, t->pairs) - 1) / p.group;
    t->begin = narrowed(paged_low(&p, &t->s, first));
    t->end = lesser(narrowed(paged_high(&p, &t->s, last)), lesser(narrowed(t->s.keys), room_of(p, t->pages)));
    t->all_begin = narrowed(paged_low(&p, &t->s, last));
    t->all_end = lesser(narrowed(paged_high(&p, &t->s, first)), t->end);
    return true;
}

DEVICE paged_size pair_at(const paged_problem &p, const paged_rows &rows, const tile &t, int pair) {
    return paged_row_at(&p, &rows, t.s.begin + pair / (int)p.group,
                        t.head * (int)p.group + pair % (int)p.group);
}

/* Queries to shared memory; 0 in place of rows that are not there. */
DEVICE void keep_queries(const paged_problem &p, const tile &t, u32 to) {
    enum { PIECES = 2 * sixteens(HEAD_DIM) };
    const u64 places = (u64)p.query.data >> 1 | p.query.token | p.query.head | (p.batch_rows > 0 ? p.query.batch : 0);
    const bool aligned = (places & 7) == 0 && ((u64)p.query.data & 1) == 0;
#pragma unroll 1
    for (int index = threadIdx.x; index < ROWS * PIECES; index += THREADS) {
        const int row = index / PIECES, piece = index % PIECES, pair = t.first + row;
        const bool there = pair < t.pairs && piece * 8 < HEAD_DIM;
        const paged_size at = pair_at(p, p.query, t, there ? pair : t.first) + (there ? piece * 8 : 0);
        const u16 *from = (const u16 *)p.query.data + at;
        if (aligned)
            copy_piece(piece_at<HEAD_DIM>(to, row, piece), from, there);
        else
            copy_elements<HEAD_DIM>(piece_at<HEAD_DIM>(to, row, piece), from, piece * 8, there);
    }
}

/* ---- Keys ----------------------------------------------------------------------------------------------- */

/* The page entry of a thread's key of the block from j0 on: asked for early, looked at by find_rows. */
DEVICE paged_size ask_for_page(const paged_problem &p, const tile &t, int j0) {
    const int key = j0 + threadIdx.x;
    return threadIdx.x < KEYS && key >= t.begin && key < t.end ? entry_of(p, t.pages, key) : -1;
}

DEVICE void find_rows(const paged_problem &p, const tile &t, int j0, paged_size page, block_rows &rows) {
    if (threadIdx.x >= KEYS) return;
    const int row = (int)((u32)(j0 + threadIdx.x) % (u32)p.page);
    const bool there = is_in_cache(p, page, row);
    rows.key[threadIdx.x] = there ? page * p.key.page + row * p.key.token + t.head * p.key.head : NO_PLACE;
    rows.value[threadIdx.x] = there ? page * p.value.page + row * p.value.token + t.head * p.value.head : NO_PLACE;
}

DEVICE bool is_aligned(const paged_cache &c) {
    return (((u64)c.data >> 1 | c.page | c.token | c.head) & 7) == 0 && ((u64)c.data & 1) == 0;
}

/* Rows of a block into a tile; 0 in place of those that are not to be read. */
template <int dim>
DEVICE void copy_rows(u32 to, const paged_cache &c, const i64 *rows, bool aligned) {
    enum { PIECES = 2 * sixteens(dim), ALL = KEYS * PIECES };
#pragma unroll 4
    for (int n = 0; n < cdiv(ALL, THREADS); n++) {
        const int index = n * THREADS + threadIdx.x, row = index / PIECES, piece = index % PIECES;
        if (ALL % THREADS != 0 && index >= ALL) break;
        const bool there = rows[row] != NO_PLACE && piece * 8 < dim;
        const u16 *from = (const u16 *)c.data + (there ? rows[row] + piece * 8 : 0);
        if (aligned)
            copy_piece(piece_at<dim>(to, row, piece), from, there);
        else
            copy_elements<dim>(piece_at<dim>(to, row, piece), from, piece * 8, there);
    }
}

/* ---- A block of keys ------------------------------------------------------------------------------------ */

/* A lane has two rows of each of the warp's tiles. Maxima are of scores as they are multiplied with the unit. */
struct lane_rows {
    float max[ROW_TILES][2], sum[ROW_TILES][2];
    int low[ROW_TILES][2], high[ROW_TILES][2];
};

/* Scores of what is visible, but for the folded scale; -inf of all else. */
DEVICE void mask_scores(const paged_problem &p, const tile &t, const lane_rows &rows, int own, int j0, bool edge,
                        float (&z)[ROW_TILES][COLUMNS][4]) {
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int pair = lesser(own + i * 16 + half * 8 + threadIdx.x % 32 / 4, t.pairs - 1);
            const int r = pair / (int)p.group, h = t.head * (int)p.group + pair % (int)p.group;
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                for (int k = 2 * half; k < 2 * half + 2; k++) {
                    const int j = j0 + n * 8 + threadIdx.x % 4 * 2 + k % 2;
                    const bool hidden = edge && (j < rows.low[i][half] || j >= rows.high[i][half]);
                    if (!FOLDED && !hidden) z[i][n][k] = score_of(p, t.s, r, h, j, z[i][n][k]);
                    if (hidden) z[i][n][k] = NEG_INF;
                }
        }
}

/* Online softmax: scores become weights, sums are rescaled to the new maximum. */
DEVICE void online_softmax(float &max, float &sum, int half, float unit, float (&z)[COLUMNS][4],
                           float (&out)[WIDTH][4]) {
    float top = max;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) top = fmaxf(top, fmaxf(z[n][2 * half], z[n][2 * half + 1]));
    top = larger_of_lanes(top, 4);
    const float base = top == NEG_INF ? 0 : top * unit;
    const float scale = power_of_2(fmaf(max, unit, -base));
    sum *= scale;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int k = 2 * half; k < 2 * half + 2; k++) {
            z[n][k] = power_of_2(fmaf(z[n][k], unit, -base));
            sum += z[n][k];
        }
    max = top;
    if (__any_sync(~0u, scale != 1))
#pragma unroll
        for (int n = 0; n < WIDTH; n++) out[n][2 * half] *= scale, out[n][2 * half + 1] *= scale;
}

DEVICE void multiply(u32 query, u32 key, int own, float (&z)[ROW_TILES][COLUMNS][4]) {
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++) clear(z[i]);
#pragma unroll
    for (int k = 0; k < sixteens(HEAD_DIM); k++) {
        u32 left[ROW_TILES][4];
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++) load_left<HEAD_DIM>(left[i], query, own + 16 * i, k);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) {
            u32 right[4];
            load_right<HEAD_DIM>(right, key, n * 8, k);
#pragma unroll
            for (int i = 0; i < ROW_TILES; i++) {
                mma(z[i][n], left[i], right[0], right[1]);
                mma(z[i][n + 1], left[i], right[2], right[3]);
            }
        }
    }
}

DEVICE void add_values(u32 value, const float (&z)[ROW_TILES][COLUMNS][4], float (&out)[ROW_TILES][WIDTH][4]) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        u32 left[ROW_TILES][4];
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++) pack_left(left[i], z[i][2 * k], z[i][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < WIDTH; n += 2) {
            u32 right[4];
            load_right_trans<VALUE_DIM>(right, value, k * 16, n / 2);
#pragma unroll
            for (int i = 0; i < ROW_TILES; i++) {
                mma(out[i][n], left[i], right[0], right[1]);
                mma(out[i][n + 1], left[i], right[2], right[3]);
            }
        }
    }
}

/* ---- Results -------------------------------------------------------------------------------------------- */

/* Rows of the warp; false if one has what is not a finite number. */
DEVICE bool write_rows(const paged_problem &p, const tile &t, int own, float unit, bool is_bad,
                       const lane_rows &rows, const float (&out)[ROW_TILES][WIDTH][4]) {
    bool good = true;
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int pair = t.first + own + i * 16 + half * 8 + threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
            const float sum = sum_of_lanes(rows.sum[i][half], 4), max = rows.max[i][half] * (unit * LOG_2);
            if (pair >= t.pairs) continue;
            const int h = t.head * (int)p.group + pair % (int)p.group;
            const float share = finish_row(p, t.s.begin + pair / (int)p.group, h, is_bad, is_bad ? NEG_INF : max,
                                           is_bad ? 0 : sum, lane == 0);
            const paged_size row = pair_at(p, p.out, t, pair);
            const bool pairs = p.out.dtype == ELEMENT && ((u64)((u16 *)p.out.data + row) & 3) == 0;
#pragma unroll
            for (int n = 0; n < WIDTH; n++) {
                const int d = n * 8 + lane * 2;
                const float x = share == 0 ? 0 : out[i][n][2 * half] * share;
                const float y = share == 0 ? 0 : out[i][n][2 * half + 1] * share;
                good = good && (is_bad || (fabsf(x) < INFINITY && fabsf(y) < INFINITY));
                if (d >= VALUE_DIM) continue;
                if (pairs) {
                    *(u32 *)((u16 *)p.out.data + row + d) = pack(x, y);
                } else {
                    put_out(p, row, d, x);
                    if (d + 1 < VALUE_DIM) put_out(p, row, d + 1, y);
                }
            }
        }
    return good;
}

DEVICE void attend_tile_carefully(const paged_problem &p, const tile &t) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int pair = t.first + threadIdx.x / 32; pair < lesser(t.first + ROWS, t.pairs); pair += WARPS) {
        const int r = pair / (int)p.group, h = t.head * (int)p.group + pair % (int)p.group;
        careful_row row;
        attend_carefully(p, t.s, t.pages, r, t.head, h, t.begin, t.end, row);
        const float factor = finish_row(p, t.s.begin + r, h, false, row.max, row.sum, lane == 0);
#pragma unroll 1
        for (int n = 0; n < VALUE_DIM / 32; n++)
            put_out(p, pair_at(p, p.out, t, pair), lane + 32 * n, factor == 0 ? 0 : row.out[n] * factor);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) prefill(const __grid_constant__ paged_arguments a) {
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ block_rows places[2];
#if OVERLAP
    launch_dependents();
#endif
    const paged_problem &p = a.p;
    tile t;
    const bool found = find_tile(p, a.tiles - 1 - blockIdx.x / p.kv_heads, &t);
#if OVERLAP
    wait_for_previous();
#endif
    if (!found || a.flags[p.sequences]) return;
    t.head = (int)(blockIdx.x % p.kv_heads);
    const bool is_bad = a.flags[t.s.n];
    if (is_bad) t.end = t.begin;
    const u32 query = shared_address(memory), ring = query + QUERY_BYTES;
    const int own = threadIdx.x / 32 * 16 * ROW_TILES;
    const bool aligned = is_aligned(p.key) && is_aligned(p.value);
    const int first = t.begin / KEYS * KEYS;
    keep_queries(p, t, query);

    lane_rows rows;
    float out[ROW_TILES][WIDTH][4];
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++) {
        clear(out[i]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = lesser(t.first + own + i * 16 + half * 8 + threadIdx.x % 32 / 4, t.pairs - 1) / (int)p.group;
            rows.max[i][half] = NEG_INF, rows.sum[i][half] = 0;
            rows.low[i][half] = narrowed(paged_low(&p, &t.s, r));
            rows.high[i][half] = lesser(narrowed(paged_high(&p, &t.s, r)), t.end);
        }
    }
    const float unit = FOLDED ? (float)p.scale * LOG2_E : LOG2_E;

    /* The block after the next is looked up while the next is fetched. */
    paged_size page = ask_for_page(p, t, first);
    int fetched = first, n = 0;
    const auto fetch = [&](int stage) {
        block_rows &now = places[stage % 2];
        find_rows(p, t, fetched, page, now);
        page = ask_for_page(p, t, fetched + KEYS);
        __syncthreads();
        if (fetched < t.end) {
            const u32 to = ring + (u32)stage % STAGES * STAGE_BYTES;
            copy_rows<HEAD_DIM>(to, p.key, now.key, aligned);
            copy_rows<VALUE_DIM>(to + KEY_BYTES, p.value, now.value, aligned);
        }
        fetched += KEYS;
        cp_async_commit();
    };
#pragma unroll 1
    for (; n < STAGES - 1; n++) fetch(n);
#pragma unroll 1
    for (int j0 = first; j0 < t.end; j0 += KEYS, n++) {
        cp_async_wait<STAGES - 2>();
        fetch(n); /* its barrier says that all have the block, and are done with the one before */
        const u32 key = ring + (u32)(n - STAGES + 1) % STAGES * STAGE_BYTES;
        const bool edge = j0 < t.all_begin || j0 + KEYS > t.all_end;
        float z[ROW_TILES][COLUMNS][4];
        multiply(query, key, own, z);
        if (edge || !FOLDED) mask_scores(p, t, rows, t.first + own, j0, edge, z);
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                online_softmax(rows.max[i][half], rows.sum[i][half], half, unit, z[i], out[i]);
        add_values(key + KEY_BYTES, z, out);
    }
    cp_async_wait<0>();
    const bool good = write_rows(p, t, own, unit, is_bad, rows, out);
    if (__syncthreads_or(!good)) attend_tile_carefully(p, t);
}
