/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the rows that gradient.cu has written to gradients of tensors, but for those that are there. spread() has a warp
 * for each vector of a token: the gradient of a query, key or value is the sum over the heads that read it, in order,
 * and goes through the normalisation; gates become those of raw numbers, those of heads by a thread each in the last
 * blocks. total() has a block for each head, which adds up over tokens what tokens share: gamma, A_log, dt_bias, the
 * bonus and what passes by the state; each thread adds every so many tokens, and threads are added in order. Tokens
 * that count for nothing have gradients of 0 and are not read.
 *
 * Constants: PARTS, as in gradient.cu: a lane has PARTS of the Dk elements of a vector.
 */
#include "operations/recurrent/cuda/call.cuh"
#include "operations/recurrent/cuda/chunk.cuh"
#include "operations/recurrent/cuda/gradient.cuh"

#define THREADS 256

DEVICE bool counts(const rec_problem &p, rec_size b, rec_size t) {
    return p.value_size > 0 && (!p.packed || t < rec_covered(&p)) && rec_segment(&p, b, t) >= 0;
}

DEVICE const float *row_of(const rec_gradient &a, rec_size b, rec_size t, rec_size h) {
    return a.sums + ((b * a.p.tokens + t) * a.p.heads + h) * a.width;
}
DEVICE const float *numbers_of(const rec_gradient &a, const float *row) {
    return row + a.width - REC_NUMBERS;
}

/* ---- A warp and a token ----------------------------------------------------------------------------- */

/* A lane has runs of elements that follow each other, which are read at once where they lie at multiples of those. */
#define RUN (PARTS < 4 ? PARTS : 4)
DEVICE int element_at(int r) {
    return (r / RUN * 32 + threadIdx.x % 32) * RUN + r % RUN;
}
template <int TYPE> DEVICE void load_run(const void *data, rec_size at, int count, float *x) {
    const typename element_of<TYPE>::bits *from = (const typename element_of<TYPE>::bits *)data + at;
    typedef run_of<TYPE, RUN> run;
    if (count >= RUN && (u64)from % sizeof(run) == 0) {
        const run all = *(const run *)from;
#pragma unroll
        for (int i = 0; i < RUN; i++) x[i] = value_of<TYPE>(all.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < RUN; i++) x[i] = i < count ? value_of<TYPE>(from[i]) : 0;
    }
}
template <int TYPE> DEVICE void store_run(void *data, rec_size at, int count, const float *x) {
    typename element_of<TYPE>::bits *to = (typename element_of<TYPE>::bits *)data + at;
    typedef run_of<TYPE, RUN> run;
    if (count >= RUN && (u64)to % sizeof(run) == 0) {
        run all;
#pragma unroll
        for (int i = 0; i < RUN; i++) all.at[i] = bits_of<TYPE>(x[i]);
        *(run *)to = all;
    } else {
#pragma unroll
        for (int i = 0; i < RUN; i++)
            if (i < count) to[i] = bits_of<TYPE>(x[i]);
    }
}

/* A lane's elements of a vector, 0 behind its end. */
template <int TYPE> DEVICE void load_runs(const rec_problem &p, const void *data, rec_size at, float (&x)[PARTS]) {
#pragma unroll
    for (int r = 0; r < PARTS; r += RUN)
        load_run<TYPE>(data, at + element_at(r), (int)p.key_size - element_at(r), x + r);
}
template <int TYPE>
DEVICE void store_runs(const rec_problem &p, void *data, rec_size at, const float (&x)[PARTS]) {
#pragma unroll
    for (int r = 0; r < PARTS; r += RUN)
        store_run<TYPE>(data, at + element_at(r), (int)p.key_size - element_at(r), x + r);
}

/* A vector of a tensor, and what it was multiplied by to be normalised. */
DEVICE float load_vector(const rec_problem &p, const rec_view &v, rec_size at, float (&x)[PARTS]) {
    float sum = 0, factor = 1;
#pragma unroll
    for (int r = 0; r < PARTS; r++) x[r] = 0;
    if (!v.present) return 1;
    if (v.dtype == F32)
        load_runs<F32>(p, v.data, at, x);
    else if (v.dtype == BF16)
        load_runs<BF16>(p, v.data, at, x);
    else
        load_runs<F16>(p, v.data, at, x);
    if (!p.normalise) return 1;
#pragma unroll
    for (int r = 0; r < PARTS; r++) sum += x[r] * x[r];
    factor = 1 / sqrtf(sum_of_lanes(sum, 32) + (float)REC_EPSILON);
#pragma unroll
    for (int r = 0; r < PARTS; r++) x[r] *= factor;
    return factor;
}

DEVICE void load_sums(const rec_problem &p, const float *row, int vector, float (&x)[PARTS]) {
    load_runs<F32>(p, row, vector * p.key_size, x);
}

DEVICE void store_vector(const rec_problem &p, int role, rec_size b, rec_size t, rec_size h, const float (&x)[PARTS]) {
    const rec_view &v = p.view[REC_D(role)];
    const rec_size at = rec_at(&v, b, t, h);
    if (!v.present) return;
    if (v.dtype == F32)
        store_runs<F32>(p, v.data, at, x);
    else if (v.dtype == BF16)
        store_runs<BF16>(p, v.data, at, x);
    else
        store_runs<F16>(p, v.data, at, x);
}

/* What the token's own update makes of its query: k (u · d_out) and a (x · d_out); of a bonus, diag(bonus) k. */
DEVICE void add_own(const rec_gradient &a, rec_size b, rec_size t, rec_size h, int role, const float *numbers,
                    float (&d)[PARTS]) {
    const rec_problem &p = a.p;
    const int other = role == REC_QUERY ? REC_KEY : REC_QUERY;
    const rec_view &v = p.view[other], &u = p.view[REC_BONUS], &first = p.view[REC_A], &second = p.view[REC_B];
    float x[PARTS];
    if (p.read == REC_BEFORE ? !u.present : role == REC_KEY) return;
    load_vector(p, v, rec_at(&v, b, t, rec_head(&p, h, other == REC_KEY ? p.key_heads : p.query_heads)), x);
#pragma unroll
    for (int r = 0; r < PARTS; r++) {
        const int i = element_at(r);
        if (i >= p.key_size) continue;
        const float by = p.read == REC_BEFORE ? load(u, h * u.stride[2] + i * u.stride[3]) : 1;
        d[r] += by * x[r] * numbers[REC_ALONG_U];
        if (p.update != REC_RANK_ONE) continue;
        const float own = load(first, rec_at(&first, b, t, h) + i);
        const float times = p.multiply ? load(second, rec_at(&second, b, t, h) + i) : 1;
        d[r] += own * times * numbers[REC_ALONG_X];
    }
}

/* Of a head of the query or key. */
DEVICE void spread_vector(const rec_gradient &a, rec_size b, rec_size t, rec_size head, int role, rec_size heads) {
    const rec_problem &p = a.p;
    const rec_view &v = p.view[role];
    float sum[PARTS], x[PARTS];
#pragma unroll
    for (int r = 0; r < PARTS; r++) sum[r] = 0;
    if (!p.view[REC_D(role)].present) return;
    if (counts(p, b, t)) {
        const float factor = load_vector(p, v, rec_at(&v, b, t, head), x);
#pragma unroll 2
        for (rec_size h = head * (p.heads / heads); h < (head + 1) * (p.heads / heads); h += a.apart) {
            const float *row = row_of(a, b, t, h);
            float d[PARTS], along = 0;
            load_sums(p, row, role == REC_QUERY ? REC_SUM_QUERY : REC_SUM_KEY, d);
            if (!(a.direct & REC_WHOLE_QUERY)) add_own(a, b, t, h, role, numbers_of(a, row), d);
#pragma unroll
            for (int r = 0; r < PARTS; r++) along += d[r] * x[r];
            along = p.normalise ? sum_of_lanes(along, 32) : 0;
#pragma unroll
            for (int r = 0; r < PARTS; r++) sum[r] += factor * (d[r] - x[r] * along);
        }
    }
    store_vector(p, role, b, t, head, sum);
}

DEVICE void spread_value(const rec_gradient &a, rec_size b, rec_size t, rec_size head) {
    const rec_problem &p = a.p;
    const rec_view &v = p.view[REC_D(REC_VALUE)];
    const rec_size group = p.heads / p.value_heads, first = rec_vectors(&p) * p.key_size;
    const bool is_there = counts(p, b, t);
    for (rec_size j = threadIdx.x % 32; j < p.value_size && v.present; j += 32) {
        float sum = 0;
        for (rec_size h = head * group; h < (head + 1) * group && is_there; h++)
            sum += row_of(a, b, t, h)[first + j];
        store(v, rec_at(&v, b, t, head) + j, sum);
    }
}

/* Of element i of the gates: d of the log decay becomes that of what is in the tensor. */
DEVICE float raw_gradient(const rec_problem &p, rec_size b, rec_size t, rec_size h, rec_size i, float d) {
    const rec_view &rate = p.view[REC_A_LOG];
    if (!rate.present || d == 0) return d;
    return -d * expf(load(rate, h * rate.stride[2])) * sigmoid(raw_of(p, b, t, h, i));
}

/* Of a step size: what becomes of the gradients of it and of the log decay that it makes. */
DEVICE float step_gradient(const rec_problem &p, rec_size b, rec_size t, rec_size h, const float *numbers) {
    const rec_view &rate = p.view[REC_A_LOG];
    const float raw = raw_of(p, b, t, h, 0), size = p.softplus ? softplus(raw) : raw;
    if (size < (float)p.least || size > (float)p.most) return 0;
    const float by = fmaxf(load(rate, h * rate.stride[2]), -3e38f);
    return (p.softplus ? sigmoid(raw) : 1) * (numbers[REC_D_HEAD] * by + numbers[REC_D_BETA]);
}

/* Gates of heads, step sizes and beta, by one thread. */
DEVICE void spread_numbers(const rec_gradient &a, rec_size b, rec_size t, rec_size h) {
    const rec_problem &p = a.p;
    const rec_view &g = p.view[REC_D(REC_G)], &beta = p.view[REC_D(REC_BETA)];
    const float *numbers = numbers_of(a, row_of(a, b, t, h));
    const bool is_there = counts(p, b, t);
    if (p.by_step) {
        if (g.present) store(g, rec_at(&g, b, t, h), is_there ? step_gradient(p, b, t, h, numbers) : 0);
        return;
    }
    if (g.present && !p.g_is_wide)
        store(g, rec_at(&g, b, t, h), is_there ? raw_gradient(p, b, t, h, 0, numbers[REC_D_HEAD]) : 0);
    if (beta.present) {
        const rec_sequence s = {0, b, 0, 0, 0};
        float own = is_there ? numbers[REC_D_BETA] : 0;
        if (is_there && p.beta_logits) {
            const float x = load_beta(p, s, t, h);
            own *= x * (1 - x);
        }
        store(beta, rec_at(&beta, b, t, h), own);
    }
}

DEVICE void spread_gates(const rec_gradient &a, rec_size b, rec_size t, rec_size h) {
    const rec_problem &p = a.p;
    const rec_view &gv = p.view[REC_D(REC_GV)];
    const float *row = row_of(a, b, t, h);
    const bool is_there = counts(p, b, t);
    float d[PARTS];
#pragma unroll
    for (int r = 0; r < PARTS; r++) d[r] = 0;
    if (p.key_decay) {
        if (is_there) load_sums(p, row, REC_SUM_GATE, d);
        store_vector(p, REC_GK, b, t, h, d);
#pragma unroll
        for (int r = 0; r < PARTS; r++) {
            const int i = element_at(r);
            if (p.g_is_wide && i < p.key_size) d[r] = raw_gradient(p, b, t, h, i, d[r]);
        }
        if (p.g_is_wide) store_vector(p, REC_G, b, t, h, d);
    }
    for (rec_size j = threadIdx.x % 32; j < p.value_size && gv.present && !is_there; j += 32)
        store(gv, rec_at(&gv, b, t, h) + j, 0);
}

DEVICE void spread_rank_one(const rec_gradient &a, rec_size b, rec_size t, rec_size h) {
    const rec_problem &p = a.p;
    const rec_view &first = p.view[REC_A], &second = p.view[REC_B];
    const float *row = row_of(a, b, t, h);
    float da[PARTS], db[PARTS];
#pragma unroll
    for (int r = 0; r < PARTS; r++) da[r] = db[r] = 0;
    if (counts(p, b, t)) {
        load_sums(p, row, REC_SUM_A, da);
        load_sums(p, row, REC_SUM_B, db);
#pragma unroll
        for (int r = 0; r < PARTS; r++) {
            const int i = element_at(r);
            if (!p.multiply || i >= p.key_size) continue;
            db[r] = load(first, rec_at(&first, b, t, h) + i) * da[r] - db[r];
            da[r] *= load(second, rec_at(&second, b, t, h) + i);
        }
    }
    store_vector(p, REC_A, b, t, h, da);
    store_vector(p, REC_B, b, t, h, db);
}

#define RESIDENT (PARTS > 4 ? 1 : 3) /* blocks of a multiprocessor that registers are shared out for */

/* Divisions of 32 bits are a fraction of those of 64. */
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) spread(const __grid_constant__ rec_gradient a) {
    const rec_problem &p = a.p;
    const u32 queries = a.direct & REC_DIRECT_QUERY ? 0 : (u32)p.query_heads;
    const u32 keys = a.direct & REC_DIRECT_KEY ? 0 : (u32)p.key_heads;
    const u32 values = a.direct & REC_DIRECT_VALUE ? 0 : (u32)p.value_heads;
    const u32 each = (u32)rec_spread(&p, a.direct), heads = (u32)p.heads, tokens = (u32)p.tokens;
    const rec_size blocks = rec_spread_blocks(&p, a.direct, THREADS);
    if (blockIdx.x >= blocks) {
        const rec_size n = (blockIdx.x - blocks) * THREADS + threadIdx.x;
        if (n >= p.batch * p.tokens * p.heads) return;
        const rec_size place = n / heads, b = place / tokens;
        spread_numbers(a, b, place - b * tokens, n - place * heads);
        return;
    }
    const rec_size warp = blockIdx.x * (rec_size)(THREADS / 32) + threadIdx.x / 32;
    if (warp >= p.batch * p.tokens * each) return;
    const u32 place = (u32)(warp / each), b = place / tokens, t = place - b * tokens;
    u32 n = (u32)(warp - (rec_size)place * each);
    if (n < queries) {
        spread_vector(a, b, t, n, REC_QUERY, p.query_heads);
    } else if ((n -= queries) < keys) {
        spread_vector(a, b, t, n, REC_KEY, p.key_heads);
    } else if ((n -= keys) < values) {
        spread_value(a, b, t, n);
    } else {
        n -= values;
        spread_gates(a, b, t, n);
        if (p.update == REC_RANK_ONE) spread_rank_one(a, b, t, n);
    }
}

/* ---- Sums over tokens ------------------------------------------------------------------------------- */

/* Sums over threads that have the same remainder by `channels`, in order; each of the first `channels` has its own. */
DEVICE float sum_of_block(float x, int channels) {
    __shared__ float all[THREADS];
    float sum = 0;
    __syncthreads();
    all[threadIdx.x] = x;
    __syncthreads();
    if (threadIdx.x < channels)
        for (int n = threadIdx.x; n < THREADS; n += channels) sum += all[n];
    return sum;
}

/* A thread's sums over tokens. */
struct totals {
    float rate, bias, bonus, skip;
};

/* Of gates and the bonus, element i: tokens first, first + step … of sequence n. */
DEVICE void add_tokens(const rec_gradient &a, rec_size n, rec_size h, rec_size i, int first, int step, totals &sum) {
    const rec_problem &p = a.p;
    const rec_view &rate = p.view[REC_A_LOG], &q = p.view[REC_QUERY], &k = p.view[REC_KEY];
    const rec_sequence s = rec_sequence_of(&p, n);
    for (rec_size t = s.begin + first; t < s.end; t += step) {
        if (!counts(p, s.batch, t)) continue;
        const float *row = row_of(a, s.batch, t, h), *numbers = numbers_of(a, row);
        const float d = p.g_is_wide ? row[REC_SUM_GATE * p.key_size + i] : numbers[REC_D_HEAD];
        if (p.by_step) {
            sum.rate += d * step_size(p, s.batch, t, h);
            sum.bias += step_gradient(p, s.batch, t, h, numbers);
            sum.skip += numbers[REC_ALONG_X];
        } else if (rate.present && d != 0) {
            sum.rate += d * fmaxf(gate_of(p, s.batch, t, h, i), -3e38f);
            sum.bias += raw_gradient(p, s.batch, t, h, i, d);
        }
        if (p.view[REC_D(REC_BONUS)].present && !a.bonuses)
            sum.bonus += load(q, rec_at(&q, s.batch, t, rec_head(&p, h, p.query_heads)) + i) *
                         load(k, rec_at(&k, s.batch, t, rec_head(&p, h, p.key_heads)) + i) * numbers[REC_ALONG_U];
    }
}

/* Of chunks first, first + step … of sequence n. */
DEVICE float bonus_of(const rec_gradient &a, rec_size n, rec_size h, rec_size i, int first, int step) {
    const rec_problem &p = a.p;
    const rec_sequence s = rec_sequence_of(&p, n);
    const float *at = a.bonuses + (rec_first_chunk(&p, n, s.begin) * p.heads + h) * p.key_size + i;
    const rec_size apart = p.heads * p.key_size;
    float sum = 0;
#pragma unroll 8
    for (rec_size c = first; c < rec_chunks_of(&s); c += step) sum += at[c * apart];
    return sum;
}

DEVICE float gamma_of(const rec_gradient &a, rec_size n, rec_size h) {
    const rec_problem &p = a.p;
    const rec_sequence s = rec_sequence_of(&p, n);
    float sum = 0;
    for (rec_size t = s.begin + threadIdx.x; t < s.end; t += THREADS)
        if (counts(p, s.batch, t)) sum += numbers_of(a, row_of(a, s.batch, t, h))[REC_D_HEAD];
    return sum;
}

DEVICE void store_total(const rec_view &v, rec_size n, rec_size h, rec_size i, float sum) {
    if (v.present) store(v, n * v.stride[0] + h * v.stride[2] + i * v.stride[3], sum);
}

DEVICE void total_gamma(const rec_gradient &a, rec_size h) {
    const rec_problem &p = a.p;
    const rec_view &gamma = p.view[REC_D(REC_GAMMA)];
    float all = 0;
    for (rec_size n = 0; n < p.sequences; n++) {
        all += gamma_of(a, n, h);
        if (!p.gamma_is_each) continue;
        const float each = sum_of_block(all, 1);
        if (threadIdx.x == 0) store_total(gamma, n, h, 0, each);
        all = 0;
    }
    if (p.gamma_is_each) return;
    all = sum_of_block(all, 1);
    if (threadIdx.x == 0) store_total(gamma, 0, h, 0, all);
}

extern "C" __global__ void __launch_bounds__(THREADS) total(const __grid_constant__ rec_gradient a) {
    const rec_problem &p = a.p;
    const rec_view &bias = p.view[REC_D(REC_DT_BIAS)], &bonus = p.view[REC_D(REC_BONUS)];
    const rec_size h = blockIdx.x;
    const bool is_row = p.g_is_wide || bonus.present;
    const int channels = is_row ? 32 : 1, own = threadIdx.x % channels;
    const rec_size size = is_row ? p.key_size : 1;
    const bool asks_tokens = p.view[REC_D(REC_A_LOG)].present || bias.present || p.view[REC_D(REC_SKIP)].present ||
                             (bonus.present && !a.bonuses);
    float rate = 0, skip = 0;
    if (p.view[REC_D(REC_GAMMA)].present) total_gamma(a, h);
    for (rec_size first = 0; first < size; first += channels) {
        totals sum = {0, 0, 0, 0};
        for (rec_size n = 0; n < p.sequences && first + own < size; n++) {
            const int part = threadIdx.x / channels, parts = THREADS / channels;
            if (asks_tokens) add_tokens(a, n, h, first + own, part, parts, sum);
            if (bonus.present && a.bonuses) sum.bonus += bonus_of(a, n, h, first + own, part, parts);
        }
        rate += sum.rate, skip += sum.skip;
        const float all_bias = sum_of_block(sum.bias, channels), all_bonus = sum_of_block(sum.bonus, channels);
        if (threadIdx.x >= channels || first + own >= size) continue;
        if (bias.stride[3] || first + own == 0) store_total(bias, 0, h, first + own, all_bias);
        store_total(bonus, 0, h, first + own, all_bonus);
    }
    rate = sum_of_block(rate, 1), skip = sum_of_block(skip, 1);
    if (threadIdx.x > 0) return;
    store_total(p.view[REC_D(REC_A_LOG)], 0, h, 0, rate);
    store_total(p.view[REC_D(REC_SKIP)], 0, h, 0, skip);
}
