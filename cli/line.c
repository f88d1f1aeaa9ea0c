/* SPDX-License-Identifier: Apache-2.0 */
#include "line.h"

#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Flags as a line --------------------------------------------------------------------------------- */

/* What is wrong in a line that was put together here is told without its place in it. */
static bool read_composed(ejk_status status) {
    const char *sentence = ejk_last_error(), *behind = strstr(sentence, ": ");
    if (status == EJK_OK) return true;
    return report_error("%s", strncmp(sentence, "byte ", 5) == 0 && behind ? behind + 2 : sentence);
}

/* True if a list of names, "bias,softmax-aux", has this one. */
static bool is_listed(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, "+,"), at += *at != '\0') {
        size_t i = 0;
        while (i < length && (at[i] == name[i] || (at[i] == '-' && name[i] == '_'))) i++;
        if (i == length && (at[i] == '\0' || strchr("+,", at[i]))) return true;
    }
    return false;
}

/* Of an operation with a field of that name, "dtype" in a line means the field: each tensor says its type itself. */
static bool add_types(const ejk_kernel *kernel, const call_words *words, item_text *out) {
    bool added = true;
    for (int32_t i = 0; added && i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        const bool listed = is_listed(words->with, field->name);
        const bool given = ejk_field_is_required(field) && ejk_field_is_input(field);
        ejk_dtype said = EJK_DTYPE_UNSET; /* stays so where the unit leaves it open */
        if (field->kind != EJK_FIELD_TENSOR || !(given || listed)) continue;
        if (!succeeded(ejk_field_dtype(kernel->args, field, NULL, EJK_DTYPE_UNSET, &said)))
            return false;
        if (said == EJK_DTYPE_UNSET)
            added = item_text_value(out, field->name, words->dtype);
        else if (listed)
            added = item_text_add(out, ",%s", field->name);
    }
    return added;
}

static bool compose(const ejk_kernel *kernel, const char *shape, const call_words *words,
                    const char *items, item_text *out) {
    const bool own_dtype = words->dtype && ejk_record_find(kernel->args, "dtype", NULL);
    return item_text_add(out, "%s:%s", kernel->op_id, shape) &&
           (own_dtype ? add_types(kernel, words, out)
                      : (!words->dtype || item_text_value(out, "dtype", words->dtype)) &&
                            (!words->with || item_text_value(out, "with", words->with))) &&
           (!words->layout || item_text_value(out, "layout", words->layout)) &&
           (!items || item_text_add(out, "%s", items));
}

/* ---- Reading ----------------------------------------------------------------------------------------- */

static bool take(const call_words *words, line_call *line) {
    const ejk_kernel *kernel = ejk_problem_kernel(line->problem);
    if (!call_open(kernel, &line->call)) return false;
    memcpy(line->call.args, ejk_problem_args(line->problem), kernel->args->size);
    return call_set_config(&line->call, words->config) &&
           call_set_platform(kernel, line->call.args, words->platform);
}

bool line_read(const char *line, const call_words *words, ejk_context *context, line_call *out) {
    *out = (line_call){.problem = NULL};
    return succeeded(ejk_problem_parse(context, line, &out->problem)) && take(words, out);
}

bool line_of_words(const ejk_kernel *kernel, const char *shape, const call_words *words,
                   const char *items, ejk_context *context, line_call *out) {
    item_text line = {.text = NULL};
    *out = (line_call){.problem = NULL};
    const bool read = compose(kernel, shape, words, items, &line) &&
                      read_composed(ejk_problem_parse(context, line.text, &out->problem)) &&
                      take(words, out);
    free(line.text);
    return read;
}

void line_close(line_call *line) {
    if (line->call.args) call_close(&line->call);
    ejk_problem_destroy(line->problem);
    *line = (line_call){.problem = NULL};
}

char *line_text(const ejk_kernel *kernel, const void *args, const ejk_inputs *inputs) {
    char *text;
    item_text whole = {.text = NULL};
    if (!succeeded(ejk_problem_to_text(kernel, args, &text))) return NULL;
    bool written = item_text_add(&whole, "%s", text);
    ejk_free(text);
    for (int32_t i = 0; written && inputs && i < inputs->wish_count; i++)
        written = item_text_value(&whole, inputs->wishes[i].name, inputs->wishes[i].value);
    if (written) return whole.text;
    free(whole.text);
    return NULL;
}

bool line_of_problem(const ejk_problem *problem, const call_words *words, ejk_context *context,
                     line_call *out) {
    char *text = line_text(ejk_problem_kernel(problem), ejk_problem_args(problem),
                           ejk_problem_inputs(problem));
    *out = (line_call){.problem = NULL};
    const bool read = text && line_read(text, words, context, out);
    free(text);
    return read;
}

/* ---- The plain call ---------------------------------------------------------------------------------- */

/* True for a required tensor, and for the gradient d_x of a required input x. */
static bool is_plain(const ejk_record *record, const ejk_field *field) {
    const bool tensor = field->kind == EJK_FIELD_TENSOR || field->kind == EJK_FIELD_TENSORS;
    if (!tensor) return strcmp(field->name, "platform") == 0;
    if (ejk_field_is_required(field)) return true;
    if (strncmp(field->name, "d_", 2) != 0) return false;
    const ejk_field *input = ejk_record_find(record, field->name + 2, NULL);
    return ejk_field_is_input(input) && ejk_field_is_required(input);
}

bool line_plain(const line_call *line, op_call *out) {
    const ejk_kernel *kernel = line->call.kernel;
    const ejk_record *record = kernel->args;
    if (!call_open(kernel, out)) return false;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        const bool config = kernel->config_field && strcmp(field->name, kernel->config_field) == 0;
        if (config || is_plain(record, field))
            memcpy((char *)out->args + field->offset, (char *)line->call.args + field->offset,
                   ejk_field_size(field));
    }
    return true;
}

/* ---- A call of words alone --------------------------------------------------------------------------- */

bool line_needs_shape(const char *command, const ejk_kernel *kernel) {
    char list[sizeof((ejk_axes *)0)->axis] = "";
    size_t used = 0;
    ejk_axes symbols;
    if (!succeeded(ejk_record_symbols(kernel->args, NULL, &symbols))) return false;
    for (int32_t i = 0; i < symbols.count; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, " %s", symbols.axis[i].name);
    return report_error("%s needs a shape, as --shape SYMBOL=SIZE,...; the symbols of %s are%s",
                        command, kernel->op_id, list);
}

bool line_context(const call_words *words, ejk_context **out) {
    const ejk_context_options options = {.threads = words->threads, .isa = words->isa};
    return succeeded(ejk_context_create(&options, out));
}

static bool is_integer(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_I64 || dtype == EJK_DTYPE_I32 || dtype == EJK_DTYPE_I16 ||
           dtype == EJK_DTYPE_I8;
}

/* Gives integers memory with what is wished in them; all else is filled by who measures. */
static bool own_integers(const ejk_inputs *inputs, op_call *call) {
    const ejk_kernel *kernel = call->kernel;
    for (int32_t i = 0; inputs->wish_count > 0 && i < call_count(kernel); i++) {
        ejk_tensor *tensor = call_tensor(kernel, call->args, i);
        if (!tensor || !ejk_field_is_input(call_field(kernel, i)) || !is_integer(tensor->dtype))
            continue;
        if (!succeeded(ejk_owned_tensor_create(tensor->dtype, tensor->rank, tensor->shape,
                                               &call->owned[i])))
            return false;
        *tensor = call->owned[i].tensor;
    }
    return inputs->wish_count == 0 || succeeded(ejk_fill_inputs(kernel, call->args, inputs));
}

bool line_place(line_call *line, const char *device, ejk_context *context) {
    op_call *call = &line->call;
    int32_t index;
    ejk_plan *plan;
    if (!gpu_device(device, &index) || !own_integers(ejk_problem_inputs(line->problem), call) ||
        !gpu_move_owned(index, call))
        return false;
    gpu_place_tensors(index, call->kernel, call->args);
    if (!call_plan(call, context, &plan)) return false;
    ejk_plan_destroy(plan);
    return true;
}
