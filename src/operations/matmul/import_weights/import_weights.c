/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights of other packages: which layouts there are, and what a call's tensors have to look like. */
#include <ejkernel/import_weights.h>

#include "base/base.h"
#include "operations/matmul/import_weights/problem.h"
#include "tensor/access.h"

#include <string.h>

#define EJK_RECORD_SELF ejk_import_weights_args
EJK_RECORD_DEFINE_WITH(ejk_import_weights_args_record, ejk_import_weights_args,
                       EJK_IMPORT_WEIGHTS_ARGS, "E=1,A,P,R=A,W=P,S=1", NULL);
#undef EJK_RECORD_SELF

static const import_layout layouts[] = {
    {"q4_0", IMPORT_BLOCKS, 4, 32, 18, 32, false, EJK_DTYPE_F16},
    {"q4_1", IMPORT_BLOCKS, 4, 32, 20, 32, true, EJK_DTYPE_F16},
    {"q5_0", IMPORT_BLOCKS, 5, 32, 22, 32, false, EJK_DTYPE_F16},
    {"q5_1", IMPORT_BLOCKS, 5, 32, 24, 32, true, EJK_DTYPE_F16},
    {"q8_0", IMPORT_BLOCKS, 8, 32, 34, 32, false, EJK_DTYPE_F16},
    {"q4_k", IMPORT_BLOCKS, 4, 256, 144, 32, true, EJK_DTYPE_F32},
    {"q5_k", IMPORT_BLOCKS, 5, 256, 176, 32, true, EJK_DTYPE_F32},
    {"q6_k", IMPORT_BLOCKS, 6, 256, 210, 16, false, EJK_DTYPE_F32},
    {"mxfp4", IMPORT_BLOCKS, 4, 32, 17, 32, false, EJK_DTYPE_F8E8M0},
    {"gptq", IMPORT_GPTQ, 0, 0, 0, 0, true, EJK_DTYPE_UNSET},
    {"gptq_v2", IMPORT_GPTQ, 0, 0, 0, 0, true, EJK_DTYPE_UNSET},
    {"awq", IMPORT_AWQ, 4, 0, 0, 0, true, EJK_DTYPE_UNSET},
    {"bnb_nf4", IMPORT_BNB, 4, 0, 0, 64, false, EJK_DTYPE_F32},
};

/* Rows and columns up to this: bits and products of them are counted without overflow. */
#define MOST (INT64_C(1) << 40)

/* ---- Sizes ------------------------------------------------------------------------------------------- */

static ejk_status find_layout(const char *name, const import_layout **out) {
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        *out = &layouts[i];
        if (strcmp(name, layouts[i].name) == 0) return EJK_OK;
    }
    return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                     "layout is \"%s\", expected q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, "
                     "mxfp4, gptq, gptq_v2, awq or bnb_nf4",
                     name);
}

static ejk_status check_bits(const ejk_import_weights_args *a, import_problem *p) {
    const int64_t bits = a->bits.value;
    p->bits = p->layout->bits ? p->layout->bits : 4;
    if (!a->bits.set) return EJK_OK;
    if (p->layout->bits ? bits != p->layout->bits
                        : bits != 2 && bits != 3 && bits != 4 && bits != 8)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "bits is %lld, expected %s of layout %s",
                         (long long)bits, p->layout->bits ? "those" : "2, 3, 4 or 8",
                         p->layout->name);
    p->bits = (int)bits;
    return EJK_OK;
}

static ejk_status wrong_type(const char *name, const ejk_tensor *t, const char *expected,
                             const import_problem *p) {
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s: %s given, expected %s with layout %s", name,
                     ejk_dtype_name(t->dtype), expected, p->layout->name);
}

static bool is_word(ejk_dtype type) {
    return type == EJK_DTYPE_I32 || type == EJK_DTYPE_U32;
}

static ejk_status size_blocks(const ejk_import_weights_args *a, import_problem *p) {
    const ejk_tensor *t = &a->packed;
    const int64_t bytes = t->rank > 0 && t->rank <= 3 ? t->shape[t->rank - 1] : -1;
    if (t->dtype != EJK_DTYPE_U8) return wrong_type("packed", t, "uint8", p);
    if (bytes < 0 || bytes % p->layout->bytes != 0)
        return ejki_fail(
            EJK_STATUS_INVALID_SHAPE,
            "packed has rows of %lld bytes, expected whole blocks of %d with layout %s",
            (long long)bytes, p->layout->bytes, p->layout->name);
    p->matrices = t->rank == 3 ? t->shape[0] : 1;
    p->rows = t->rank >= 2 ? t->shape[t->rank - 2] : 1;
    p->columns = ejki_min(bytes / p->layout->bytes, MOST) * p->layout->block;
    p->size = p->layout->size;
    return EJK_OK;
}

/* A scale for each group and output; K/G values share one unless the call says otherwise. */
static ejk_status size_groups(const ejk_import_weights_args *a, import_problem *p) {
    const ejk_tensor *s = &a->packed_scales;
    if (!ejk_tensor_present(s) || s->rank != 2 || !ejk_tensor_present(&a->packed_zeros))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "packed_scales [G,N] and packed_zeros have to be given with layout %s",
                         p->layout->name);
    if (s->dtype != EJK_DTYPE_F16 && s->dtype != EJK_DTYPE_BF16 && s->dtype != EJK_DTYPE_F32)
        return wrong_type("packed_scales", s, "float32, bfloat16 or float16", p);
    p->groups = s->shape[0];
    p->size = p->groups > 0 ? ejki_max(1, ejki_cdiv(p->columns, p->groups)) : 1;
    if (a->group_size.set) p->size = a->group_size.value;
    if (p->size < 1 || ejki_cdiv(p->columns, p->size) != p->groups || s->shape[1] != p->rows)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "packed_scales is [%lld,%lld], expected [%lld,%lld] for groups of %lld",
                         (long long)s->shape[0], (long long)s->shape[1],
                         (long long)(p->size < 1 ? 0 : ejki_cdiv(p->columns, p->size)),
                         (long long)p->rows, (long long)p->size);
    return EJK_OK;
}

static ejk_status check_packed_zeros(const ejk_import_weights_args *a, const import_problem *p) {
    const ejk_tensor *z = &a->packed_zeros;
    const int64_t words = ejki_cdiv(p->rows * p->bits, 32);
    if (!is_word(z->dtype)) return wrong_type("packed_zeros", z, "int32 or uint32", p);
    if (z->shape[0] == p->groups && z->shape[1] == words) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "packed_zeros is [%lld,%lld], expected [%lld,%lld] for layout %s",
                     (long long)z->shape[0], (long long)z->shape[1], (long long)p->groups,
                     (long long)words, p->layout->name);
}

/* gptq has codes of a word below each other, awq side by side. */
static ejk_status size_words(const ejk_import_weights_args *a, import_problem *p) {
    const ejk_tensor *t = &a->packed;
    const bool below = p->layout->family == IMPORT_GPTQ;
    int64_t bits;
    if (!is_word(t->dtype)) return wrong_type("packed", t, "int32 or uint32", p);
    if (t->rank != 2)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "packed has rank %d, expected 2 with layout %s",
                         (int)t->rank, p->layout->name);
    if (!ejki_mul(t->shape[below ? 0 : 1], 32, &bits))
        return ejki_fail(EJK_STATUS_OVERFLOW, "packed has more codes than can be counted");
    p->matrices = 1;
    p->columns = below ? bits / p->bits : t->shape[0];
    p->rows = below ? ejki_min(t->shape[1], MOST) : bits / p->bits;
    if (below && bits % p->bits != 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "packed has %lld words in a column, expected whole codes of %d bits",
                         (long long)t->shape[0], p->bits);
    if (below && p->columns > INT32_MAX)
        return ejki_fail(EJK_STATUS_OVERFLOW, "packed has %lld inputs, expected at most 2^31 - 1",
                         (long long)p->columns);
    EJKI_TRY(size_groups(a, p));
    return check_packed_zeros(a, p);
}

static ejk_status check_nested(const ejk_import_weights_args *a, const import_problem *p) {
    const bool given =
        ejk_tensor_present(&a->nested_scales) && ejk_tensor_present(&a->nested_table);
    const int64_t wanted = ejki_cdiv(p->matrices * p->rows * p->groups, 256);
    if (a->packed_scales.dtype == EJK_DTYPE_F32) return EJK_OK;
    if (a->packed_scales.dtype != EJK_DTYPE_U8)
        return wrong_type("packed_scales", &a->packed_scales, "float32 or uint8", p);
    if (given && a->nested_scales.shape[0] >= wanted) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "packed_scales are uint8, expected nested_scales [%lld] and nested_table",
                     (long long)wanted);
}

static ejk_status size_flat(const ejk_import_weights_args *a, import_problem *p) {
    const ejk_tensor *t = &a->packed, *s = &a->packed_scales;
    int64_t values;
    p->size = a->group_size.set ? a->group_size.value : p->layout->size;
    p->columns = a->columns.value;
    p->matrices = 1;
    if (t->dtype != EJK_DTYPE_U8) return wrong_type("packed", t, "uint8", p);
    if (t->rank < 1 || t->rank > 2 || (t->rank == 2 && t->shape[1] != 1))
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "packed is no [P] or [P,1], as layout bnb_nf4 has it");
    if (!a->columns.set || p->columns < 1 || p->size < 1 || p->columns % p->size != 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "columns is %lld, expected a multiple of group_size %lld, above 0",
                         (long long)p->columns, (long long)p->size);
    if (!ejki_mul(t->shape[0], 2, &values) || values % p->columns != 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "packed has %lld bytes of two codes, expected rows of %lld codes",
                         (long long)t->shape[0], (long long)p->columns);
    p->rows = values / p->columns;
    if (!ejk_tensor_present(s) || s->rank != 1 || s->shape[0] != values / p->size)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "packed_scales is no [%lld], a scale for each %lld codes",
                         (long long)(values / p->size), (long long)p->size);
    return EJK_OK;
}

/* Sizes of the result, from what is given. */
static ejk_status resolve(const ejk_import_weights_args *a, import_problem *p) {
    *p = (import_problem){0};
    EJKI_TRY(find_layout(a->layout, &p->layout));
    EJKI_TRY(check_bits(a, p));
    if (p->layout->family == IMPORT_BLOCKS)
        EJKI_TRY(size_blocks(a, p));
    else if (p->layout->family == IMPORT_BNB)
        EJKI_TRY(size_flat(a, p));
    else
        EJKI_TRY(size_words(a, p));
    p->groups = ejki_cdiv(p->columns, p->size);
    if (p->rows > MOST || p->columns > MOST)
        return ejki_fail(EJK_STATUS_OVERFLOW, "packed stands for [%lld,%lld] values, too many",
                         (long long)p->rows, (long long)p->columns);
    return p->layout->family == IMPORT_BNB ? check_nested(a, p) : EJK_OK;
}

/* ---- Results ----------------------------------------------------------------------------------------- */

static ejk_status place(const char *name, const ejk_tensor *t, int64_t width,
                        const import_problem *p, import_rows *out) {
    const int64_t *shape = t->shape + (t->rank - 2);
    const bool fits = t->rank == 3 ? t->shape[0] == p->matrices : p->matrices == 1;
    if (!fits || shape[0] != p->rows || shape[1] != width)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "%s has rows of [%lld,%lld], expected %lld matrices of [%lld,%lld]", name,
                         (long long)shape[0], (long long)shape[1], (long long)p->matrices,
                         (long long)p->rows, (long long)width);
    *out = (import_rows){.dtype = t->dtype,
                         .matrix = t->rank == 3 ? t->strides[0] : 0,
                         .row = t->strides[t->rank - 2]};
    return EJK_OK;
}

static ejk_dtype scale_type(const ejk_import_weights_args *a, const import_problem *p) {
    return p->layout->scales ? p->layout->scales : a->packed_scales.dtype;
}

static ejk_status check_types(const ejk_import_weights_args *a, const import_problem *p) {
    const ejk_dtype type = scale_type(a, p), zero = a->zeros.dtype;
    const bool blocks = p->layout->family == IMPORT_BLOCKS;
    if (a->scales.dtype != type && (a->scales.dtype != EJK_DTYPE_F32 || type == EJK_DTYPE_F8E8M0))
        return wrong_type("scales", &a->scales, ejk_dtype_name(type), p);
    if (ejk_tensor_present(&a->zeros) != p->layout->zeros)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "zeros %s with layout %s",
                         p->layout->zeros ? "have to be given"
                                          : "are given, of which there are none",
                         p->layout->name);
    if (p->layout->zeros && blocks && zero != EJK_DTYPE_F32)
        return wrong_type("zeros", &a->zeros, "float32", p);
    if (zero == EJK_DTYPE_I8 && p->bits == 8)
        return wrong_type("zeros", &a->zeros, "a type that holds 255", p);
    return EJK_OK;
}

static ejk_status check_order(const ejk_import_weights_args *a, import_problem *p) {
    const bool gptq = p->layout->family == IMPORT_GPTQ;
    const ejk_tensor *const lists[] = {&a->g_idx, &a->permutation};
    p->has_permutation = ejk_tensor_present(&a->permutation);
    p->g_idx_type = a->g_idx.dtype;
    for (int i = 0; i < 2; i++)
        if (ejk_tensor_present(lists[i]) && (!gptq || lists[i]->shape[0] != p->columns))
            return ejki_fail(
                EJK_STATUS_INVALID_SHAPE, "%s has %lld entries, expected %lld, with layout gptq",
                i ? "permutation" : "g_idx", (long long)lists[i]->shape[0], (long long)p->columns);
    return EJK_OK;
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_import_weights_args *a = args;
    import_problem *p = problem;
    EJKI_TRY(resolve(a, p));
    EJKI_TRY(check_types(a, p));
    EJKI_TRY(check_order(a, p));
    const int64_t unit = a->w.dtype == EJK_DTYPE_U32 ? 32 : 8;
    EJKI_TRY(place("w", &a->w, ejki_cdiv(p->columns * p->bits, unit), p, &p->w));
    EJKI_TRY(place("scales", &a->scales, p->groups, p, &p->scales));
    if (p->layout->zeros) EJKI_TRY(place("zeros", &a->zeros, p->groups, p, &p->zeros));
    const ejk_tensor *t = &a->packed, *z = &a->packed_zeros;
    const int64_t size = (int64_t)ejk_dtype_size(t->dtype);
    p->packed_matrix = t->rank == 3 ? ejki_step(t, 0) * size : 0;
    p->packed_row = t->rank == 1 ? size : ejki_step(t, t->rank - 2) * size;
    p->packed_scale_type = a->packed_scales.dtype;
    p->packed_scale_row = a->packed_scales.rank == 2 ? a->packed_scales.strides[0] : 0;
    p->packed_zero_row = z->rank == 2 ? ejki_step(z, 0) * (int64_t)ejk_dtype_size(z->dtype) : 0;
    return EJK_OK;
}

static void bind(const void *args, void *problem) {
    const ejk_import_weights_args *a = args;
    import_problem *p = problem;
    p->packed = a->packed.data;
    p->packed_zeros = a->packed_zeros.data;
    p->packed_scales = a->packed_scales.data;
    p->g_idx = a->g_idx.data;
    p->nested_scales = a->nested_scales.data;
    p->nested_table = a->nested_table.data;
    p->nested_offset = a->nested_offset.data;
    p->w.data = a->w.data;
    p->scales.data = a->scales.data;
    p->zeros.data = a->zeros.data;
    p->permutation = a->permutation.data;
}

static bool result(const void *args, const char *name, ejk_tensor *view) {
    const ejk_import_weights_args *a = args;
    import_problem p;
    if (resolve(a, &p) != EJK_OK) return false;
    const bool order = strcmp(name, "permutation") == 0, codes = strcmp(name, "w") == 0;
    const bool zeros = strcmp(name, "zeros") == 0;
    if (order ? p.layout->family != IMPORT_GPTQ : zeros && !p.layout->zeros) return false;
    const int64_t width = codes ? ejki_cdiv(p.columns * p.bits, 32) : p.groups;
    view->rank = order ? 1 : a->packed.rank == 3 ? 3 : 2;
    view->dtype = order ? EJK_DTYPE_I32 : codes ? EJK_DTYPE_U32 : scale_type(a, &p);
    if (zeros) view->dtype = p.layout->family == IMPORT_BLOCKS ? EJK_DTYPE_F32 : EJK_DTYPE_U8;
    view->shape[0] = order ? p.columns : p.matrices;
    view->shape[view->rank - 1] = order ? p.columns : width;
    if (!order) view->shape[view->rank - 2] = p.rows;
    return true;
}

/* Packed codes have no element type to look an implementation up by. */
static ejk_dtype dtype(const void *args) {
    (void)args;
    return EJK_DTYPE_F32;
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const import_problem *p = problem;
    const double count = (double)p->matrices * (double)p->rows * (double)p->columns;
    out->flops = count;
    out->bytes = 2 * count * p->bits / 8;
}

const ejk_kernel ejk_import_weights_kernel = {
    .op_id = "import_weights",
    .version = "0",
    .doc = "packed weights of other packages as codes, scales and zeros",
    .args = &ejk_import_weights_args_record,
    .config = &ejk_quantized_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(import_problem),
    .prepare = prepare,
    .bind = bind,
    .dtype = dtype,
    .cost = cost,
    .result = result,
};

ejk_status ejk_import_weights(ejk_context *context, const ejk_import_weights_args *args) {
    return ejk_call(context, &ejk_import_weights_kernel, args);
}
