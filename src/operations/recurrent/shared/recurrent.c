/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the recurrent family as problems: shapes and types against each other, strides, pointers. */
#include "operations/recurrent/shared/recurrent.h"

#include <string.h>

#include "base/base.h"

#define EJK_RECORD_SELF ejk_recurrent_config
EJK_RECORD_DEFINE(ejk_recurrent_config_record, ejk_recurrent_config, EJK_RECURRENT_CONFIG);
#undef EJK_RECORD_SELF

_Static_assert(sizeof(rec_problem) <= EJK_MAX_PROBLEM_SIZE, "problems are copied to the stack");

/* What the axes of a tensor are. */
enum axes { TOKEN, TOKEN_ROW, HEAD, HEAD_ROW, STATE, INDICES, ENDS, SEGMENTS, KEPT };

typedef struct shape {
    const char *name;
    enum axes axes;
    int64_t heads, size; /* of those with heads; the last axis of rows */
} shape;

static const char *const role_names[REC_GRADIENT] = {
    "query", "key",   "value", "a",       "b",    "beta",          "bonus",       "gate", "gk",
    "gv",    "gamma", "A_log", "dt_bias", "skip", "initial_state", "final_state", "out"};

static bool has(const rec_call *c, int role) {
    return c->tensor[role] && ejk_tensor_present(c->tensor[role]);
}

/* Of a tensor, and of its gradient. */
static const char *name_of(const rec_call *c, int role) {
    return (c->names ? c->names : role_names)[role % REC_GRADIENT];
}

static shape shape_of(const rec_problem *p, const rec_call *c, int role) {
    const int of = role >= REC_GRADIENT && role <= REC_D_OUT ? role - REC_GRADIENT : role;
    shape s = {of < REC_GRADIENT ? name_of(c, of) : NULL, TOKEN_ROW, p->heads, p->key_size};
    switch (of) {
    case REC_QUERY: s.heads = p->query_heads; break;
    case REC_KEY: s.heads = p->key_heads; break;
    case REC_VALUE: s.heads = p->value_heads, s.size = p->value_size; break;
    case REC_OUT:
    case REC_GV: s.size = p->value_size; break;
    case REC_BETA: s.axes = TOKEN; break;
    case REC_G: s.axes = p->g_is_wide ? TOKEN_ROW : TOKEN; break;
    case REC_DT_BIAS: s.axes = p->g_is_wide ? HEAD_ROW : HEAD; break;
    case REC_BONUS: s.axes = HEAD_ROW; break;
    case REC_A_LOG:
    case REC_SKIP:
    case REC_GAMMA: s.axes = HEAD; break;
    case REC_INITIAL:
    case REC_FINAL: s.axes = STATE; break;
    case REC_INDICES: s.axes = INDICES; break;
    case REC_ENDS: s.axes = ENDS; break;
    case REC_SEGMENTS: s.axes = SEGMENTS; break;
    case REC_STATES: s.axes = KEPT; break;
    case REC_ERRORS: s.name = "errors", s.size = p->value_size; break;
    default: break;
    }
    return s;
}

/* ---- Views ------------------------------------------------------------------------------------------ */

static ejk_status check_axis(const char *name, const ejk_tensor *t, int32_t axis, int64_t wanted) {
    if (t->shape[axis] == wanted) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has length %lld on axis %d, expected %lld", name,
                     (long long)t->shape[axis], (int)axis, (long long)wanted);
}

static ejk_status check_rank(const char *name, const ejk_tensor *t, int32_t wanted) {
    if (t->rank == wanted) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has rank %d, expected %d", name, (int)t->rank,
                     (int)wanted);
}

/* Of tokens: with or without a batch axis, as the query. */
static ejk_status token_view(const rec_problem *p, const rec_call *c, const shape *s,
                             const ejk_tensor *t, rec_view *v) {
    const int32_t first = c->tensor[REC_QUERY]->rank - 3;
    const int32_t heads = s->axes == SEGMENTS ? 0 : 1, row = s->axes == TOKEN_ROW ? 1 : 0;
    EJKI_TRY(check_rank(s->name, t, first + 1 + heads + row));
    if (first == 1) EJKI_TRY(check_axis(s->name, t, 0, p->batch));
    EJKI_TRY(check_axis(s->name, t, first, p->tokens));
    if (heads) EJKI_TRY(check_axis(s->name, t, first + 1, s->heads));
    if (row) EJKI_TRY(check_axis(s->name, t, first + 2, s->size));
    v->stride[0] = first == 1 ? t->strides[0] : 0;
    v->stride[1] = t->strides[first];
    v->stride[2] = heads ? t->strides[first + 1] : 0;
    v->stride[3] = row;
    return EJK_OK;
}

/* Of a row for each head; gamma may have one for each sequence. */
static ejk_status head_view(const rec_problem *p, int role, const shape *s, const ejk_tensor *t,
                            rec_view *v) {
    const bool many = role % REC_GRADIENT == REC_GAMMA && p->gamma_is_each;
    EJKI_TRY(check_rank(s->name, t, s->axes == HEAD_ROW || many ? 2 : 1));
    if (many) EJKI_TRY(check_axis(s->name, t, 0, p->sequences));
    EJKI_TRY(check_axis(s->name, t, many, p->heads));
    if (s->axes == HEAD_ROW) EJKI_TRY(check_axis(s->name, t, 1, p->key_size));
    v->stride[0] = many ? t->strides[0] : 0;
    v->stride[2] = t->strides[many];
    v->stride[3] = s->axes == HEAD_ROW;
    return EJK_OK;
}

static ejk_status state_view(const rec_problem *p, bool transposed, int64_t rows, const char *name,
                             const ejk_tensor *t, rec_view *v) {
    const int32_t key = transposed ? 3 : 2, value = transposed ? 2 : 3;
    EJKI_TRY(check_axis(name, t, 0, rows));
    EJKI_TRY(check_axis(name, t, 1, p->heads));
    EJKI_TRY(check_axis(name, t, key, p->key_size));
    EJKI_TRY(check_axis(name, t, value, p->value_size));
    v->stride[0] = t->strides[0];
    v->stride[1] = t->strides[1];
    v->stride[2] = t->strides[key];
    v->stride[3] = t->strides[value];
    return EJK_OK;
}

/* The record has looked at the axes behind the first two. */
static ejk_status kept_view(rec_problem *p, const ejk_tensor *t, rec_view *v) {
    const int64_t rows = ejki_cdiv(p->tokens, (rec_size)REC_KEPT_STEPS) + p->sequences - p->batch;
    EJKI_TRY(check_axis("chunk_states", t, 0, p->batch));
    EJKI_TRY(check_axis("chunk_states", t, 1, rows));
    p->kept_rows = t->shape[1];
    p->kept_stride = t->strides[1];
    v->stride[0] = t->strides[0];
    for (int i = 1; i < 4; i++) v->stride[i] = t->strides[i + 1];
    return EJK_OK;
}

static void list_view(const ejk_tensor *t, rec_view *v) {
    v->stride[0] = t->strides[0];
    v->wide = t->dtype == EJK_DTYPE_I64;
}

static ejk_status put_view(rec_problem *p, const rec_call *c, int role, bool transposed) {
    const ejk_tensor *t = c->tensor[role];
    const shape s = shape_of(p, c, role);
    rec_view *v = &p->view[role];
    v->present = 1;
    v->dtype = (int)t->dtype;
    v->wide = t->dtype == EJK_DTYPE_I64;
    switch (s.axes) {
    case HEAD:
    case HEAD_ROW: return head_view(p, role, &s, t, v);
    case STATE: return state_view(p, transposed, p->sequences, s.name, t, v);
    case INDICES: list_view(t, v); return check_axis("state_indices", t, 0, p->sequences);
    case ENDS: list_view(t, v); return EJK_OK;
    case KEPT: return kept_view(p, t, v);
    case SEGMENTS: {
        const shape ids = {"seg_ids", SEGMENTS, 0, 0};
        return token_view(p, c, &ids, t, v);
    }
    default: return token_view(p, c, &s, t, v);
    }
}

/* ---- Checks ----------------------------------------------------------------------------------------- */

static ejk_status check_heads(const char *name, int64_t heads, int64_t most) {
    if (heads == most || (heads > 0 && most % heads == 0)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s has %lld heads, expected a divisor of %lld",
                     name, (long long)heads, (long long)most);
}

/* Gates, rates and weights are in f32 or in the type of the query, states in f32 or f64. */
static ejk_status check_type(const rec_call *c, int role) {
    const ejk_dtype query = c->tensor[REC_QUERY]->dtype, own = c->tensor[role]->dtype;
    const ejk_dtype state = query == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    const bool is_state = role == REC_FINAL || role == REC_D_FINAL;
    const bool is_gate = role == REC_BETA || (role >= REC_BONUS && role <= REC_SKIP);
    ejk_dtype wanted = own;
    if (is_state || (role == REC_INITIAL && own == EJK_DTYPE_F64)) wanted = state;
    if (role == REC_OUT || role == REC_D_OUT || (is_gate && own != EJK_DTYPE_F32)) wanted = query;
    if (role == REC_D(REC_INITIAL) && own != state)
        wanted = has(c, REC_INITIAL) ? c->tensor[REC_INITIAL]->dtype : state;
    if (own == wanted) return EJK_OK;
    const int of = role >= REC_GRADIENT ? role - REC_GRADIENT : role;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s%s is %s, expected %s", of == role ? "" : "d_",
                     name_of(c, of), ejk_dtype_name(own), ejk_dtype_name(wanted));
}

static ejk_status check_states(const rec_call *c) {
    const bool pool = c->state && ejk_tensor_present(c->state);
    if (pool && (has(c, REC_INITIAL) || has(c, REC_FINAL)))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "state is given together with %s, which it is "
                         "in place of",
                         has(c, REC_INITIAL) ? "initial_state" : "final_state");
    if (!pool && has(c, REC_INDICES))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "state_indices are given without state");
    return EJK_OK;
}

/* What there is a gradient of has to be there; but for the initial state, which is 0 otherwise. */
static ejk_status check_wanted(const rec_call *c) {
    for (int role = 0; role < REC_INITIAL; role++)
        if (has(c, REC_D(role)) && !has(c, role))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_%s is given without %s",
                             name_of(c, role), name_of(c, role));
    return EJK_OK;
}

static ejk_status read_layout(const char *text, bool *transposed) {
    *transposed = strcmp(text, "value_key") == 0;
    if (*transposed || *text == '\0' || strcmp(text, "key_value") == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                     "state_layout is '%s', expected key_value or value_key", text);
}

static ejk_status check_size(const rec_problem *p) {
    int64_t count, bytes;
    if (ejki_mul(p->key_size, p->value_size, &count) && ejki_mul(count, p->heads, &count) &&
        ejki_mul(count, ejki_max(p->sequences, 1), &count) &&
        ejki_mul(count, ejki_cdiv(p->tokens, 16) + 256, &count) && ejki_mul(count, 64, &bytes))
        return EJK_OK;
    return ejki_fail(EJK_STATUS_OVERFLOW, "states of %lld x %lld cannot be counted",
                     (long long)p->key_size, (long long)p->value_size);
}

/* ---- Problems --------------------------------------------------------------------------------------- */

static ejk_status put_sizes(const rec_call *c, rec_problem *p) {
    const ejk_tensor *q = c->tensor[REC_QUERY], *k = c->tensor[REC_KEY], *v = c->tensor[REC_VALUE];
    const int32_t last = q->rank - 1;
    EJKI_TRY(check_rank(name_of(c, REC_KEY), k, q->rank));
    EJKI_TRY(check_rank(name_of(c, REC_VALUE), v, q->rank));
    p->batch = q->rank == 4 ? q->shape[0] : 1;
    p->tokens = q->shape[last - 2];
    p->query_heads = q->shape[last - 1];
    p->key_heads = k->shape[last - 1];
    p->value_heads = v->shape[last - 1];
    p->heads = ejki_max(p->query_heads, ejki_max(p->key_heads, p->value_heads));
    p->key_size = q->shape[last];
    p->value_size = v->shape[last];
    EJKI_TRY(check_heads(name_of(c, REC_QUERY), p->query_heads, p->heads));
    EJKI_TRY(check_heads(name_of(c, REC_KEY), p->key_heads, p->heads));
    EJKI_TRY(check_heads(name_of(c, REC_VALUE), p->value_heads, p->heads));
    p->packed = has(c, REC_ENDS);
    p->sequences = p->packed ? c->tensor[REC_ENDS]->shape[0] - 1 : p->batch;
    if (p->packed && p->batch != 1)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "%s has batch %lld, expected 1: with cu_seqlens sequences are packed",
                         name_of(c, REC_QUERY), (long long)p->batch);
    return check_size(p);
}

static void put_decays(const rec_call *c, rec_problem *p) {
    p->g_is_wide = has(c, REC_G) && c->tensor[REC_G]->rank == c->tensor[REC_QUERY]->rank;
    p->gamma_is_each = has(c, REC_GAMMA) && c->tensor[REC_GAMMA]->rank == 2;
    p->head_decay = (has(c, REC_G) && !p->g_is_wide) || has(c, REC_GAMMA) || p->slope != 0;
    p->key_decay = p->g_is_wide || has(c, REC_GK);
    p->value_decay = has(c, REC_GV);
}

ejk_status rec_resolve(const rec_call *c, rec_problem *p) {
    bool transposed;
    *p = (rec_problem){.slope = c->slope,
                       .update = (int)c->update,
                       .read = (int)c->read,
                       .normalise = c->normalise,
                       .beta_logits = c->beta_logits && has(c, REC_BETA),
                       .multiply = c->multiply,
                       .reverse = c->reverse,
                       .gradient = c->gradient,
                       .dtype = (int)c->tensor[REC_QUERY]->dtype};
    EJKI_TRY(read_layout(c->layout, &transposed));
    EJKI_TRY(check_states(c));
    EJKI_TRY(check_wanted(c));
    EJKI_TRY(put_sizes(c, p));
    put_decays(c, p);
    if (has(c, REC_A_LOG) && !has(c, REC_G))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "A_log is given without decay");
    if (has(c, REC_DT_BIAS) && !has(c, REC_A_LOG))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "dt_bias is given without A_log");
    p->scale = c->scale.set ? c->scale.value : 1 / __builtin_sqrt((double)ejki_max(p->key_size, 1));
    for (int role = 0; role < REC_ROLES; role++) {
        if (!has(c, role)) continue;
        EJKI_TRY(put_view(p, c, role, transposed));
        if (role < REC_INDICES) EJKI_TRY(check_type(c, role));
    }
    if (c->state && ejk_tensor_present(c->state)) {
        rec_view *v = &p->view[REC_INITIAL];
        const ejk_dtype wide = p->dtype == EJK_DTYPE_F64 ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
        if (c->state->dtype != wide)
            return ejki_fail(EJK_STATUS_INVALID_DTYPE, "state is %s, expected %s",
                             ejk_dtype_name(c->state->dtype), ejk_dtype_name(wide));
        p->is_pool = 1;
        p->slots = c->state->shape[0];
        *v = (rec_view){.present = 1, .dtype = (int)wide};
        EJKI_TRY(state_view(p, transposed, has(c, REC_INDICES) ? p->slots : p->sequences, "state",
                            c->state, v));
        p->view[REC_FINAL] = *v;
    }
    return EJK_OK;
}

void rec_put_pointers(const rec_call *c, rec_problem *p) {
    for (int role = 0; role < REC_ROLES; role++)
        if (has(c, role)) p->view[role].data = c->tensor[role]->data;
    if (p->is_pool) p->view[REC_INITIAL].data = p->view[REC_FINAL].data = c->state->data;
}
