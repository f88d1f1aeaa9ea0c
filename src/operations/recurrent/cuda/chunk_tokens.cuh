/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tokens of a chunk and the states around it say to each other where decays are those of key channels: all of
 * it is of a channel alone, so that a warp has 16 channels of all tokens. Pairs of tokens are those of two halves of
 * 64, 32, 16, 8, 4 and 2 rows: with decays from a row of the first half to its end, and from there to a row of the
 * second, they are products of rows with squares, in tf32. Decays are products of the decays of single gates. With `to`
 * and `from` the decays from the beginning of a half to a row and from behind a row to the end of its half,
 *
 *     dq_t = to_t sum_s f_ts (from k)_s    r_t = to_t sum_s n_ts (from k)_s
 *     dk_s = from_s sum_t f_ts (to q)_t - n_ts (to beta k)_t
 *
 * and q dq - beta k r of a row of a second half is what passes by the gates of that half up to the row, k dk of one of
 * a first half by those behind it. Nothing is subtracted. The state says to all rows what a first half would, and is
 * told by them what a second one would be. With BEFORE gates before a row end at that before it, and the bonus stands
 * for the decay between a row and itself.
 *
 * Rows of f and n lie [to][from], rounded to tf32 but for their diagonals. A lane has channels lane / 4 and 8 more, of
 * each tile of 8 rows two, as sums of products lie: x[2 * channel + row].
 *
 * Constants: KEY_SIZE, UPDATE, BEFORE.
 */
#ifndef EJKI_RECURRENT_CHUNK_TOKENS_CUH
#define EJKI_RECURRENT_CHUNK_TOKENS_CUH

#define ROW_PITCH (KEY_SIZE + 4)
#define OCTETS    (REC_CHUNK / 8) /* tiles of 8 rows */

struct tokens {
    float f[REC_CHUNK * PITCH], n[REC_CHUNK * PITCH];
    /* S d_out, S y, dS u and decays of single gates; then gradients of query, r, gradients of key and of gates. */
    float asked[REC_CHUNK * ROW_PITCH], seen[REC_CHUNK * ROW_PITCH];
    float told[REC_CHUNK * ROW_PITCH], gate[REC_CHUNK * ROW_PITCH];
    float whole[OCTETS * KEY_SIZE]; /* what passes by all gates of a tile */
    float beta[REC_CHUNK], k_factor[REC_CHUNK], q_factor[REC_CHUNK];
};

/* What a lane's numbers are of: its first channel, and its place in a row and in a tile. */
struct place_of_lane {
    int channel, at, row;
    bool is_odd, is_high; /* whether the two rows are behind in their four, and that in the tile */

    DEVICE_MEMBER place_of_lane(int first) {
        const int lane = threadIdx.x % 32;
        channel = first + lane / 4, row = lane % 4 * 2, at = row * ROW_PITCH + channel;
        is_odd = lane & 1, is_high = lane & 2;
    }
};

DEVICE void take(const float *rows, const place_of_lane &o, int tile, float (&x)[4]) {
    const float *at = rows + 8 * tile * ROW_PITCH + o.at;
    x[0] = at[0], x[1] = at[ROW_PITCH], x[2] = at[8], x[3] = at[ROW_PITCH + 8];
}
DEVICE void put(float *rows, const place_of_lane &o, int tile, const float (&x)[4]) {
    float *at = rows + 8 * tile * ROW_PITCH + o.at;
    at[0] = x[0], at[ROW_PITCH] = x[1], at[8] = x[2], at[ROW_PITCH + 8] = x[3];
}

/* Query, key and -beta key of a tile's rows, of which words have two rows each of the two channels. */
struct rows_of_tile {
    float q[4], k[4], b[4];

    DEVICE_MEMBER rows_of_tile(const tokens &s, const place_of_lane &o, int tile, const u32 (&query)[2],
                               const u32 (&key)[2]) {
        const int row = 8 * tile + o.row;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float2 own = widen_pair(query[c]), other = widen_pair(key[c]);
            q[2 * c] = own.x * s.q_factor[row], q[2 * c + 1] = own.y * s.q_factor[row + 1];
            k[2 * c] = other.x * s.k_factor[row], k[2 * c + 1] = other.y * s.k_factor[row + 1];
            b[2 * c] = -s.beta[row] * k[2 * c], b[2 * c + 1] = -s.beta[row + 1] * k[2 * c + 1];
        }
    }
};

/* Decays of a tile's rows: to and from halves of two, four and eight rows, and over all. */
struct decays_of_tile {
    float last[2]; /* of the second of the two rows */
    float to_two[4], from_two[4], to_four[4], from_four[4], to[4], from[4], all[2];

    DEVICE_MEMBER decays_of_tile(const tokens &s, const place_of_lane &o, int tile) {
        float d[4];
        take(s.gate, o, tile, d);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float first = d[2 * c], second = d[2 * c + 1], two = first * second;
            const float next = __shfl_xor_sync(~0u, two, 1), four = two * next;
            const float other = __shfl_xor_sync(~0u, four, 2);
            const float before_two = o.is_odd ? next : 1, behind_two = o.is_odd ? 1 : next;
            const float before = o.is_high ? other : 1, behind = o.is_high ? 1 : other;
            last[c] = second, all[c] = four * other;
            to_two[2 * c] = BEFORE ? 1 : first, to_two[2 * c + 1] = BEFORE ? first : two;
            from_two[2 * c] = second, from_two[2 * c + 1] = 1;
#pragma unroll
            for (int i = 2 * c; i < 2 * c + 2; i++) {
                to_four[i] = to_two[i] * before_two, from_four[i] = from_two[i] * behind_two;
                to[i] = to_four[i] * before, from[i] = from_four[i] * behind;
            }
        }
    }
};

/* A lane's numbers as a left operand: channels by rows of a tile. */
DEVICE tf32_left left_of_tile(const float (&x)[4]) {
    return left_of(make_float2(x[0], x[1]), make_float2(x[2], x[3]));
}
/* A block of f or n as a right operand, sums over rows that are read of, or that read. */
DEVICE tf32_right right_in(const float *square, int to, int from) {
    const float2 x = pair_in(square + 8 * to * PITCH + 8 * from);
    return {{{__float_as_uint(x.x), __float_as_uint(x.y)}}};
}
DEVICE tf32_right right_turned(const float *square, int to, int from) {
    const float2 x = pair_turned(square + 8 * to * PITCH + 8 * from);
    return {{{__float_as_uint(x.x), __float_as_uint(x.y)}}};
}

/* Gradients of a tile's rows but for decays inside of it: of the query, r, of the key. */
struct sums_of_tile {
    float dq[4], r[4], dk[4];
    float whole[2]; /* the lane's part of what passes by all gates of the tile */
    float all[2];   /* decays over the tile */
};

DEVICE float sum_of_products(const float (&x)[4], const float (&y)[4], int c) {
    return x[2 * c] * y[2 * c] + x[2 * c + 1] * y[2 * c + 1];
}

/* What states say and are told. In its place (to q), (-to beta k) and (from k) go to `asked`, `seen` and `told`. */
DEVICE void begin_tokens(tokens &s, const place_of_lane &o, u32 keys, u32 queries, sums_of_tile (&x)[OCTETS],
                        float (&all)[2]) {
    float run[2] = {0, 0};
    all[0] = all[1] = 1;
#pragma unroll
    for (int two = 0; two < OCTETS / 2; two++) {
        u32 query[4], key[4];
        load_right_trans<KEY_SIZE>(query, queries, 16 * two, o.channel / 16);
        load_right_trans<KEY_SIZE>(key, keys, 16 * two, o.channel / 16);
#pragma unroll
        for (int n = 2 * two; n < 2 * two + 2; n++) {
            const u32 own[] = {query[n % 2], query[2 + n % 2]}, other[] = {key[n % 2], key[2 + n % 2]};
            rows_of_tile rows(s, o, n, own, other);
            const decays_of_tile d(s, o, n);
            take(s.asked, o, n, x[n].dq);
            if (DELTA) take(s.seen, o, n, x[n].r);
            take(s.told, o, n, x[n].dk);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[n].dq[i] *= all[i / 2], x[n].r[i] = DELTA ? x[n].r[i] * all[i / 2] : 0;
                rows.q[i] *= d.to[i], rows.b[i] *= d.to[i], rows.k[i] *= d.from[i];
            }
            put(s.asked, o, n, rows.q);
            if (DELTA) put(s.seen, o, n, rows.b);
            put(s.told, o, n, rows.k);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                x[n].whole[c] = sum_of_products(rows.q, x[n].dq, c);
                if (DELTA) x[n].whole[c] += sum_of_products(rows.b, x[n].r, c);
                x[n].all[c] = d.all[c];
                all[c] *= d.all[c];
            }
        }
    }
    float behind[2] = {1, 1};
#pragma unroll
    for (int n = OCTETS - 1; n >= 0; n--)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float own = x[n].whole[c];
            x[n].whole[c] = run[c];
            run[c] += own;
            x[n].dk[2 * c] *= behind[c], x[n].dk[2 * c + 1] *= behind[c];
            behind[c] *= x[n].all[c];
        }
    run[0] = run[1] = 0;
#pragma unroll
    for (int n = 0; n < OCTETS; n++) {
        float k[4];
        take(s.told, o, n, k);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            x[n].whole[c] += run[c];
            run[c] += sum_of_products(k, x[n].dk, c);
        }
    }
}

/* Pairs of halves of `count` tiles, the first of which begins at tile `begin`. */
template <int count>
DEVICE void meet_halves(const tokens &s, const place_of_lane &o, int begin, sums_of_tile (&x)[OCTETS]) {
    const int middle = begin + count, last = count - 1;
    tf32_left left[2][count];
    float by[count][2], run[2] = {0, 0};
    /* Decays between the middle and a tile; of the first half. */
#pragma unroll
    for (int n = count - 1; n >= 0; n--) {
        float k[4];
        take(s.told, o, begin + n, k);
#pragma unroll
        for (int c = 0; c < 2; c++) by[n][c] = n == last ? 1 : by[lesser(n + 1, last)][c] * x[begin + n + 1].all[c];
#pragma unroll
        for (int i = 0; i < 4; i++) k[i] *= by[n][i / 2];
        left[0][n] = left_of_tile(k);
    }
    float asks[count][2], own_whole[count][2];
#pragma unroll
    for (int n = 0; n < count; n++) {
        float dq[4] = {0, 0, 0, 0}, r[4] = {0, 0, 0, 0}, q[4], b[4];
#pragma unroll
        for (int c = 0; c < 2; c++) asks[n][c] = n == 0 ? 1 : asks[larger(n - 1, 0)][c] * x[middle + n - 1].all[c];
#pragma unroll
        for (int m = 0; m < count; m++) {
            add_tf32(dq, left[0][m], right_in(s.f, middle + n, begin + m));
            if (DELTA) add_tf32(r, left[0][m], right_in(s.n, middle + n, begin + m));
        }
        take(s.asked, o, middle + n, q);
        if (DELTA) take(s.seen, o, middle + n, b);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            dq[i] *= asks[n][i / 2], r[i] *= asks[n][i / 2];
            x[middle + n].dq[i] += dq[i];
            if (DELTA) x[middle + n].r[i] += r[i];
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            own_whole[n][c] = sum_of_products(q, dq, c);
            if (DELTA) own_whole[n][c] += sum_of_products(b, r, c);
        }
    }
#pragma unroll
    for (int n = count - 1; n >= 0; n--)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            x[middle + n].whole[c] += run[c];
            run[c] += own_whole[n][c];
        }
#pragma unroll
    for (int n = 0; n < count; n++) {
        float q[4], b[4] = {0, 0, 0, 0};
        take(s.asked, o, middle + n, q);
        if (DELTA) take(s.seen, o, middle + n, b);
#pragma unroll
        for (int i = 0; i < 4; i++) q[i] *= asks[n][i / 2], b[i] *= asks[n][i / 2];
        left[0][n] = left_of_tile(q);
        if (DELTA) left[1][n] = left_of_tile(b);
    }
    run[0] = run[1] = 0;
#pragma unroll
    for (int n = 0; n < count; n++) {
        float dk[4] = {0, 0, 0, 0}, k[4];
#pragma unroll
        for (int m = 0; m < count; m++) {
            add_tf32(dk, left[0][m], right_turned(s.f, middle + m, begin + n));
            if (DELTA) add_tf32(dk, left[1][m], right_turned(s.n, middle + m, begin + n));
        }
        take(s.told, o, begin + n, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            dk[i] *= by[n][i / 2];
            x[begin + n].dk[i] += dk[i];
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            x[begin + n].whole[c] += run[c];
            run[c] += sum_of_products(k, dk, c);
        }
    }
}

/* Of halves of two or four rows inside of a tile: which rows are of a second half, and decays. */
DEVICE void meet_in_tile(const rows_of_tile &rows, bool is_second, const float (&to)[4], const float (&from)[4],
                         const tf32_right (&f)[2], const tf32_right (&n)[2], sums_of_tile &x, float (&asks)[4],
                         float (&tells)[4]) {
    float q[4], k[4], b[4], dq[4] = {0, 0, 0, 0}, r[4] = {0, 0, 0, 0}, dk[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[i] = is_second ? rows.q[i] * to[i] : 0, b[i] = is_second ? rows.b[i] * to[i] : 0;
        k[i] = is_second ? 0 : rows.k[i] * from[i];
    }
    const tf32_left keys = left_of_tile(k);
    add_tf32(dq, keys, f[0]);
    add_tf32(dk, left_of_tile(q), f[1]);
    if (DELTA) add_tf32(r, keys, n[0]);
    if (DELTA) add_tf32(dk, left_of_tile(b), n[1]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.dq[i] += is_second ? to[i] * dq[i] : 0;
        if (DELTA) x.r[i] += is_second ? to[i] * r[i] : 0;
        x.dk[i] += is_second ? 0 : from[i] * dk[i];
        asks[i] += q[i] * dq[i] + (DELTA ? b[i] * r[i] : 0);
        tells[i] += k[i] * dk[i];
    }
}

/* All inside of a tile, whose sums so far lie in `asked`, `seen` and `told`, where they go; gates go to `gate`. */
DEVICE void meet_tile(tokens &s, const place_of_lane &o, int tile, const rows_of_tile &rows, const float (&bonus)[2],
                      float (&d_bonus)[2]) {
    const decays_of_tile d(s, o, tile);
    const bool is_beside = o.is_high == ((threadIdx.x % 32 & 16) != 0); /* rows of a right operand are of one four */
    sums_of_tile x;
    float asks[4], tells[4], gate[4], from_far[2], to_pair[2];
    take(s.asked, o, tile, x.dq);
    if (DELTA) take(s.seen, o, tile, x.r);
    take(s.told, o, tile, x.dk);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.dq[i] *= d.to[i], x.r[i] = DELTA ? x.r[i] * d.to[i] : 0, x.dk[i] *= d.from[i];
        asks[i] = rows.q[i] * x.dq[i] + (DELTA ? rows.b[i] * x.r[i] : 0), tells[i] = rows.k[i] * x.dk[i];
    }
    /* What passes by all gates of a four, or of a two, from rows behind or to rows before it. */
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const float own = o.is_high ? asks[2 * c] + asks[2 * c + 1] : tells[2 * c] + tells[2 * c + 1];
        from_far[c] = __shfl_xor_sync(~0u, own + __shfl_xor_sync(~0u, own, 1), 2);
    }
    tf32_right f[] = {right_in(s.f, tile, tile), right_turned(s.f, tile, tile)}, n[2] = {};
    if (DELTA) n[0] = right_in(s.n, tile, tile), n[1] = right_turned(s.n, tile, tile);
    meet_in_tile(rows, o.is_high, d.to_four, d.from_four, f, n, x, asks, tells);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const float own = o.is_odd ? asks[2 * c] + asks[2 * c + 1] : tells[2 * c] + tells[2 * c + 1];
        to_pair[c] = __shfl_xor_sync(~0u, own, 1);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[i / 2].x[0][i % 2] = is_beside ? f[i / 2].x[0][i % 2] : 0;
        n[i / 2].x[0][i % 2] = is_beside ? n[i / 2].x[0][i % 2] : 0;
    }
    meet_in_tile(rows, o.is_odd, d.to_two, d.from_two, f, n, x, asks, tells);
    const int at = (8 * tile + o.row) * (PITCH + 1);
    const float below = s.f[at + PITCH], other = DELTA ? s.n[at + PITCH] : 0;
    const float own[] = {s.f[at], s.f[at + PITCH + 1]};
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const float decay = BEFORE ? 1 : d.last[c], k = rows.k[2 * c] * decay;
        const float here = below * rows.q[2 * c + 1] + (DELTA ? other * rows.b[2 * c + 1] : 0);
        x.dq[2 * c + 1] += below * k;
        if (DELTA) x.r[2 * c + 1] += other * k;
        x.dk[2 * c] += decay * here;
        const float all = s.whole[tile * KEY_SIZE + o.channel + 8 * c] + from_far[c] + to_pair[c];
        gate[2 * c] = all + (BEFORE ? 0 : asks[2 * c]) + asks[2 * c + 1];
        gate[2 * c + 1] = all + tells[2 * c] + (BEFORE ? 0 : asks[2 * c + 1] + k * here);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float by = BEFORE ? own[i] * bonus[c] : own[i];
            x.dq[2 * c + i] += by * rows.k[2 * c + i], x.dk[2 * c + i] += by * rows.q[2 * c + i];
            if (BEFORE) d_bonus[c] += own[i] * rows.q[2 * c + i] * rows.k[2 * c + i];
            if (DELTA) x.dk[2 * c + i] -= s.beta[8 * tile + o.row + i] * x.r[2 * c + i];
        }
    }
    put(s.asked, o, tile, x.dq);
    if (DELTA) put(s.seen, o, tile, x.r);
    put(s.told, o, tile, x.dk);
    put(s.gate, o, tile, gate);
}

/*
 * The warp's 16 channels from `first` on: `met` is what passes by the whole chunk from state to state, but for its
 * decay. The gradient of the bonus is added up for channels of a lane.
 */
DEVICE void meet_tokens(tokens &s, u32 keys, u32 queries, int first, const float (&met)[2], const float (&bonus)[2],
                        float (&d_bonus)[2]) {
    const place_of_lane o(first);
    {
        sums_of_tile x[OCTETS];
        float all[2];
        begin_tokens(s, o, keys, queries, x, all);
        meet_halves<4>(s, o, 0, x);
        meet_halves<2>(s, o, 0, x);
        meet_halves<2>(s, o, 4, x);
#pragma unroll
        for (int n = 0; n < OCTETS; n += 2) meet_halves<1>(s, o, n, x);
#pragma unroll
        for (int n = 0; n < OCTETS; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float sum = sum_of_lanes(x[n].whole[c], 4) + all[c] * met[c];
                if (threadIdx.x % 4 == 0) s.whole[n * KEY_SIZE + o.channel + 8 * c] = sum;
            }
            put(s.asked, o, n, x[n].dq);
            if (DELTA) put(s.seen, o, n, x[n].r);
            put(s.told, o, n, x[n].dk);
        }
    }
    __syncwarp();
    d_bonus[0] = d_bonus[1] = 0;
#pragma unroll 1
    for (int two = 0; two < OCTETS / 2; two++) {
        u32 query[4], key[4];
        load_right_trans<KEY_SIZE>(query, queries, 16 * two, o.channel / 16);
        load_right_trans<KEY_SIZE>(key, keys, 16 * two, o.channel / 16);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const u32 own[] = {query[n], query[2 + n]}, other[] = {key[n], key[2 + n]};
            meet_tile(s, o, 2 * two + n, rows_of_tile(s, o, 2 * two + n, own, other), bonus, d_bonus);
        }
    }
    d_bonus[0] = sum_of_lanes(d_bonus[0], 4), d_bonus[1] = sum_of_lanes(d_bonus[1], 4);
}

#endif
