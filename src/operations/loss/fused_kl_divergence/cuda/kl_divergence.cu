/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_kl_divergence and its gradient on GPUs. A block of threads has a token and reads both rows side by side: each
 * thread folds runs of VECTOR pairs into the largest logits, sums of powers relative to them, and the sum of powers of
 * the first times distances of the logits; what threads have is joined in a fixed order. Divergences from the mean of
 * both, and gradients, read the rows once more, from a cache. Constants are those of rows.cuh; MIXES: direction "jsd",
 * ENTROPY: the teacher's is wanted.
 */
#include "operations/loss/fused_kl_divergence/cuda/arguments.cuh"
#include "operations/loss/shared/rows.cuh"

/* ---- Sums of a token -------------------------------------------------------------------------------- */

/* Of both distributions: the largest logit, Σ 2^y for y = scale · (x - most); of the teacher's Σ 2^y y. cross: of the
 * first Σ 2^y (y - y of the second). */
struct state {
    float most[2], sum[2], cross, linear;
};

DEVICE state nothing() {
    return {{NEG_INF, NEG_INF}, {0, 0}, 0, 0};
}

/* Sums relative to a larger logit, by which y is lower: numbers of at most 0. Of nothing, and infinite ones, stay. */
DEVICE void move(const kl_arguments &a, float first, float second, state &s) {
    if (s.sum[0] != 0 && s.cross != INFINITY) s.cross = power_of_2(first) * (s.cross + s.sum[0] * (first - second));
    const float by[2] = {first, second};
    if (ENTROPY) {
        const int k = a.p.teaches ? 0 : 1;
        const float own = k ? second : first, sum = k ? s.sum[1] : s.sum[0];
        if (sum != 0) s.linear = power_of_2(own) * (s.linear + sum * own);
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (s.sum[k] != 0) s.sum[k] *= power_of_2(by[k]);
}

/* How much lower a base is than a new one; 0 where there was none, or there still is none. */
DEVICE float lower(const kl_arguments &a, float old, float most) {
    return old == NEG_INF ? 0 : (old - most) * a.scale;
}

DEVICE state join(const kl_arguments &a, state s, state t) {
    const float first = fmaxf(s.most[0], t.most[0]), second = fmaxf(s.most[1], t.most[1]);
    move(a, lower(a, s.most[0], first), lower(a, s.most[1], second), s);
    move(a, lower(a, t.most[0], first), lower(a, t.most[1], second), t);
    return {{first, second}, {s.sum[0] + t.sum[0], s.sum[1] + t.sum[1]}, s.cross + t.cross, s.linear + t.linear};
}

DEVICE state shuffled(const state &s, int step) {
    return {{__shfl_xor_sync(~0u, s.most[0], step), __shfl_xor_sync(~0u, s.most[1], step)},
            {__shfl_xor_sync(~0u, s.sum[0], step), __shfl_xor_sync(~0u, s.sum[1], step)},
            __shfl_xor_sync(~0u, s.cross, step),
            __shfl_xor_sync(~0u, s.linear, step)};
}

/* Of all threads of the block, to all of them. Both sides of a step join in the order of their lanes. */
DEVICE state join_block(const kl_arguments &a, state s) {
    __shared__ state shared[WARPS];
    for (int step = 1; step < 32; step *= 2) {
        const state other = shuffled(s, step);
        s = threadIdx.x & step ? join(a, other, s) : join(a, s, other);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = s;
    __syncthreads();
    s = shared[0];
    for (int w = 1; w < WARPS; w++) s = join(a, s, shared[w]);
    return s;
}

/* Below this y counts as this: such powers change no sum, but make one infinite where the second logit is -inf. */
#define LEAST (-126.0f)

DEVICE float clamp(float y) {
    return y < LEAST ? LEAST : y; /* NaN stays */
}

/* Adds a run of both rows; what is behind a row's end is -inf in both. */
DEVICE void add_run(const kl_arguments &a, const run &x, const run &y, state &s) {
    float at[2][VECTOR], most[2];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        at[0][i] = widen(x.at[i]);
        at[1][i] = widen(y.at[i]);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        most[k] = at[k][0];
#pragma unroll
        for (int i = 1; i < VECTOR; i++) most[k] = fmaxf(most[k], at[k][i]);
    }
    if (most[0] > s.most[0] || most[1] > s.most[1]) {
        const float first = fmaxf(most[0], s.most[0]), second = fmaxf(most[1], s.most[1]);
        move(a, lower(a, s.most[0], first), lower(a, s.most[1], second), s);
        s.most[0] = first;
        s.most[1] = second;
    }
    const float base[2] = {s.most[0] == NEG_INF ? 0 : s.most[0], s.most[1] == NEG_INF ? 0 : s.most[1]};
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const float first = (at[0][i] - base[0]) * a.scale, second = (at[1][i] - base[1]) * a.scale;
        const float near = clamp(first), power = power_of_2(near), other = power_of_2(second);
        const bool is_there = at[0][i] != NEG_INF;
        s.sum[0] += is_there ? power : 0;
        s.sum[1] += other;
        if (!MIXES) s.cross += is_there ? power * (near - second) : 0;
        if (ENTROPY) s.linear += a.p.teaches ? (is_there ? power * near : 0) : other * clamp(second);
    }
}

DEVICE const element *row_of(const kl_problem &p, const loss_view &v, i64 row) {
    return (const element *)v.data + loss_token_at(&v, p.tokens, row);
}

DEVICE state fold_row(const kl_arguments &a, const element *x, const element *y) {
    constexpr int WAY = 2, STEP = THREADS * VECTOR;
    const int classes = (int)a.p.vocab;
    state s = nothing();
    int v = threadIdx.x * VECTOR;
    for (; WIDE && v + (WAY - 1) * STEP + VECTOR <= classes; v += WAY * STEP) {
        run x_of[WAY], y_of[WAY];
#pragma unroll
        for (int k = 0; k < WAY; k++) {
            x_of[k] = *(const run *)(x + v + k * STEP);
            y_of[k] = *(const run *)(y + v + k * STEP);
        }
#pragma unroll
        for (int k = 0; k < WAY; k++) add_run(a, x_of[k], y_of[k], s);
    }
    for (; v < classes; v += STEP) add_run(a, get(x + v, classes - v), get(y + v, classes - v), s);
    return join_block(a, s);
}

/* ---- Probabilities ---------------------------------------------------------------------------------- */

/* A distribution whose sum is known: log2 of a probability is scale · (x - base) - low. */
struct basis {
    float base, low;
};

DEVICE basis norm_of(const state &s, int k) {
    return {s.most[k], log2f(s.sum[k])};
}
/* By an lse that is given. */
DEVICE basis norm_by(const kl_arguments &a, const loss_view &lse, i64 row) {
    const float value = ((const float *)lse.data)[loss_token_at(&lse, a.p.tokens, row)];
    const double base = (double)value * a.p.temperature;
    return {(float)base, (float)(base - (double)(float)base) * a.scale};
}

/* What has less than this of a logarithm is 0, and differences to it stay finite. */
DEVICE float log_of(const kl_arguments &a, const basis &n, float x) {
    const float y = (x - n.base) * a.scale - n.low;
    return y < -20000 ? -20000 : y;
}

/* log2 of a normal number above 0, off by 2^-22 at most up to 1, which times p is below what p is rounded to. */
DEVICE float log2_of(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float log_of_mean(float beta, float p, float q) {
    return log2_of(fmaxf(beta * p + (1 - beta) * q, 1.17549435e-38f));
}

/* ---- Losses ----------------------------------------------------------------------------------------- */

struct pair {
    float first, second;
};

/* Divergences from the mean of both, in powers of two. */
DEVICE pair mix_row(const kl_arguments &a, const basis &m, const basis &n, const element *x, const element *y) {
    const float beta = (float)a.p.beta;
    float first = 0, second = 0;
    for (i64 v = threadIdx.x * VECTOR; v < a.p.vocab; v += THREADS * VECTOR) {
        const run x_of = get(x + v, a.p.vocab - v), y_of = get(y + v, a.p.vocab - v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const float log_p = log_of(a, m, widen(x_of.at[i])), log_q = log_of(a, n, widen(y_of.at[i]));
            const float p = power_of_2(log_p), q = power_of_2(log_q), mean = log_of_mean(beta, p, q);
            first += p * (log_p - mean);
            second += q * (log_q - mean);
        }
    }
    const float one = (float)sum_of_block((double)first);
    return {one, (float)sum_of_block((double)second)};
}

DEVICE float lse_of(const kl_arguments &a, const state &s, int k) {
    return s.most[k] / (float)a.p.temperature + logf(s.sum[k]);
}

DEVICE void put_token(const kl_problem &p, const loss_view &to, i64 row, float value) {
    if (to.dtype) ((float *)to.data)[loss_token_at(&to, p.tokens, row)] = value;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) fold(const kl_arguments a) {
    const kl_problem &p = a.p;
    const i64 row = blockIdx.x;
    const float weight = weight_at(p.mask, p.weights, p.tokens, row);
    float loss = 0, entropy = 0, first_lse = 0, second_lse = 0;
    if (weight != 0) {
        const element *x = row_of(p, p.first, row), *y = row_of(p, p.second, row);
        const state s = fold_row(a, x, y);
        const float square = (float)(p.temperature * p.temperature);
        first_lse = lse_of(a, s, 0);
        second_lse = lse_of(a, s, 1);
        if (MIXES) {
            const pair m = mix_row(a, norm_of(s, 0), norm_of(s, 1), x, y);
            loss = square * a.unit * ((float)p.beta * m.first + (float)(1 - p.beta) * m.second);
        } else {
            loss = square * (a.unit * (s.cross / s.sum[0]) + (logf(s.sum[1]) - logf(s.sum[0])));
        }
        const float sum = p.teaches ? s.sum[0] : s.sum[1];
        if (ENTROPY) entropy = logf(sum) - a.unit * (s.linear / sum);
        loss *= weight;
        entropy *= weight;
    }
    if (threadIdx.x) return;
    a.shares[row] = {loss, entropy, weight};
    put_token(p, p.first_lse, row, first_lse);
    put_token(p, p.second_lse, row, second_lse);
    if (p.reduction != KL_NONE) return;
    put_token(p, p.loss, row, loss);
    put_token(p, p.entropy, row, entropy);
}

DEVICE double denominator(const kl_problem &p, double weight) {
    return p.reduction == KL_MEAN ? fmax(weight, 1e-8) : 1;
}

/* One block: sums over tokens. Gradients: what they all have in common but their own cotangents. */
extern "C" __global__ void __launch_bounds__(THREADS) totals(const kl_arguments a) {
    const kl_problem &p = a.p;
    double loss = 0, entropy = 0, weight = 0;
    for (i64 row = threadIdx.x; row < kl_rows(&p); row += THREADS) {
        if (p.gradient) {
            weight += weight_at(p.mask, p.weights, p.tokens, row);
            continue;
        }
        const kl_share own = a.shares[row];
        loss += own.loss;
        entropy += own.entropy;
        weight += own.weight;
    }
    loss = sum_of_block(loss);
    entropy = sum_of_block(entropy);
    weight = sum_of_block(weight);
    if (threadIdx.x) return;
    const double by = denominator(p, weight);
    if (p.gradient) {
        *a.each = (float)(p.temperature / by);
        return;
    }
    if (p.weight_sum) *(float *)p.weight_sum = (float)weight;
    if (p.reduction == KL_NONE) return;
    *(float *)p.loss.data = (float)(loss / by);
    if (p.entropy.dtype) *(float *)p.entropy.data = (float)(entropy / by);
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

/* All is times factor; divergences in powers of two. */
struct slope {
    basis first, second;
    float factor, from_first, from_second;
};

DEVICE slope slope_of(const kl_arguments &a, i64 row, float factor, const element *x, const element *y) {
    const kl_problem &p = a.p;
    slope s = {};
    s.factor = factor;
    if (a.sums) {
        const state own = fold_row(a, x, y);
        s.first = norm_of(own, 0);
        s.second = norm_of(own, 1);
        s.from_first = own.cross / own.sum[0] - s.first.low + s.second.low;
    } else {
        s.first = norm_by(a, p.first_lse, row);
        s.second = norm_by(a, p.second_lse, row);
    }
    if (!MIXES) return s;
    const pair m = mix_row(a, s.first, s.second, x, y);
    s.from_first = m.first;
    s.from_second = m.second;
    return s;
}

DEVICE pair derive(const kl_arguments &a, const slope &s, float x, float y) {
    const float beta = (float)a.p.beta;
    const float log_p = log_of(a, s.first, x), log_q = log_of(a, s.second, y);
    const float p = power_of_2(log_p), q = power_of_2(log_q), unit = s.factor * a.unit;
    if (!MIXES) return {unit * p * (log_p - log_q - s.from_first), s.factor * (q - p)};
    const float mean = log_of_mean(beta, p, q);
    return {unit * beta * p * (log_p - mean - s.from_first), unit * (1 - beta) * q * (log_q - mean - s.from_second)};
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) slopes(const kl_arguments a) {
    const kl_problem &p = a.p;
    const i64 row = blockIdx.x;
    const float weight = weight_at(p.mask, p.weights, p.tokens, row);
    const element *x = row_of(p, p.first, row), *y = row_of(p, p.second, row);
    typedef element_of<OUT>::bits bits;
    bits *first = p.d_first.dtype ? (bits *)p.d_first.data + loss_token_at(&p.d_first, p.tokens, row) : nullptr;
    bits *second = p.d_second.dtype ? (bits *)p.d_second.data + loss_token_at(&p.d_second, p.tokens, row) : nullptr;
    slope s = {};
    if (weight != 0) {
        const float own = ((const float *)p.loss.data)[loss_token_at(&p.loss, p.tokens, row)];
        s = slope_of(a, row, weight * own * *a.each, x, y);
    }
    /* Backwards: of long rows the end is still in a cache. */
    constexpr int STEP = THREADS * VECTOR;
    for (i64 from = (p.vocab - 1) / STEP * STEP; from >= 0; from -= STEP) {
        const i64 v = from + threadIdx.x * VECTOR;
        if (v >= p.vocab) continue;
        float d_first[VECTOR] = {}, d_second[VECTOR] = {};
        const i64 left = p.vocab - v;
        if (weight != 0) {
            const run x_of = get(x + v, left), y_of = get(y + v, left);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const pair d = derive(a, s, widen(x_of.at[i]), widen(y_of.at[i]));
                d_first[i] = d.first;
                d_second[i] = d.second;
            }
        }
        if (first) put(first + v, left, d_first, true);
        if (second) put(second + v, left, d_second, true);
    }
}
