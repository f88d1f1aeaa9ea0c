/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrent family as its kernels see it: read by the C compiler and by NVRTC, so plain types only. One problem
 * serves all members and their gradients; recurrent.h has the formulas. Strides count elements.
 *
 * Tensors of tokens have strides b, t, h and a contiguous last axis, states n, h, row of the key, column of the value.
 * Head h of the H of the call reads head h / (H / Hx) of a tensor with Hx.
 */
#ifndef EJKI_RECURRENT_PROBLEM_CUH
#define EJKI_RECURRENT_PROBLEM_CUH

#ifdef __CUDACC_RTC__
#define REC static __device__ __forceinline__
#else
#include <string.h>
#define REC static inline
#endif

typedef long long rec_size;

/* What is done to the decayed state: S += k (beta v)', S += k (beta (v - S'k))', S += a (S_old'b)' + k v'. */
enum rec_update { REC_ADD, REC_DELTA, REC_RANK_ONE };
/* What the query reads: the new state, or the old one and diag(bonus) k v'. */
enum rec_read { REC_AFTER, REC_BEFORE };

/* Tensors of a call. Of those before REC_GRADIENT the gradient, or cotangent, is REC_GRADIENT places on. */
enum rec_role {
    REC_QUERY,
    REC_KEY,
    REC_VALUE,
    REC_A,       /* of rank-one updates, [B,T,H,Dk] */
    REC_B,       /* of rank-one updates, [B,T,H,Dk] */
    REC_BETA,    /* [B,T,H] */
    REC_BONUS,   /* [H,Dk] */
    REC_G,       /* [B,T,H], or [B,T,H,Dk] with g_is_wide */
    REC_GK,      /* [B,T,H,Dk] */
    REC_GV,      /* [B,T,H,Dv] */
    REC_GAMMA,   /* [H] or [N,H]: strides n, h */
    REC_A_LOG,   /* [H]; if present, REC_G is raw: the gate is -exp(A_log) softplus(g + dt_bias) */
    REC_DT_BIAS, /* [H], or [H,Dk] with g_is_wide */
    REC_SKIP,    /* [H], of sums: how often a value is in the output besides the state */
    REC_INITIAL, /* [N,H,Dk,Dv], with is_pool [slots,H,Dk,Dv] */
    REC_FINAL,   /* with is_pool the same memory */
    REC_OUT,     /* [B,T,H,Dv] */
    REC_GRADIENT,
    REC_D_FINAL = REC_GRADIENT + REC_FINAL,
    REC_D_OUT = REC_GRADIENT + REC_OUT,
    REC_INDICES,  /* [N] */
    REC_ENDS,     /* [N+1] */
    REC_SEGMENTS, /* [B,T] */
    REC_STATES,   /* of delta rules, [B,rows,H,Dk,Dv]: before every REC_KEPT_STEPS steps; strides b, h, k, v */
    REC_ERRORS,   /* of delta rules, [B,T,H,Dv]: value - S'k */
    REC_ROLES,
};
enum { REC_KEPT_STEPS = 32 };
/* Of another: its gradient or cotangent. */
#define REC_D(role) (REC_GRADIENT + (role))

typedef struct rec_view {
    void *data;
    rec_size stride[4];
    int dtype;
    short present; /* 0: the call has no such tensor */
    short wide;    /* whole numbers of 8 bytes, else of 4 */
} rec_view;

typedef struct rec_problem {
    rec_size batch, tokens, sequences, slots; /* sequences: batch, unless packed */
    rec_size heads, query_heads, key_heads, value_heads;
    rec_size key_size, value_size; /* Dk, Dv */
    double scale, slope;           /* gates of slope times the head, besides the tensors */
    int update, read;              /* rec_update, rec_read */
    int head_decay, key_decay, value_decay; /* whether there are gates per head, key or value channel */
    int normalise;                          /* query and key: x / sqrt(sum of squares + 1e-6) */
    int beta_logits;                        /* beta is sigmoid of its tensor */
    int multiply;                           /* a is b times a, and b is -b: of rwkv7_mul */
    /* Sums with a scale of 1 only: REC_G is raw; a step size is softplus(g + dt_bias), or g + dt_bias, kept between
     * least and most. It is beta, and times REC_A_LOG, as that stands, the gate. */
    int by_step, softplus;
    double least, most;
    int g_is_wide, gamma_is_each, is_pool, packed, reverse, gradient;
    int dtype; /* of the query */
    rec_size kept_rows, kept_stride; /* of REC_STATES: rows, and from one to the next */
    rec_view view[REC_ROLES];
} rec_problem;

#define REC_EPSILON 1e-6

/* Entry `index` of a tensor of whole numbers. On the CPU they may lie anywhere. */
REC rec_size rec_integer(const rec_view *v, rec_size index) {
    rec_size value;
#ifdef __CUDACC_RTC__
    value = v->wide ? ((const rec_size *)v->data)[index] : ((const int *)v->data)[index];
#else
    int narrow;
    if (v->wide) {
        memcpy(&value, (const char *)v->data + index * 8, sizeof value);
    } else {
        memcpy(&narrow, (const char *)v->data + index * 4, sizeof narrow);
        value = narrow;
    }
#endif
    return value;
}

/* A sequence: tokens begin to end - 1 of batch entry b, rows of its states or -1. */
typedef struct rec_sequence {
    rec_size index, batch, begin, end;
    rec_size row; /* of states; -1: starts at 0, and is not stored */
} rec_sequence;

REC rec_size rec_end(const rec_problem *p, rec_size n) {
    const rec_size value = rec_integer(&p->view[REC_ENDS], n);
    return value < 0 ? 0 : value > p->tokens ? p->tokens : value;
}

/* On a GPU nobody has looked at the numbers before, so what is outside is kept inside. */
REC rec_sequence rec_sequence_of(const rec_problem *p, rec_size n) {
    rec_sequence s = {n, n, 0, p->tokens, n};
    if (p->packed) {
        s.batch = 0;
        s.begin = rec_end(p, n);
        s.end = rec_end(p, n + 1);
        if (s.end < s.begin) s.end = s.begin;
    }
    if (p->view[REC_INDICES].present) {
        s.row = rec_integer(&p->view[REC_INDICES], n);
        if (s.row < 0 || s.row >= p->slots) s.row = -1;
    }
    return s;
}

/* The token of step `i` of a sequence. */
REC rec_size rec_token(const rec_problem *p, const rec_sequence *s, rec_size i) {
    return p->reverse ? s->end - 1 - i : s->begin + i;
}

/* The head of a tensor with `own` heads that head h of the call reads. */
REC rec_size rec_head(const rec_problem *p, rec_size h, rec_size own) {
    return own == p->heads ? h : h / (p->heads / own); /* divisions of 64 bits take their time on a GPU */
}

/* Index of the first element of a token and a head; of a state. */
REC rec_size rec_at(const rec_view *v, rec_size b, rec_size t, rec_size h) {
    return b * v->stride[0] + t * v->stride[1] + h * v->stride[2];
}
REC rec_size rec_state_at(const rec_view *v, rec_size n, rec_size h) {
    return n * v->stride[0] + h * v->stride[1];
}

/* The segment of a token; 0 of all where there are none. */
REC rec_size rec_segment(const rec_problem *p, rec_size b, rec_size t) {
    const rec_view *v = &p->view[REC_SEGMENTS];
    return v->present ? rec_integer(v, b * v->stride[0] + t * v->stride[1]) : 0;
}

/* How a token meets the state: whether it counts, and whether the state begins anew before it. */
typedef struct rec_turn {
    int counts, resets;
} rec_turn;

/* Of step n: another segment than that of the last token before that is no padding. */
REC rec_turn rec_turn_of(const rec_problem *p, const rec_sequence *s, rec_size n) {
    const rec_turn plain = {1, 0}, none = {0, 0}, anew = {1, 1};
    if (!p->view[REC_SEGMENTS].present) return plain;
    const rec_size own = rec_segment(p, s->batch, rec_token(p, s, n));
    if (own < 0) return none;
    while (--n >= 0) {
        const rec_size before = rec_segment(p, s->batch, rec_token(p, s, n));
        if (before >= 0) return before == own ? plain : anew;
    }
    return plain;
}

/* Tokens from here on are in no sequence; without packing there are none. */
REC rec_size rec_covered(const rec_problem *p) {
    return p->packed ? rec_end(p, p->sequences) : p->tokens;
}

#endif
