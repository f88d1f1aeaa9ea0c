/* SPDX-License-Identifier: Apache-2.0 */
#include "shape.h"

#include "gpu.h"

#include <stdio.h>
#include <string.h>

bool shape_options(const char *dtype, const char *with, const char *layout, call_shape *out) {
    *out = (call_shape){
        .dtype = EJK_DTYPE_F32, .with = with, .heads_first = layout && strcmp(layout, "bhtd") == 0};
    if (dtype && !succeeded(ejk_dtype_from_name(dtype, &out->dtype))) return false;
    return !layout || out->heads_first || strcmp(layout, "bthd") == 0 ||
           complain("--layout is '%s', expected bthd or bhtd", layout);
}

/* ---- Symbols --------------------------------------------------------------------------------------- */

static bool complete(bool packed, ejk_axes *axes) {
    static const struct {
        const char *symbol, *same_as; /* "" = 1, NULL = no default */
    } symbols[] = {{"B", ""},  {"Hq", NULL}, {"Hkv", "Hq"}, {"T", NULL},
                   {"S", "T"}, {"D", NULL},  {"Dv", "D"}};
    ejk_axes ordered = {.count = 0};
    for (size_t i = packed; i < sizeof symbols / sizeof *symbols; i++) {
        const char *same_as = symbols[i].same_as;
        int64_t length = ejk_axes_get(axes, symbols[i].symbol);
        if (length < 0 && same_as) length = *same_as ? ejk_axes_get(axes, same_as) : 1;
        if (length >= 0 && !succeeded(ejk_axes_set(&ordered, symbols[i].symbol, length)))
            return false;
    }
    for (int32_t i = 0; i < axes->count; i++)
        if (!succeeded(ejk_axes_set(&ordered, axes->axis[i].name, axes->axis[i].length)))
            return false;
    *axes = ordered;
    return true;
}

bool shape_sizes(const char *text, const call_layout *layout, ejk_axes *out) {
    return succeeded(ejk_axes_parse(text, out)) && (!layout || layout_sizes(layout, out)) &&
           complete(layout && layout->lengths && !layout->as_segments, out);
}

/* ---- Views ----------------------------------------------------------------------------------------- */

/* True if a list of names, "bias,softmax-aux", has this one. */
static bool names(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t i = 0;
        while (i < length && (at[i] == name[i] || (at[i] == '-' && name[i] == '_'))) i++;
        if (i == length && (at[i] == ',' || at[i] == '\0')) return true;
    }
    return false;
}

static bool check_names(const ejk_record *record, const char *list) {
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        bool known = false;
        int length = (int)strcspn(at, ",");
        char name[128];
        snprintf(name, sizeof name, "%.*s", length, at);
        for (int32_t i = 0; i < record->count && !known; i++)
            known =
                record->fields[i].kind == EJK_FIELD_TENSOR && names(name, record->fields[i].name);
        if (!known)
            return complain("--with has '%s', which is no tensor of %s", name, record->name);
    }
    return true;
}

/* True if the third axis of the unit counts heads: "[B,T,Hq,D]". */
static bool has_heads(const char *unit) {
    const char *second = strchr(unit, ',');
    const char *third = second ? strchr(second + 1, ',') : NULL;
    return third && third[1] == 'H';
}

/* Exchanges two axes of memory, not of the view. */
static void put_heads_first(ejk_tensor *tensor) {
    tensor->strides[2] = tensor->shape[1] * tensor->shape[3];
    tensor->strides[1] = tensor->shape[3];
}

static bool is_tensor(const ejk_field *field, ejk_field_role role) {
    return field->kind == EJK_FIELD_TENSOR && field->role == role;
}

/* True if the operation has no result but those that are asked for, as gradients are. */
static bool all_results_optional(const ejk_record *record) {
    for (int32_t i = 0; i < record->count; i++)
        if (is_tensor(&record->fields[i], EJK_REQUIRED_OUTPUT)) return false;
    return true;
}

/*
 * A result that is always computed here: of an operation without required results, all those whose shape is
 * that of a required input, d_query for query, or of an optional one that is given, d_bias for bias.
 */
static bool is_derived(const ejk_record *record, const ejk_field *result, const char *with) {
    if (!is_tensor(result, EJK_OUTPUT) || strncmp(result->name, "d_", 2) != 0) return false;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *input = &record->fields[i];
        if (strcmp(input->name, result->name + 2) == 0)
            return is_tensor(input, EJK_REQUIRED) || names(with, input->name);
    }
    return false;
}

static bool declare(const call_shape *shape, op_call *call) {
    const ejk_record *record = call->kernel->args;
    const bool derives = all_results_optional(record);
    const char *laid_out = shape->layout ? layout_tensors(shape->layout) : NULL;
    if (!check_names(record, shape->with) || !check_names(record, laid_out)) return false;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        bool required =
            ejk_field_is_required(field) || (derives && is_derived(record, field, shape->with));
        if (field->kind != EJK_FIELD_TENSOR ||
            !(required || names(shape->with, field->name) || names(laid_out, field->name)))
            continue;
        if (!call_declare(call, i, &shape->axes, shape->dtype)) return false;
        ejk_tensor *tensor = call_tensor(call->kernel, call->args, i);
        if (shape->heads_first && tensor->rank == 4 && has_heads(field->unit))
            put_heads_first(tensor);
    }
    return true;
}

/* One sink, where nothing is said about them. */
bool shape_declare(const call_shape *shape, op_call *call) {
    call_shape whole = *shape;
    if (ejk_axes_get(&whole.axes, "n") < 0 && !succeeded(ejk_axes_set(&whole.axes, "n", 1)))
        return false;
    return declare(&whole, call) && (!shape->layout || layout_arguments(shape->layout, call));
}

/* ---- A call of words alone -------------------------------------------------------------------------- */

bool shape_context(const call_words *words, ejk_context **out) {
    const ejk_context_options options = {.threads = words->threads, .isa = words->isa};
    return succeeded(ejk_context_create(&options, out));
}

static bool declare_call(const call_words *words, const call_layout *layout, ejk_context *context,
                         op_call *call) {
    call_shape shape;
    ejk_plan *plan;
    int32_t device;
    if (!gpu_device(words->device, &device) ||
        !shape_options(words->dtype, words->with, words->layout, &shape) ||
        !shape_sizes(words->shape, layout, &shape.axes))
        return false;
    shape.layout = layout;
    if (!shape_declare(&shape, call)) return false;
    gpu_place_tensors(device, call->kernel, call->args);
    if (!call_plan(call, context, &plan)) return false;
    ejk_plan_destroy(plan);
    return layout_own(layout, call) && gpu_move_owned(device, call);
}

bool shape_call(const char *command, const call_words *words, ejk_context *context, op_call *call) {
    call_layout layout;
    if (!words->shape)
        return complain("%s needs a shape, as --shape B=1,Hq=8,T=1024,D=64", command);
    const bool declared = layout_open(&words->data, call->kernel, &layout) &&
                          call_set_config(call, words->config) &&
                          call_set_platform(call->kernel, call->args, words->platform) &&
                          declare_call(words, &layout, context, call);
    layout_close(&layout);
    return declared;
}
