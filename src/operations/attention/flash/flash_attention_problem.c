/* SPDX-License-Identifier: Apache-2.0 */
/* From arguments to what they mean. */
#include "operations/attention/flash/flash_attention_steps.h"

#include <math.h>

#include "base/base.h"

/* Beyond every position; far enough from the ends of int64 that a position can be added. */
#define FAR (INT64_C(1) << 61)

/* The step of an axis: 0 where it is broadcast, so that one element serves all. */
static int64_t stride(const ejk_tensor *t, int32_t axis) {
    return t->shape[axis] == 1 ? 0 : t->strides[axis];
}

/* Without a batch axis tokens of packed sequences lie one after the other. */
static ejki_bthd bthd(const ejk_tensor *t) {
    if (t->rank == 3) return (ejki_bthd){NULL, 0, t->strides[0], t->strides[1]};
    return (ejki_bthd){NULL, t->strides[0], t->strides[1], t->strides[2]};
}

static ejki_bhts bhts(const ejk_tensor *t) {
    return (ejki_bhts){NULL, stride(t, 0), stride(t, 1), stride(t, 2)};
}

/* An axis of one element may have any stride: the contiguous one says that the result is wanted. */
static ejki_bht bht(const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return (ejki_bht){0};
    if (t->rank == 2) return (ejki_bht){NULL, 0, t->strides[0], 1};
    return (ejki_bht){NULL, t->strides[0], t->strides[1], 1};
}

/* How many query heads share one of a tensor's `heads`, which may be 1, Hq or Hkv. */
static int64_t sharers(const ejki_flash_problem *p, int64_t heads) {
    return heads == p->query_heads || heads == 1 ? 1 : p->group;
}

static int64_t bounded(int64_t a, int64_t b) {
    int64_t sum;
    if (!ejki_add(a, b, &sum)) return a < 0 ? -FAR : FAR;
    return ejki_max(ejki_min(sum, FAR), -FAR);
}

static void resolve_positions(const ejk_flash_attention_args *args, ejki_flash_problem *p) {
    p->ends_together = p->layout != EJKI_FLASH_DENSE && !args->causal_offset.set;
    int64_t offset = p->ends_together ? 0 : p->keys - p->queries;
    if (args->causal_offset.set) offset = args->causal_offset.value;
    ejk_window window = args->sliding_window;
    p->first_offset = window.left.set ? bounded(offset, -window.left.value) : -FAR;
    p->last_offset = window.right.set ? bounded(offset, window.right.value) : FAR;
    if (args->causal) p->last_offset = ejki_min(p->last_offset, bounded(offset, 0));
}

static void resolve_sinks(const ejk_tensor *sinks, ejki_flash_problem *p) {
    if (!ejk_tensor_present(sinks)) return;
    bool per_head = sinks->rank == 2;
    p->sink_count = sinks->shape[sinks->rank - 1];
    p->has_sinks = p->sink_count > 0;
    p->sink_stride_h = per_head ? stride(sinks, 0) : 0;
    p->sink_group = per_head ? sharers(p, sinks->shape[0]) : 1;
}

/*
 * Kernels divide by the cap and multiply by it in float32: where that would overflow, a large cap is none, and a
 * small one is raised to what scores cannot tell from it.
 */
static double soft_cap_of(const ejk_flash_attention_args *args, double scale) {
    const double cap = args->logits_soft_cap.value;
    if (!args->logits_soft_cap.set) return 0;
    if (args->query.dtype == EJK_DTYPE_F64) return cap;
    return cap >= EJKI_FLASH_FAR ? 0 : fmax(cap, fmax(1, fabs(scale)) * 1e-36);
}

void ejki_flash_problem_of(const ejk_flash_attention_args *args, const ejk_axes *axes,
                           ejki_flash_problem *out) {
    int64_t heads = ejk_axes_get(axes, "Hq"), kv_heads = ejk_axes_get(axes, "Hkv");
    int64_t head_dim = ejk_axes_get(axes, "D");
    *out = (ejki_flash_problem){
        .batch = ejk_axes_get(axes, "B"),
        .queries = ejk_axes_get(axes, "T"),
        .keys = ejk_axes_get(axes, "S"),
        .query_heads = heads,
        .kv_heads = kv_heads,
        .group = kv_heads ? heads / kv_heads : 1,
        .head_dim = head_dim,
        .value_dim = ejk_axes_get(axes, "Dv"),
        .dtype = args->query.dtype,
        .query = bthd(&args->query),
        .key = bthd(&args->key),
        .value = bthd(&args->value),
        .out = bthd(&args->out),
        .lse = bht(&args->lse),
        .row_max = bht(&args->row_max),
        .row_sum = bht(&args->row_sum),
        .wants_lse = ejk_tensor_present(&args->lse),
        .wants_row_maxima =
            ejk_tensor_present(&args->row_max) || ejk_tensor_present(&args->row_sum),
        .has_bias = ejk_tensor_present(&args->bias),
        .has_mask = ejk_tensor_present(&args->attention_mask),
        .has_segments = ejk_tensor_present(&args->q_segment_ids),
        .bias = bhts(&args->bias),
        .mask = bhts(&args->attention_mask),
        .query_segments = {NULL, args->q_segment_ids.strides[0]},
        .key_segments = {NULL, args->kv_segment_ids.strides[0]},
        .segments_are_i64 = args->q_segment_ids.dtype == EJK_DTYPE_I64,
        .sink_group = 1,
        .scale = head_dim ? 1 / sqrt((double)head_dim) : 1,
        .normalize = args->normalize_output != EJK_FALSE,
        .dropout = args->dropout_prob,
        .dropout_seed = (uint64_t)args->dropout_seed.value,
    };
    if (ejk_tensor_present(&args->cum_seqlens_q)) {
        out->layout = args->query.rank == 3 ? EJKI_FLASH_TOKENS : EJKI_FLASH_PADDED;
        out->batch = ejk_axes_get(axes, "N");
        out->sums_are_i64 = args->cum_seqlens_q.dtype == EJK_DTYPE_I64;
    }
    if (args->softmax_scale.set) out->scale = args->softmax_scale.value;
    out->soft_cap = soft_cap_of(args, out->scale);
    out->mask_group = sharers(out, args->attention_mask.shape[1]);
    resolve_sinks(&args->softmax_aux, out);
    resolve_positions(args, out);
}
