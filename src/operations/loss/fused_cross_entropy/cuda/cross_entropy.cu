/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_cross_entropy and its gradient on GPUs. A block of threads has a token: each thread folds runs of VECTOR logits
 * into a largest one and sums relative to it, and what threads have is joined in a fixed order. In gradients the token
 * is read once more, from a cache. CAP: logits are capped; other constants are those of rows.cuh.
 */
#include "operations/loss/fused_cross_entropy/cuda/arguments.cuh"
#include "operations/loss/shared/rows.cuh"

/* ---- Tokens ----------------------------------------------------------------------------------------- */

DEVICE i64 number_at(const loss_view &v, i64 at) {
    return v.dtype == LOSS_I64 ? ((const i64 *)v.data)[at] : ((const int *)v.data)[at];
}

/* -1: there are no targets; of others than classes nothing is added. */
DEVICE i64 target_of(const loss_problem &p, i64 row) {
    return p.targets.dtype ? number_at(p.targets, loss_at(&p, &p.targets, row)) : -1;
}

DEVICE float weight_of(const loss_problem &p, i64 row) {
    if (p.targets.dtype) {
        const i64 target = target_of(p, row);
        if (target == p.ignore || target < 0 || target >= p.vocab) return 0;
    }
    return weight_at(p.mask, p.weights, p.tokens, row);
}

DEVICE float soft_of(const loss_problem &p, i64 row, i64 v) {
    return load_float(p.soft.dtype, p.soft.data, loss_at(&p, &p.soft, row) + v);
}

DEVICE float denominator(const loss_problem &p, float weight) {
    return p.sums ? 1 : fmaxf(weight, 1e-8f);
}

/* ---- Sums of a token -------------------------------------------------------------------------------- */

DEVICE float cap_of(const loss_problem &p, float x) {
    return CAP ? (float)p.cap * tanhf(x / (float)p.cap) : x;
}

DEVICE loss_state nothing() {
    return {NEG_INF, 0, 0, 0, 0, NEG_INF, -1, -1};
}

/* exp(z - max) where max may be -inf. */
DEVICE float power(float z, float max) {
    return power_of_2((z - (max == NEG_INF ? 0 : max)) * LOG2_E);
}

DEVICE bool is_before(int a, int b) {
    return b < 0 || (a >= 0 && a < b);
}

DEVICE loss_state join(const loss_state &a, const loss_state &b) {
    loss_state s = a;
    s.max = fmaxf(a.max, b.max);
    s.sum = a.sum * (a.max == NEG_INF ? 1 : power(a.max, s.max)) + b.sum * (b.max == NEG_INF ? 1 : power(b.max, s.max));
    s.target = a.target + b.target;
    s.linear = a.linear + b.linear;
    s.mass = a.mass + b.mass;
    if (b.max > a.max || (b.max == a.max && is_before(b.best, a.best))) s.best = b.best;
    s.most_soft = fmaxf(a.most_soft, b.most_soft);
    if (b.most_soft > a.most_soft || (b.most_soft == a.most_soft && is_before(b.best_soft, a.best_soft)))
        s.best_soft = b.best_soft;
    return s;
}

DEVICE loss_state shuffled(const loss_state &s, int step) {
    return {__shfl_xor_sync(~0u, s.max, step),       __shfl_xor_sync(~0u, s.sum, step),
            __shfl_xor_sync(~0u, s.target, step),    __shfl_xor_sync(~0u, s.linear, step),
            __shfl_xor_sync(~0u, s.mass, step),      __shfl_xor_sync(~0u, s.most_soft, step),
            __shfl_xor_sync(~0u, s.best, step),      __shfl_xor_sync(~0u, s.best_soft, step)};
}

/* Of all threads of the block, to all of them. Both sides of a step join in the order of their lanes. */
DEVICE loss_state join_block(loss_state s) {
    __shared__ loss_state shared[WARPS];
    for (int step = 1; step < 32; step *= 2) {
        const loss_state other = shuffled(s, step);
        s = threadIdx.x & step ? join(other, s) : join(s, other);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = s;
    __syncthreads();
    s = shared[0];
    for (int w = 1; w < WARPS; w++) s = join(s, shared[w]);
    return s;
}

/* Adds a run of logits, the first of which is class v; not WHOLE: `left` of them are there. */
template <bool WHOLE>
DEVICE void add_run(const loss_problem &p, const run &x, i64 row, int target, int v, int left, loss_state &s) {
    float z[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) z[i] = WHOLE || i < left ? cap_of(p, widen(x.at[i])) : NEG_INF;
    float most = z[0];
#pragma unroll
    for (int i = 1; i < VECTOR; i++) most = fmaxf(most, z[i]);
    if (most > s.max) {
        if (s.max != NEG_INF) s.sum *= power(s.max, most);
        s.max = most;
#pragma unroll
        for (int i = VECTOR - 1; i >= 0; i--)
            if (z[i] == most) s.best = v + i;
    }
    const float base = s.max == NEG_INF ? 0 : s.max;
    float sum[2] = {};
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        if (WHOLE || i < left) sum[i % 2] += power_of_2((z[i] - base) * LOG2_E);
    s.sum += sum[0] + sum[1];
    if ((unsigned)(target - v) < VECTOR)
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (target == v + i) s.target = z[i];
    if (p.soft.dtype) {
        for (int i = 0; i < VECTOR; i++) {
            if (!WHOLE && i >= left) continue;
            const float q = soft_of(p, row, v + i);
            if (q != 0) s.linear += q * z[i];
            s.mass += q;
            if (q > s.most_soft) s.most_soft = q, s.best_soft = v + i;
        }
    } else if (p.wrong > 0) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (WHOLE || i < left) s.linear += z[i];
    }
}

DEVICE loss_state fold_row(const loss_arguments &a, i64 row, const element *x) {
    constexpr int WAY = WIDE ? 4 : 1, STEP = THREADS * VECTOR;
    const loss_problem &p = a.p;
    const int classes = (int)a.classes, first = (int)a.class_first, target = (int)target_of(p, row);
    loss_state s = nothing();
    int v = threadIdx.x * VECTOR;
    for (; WIDE && v + (WAY - 1) * STEP + VECTOR <= classes; v += WAY * STEP) {
        run x_of[WAY];
#pragma unroll
        for (int k = 0; k < WAY; k++) x_of[k] = *(const run *)(x + v + k * STEP);
#pragma unroll
        for (int k = 0; k < WAY; k++) add_run<true>(p, x_of[k], row, target, first + v + k * STEP, VECTOR, s);
    }
    for (; v < classes; v += STEP) add_run<false>(p, get(x + v, classes - v), row, target, first + v, classes - v, s);
    return join_block(s);
}

/* ---- Losses ----------------------------------------------------------------------------------------- */

DEVICE float lse_of(const loss_state &s) {
    return s.max + logf(s.sum);
}

DEVICE loss_share share_of(const loss_problem &p, const loss_state &s, i64 target, float weight) {
    const float lse = lse_of(s), z = p.z != 0 ? (float)p.z * lse * lse : 0;
    float inner = s.target, mass = 1;
    if (p.soft.dtype) {
        inner = s.linear;
        mass = s.mass;
    } else if (p.wrong > 0 && s.linear == NEG_INF) {
        inner = s.linear;
    } else if (p.wrong > 0) {
        inner = (float)p.right * s.target + (float)p.wrong * (s.linear - s.target);
    }
    const bool right = s.best >= 0 && lse == lse && s.best == (p.targets.dtype ? target : (i64)s.best_soft);
    return {weight * (lse * mass - inner + (float)p.constant + z), weight * z, right ? weight : 0, weight};
}

DEVICE const element *logits_of(const loss_arguments &a, i64 row) {
    const i64 own = a.p.width < 0 ? row : row - a.first;
    return (const element *)a.x.data + (a.p.width < 0 ? loss_at(&a.p, &a.x, own) : own * a.stride);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) fold(const loss_arguments a) {
    const loss_problem &p = a.p;
    const i64 row = a.first + blockIdx.x;
    if (row >= loss_rows(&p)) return;
    const float weight = weight_of(p, row);
    if (weight == 0) {
        if (a.ends && threadIdx.x == 0) {
            a.shares[row] = {};
            if (p.lse.dtype && !p.gradient) ((float *)p.lse.data)[loss_at(&p, &p.lse, row)] = 0;
        }
        return;
    }
    loss_state s = fold_row(a, row, logits_of(a, row));
    if (threadIdx.x) return;
    if (!a.begins) s = join(a.states[row], s);
    a.states[row] = s;
    if (!a.ends || p.gradient) return;
    a.shares[row] = share_of(p, s, target_of(p, row), weight);
    if (p.lse.dtype) ((float *)p.lse.data)[loss_at(&p, &p.lse, row)] = lse_of(s);
}

DEVICE void totals(const loss_arguments &a) {
    const loss_problem &p = a.p;
    double loss = 0, z = 0, right = 0, weight = 0;
    for (i64 row = threadIdx.x; row < loss_rows(&p); row += THREADS) {
        const loss_share own = a.shares[row];
        loss += own.loss;
        z += own.z;
        right += own.right;
        weight += own.weight;
    }
    loss = sum_of_block(loss);
    z = sum_of_block(z);
    right = sum_of_block(right);
    weight = sum_of_block(weight);
    if (threadIdx.x) return;
    const double by = denominator(p, (float)weight);
    *(float *)p.loss = (float)(loss / by);
    if (p.z_loss_out) *(float *)p.z_loss_out = (float)(z / by);
    if (p.weight_sum) *(float *)p.weight_sum = (float)weight;
    if (p.accuracy) *(float *)p.accuracy = (float)(right / fmax(weight, 1e-8));
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

DEVICE void weigh(const loss_arguments &a) {
    double weight = 0;
    for (i64 row = threadIdx.x; row < loss_rows(&a.p); row += THREADS) weight += weight_of(a.p, row);
    weight = sum_of_block(weight);
    if (threadIdx.x == 0) *a.each = *(const float *)a.p.loss / denominator(a.p, (float)weight);
}

/* What all logits of a token have in common. */
struct slope {
    float base, scale, factor, right, wrong, inverse;
};

DEVICE float derive(const slope &s, float x, float q, float cap) {
    const float z = CAP ? cap * tanhf(x * s.inverse) : x;
    const float d = (power_of_2((z - s.base) * LOG2_E) * s.scale - q) * s.factor, y = z * s.inverse;
    return CAP ? d * (1 - y * y) : d;
}

DEVICE float mass_of(const loss_problem &p, i64 row) {
    float sum = 0;
    __shared__ float shared[WARPS];
    for (i64 v = threadIdx.x; v < p.vocab; v += THREADS) sum += soft_of(p, row, v);
    sum = sum_of_lanes(sum, 32);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < WARPS; w++) sum += shared[w];
    return sum;
}

DEVICE slope slope_of(const loss_arguments &a, i64 row, float weight, const element *x) {
    const loss_problem &p = a.p;
    slope s;
    s.right = (float)p.right;
    s.wrong = (float)p.wrong;
    s.inverse = CAP ? 1 / (float)p.cap : 0;
    s.factor = p.width < 0 ? weight * *a.each : weight;
    if (p.lse.dtype) {
        s.base = ((const float *)p.lse.data)[loss_at(&p, &p.lse, row)];
        s.scale = (p.soft.dtype ? mass_of(p, row) : 1) + 2 * (float)p.z * s.base;
        return s;
    }
    const loss_state own = a.folds ? fold_row(a, row, x) : a.states[row];
    s.base = own.max;
    s.scale = ((p.soft.dtype ? own.mass : 1) + 2 * (float)p.z * lse_of(own)) / own.sum;
    return s;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) slopes(const loss_arguments a) {
    const loss_problem &p = a.p;
    const i64 row = a.first + blockIdx.x;
    const bool is_row = row < loss_rows(&p);
    const float weight = is_row ? weight_of(p, row) : 0;
    element_of<OUT>::bits *to =
        (element_of<OUT>::bits *)a.to.data + (p.width < 0 ? loss_at(&p, &a.to, row) : (i64)blockIdx.x * a.stride);
    const element *x = logits_of(a, row);
    const i64 target = is_row ? target_of(p, row) : -1;
    slope s = {};
    if (weight != 0) s = slope_of(a, row, weight, x);
    /* Backwards: of a long row the end is still in a cache. */
    constexpr int STEP = THREADS * VECTOR;
    for (i64 from = (a.classes - 1) / STEP * STEP; from >= 0; from -= STEP) {
        const i64 v = from + threadIdx.x * VECTOR;
        if (v >= a.classes) continue;
        float z[VECTOR];
        run x_of = {};
        const i64 left = a.classes - v, own = a.class_first + v;
        if (weight != 0) x_of = get(x + v, left);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float q = target == own + i ? s.right : s.wrong;
            if (p.soft.dtype && weight != 0 && i < left) q = soft_of(p, row, own + i);
            z[i] = weight != 0 ? derive(s, widen(x_of.at[i]), q, (float)p.cap) : 0;
        }
        put(to + v, left, z, p.width < 0);
    }
}

/* ---- Gradients of products -------------------------------------------------------------------------- */

/* Hidden states of tokens that count side by side, 0 for others; a block for each row. */
DEVICE void pack(const loss_arguments &a) {
    const loss_problem &p = a.p;
    const i64 row = blockIdx.x;
    typedef element_of<HIDDEN>::bits bits;
    bits *to = (bits *)a.hidden + row * p.width;
    const bool counts = row < loss_rows(&p) && weight_of(p, row) != 0;
    const bits *from = (const bits *)p.hidden.data + (counts ? loss_at(&p, &p.hidden, row) : 0);
    for (i64 h = threadIdx.x; h < p.width; h += THREADS) to[h] = counts ? from[h] : bits_of<HIDDEN>(0);
}

DEVICE void clear(const loss_arguments &a) {
    for (i64 i = threadIdx.x; i < a.clear_width; i += THREADS) a.clears[blockIdx.x * a.clear_width + i] = 0;
}

DEVICE void put_hidden(const loss_arguments &a) {
    const loss_problem &p = a.p;
    const i64 row = blockIdx.x, to = loss_at(&p, &p.d_hidden, row);
    const float each = weight_of(p, row) != 0 ? *a.each : 0;
    for (i64 h = threadIdx.x; h < p.width; h += THREADS)
        store_float(p.d_hidden.dtype, p.d_hidden.data, to + h, each != 0 ? each * a.d_hidden[row * p.width + h] : 0);
}

DEVICE void put_weight(const loss_arguments &a) {
    const loss_problem &p = a.p;
    const i64 h = blockIdx.x;
    for (i64 v = threadIdx.x; v < a.classes; v += THREADS)
        store_float(p.d_weight.dtype, p.d_weight.data, h * p.d_weight.row + a.class_first + v,
                    *a.each * a.d_weight[h * a.stride + v]);
}

/* Sums of slopes over the block's tokens, a thread for each class, in their order. */
DEVICE void add_bias(const loss_arguments &a) {
    const loss_problem &p = a.p;
    const i64 v = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (v >= a.classes) return;
    float sum = a.adds ? a.d_bias[v] : 0;
#pragma unroll 8
    for (i64 n = 0; n < a.rows; n++)
        sum += value_of<OUT>(((const element_of<OUT>::bits *)a.to.data)[n * a.stride + v]);
    a.d_bias[v] = sum;
    if (a.closes) store_float(p.d_bias.dtype, p.d_bias.data, a.class_first + v, *a.each * sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) serve(const loss_arguments a) {
    switch (a.serves) {
    case LOSS_TOTALS: return totals(a);
    case LOSS_WEIGH: return weigh(a);
    case LOSS_PACK: return pack(a);
    case LOSS_CLEAR: return clear(a);
    case LOSS_PUT_HIDDEN: return put_hidden(a);
    case LOSS_PUT_WEIGHT: return put_weight(a);
    case LOSS_ADD_BIAS: return add_bias(a);
    }
}
