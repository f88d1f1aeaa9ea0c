/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gated_rms_norm and its gradients: TEAM threads take a group of a row, each of them runs of VECTOR elements that lie
 * TEAM runs apart. Up to HELD runs stay in registers; with 0 they are read twice. In gradients a block takes `each`
 * rows of a group, its teams in turn, and adds up the weight's, which meet in `sums` and are added up in an order of
 * their own. WIDE: all runs lie at multiples of their size; bits do not depend on it.
 */

#include "kernels/cuda/element.cuh"
#include "operations/norm/gated_rms_norm/problem.cuh"

#define THREADS 256
#define VECTOR  (16 / (int)sizeof(element))
#define TEAMS   (THREADS / TEAM)
#define RUNS    (HELD ? HELD : 1)
#define KEPT    (HELD == 1) /* gates are reckoned once in gradients */
/* Of a block of add_sums. */
#define COLUMNS 8
#define PHASES  128

typedef run_of<ELEMENT, VECTOR> run;

struct arguments {
    norm_problem p;
    float *sums; /* [rows / each][width] */
    i64 each;
};

/* Elements of a group from `at` on, of which `left` are there; 0 for the others. */
DEVICE run get(const void *data, i64 at, i64 left) {
    const element *from = (const element *)data + at;
    run value = {};
    if constexpr (WIDE) {
        value = *(const run *)from;
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (i < left) value.at[i] = from[i];
    }
    return value;
}
DEVICE void put(void *data, i64 at, i64 left, const run &value) {
    element *to = (element *)data + at;
    if constexpr (WIDE) {
        *(run *)to = value;
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (i < left) to[i] = value.at[i];
    }
}

/* The first element of run j of a thread, in its team's group. */
DEVICE i64 element_of_run(int j) {
    return ((i64)j * TEAM + threadIdx.x % TEAM) * VECTOR;
}
DEVICE int runs_of(const norm_problem &p) {
    return HELD ? HELD : (int)((p.group + TEAM * VECTOR - 1) / (TEAM * VECTOR));
}

struct pair {
    float a, b;
};

/* Of a team's threads; all threads of the block call it. */
DEVICE pair sum_of_team(pair sum) {
    sum = {sum_of_lanes(sum.a, lesser(TEAM, 32)), sum_of_lanes(sum.b, lesser(TEAM, 32))};
    if constexpr (TEAM > 32) {
        __shared__ pair shared[THREADS / 32];
        __syncthreads();
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = {};
        for (int i = 0; i < TEAM / 32; i++) {
            const pair of = shared[threadIdx.x / TEAM * (TEAM / 32) + i];
            sum = {sum.a + of.a, sum.b + of.b};
        }
    }
    return sum;
}

/* Gate, what is normed, and the slope of act. */
struct parts {
    float x, a, u, slope;
};
DEVICE parts parts_of(element x, element gate) {
    parts e = {widen(x), 1, 0, 0};
    if (GATE) {
        const float z = widen(gate), s = logistic(z);
        e.a = SILU ? z * s : s;
        e.slope = SILU ? s * (1 + z * (1 - s)) : s * (1 - s);
    }
    e.u = NORM_FIRST ? e.x : e.x * e.a;
    return e;
}

DEVICE float scale_of(const norm_problem &p, float sum) {
    return 1 / sqrtf(sum / p.group + p.eps);
}

extern "C" __global__ void __launch_bounds__(THREADS) forward(const arguments a) {
    const norm_problem &p = a.p;
    const i64 groups = p.width / p.group, n = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    const i64 first = n % groups * p.group;
    const bool is_row = n / groups < p.rows;
    const i64 row = is_row ? n / groups : 0;
    const i64 x_at = norm_at(&p, &p.x, row) + first, y_at = norm_at(&p, &p.y, row) + first;
    const i64 gate_at = GATE ? norm_at(&p, &p.gate, row) + first : 0;
    const int runs = runs_of(p);
    float u[RUNS][VECTOR], gate[RUNS][VECTOR];
    const auto read = [&](int j, i64 d) {
        const run x = get(p.x.data, x_at + d, p.group - d);
        const run z = GATE ? get(p.gate.data, gate_at + d, p.group - d) : run();
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const parts e = parts_of(x.at[i], z.at[i]);
            u[HELD ? j : 0][i] = e.u;
            gate[HELD ? j : 0][i] = NORM_FIRST ? e.a : 1;
        }
    };
    float sum = 0;
#pragma unroll
    for (int j = 0; j < runs; j++) {
        const i64 d = element_of_run(j);
        if (!is_row || d >= p.group) continue;
        read(j, d);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum = fmaf(u[HELD ? j : 0][i], u[HELD ? j : 0][i], sum);
    }
    const float scale = scale_of(p, sum_of_team({sum, 0}).a);
#pragma unroll
    for (int j = 0; j < runs; j++) {
        const i64 d = element_of_run(j);
        if (!is_row || d >= p.group) continue;
        if (!HELD) read(j, d);
        run weight = {}, y;
        if (WEIGHT) weight = get(p.weight, first + d, p.group - d);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const float w = WEIGHT ? widen(weight.at[i]) : 1;
            y.at[i] = narrow(u[HELD ? j : 0][i] * scale * w * gate[HELD ? j : 0][i]);
        }
        put(p.y.data, y_at + d, p.group - d, y);
    }
}

/* What gradients read of a row. */
struct inputs {
    run x, gate, dy;
};

extern "C" __global__ void __launch_bounds__(THREADS) gradients(const arguments a) {
    const norm_problem &p = a.p;
    const i64 groups = p.width / p.group, first = blockIdx.x % groups * p.group;
    const i64 begin = blockIdx.x / groups * a.each, end = begin + a.each < p.rows ? begin + a.each : p.rows;
    const int team = threadIdx.x / TEAM, runs = runs_of(p);
    float *to = a.sums + blockIdx.x / groups * p.width + first;
    inputs held[RUNS] = {}, next[RUNS] = {};
    run weight[RUNS] = {};
    parts kept[VECTOR] = {};
    float sums[RUNS][VECTOR] = {};
    const auto read = [&](i64 row, i64 d) -> inputs {
        return {get(p.x.data, norm_at(&p, &p.x, row) + first + d, p.group - d),
                GATE ? get(p.gate.data, norm_at(&p, &p.gate, row) + first + d, p.group - d) : run(),
                get(p.y.data, norm_at(&p, &p.y, row) + first + d, p.group - d)};
    };
    const auto read_row = [&](i64 row) {
        if constexpr (HELD > 0)
#pragma unroll
            for (int j = 0; j < HELD; j++)
                if (row < end && element_of_run(j) < p.group) next[j] = read(row, element_of_run(j));
    };
#pragma unroll
    for (int j = 0; j < runs; j++) {
        const i64 d = element_of_run(j);
        if (d >= p.group) continue;
        if (HELD && WEIGHT) weight[j] = get(p.weight, first + d, p.group - d);
        if (!HELD)
            for (int i = 0; i < VECTOR && d + i < p.group; i++) to[d + i] = 0;
    }
    read_row(begin + team);
    for (i64 row = begin + team; row - team < end; row += TEAMS) {
        const bool is_row = row < end;
#pragma unroll
        for (int j = 0; j < RUNS; j++) held[j] = next[j];
        read_row(row + TEAMS);
        pair sum = {};
#pragma unroll
        for (int j = 0; j < runs; j++) {
            const i64 d = element_of_run(j);
            if (!is_row || d >= p.group) continue;
            inputs &of = held[HELD ? j : 0];
            if (!HELD) of = read(row, d);
            const run w = HELD || !WEIGHT ? weight[HELD ? j : 0] : get(p.weight, first + d, p.group - d);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const parts e = parts_of(of.x.at[i], of.gate.at[i]);
                const float dy = widen(of.dy.at[i]) * (WEIGHT ? widen(w.at[i]) : 1);
                if (KEPT) kept[i] = e;
                sum.a = fmaf(e.u, e.u, sum.a);
                sum.b = fmaf(dy * (NORM_FIRST ? e.a : 1), e.u, sum.b);
            }
        }
        sum = sum_of_team(sum);
        const float scale = scale_of(p, sum.a), mean = scale * sum.b / p.group;
        if (!is_row) continue;
        const i64 dx_at = p.d_x.data ? norm_at(&p, &p.d_x, row) + first : 0;
        const i64 dz_at = p.d_gate.data ? norm_at(&p, &p.d_gate, row) + first : 0;
#pragma unroll
        for (int j = 0; j < runs; j++) {
            const i64 d = element_of_run(j);
            if (d >= p.group) continue;
            inputs &of = held[HELD ? j : 0];
            if (!HELD) of = read(row, d);
            const run w = HELD || !WEIGHT ? weight[HELD ? j : 0] : get(p.weight, first + d, p.group - d);
            run d_x, d_gate;
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const parts e = KEPT ? kept[i] : parts_of(of.x.at[i], of.gate.at[i]);
                const float dy = widen(of.dy.at[i]), normed = e.u * scale;
                const float dyw = dy * (WEIGHT ? widen(w.at[i]) : 1);
                const float d_u = scale * (dyw * (NORM_FIRST ? e.a : 1) - normed * mean);
                const float d_w = dy * normed * (NORM_FIRST ? e.a : 1);
                if (HELD)
                    sums[j][i] += d_w;
                else if (d + i < p.group)
                    to[d + i] += d_w;
                d_x.at[i] = narrow(NORM_FIRST ? d_u : d_u * e.a);
                d_gate.at[i] = narrow(e.slope * (NORM_FIRST ? dyw * normed : d_u * e.x));
            }
            if (p.d_x.data) put(p.d_x.data, dx_at + d, p.group - d, d_x);
            if (p.d_gate.data) put(p.d_gate.data, dz_at + d, p.group - d, d_gate);
        }
    }
    if constexpr (HELD > 0) {
        /* Of all teams, in their order. */
        __shared__ float shared[THREADS * VECTOR];
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            __syncthreads();
#pragma unroll
            for (int i = 0; i < VECTOR; i++) shared[threadIdx.x * VECTOR + i] = sums[j][i];
            __syncthreads();
            for (int d = threadIdx.x; d < TEAM * VECTOR; d += THREADS) {
                float sum = 0;
                for (int n = 0; n < TEAMS; n++) sum += shared[n * TEAM * VECTOR + d];
                if (j * TEAM * VECTOR + d < p.group) to[j * TEAM * VECTOR + d] = sum;
            }
        }
    }
}

/* Each thread adds up every PHASES-th block's sums of a column, then one of each column what they have. */
extern "C" __global__ void __launch_bounds__(COLUMNS *PHASES) add_sums(const arguments a) {
    const norm_problem &p = a.p;
    __shared__ float shared[PHASES][COLUMNS + 1];
    const int column = threadIdx.x % COLUMNS, phase = threadIdx.x / COLUMNS;
    const i64 d = (i64)blockIdx.x * COLUMNS + column, blocks = (p.rows + a.each - 1) / a.each;
    const i64 count = (blocks - phase + PHASES - 1) / PHASES;
    shared[phase][column] =
        d < p.width ? sum_in_order(a.sums + phase * p.width + d, count, PHASES * p.width) : 0;
    __syncthreads();
    if (phase > 0 || d >= p.width) return;
    float sum = 0;
    for (int i = 0; i < PHASES; i++) sum += shared[i][column];
    ((element *)p.d_weight)[d] = narrow(sum);
}
