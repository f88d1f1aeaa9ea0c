/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a problem: which there may be, what is said of one, what follows from symbols. */
#include "ops/core/problem_text.h"

#include "record/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Fields ---------------------------------------------------------------------------------------- */

static ejk_status add_slot(const ejki_walk *w, ejki_slots *slots) {
    ejki_slot *slot = &slots->list[slots->count];
    char name[EJKI_PREFIX_SIZE];
    *slot = (ejki_slot){w->owner, w->field, w->member, w->owner_offset, w->offset, ""};
    ejki_walk_name(w, name);
    if (strlen(name) + 1 == sizeof name)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "%.80s...: the path of a field is longer than %d bytes", name,
                         EJKI_PATH_SIZE - 1);
    memcpy(slot->path, name, sizeof name);
    if (w->member >= 0) /* brackets are for sizes in a line */
        snprintf(strrchr(slot->path, '['), 16, ".%d", (int)w->member);
    slots->count++;
    return EJK_OK;
}

ejk_status ejki_slots_create(const ejk_record *record, const void *args, ejki_slots *out) {
    const int32_t most = ejki_walk_count(record);
    ejki_slots slots = {.list = calloc((size_t)most + 1, sizeof *slots.list)};
    ejk_status status = EJK_OK;
    if (!slots.list)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the list of %d tensors",
                         (int)most);
    for (ejki_walk w = ejki_walk_of(record); status == EJK_OK && ejki_walk_next(&w);)
        if (!args || ejki_walk_tensor(&w, args)) status = add_slot(&w, &slots);
    if (status == EJK_OK)
        *out = slots;
    else
        free(slots.list);
    return status;
}

int32_t ejki_slots_find(const ejki_slots *slots, const char *path) {
    for (int32_t i = 0; i < slots->count; i++)
        if (strcmp(slots->list[i].path, path) == 0) return i;
    return -1;
}

/* ---- Views as text --------------------------------------------------------------------------------- */

static bool digit(char c) {
    return c >= '0' && c <= '9';
}

static bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Decimal digits, with a sign if that is allowed; moves behind them. */
static bool read_number(const char **at, bool sign, int64_t *out) {
    const bool minus = sign && **at == '-';
    int64_t value = 0;
    *at += minus;
    if (!digit(**at)) return false;
    for (; digit(**at); (*at)++)
        if (!ejki_mul(value, 10, &value) || !ejki_add(value, **at - '0', &value)) return false;
    *out = minus ? -value : value;
    return true;
}

/* Moves behind a comma, which has to be there before all but the first. */
static bool skip_comma(const char **at, int32_t index) {
    if (index == 0) return true;
    if (**at != ',') return false;
    (*at)++;
    return true;
}

static bool read_size(const char **at, char symbol[EJK_SYMBOL_SIZE], int64_t *number) {
    size_t length = 0;
    if (!letter(**at)) return read_number(at, false, number);
    while (letter((*at)[length]) || digit((*at)[length]) || (*at)[length] == '_') length++;
    if (length >= EJK_SYMBOL_SIZE) return false;
    memcpy(symbol, *at, length);
    *at += length;
    if (**at != '+') return true;
    (*at)++;
    return read_number(at, false, number);
}

/* "[" has been read; reads to behind "]". */
static bool read_sizes(const char **at, ejki_view *view) {
    for (view->rank = 0; **at != ']'; view->rank++) {
        if (view->rank == EJK_MAX_RANK || !skip_comma(at, view->rank) ||
            !read_size(at, view->size[view->rank].symbol, &view->size[view->rank].number))
            return false;
    }
    (*at)++;
    return true;
}

static bool read_strides(const char **at, ejki_view *view) {
    for (view->stride_count = 0; **at != ']'; view->stride_count++) {
        if (view->stride_count == EJK_MAX_RANK || !skip_comma(at, view->stride_count) ||
            !read_number(at, true, &view->stride[view->stride_count]))
            return false;
    }
    (*at)++;
    return true;
}

ejk_status ejki_view_read(const char *text, ejki_view *out) {
    ejki_view view = {.dtype = EJK_DTYPE_UNSET};
    const char *at = text ? text : "";
    const size_t length = strcspn(at, "[@");
    if (length > 0) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", length < sizeof name ? (int)length : 31, at);
        EJKI_TRY(ejk_dtype_from_name(name, &view.dtype));
        at += length;
    }
    bool read = !text || *text != '\0';
    if (read && *at == '[') {
        at++;
        view.sized = true;
        read = read_sizes(&at, &view);
    }
    if (read && at[0] == '@' && at[1] == '[') {
        at += 2;
        view.strided = true;
        read = read_strides(&at, &view);
    }
    if (!read || *at != '\0')
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "'%.60s' cannot be read at '%.20s', expected a type, sizes or strides as "
                         "\"float32[2,T,8]@[64,8,1]\"",
                         text, at);
    *out = view;
    return EJK_OK;
}

bool ejki_view_sizes(const ejki_view *view, const ejk_axes *axes, int64_t sizes[EJK_MAX_RANK]) {
    for (int32_t i = 0; i < view->rank; i++) {
        const char *symbol = view->size[i].symbol;
        const int64_t length = *symbol ? ejk_axes_get(axes, symbol) : 0;
        if (length < 0 || !ejki_add(length, view->size[i].number, &sizes[i])) return false;
    }
    return true;
}

/* ---- What follows ---------------------------------------------------------------------------------- */

ejk_status ejki_slot_dtype(const ejki_slot *slot, const void *args, ejk_dtype number,
                           ejk_dtype *out) {
    const void *owner = args ? (const char *)args + slot->owner_offset : NULL;
    return ejk_field_dtype(slot->owner, slot->field, owner, number, out);
}

ejk_tensor ejki_slot_layout(const ejki_slot *slot, ejk_dtype dtype, int32_t rank,
                            const int64_t *sizes, const ejki_orders *orders, int32_t order) {
    ejk_tensor tensor = ejk_tensor_contiguous(NULL, dtype, rank, sizes);
    ejki_order_apply(orders, order, slot->field, &tensor);
    return tensor;
}

/* Tensors without memory are checked as if each began in the middle of it. */
ejk_status ejki_slots_bind(const ejk_record *record, const ejki_slots *slots, void *args,
                           bool whole, ejk_axes *axes) {
    void *const middle = (void *)(UINTPTR_MAX / 2 + 1);
    for (int32_t i = 0; i < slots->count; i++) {
        ejk_tensor *tensor = ejki_slot_tensor(&slots->list[i], args);
        if (ejk_tensor_present(tensor)) tensor->data = middle;
    }
    const ejk_status status = whole ? ejk_record_check_tensors(record, args, axes)
                                    : ejk_record_bind_axes(record, args, axes);
    for (int32_t i = 0; i < slots->count; i++) ejki_slot_tensor(&slots->list[i], args)->data = NULL;
    return status;
}
