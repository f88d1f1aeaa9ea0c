/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Softmax under a soft cap, part of rows.cuh. A score is cap * tanh(product / cap), in units of log 2. Rows whose
 * products are all small in a block take an odd polynomial of TERMS terms, others 2^x and a reciprocal; which one
 * depends on the row and the block alone. The cost is the number of instructions.
 *
 * With t = z z + shift, three terms of a product z are z factor (t t + rest), and two z factor t. So every operation
 * has a constant or one operand twice, which saves a register read port.
 */
#ifndef EJKI_CUDA_CAPPED_SM90_CUH
#define EJKI_CUDA_CAPPED_SM90_CUH

/* Stands for a hidden key: a number whose score by few terms is -inf. */
#define HIDDEN (TERMS == 2 ? -LEAST : LEAST)

/* By TERMS terms. */
DEVICE float capped_small(const ejki_cuda_sm90_problem &p, float z, float base) {
    const float t = fmaf(z, z, p.cap_small.shift);
    const float all = TERMS == 2 ? t : fmaf(t, t, p.cap_small.rest);
    return fmaf(z * all, p.cap_small.factor, -base);
}

/* 1 - tanh, over 2. */
DEVICE float cap_tail(const ejki_cuda_sm90_problem &p, float z) {
    float tail;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(tail) : "f"(1 + power_of_2(z * p.cap_exponent)));
    return tail;
}

/* The score minus a base, by either formula. */
DEVICE float capped(const ejki_cuda_sm90_problem &p, bool large, float z, float base) {
    const float exact = fmaf(-2 * p.cap_high, cap_tail(p, z), p.cap_high - base);
    const float x = large ? exact : capped_small(p, z, base);
    return z == HIDDEN ? NEG_INF : x;
}

/* The largest product of each of the lane's rows. */
DEVICE void find_largest(const float (&z)[KEYS / 2], float (&top)[2]) {
    top[0] = z[0], top[1] = z[2];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            top[half] = fmaxf(top[half], fmaxf(z[4 * n + 2 * half], z[4 * n + 2 * half + 1]));
    join_lanes(top, [](float x, float y) { return fmaxf(x, y); });
}

/* The largest magnitude of the products that this lane has of each row. */
DEVICE void find_sizes(const float (&z)[KEYS / 2], float (&most)[2]) {
    float own[4] = {0, 0, 0, 0}; /* so many, for more to do at a time */
#pragma unroll
    for (int n = 0; n < KEYS / 2; n++) own[n % 4] = fmaxf(own[n % 4], fabsf(z[n]));
    most[0] = fmaxf(own[0], own[1]), most[1] = fmaxf(own[2], own[3]);
}

/* Whether any products of the warp are large, of which of the lane's rows, and a number for finished(). */
struct score_state {
    float held;
    bool any_large, large[2];
};

/* What is hidden does not count as large. */
DEVICE score_state find_scores(const ejki_cuda_sm90_problem &p, const work_tile &w, bool edge, int row, int j0,
                      lane_rows &rows, float (&z)[KEYS / 2]) {
    score_state l;
    float most[2];
    visible_bits s;
    if (edge) hide(s = visible_bits_of(w, row, j0), 0, z);
    find_sizes(z, most);
    if (edge) hide(s, HIDDEN, z);
    l.held = fmaxf(most[0], most[1]);
    l.any_large = __any_sync(~0u, l.held > p.cap_limit);
    if (l.any_large) join_lanes(most, [](float x, float y) { return fmaxf(x, y); });
    l.large[0] = most[0] > p.cap_limit, l.large[1] = most[1] > p.cap_limit;
#if !BOUNDED
    float top[2];
    find_largest(z, top);
#pragma unroll
    for (int half = 0; half < 2; half++)
        raise_max(p, rows, half, capped(p, l.large[half], top[half], 0));
#endif
    return l;
}

/*
 * Scores, exponentials, sums and packing of the first `count` products, software-pipelined in place: each step runs
 * some elements ahead of the next, so that no unit idles and no register is written while it is read.
 */
template <int count, class function>
DEVICE void weigh_first(float (&sum)[2], float (&z)[KEYS / 2], u32 (&weights)[KEYS / 4],
                        function score) {
#pragma unroll
    for (int n = -SCORES_AHEAD; n < count; n += 2) {
        const int a = n + SCORES_AHEAD, b = n + POWERS_AHEAD;
        if (a < count) z[a] = score(a / 2 % 2, z[a]), z[a + 1] = score(a / 2 % 2, z[a + 1]);
        if (b >= 0 && b < count) z[b] = power_of_2(z[b]), z[b + 1] = power_of_2(z[b + 1]);
        if (n < 0) continue;
        sum[n / 2 % 2] += z[n] + z[n + 1];
        weights[n / 2] = pack(z[n], z[n + 1]);
    }
}

/* All of them in two passes over swapped halves: half the code, for the path that is seldom taken. */
template <class function>
DEVICE void weigh_halves(float (&sum)[2], float (&z)[KEYS / 2], u32 (&weights)[KEYS / 4],
                         function score) {
    enum { HALF = KEYS / 4 };
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
        weigh_first<HALF>(sum, z, weights, score);
#pragma unroll
        for (int n = 0; n < HALF; n++) {
            const float other = z[n];
            z[n] = z[n + HALF], z[n + HALF] = other;
        }
#pragma unroll
        for (int n = 0; n < HALF / 2; n++) {
            const u32 other = weights[n];
            weights[n] = weights[n + HALF / 2], weights[n + HALF / 2] = other;
        }
    }
}

DEVICE void make_weights(const ejki_cuda_sm90_problem &p, const score_state &l, lane_rows &rows,
                  float (&z)[KEYS / 2], u32 (&weights)[KEYS / 4]) {
    float sum[2] = {0, 0};
    if (l.any_large)
        weigh_halves(sum, z, weights, [&](int half, float x) {
            return capped(p, l.large[half], x, rows.max[half]);
        });
    else
        weigh_first<KEYS / 2>(sum, z, weights, [&](int half, float x) {
            return capped_small(p, x, rows.max[half]);
        });
#pragma unroll
    for (int half = 0; half < 2; half++)
        rows.sum[half] = fmaf(rows.sum[half], rows.scale[half], sum[half]);
}

#endif
