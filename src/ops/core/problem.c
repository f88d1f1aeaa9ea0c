/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of text as a call. Items are taken one by one; then tensors are settled in three rounds: those
 * whose sizes are said bind symbols, symbols left out get their defaults, and the rest follows from them.
 */
#include "ops/core/core.h"
#include "ops/core/problem_text.h"
#include "record/tensors.h"
#include "record/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What has been read of a line. */
typedef struct reader {
    ejk_problem *problem;
    const ejk_record *record;
    ejki_items items;
    ejk_axes known; /* all symbols of the record */
    ejk_axes given; /* those of the line; `at` has their places */
    int32_t at[sizeof((ejk_axes *)0)->axis / sizeof *((ejk_axes *)0)->axis];
    ejk_dtype number;
    ejki_orders orders;
    int32_t order;
    struct tensor_wish {
        bool present;
        int32_t at; /* 0 = no item of its own */
        ejki_view view;
    } * wishes; /* one a slot */
} reader;

/* The last sentence with its place. */
static ejk_status at_byte(ejk_status status, int32_t at) {
    return at > 0 ? ejki_fail(status, "byte %d: %s", (int)at, ejk_last_error()) : status;
}

/* ---- Items ----------------------------------------------------------------------------------------- */

static ejk_status take_symbol(reader *r, const ejki_item *item) {
    ejk_axes one;
    char text[64];
    const int length = snprintf(text, sizeof text, "%s=%s", item->key, item->value);
    if (length >= (int)sizeof text || ejk_axes_parse(text, &one) != EJK_OK || one.count != 1)
        return ejki_fail(EJK_STATUS_MALFORMED, "%s is '%.40s', expected a length", item->key,
                         item->value);
    r->at[r->given.count] = item->at;
    return ejk_axes_set(&r->given, item->key, one.axis[0].length);
}

/* One name of the list after "with". */
static ejk_status take_name(reader *r, const ejki_item *item, const char *name, size_t length) {
    char path[EJKI_PATH_SIZE];
    snprintf(path, sizeof path, "%.*s", length < sizeof path ? (int)length : 0, name);
    for (char *c = path; *c; c++)
        if (*c == '-') *c = '_';
    const int32_t slot = ejki_slots_find(&r->problem->slots, path);
    if (slot < 0)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "with has '%.*s', which is no tensor of %s",
                         length < 80 ? (int)length : 80, name, r->record->name);
    if (r->wishes[slot].at > 0 && r->wishes[slot].at != item->at)
        return ejki_fail(EJK_STATUS_MALFORMED, "%s is given twice", path);
    r->wishes[slot].present = true;
    r->wishes[slot].at = item->at;
    return EJK_OK;
}

static ejk_status take_with(reader *r, const ejki_item *item) {
    for (const char *at = item->value;; at++) {
        const size_t length = strcspn(at, "+,");
        EJKI_TRY(take_name(r, item, at, length));
        at += length;
        if (*at == '\0') return EJK_OK;
    }
}

static ejk_status take_layout(reader *r, const ejki_item *item) {
    char names[EJKI_MOST_ORDERS * (EJK_MAX_RANK + 4)] = "";
    r->order = ejki_orders_find(&r->orders, item->value);
    if (r->order >= 0) return EJK_OK;
    for (int32_t i = 0; i < r->orders.count; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                 i == 0                    ? ""
                 : i + 1 < r->orders.count ? ", "
                                           : " or ",
                 r->orders.name[i]);
    return ejki_fail(EJK_STATUS_MALFORMED, "layout is '%.40s', expected %s", item->value, names);
}

static ejk_status take_tensor(reader *r, const ejki_item *item) {
    struct tensor_wish *wish = &r->wishes[ejki_slots_find(&r->problem->slots, item->key)];
    if (wish->at > 0) return ejki_fail(EJK_STATUS_MALFORMED, "%s is given twice", item->key);
    wish->present = true;
    wish->at = item->at;
    return ejki_view_read(item->value, &wish->view);
}

/* "parts=3": as many members, of which nothing more is said. */
static ejk_status take_count(reader *r, const ejki_item *item) {
    char *end = NULL;
    const long count = item->value ? strtol(item->value, &end, 10) : 0;
    char path[EJKI_PATH_SIZE + 16];
    if (count < 1 || count > EJK_MAX_TENSORS || *end != '\0')
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "%s is '%.40s', expected a number of tensors, 1 to %d", item->key,
                         item->value ? item->value : "", EJK_MAX_TENSORS);
    for (int32_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s.%d", item->key, (int)i);
        struct tensor_wish *wish = &r->wishes[ejki_slots_find(&r->problem->slots, path)];
        wish->present = true;
        wish->at = item->at;
    }
    return EJK_OK;
}

static ejk_status take_field(reader *r, const ejki_item *item, const ejk_field *field) {
    if (field->kind == EJK_FIELD_TENSORS) return take_count(r, item);
    const bool truth = field->kind == EJK_FIELD_BOOL || field->kind == EJK_FIELD_OPT_BOOL;
    if (!item->value && !truth)
        return ejki_fail(EJK_STATUS_MALFORMED, "%s stands alone, expected '=' and a value",
                         item->key);
    EJKI_TRY(ejk_record_set_text(r->record, r->problem->args, item->key,
                                 item->value ? item->value : ""));
    for (int32_t i = 0; i < r->problem->slots.count && field->kind == EJK_FIELD_RECORD; i++)
        if (ejk_tensor_present(ejki_slot_tensor(&r->problem->slots.list[i], r->problem->args)))
            return ejki_fail(EJK_STATUS_MALFORMED, "%s has %s in its JSON, expected it as an item",
                             item->key, r->problem->slots.list[i].path);
    return EJK_OK;
}

static const ejk_input_option *find_option(const ejk_kernel *kernel, const char *name) {
    for (int32_t i = 0; i < kernel->input_option_count; i++)
        if (strcmp(kernel->input_options[i].name, name) == 0) return &kernel->input_options[i];
    return NULL;
}

/* What the value means is for the kernel's `inputs` to say. */
static ejk_status take_wish(reader *r, const ejki_item *item, const ejk_input_option *option) {
    ejk_problem *problem = r->problem;
    if (!item->value)
        return ejki_fail(EJK_STATUS_MALFORMED, "%s stands alone, expected '=' and a value",
                         item->key);
    const char *value = strdup(item->value);
    if (!value) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %s", item->key);
    problem->wishes[problem->inputs.wish_count++] = (ejk_input_wish){option->name, value};
    return EJK_OK;
}

/* A word that means something whatever the kernel, or a symbol. */
static ejk_status take_word(reader *r, const ejki_item *item) {
    const ejk_input_option *option = find_option(r->problem->kernel, item->key);
    if (option) return take_wish(r, item, option);
    const bool dtype = strcmp(item->key, "dtype") == 0, with = strcmp(item->key, "with") == 0;
    const bool layout = r->orders.count > 0 && strcmp(item->key, "layout") == 0;
    if (!dtype && !with && !layout && ejk_axes_get(&r->known, item->key) < 0) {
        char symbols[400] = "";
        size_t used = 0;
        for (int32_t i = 0; i < r->known.count && used < sizeof symbols; i++)
            used += (size_t)snprintf(symbols + used, sizeof symbols - used, "%s%s", i ? " " : "",
                                     r->known.axis[i].name);
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                         "'%.60s' is no field of %s, none of dtype, with%s, and no symbol of its "
                         "tensors, which have %s",
                         item->key, r->record->name, r->orders.count > 0 ? ", layout" : "",
                         symbols);
    }
    if (!item->value)
        return ejki_fail(EJK_STATUS_MALFORMED, "%s stands alone, expected '=' and a value",
                         item->key);
    if (dtype) return ejk_dtype_from_name(item->value, &r->number);
    if (with) return take_with(r, item);
    return layout ? take_layout(r, item) : take_symbol(r, item);
}

/* True for the same key, and for a record and a field in it, of which one would undo the other. */
static bool clash(const char *a, const char *b) {
    while (*a != '\0' && *a == *b) a++, b++;
    return (*a == '\0' && (*b == '\0' || *b == '.')) || (*b == '\0' && *a == '.');
}

static ejk_status take_items(reader *r) {
    for (int32_t i = 0; i < r->items.count; i++) {
        const ejki_item *item = &r->items.list[i];
        for (char *c = item->key; *c; c++)
            if (*c == '-') *c = '_';
        ejk_status status = EJK_OK;
        for (int32_t k = 0; k < i && status == EJK_OK; k++)
            if (clash(r->items.list[k].key, item->key))
                status = ejki_fail(EJK_STATUS_MALFORMED, "%.60s is given twice", item->key);
        const ejk_field *field = ejk_record_find(r->record, item->key, NULL);
        const bool tensor = ejki_slots_find(&r->problem->slots, item->key) >= 0;
        if (status == EJK_OK)
            status = tensor  ? take_tensor(r, item)
                     : field ? take_field(r, item, field)
                             : take_word(r, item);
        if (status != EJK_OK) return at_byte(status, item->at);
    }
    return EJK_OK;
}

/* ---- Tensors --------------------------------------------------------------------------------------- */

/* How many members lists have: up to the last that is there. None before it may be left out. */
static ejk_status resolve_lists(reader *r) {
    const ejki_slots *slots = &r->problem->slots;
    for (int32_t i = slots->count - 1; i >= 0; i--) {
        const ejki_slot *slot = &slots->list[i];
        if (slot->member < 0) continue;
        ejk_tensors *list = (ejk_tensors *)(void *)((char *)r->problem->args + slot->owner_offset +
                                                    slot->field->offset);
        if (r->wishes[i].present && list->count == 0) list->count = slot->member + 1;
        if (slot->member < list->count && !r->wishes[i].present)
            return ejki_fail(EJK_STATUS_MALFORMED, "%s is missing, expected each of the %d members",
                             slot->path, (int)list->count);
    }
    return EJK_OK;
}

/* Types of all tensors; on a struct of their own, since a tensor with a type and no shape is none. */
static ejk_status resolve_types(reader *r) {
    const ejki_slots *slots = &r->problem->slots;
    void *types = calloc(1, r->record->size + 1);
    ejk_status status = EJK_OK;
    if (!types) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a problem's arguments");
    memcpy(types, r->problem->args, r->record->size);
    for (int32_t i = 0; i < slots->count; i++)
        ejki_slot_tensor(&slots->list[i], types)->dtype = r->wishes[i].view.dtype;
    for (int32_t i = 0; i < slots->count && status == EJK_OK; i++) {
        ejk_dtype *dtype = &r->wishes[i].view.dtype;
        if (!r->wishes[i].present || *dtype != EJK_DTYPE_UNSET) continue;
        status = ejki_slot_dtype(&slots->list[i], types, r->number, dtype);
        ejki_slot_tensor(&slots->list[i], types)->dtype = *dtype;
    }
    free(types);
    return status;
}

static ejk_status set_tensor(reader *r, int32_t index, int32_t rank, const int64_t *sizes) {
    const ejki_slot *slot = &r->problem->slots.list[index];
    const ejki_view *view = &r->wishes[index].view;
    ejk_tensor tensor = ejki_slot_layout(slot, view->dtype, rank, sizes, &r->orders, r->order);
    if (view->strided) {
        if (view->stride_count != rank)
            return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: %d strides given, expected %d",
                             slot->path, (int)view->stride_count, (int)rank);
        memcpy(tensor.strides, view->stride, sizeof tensor.strides);
    }
    *ejki_slot_tensor(slot, r->problem->args) = tensor;
    return EJK_OK;
}

/* Those whose sizes are said by what is known now. With `all`, of the rest the unit's shape. */
static ejk_status set_tensors(reader *r, const ejk_axes *axes, bool all) {
    for (int32_t i = 0; i < r->problem->slots.count; i++) {
        const ejki_slot *slot = &r->problem->slots.list[i];
        const struct tensor_wish *wish = &r->wishes[i];
        const bool done = ejk_tensor_present(ejki_slot_tensor(slot, r->problem->args));
        if (!wish->present || done || !(wish->view.sized || all)) continue;
        int64_t sizes[EJK_MAX_RANK] = {0};
        int32_t rank = wish->view.rank;
        ejk_status status = EJK_OK;
        if (!wish->view.sized)
            status = ejki_member_shape(slot->field, slot->member, axes, &rank, sizes);
        else if (!ejki_view_sizes(&wish->view, axes, sizes)) {
            if (!all) continue;
            status =
                ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                          "%s: a size has a symbol that is not bound, or does not fit", slot->path);
        }
        if (status == EJK_OK) status = set_tensor(r, i, rank, sizes);
        if (status != EJK_OK) return at_byte(status, wish->at);
    }
    return EJK_OK;
}

/* Keeps the symbols of tensors that are there; one that the line gave has to be among them. */
static ejk_status drop_unused(const reader *r, ejk_axes *axes) {
    ejk_axes used, kept = {.count = 0};
    EJKI_TRY(ejk_record_symbols(r->record, r->problem->args, &used));
    for (int32_t i = 0; i < r->given.count; i++)
        if (ejk_axes_get(&used, r->given.axis[i].name) < 0) {
            ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                      "%s is the length of no tensor that is given; name one by with=",
                      r->given.axis[i].name);
            return at_byte(EJK_STATUS_INVALID_ARGUMENT, r->at[i]);
        }
    for (int32_t i = 0; i < axes->count; i++)
        if (ejk_axes_get(&used, axes->axis[i].name) >= 0)
            EJKI_TRY(ejk_axes_set(&kept, axes->axis[i].name, axes->axis[i].length));
    *axes = kept;
    return EJK_OK;
}

/* The input that a result is the gradient of, by its name; -1 = none. */
static int32_t input_of(const ejki_slots *slots, const ejki_slot *result) {
    return strncmp(result->path, "d_", 2) == 0 ? ejki_slots_find(slots, result->path + 2) : -1;
}

/* The results that a line without any means: gradients of the inputs that are there. */
static void want_gradients(reader *r) {
    const ejki_slots *slots = &r->problem->slots;
    for (int32_t i = 0; i < slots->count; i++)
        if (ejk_field_is_output(slots->list[i].field) && r->wishes[i].present) return;
    for (int32_t i = 0; i < slots->count; i++) {
        const int32_t input = input_of(slots, &slots->list[i]);
        if (ejk_field_is_output(slots->list[i].field) && input >= 0)
            r->wishes[i].present = r->wishes[input].present;
    }
}

static ejk_status resolve_tensors(reader *r) {
    ejk_problem *problem = r->problem;
    ejk_axes axes = r->given;
    want_gradients(r);
    EJKI_TRY(resolve_lists(r));
    EJKI_TRY(resolve_types(r));
    EJKI_TRY(set_tensors(r, &axes, false));
    EJKI_TRY(ejki_slots_bind(r->record, &problem->slots, problem->args, false, &axes));
    EJKI_TRY(ejki_axes_complete(r->record, &axes));
    EJKI_TRY(set_tensors(r, &axes, true));
    EJKI_TRY(drop_unused(r, &axes));
    EJKI_TRY(ejki_slots_bind(r->record, &problem->slots, problem->args, true, &axes));
    ejki_axes_order(r->record, &axes);
    problem->axes = axes;
    return EJK_OK;
}

/* ---- The whole ------------------------------------------------------------------------------------- */

/* What the caller destroys and closes, whether it fails or not. */
static ejk_status read_line(const ejk_context *context, const char *text, reader *r) {
    ejk_problem *problem = r->problem;
    EJKI_TRY(ejki_items_read(text, &r->items));
    EJKI_TRY(ejk_context_find_kernel(context, r->items.kernel, &problem->kernel));
    r->record = problem->kernel->args;
    problem->args = calloc(1, r->record->size + 1);
    if (!problem->args)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the arguments of %s",
                         problem->kernel->op_id);
    EJKI_TRY(ejki_slots_create(r->record, NULL, &problem->slots));
    const size_t count = (size_t)problem->slots.count + 1;
    problem->memory = calloc(count, sizeof *problem->memory);
    r->wishes = calloc(count, sizeof *r->wishes);
    if (!problem->memory || !r->wishes)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %d tensors",
                         (int)problem->slots.count);
    for (int32_t i = 0; i < problem->slots.count; i++)
        r->wishes[i].present = ejk_field_is_required(problem->slots.list[i].field) &&
                               problem->slots.list[i].member <= 0;
    problem->wishes = calloc((size_t)r->items.count + 1, sizeof *problem->wishes);
    if (!problem->wishes)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for what is wished of %s",
                         problem->kernel->op_id);
    problem->inputs.wishes = problem->wishes;
    EJKI_TRY(ejk_record_symbols(r->record, NULL, &r->known));
    r->orders = ejki_orders_of(r->record);
    EJKI_TRY(take_items(r));
    return resolve_tensors(r);
}

ejk_status ejk_problem_parse(const ejk_context *context, const char *text, ejk_problem **out) {
    if (!context || !text || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !context ? "context"
                         : !text  ? "text"
                                  : "out");
    reader r = {.problem = calloc(1, sizeof *r.problem), .number = EJK_DTYPE_F32};
    if (!r.problem) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a problem");
    const ejk_status status = read_line(context, text, &r);
    ejki_items_close(&r.items);
    free(r.wishes);
    if (status == EJK_OK)
        *out = r.problem;
    else
        ejk_problem_destroy(r.problem);
    return status;
}

void ejk_problem_destroy(ejk_problem *problem) {
    if (!problem) return;
    for (int32_t i = 0; i < problem->slots.count && problem->memory; i++)
        ejk_owned_tensor_close(&problem->memory[i]);
    for (int32_t i = 0; i < problem->inputs.wish_count; i++)
        free((void *)(uintptr_t)problem->wishes[i].value);
    free(problem->wishes);
    free(problem->memory);
    free(problem->slots.list);
    free(problem->args);
    free(problem);
}

const ejk_kernel *ejk_problem_kernel(const ejk_problem *problem) {
    return problem ? problem->kernel : NULL;
}

const void *ejk_problem_args(const ejk_problem *problem) {
    return problem ? problem->args : NULL;
}

const ejk_axes *ejk_problem_axes(const ejk_problem *problem) {
    return problem ? &problem->axes : NULL;
}

const ejk_inputs *ejk_problem_inputs(const ejk_problem *problem) {
    return problem ? &problem->inputs : NULL;
}
