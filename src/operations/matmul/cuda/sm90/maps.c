/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/matmul/cuda/sm90/maps.h"

#include "device/cuda_driver.h"

enum { PIECE = 8 /* elements of 16 bytes */ };

/* An operand as its map has it: `inner` elements that follow each other, `lines` of them, for each of `groups`. */
typedef struct operand {
    const mm_view *view;
    int64_t inner, lines, groups, line, group;
} operand;

static operand operand_of(const mm_view *v, int64_t rows, int64_t columns, int64_t groups) {
    operand o = {.view = v, .groups = v->group ? groups : 1, .group = v->group};
    o.inner = v->flipped ? rows : columns;
    o.lines = v->flipped ? columns : rows;
    o.line = v->flipped ? v->column : v->row;
    return o;
}
static operand left_of(const mm_product *p) {
    return operand_of(&p->a, p->a_rows, p->depth, p->split == MM_EVEN ? p->groups : 1);
}
static operand right_of(const mm_product *p) {
    const int64_t groups = p->split == MM_EVEN ? p->groups : p->split == MM_ROWS ? p->held : 1;
    return operand_of(&p->b, p->depth, mm_columns_of_b(p), groups);
}

static bool is_stride(int64_t count, int64_t stride) {
    return count <= 1 || (stride > 0 && stride % PIECE == 0 && stride < INT64_C(1) << 38);
}
static bool has_map(const operand *o) {
    return o->inner > 0 && o->lines > 0 && o->groups > 0 && o->inner < INT32_MAX &&
           o->lines < INT32_MAX && o->groups < INT32_MAX && is_stride(o->lines, o->line) &&
           is_stride(o->groups, o->group) &&
           (o->view->flipped ? o->view->row : o->view->column) == 1;
}

static operand added_of(const mm_product *p) {
    const int64_t groups = p->split == MM_EVEN ? p->groups : p->split == MM_DEPTH ? p->held : 1;
    return operand_of(&p->add, p->rows, p->columns, groups);
}
bool ejki_mm_sm90_maps_added(const mm_product *p) {
    const operand o = added_of(p);
    return p->add.present && !p->scatter.present && ejki_mm_cuda_is_half(p->add.dtype) &&
           has_map(&o);
}

static bool is_half_or_float(const mm_view *v) {
    return !v->present || v->dtype == EJK_DTYPE_F32 || ejki_mm_cuda_is_half(v->dtype);
}

bool ejki_mm_sm90_takes(const mm_product *p) {
    const operand a = left_of(p), b = right_of(p);
    if (p->quant.present || p->fold.present || p->scale.present || p->run || p->a.ones)
        return false;
    if (!ejki_mm_cuda_is_half(p->a.dtype) || p->a.dtype != p->b.dtype) return false;
    if (p->split == MM_DEPTH ? !p->a.flipped || p->b.flipped : p->split == MM_ROWS && p->a.flipped)
        return false;
    /* Copies begin at multiples of 16 bytes: values behind gates, too. */
    if (p->gated && !p->interleaved && !p->b.flipped && p->columns % PIECE) return false;
    if (p->out.column != 1 || (p->add.present && p->add.column != 1)) return false;
    if (!is_half_or_float(&p->out) || !is_half_or_float(&p->add) || !is_half_or_float(&p->bias))
        return false;
    return p->rows > 0 && p->columns > 0 && has_map(&a) && has_map(&b);
}

bool ejki_mm_sm90_is_mapped(const mm_product *p) {
    return ((uintptr_t)p->a.data | (uintptr_t)p->b.data) % (2 * PIECE) == 0;
}

/* In boxes of 64 elements of so many lines. */
static ejk_status map_of(const operand *o, int32_t lines, ejki_cuda_map *map) {
    const int64_t any = ejki_round_up(o->inner, PIECE);
    const int64_t sizes[] = {o->inner, o->lines, o->groups, 1};
    const int64_t strides[] = {2 * (o->lines > 1 ? o->line : any),
                               2 * (o->groups > 1 ? o->group : any), 2 * any};
    const int32_t box[] = {64, lines, 1, 1};
    ejki_cuda_tensor_map made;
    EJKI_TRY(ejki_cuda_tensor_map_encode(o->view->data, (ejk_dtype)o->view->dtype, 4, sizes,
                                         strides, box, 128, &made));
    for (int i = 0; i < 16; i++) map->opaque[i] = made.opaque[i];
    return EJK_OK;
}

/* The driver wants a context. */
static ejk_status map_in(int32_t device, const operand *o, int32_t lines, ejki_cuda_map *map) {
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    const ejk_status status = map_of(o, lines, map);
    ejki_cuda_leave(pushed);
    return status;
}
ejk_status ejki_mm_sm90_maps(int32_t device, const mm_product *p, int32_t lines, ejki_cuda_map *a,
                             ejki_cuda_map *b) {
    const operand left = left_of(p), right = right_of(p);
    EJKI_TRY(map_in(device, &left, lines, a));
    return map_in(device, &right, 64, b);
}
ejk_status ejki_mm_sm90_map_added(int32_t device, const mm_product *p, ejki_cuda_map *map) {
    const operand added = added_of(p);
    return map_in(device, &added, 64, map);
}

ejki_cuda_constants ejki_mm_sm90_finish(const mm_product *p) {
    ejki_cuda_constants constants = {.count = 0};
    const bool alone = p->scatter.present; /* its rows, in float32 and without what is added */
    ejki_cuda_add(&constants, "ACTIVATION", p->activation);
    ejki_cuda_add(&constants, "GATED", p->gated ? 1 + p->interleaved : 0);
    ejki_cuda_add(&constants, "OUT", alone ? EJK_DTYPE_F32 : p->out.dtype);
    ejki_cuda_add(&constants, "BIAS", p->bias.present ? p->bias.dtype : 0);
    ejki_cuda_add(&constants, "ADD", p->add.present && !alone ? p->add.dtype : 0);
    ejki_cuda_add(&constants, "WEIGHT", p->weight_type);
    return constants;
}

ejki_cuda_constants ejki_mm_sm90_constants(const mm_product *p) {
    ejki_cuda_constants constants = ejki_mm_sm90_finish(p);
    ejki_cuda_add(&constants, "ELEMENT", p->a.dtype);
    ejki_cuda_add(&constants, "SPLIT", p->split);
    ejki_cuda_add(&constants, "B_FLIPPED", p->b.flipped);
    return constants;
}
