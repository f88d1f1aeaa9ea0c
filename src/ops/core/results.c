/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of calls whose results have no memory yet: what these look like.
 *
 * Units say most of it. Where they leave a choice (a float of any type, one of several shapes, a length that follows
 * backwards from another), the choices are tried in an order in which the usual one is first, and the call's own
 * checks decide: who wants another one says so by a destination.
 */
#include "ops/core/core.h"
#include "record/symbols.h"
#include "record/tensors.h"
#include "record/unit.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RESULTS = 64, MOST_TYPES = 8, WAYS_BACK = 3, MOST_VARIANTS = 3 };

typedef struct finder {
    ejki_plan_request request;
    const ejk_kernel *kernel;
    char *args;
    const ejk_field *fields[MOST_RESULTS];
    ejk_dtype forced[MOST_RESULTS];
    int32_t count;
    ejk_axes bound;
} finder;

/*
 * Of a choice: the type of what may be any float, whether all such results but the first are float32 (states beside
 * narrow outputs), how lengths follow backwards, which of several shapes.
 */
typedef struct choice {
    ejk_dtype number;
    bool wide;
    int64_t share;   /* what a length is divided by */
    bool second;     /* the second largest of several lengths */
    int32_t variant; /* 1: the second that has the rank; 2: the first that has not */
} choice;

static ejk_tensor *tensor_of(const finder *f, const ejk_field *field) {
    return (ejk_tensor *)(void *)(f->args + field->offset);
}

/* ---- What is wanted ---------------------------------------------------------------------------------- */

static ejk_status add_result(finder *f, const char *name, size_t length) {
    char path[EJK_NAME_SIZE] = "";
    if (length < sizeof path) memcpy(path, name, length);
    const ejk_field *field = ejk_record_find(f->kernel->args, path, NULL);
    if (!field || field->kind != EJK_FIELD_TENSOR || !ejk_field_is_output(field))
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "%.*s is no result of %s", (int)length, name,
                         f->kernel->op_id);
    if (f->count == MOST_RESULTS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "more than %d results", MOST_RESULTS);
    f->forced[f->count] = tensor_of(f, field)->dtype;
    *tensor_of(f, field) = (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
    f->fields[f->count++] = field;
    return EJK_OK;
}

static ejk_status read_results(finder *f, const char *names) {
    while (*names) {
        const size_t length = strcspn(names, ",");
        EJKI_TRY(add_result(f, names, length));
        names += length + (names[length] == ',');
    }
    return EJK_OK;
}

/* The symbols of what is given; views are looked at as if each began in the middle of memory. */
static ejk_status bind_given(finder *f) {
    const ejk_record *record = f->kernel->args;
    char *copy = malloc(record->size);
    if (!copy) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a call's arguments");
    memcpy(copy, f->args, record->size);
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        ejk_tensor *tensor = ejki_walk_tensor(&w, copy);
        if (tensor) tensor->data = (void *)(UINTPTR_MAX / 2 + 1);
    }
    const ejk_status status = ejk_record_bind_axes(record, copy, &f->bound);
    free(copy);
    return status;
}

/* ---- Lengths ----------------------------------------------------------------------------------------- */

/* "C=N" at a record's symbols, of which `*at` is moved behind; false: another kind of item. */
static bool read_equal(const char **at, char name[EJK_SYMBOL_SIZE], char other[EJK_SYMBOL_SIZE]) {
    const char *first = *at;
    const size_t size = ejki_symbol_size(first), item = strcspn(first, ",");
    *at += item + (first[item] == ',');
    if (item < size + 2) return false;
    const size_t rest = item - size - 1;
    return ejki_symbol_size(first + size + 1) == rest && ejki_symbol(first, size, name) &&
           ejki_symbol(first + size + 1, rest, other);
}

/* The largest length below `below` that follows backwards for a symbol; -1: none. */
static int64_t length_backwards(const char *symbols, const char *symbol, int64_t share,
                                int64_t below, const ejk_axes *axes) {
    char name[EJK_SYMBOL_SIZE], other[EJK_SYMBOL_SIZE];
    int64_t largest = -1;
    for (const char *at = symbols; *at;) {
        if (!read_equal(&at, name, other) || strcmp(other, symbol) != 0) continue;
        const int64_t length = ejk_axes_get(axes, name);
        if (length >= 0 && length % share == 0 && length / share < below)
            largest = ejki_max(largest, length / share);
    }
    return largest;
}

/* Whether a record's symbols have a number for one, "B=1". */
static bool has_number(const char *symbols, const char *symbol) {
    const size_t size = strlen(symbol);
    for (const char *at = symbols; *at;) {
        const size_t item = strcspn(at, ",");
        if (item > size + 1 && !strncmp(at, symbol, size) && at[size] == '=' &&
            at[size + 1] >= '0' && at[size + 1] <= '9')
            return true;
        at += item + (at[item] == ',');
    }
    return false;
}

/*
 * Where of "C=N" only C is known, N is that, divided by `share`: of a gated product, whose C is 2 N, the call's checks
 * say that it is one. Of several such symbols, as the heads of query and value, the largest counts; the second largest
 * where a shape's axes were taken for others, [T,H,D] for [B,T,H].
 */
static ejk_status complete_backwards(const char *symbols, choice c, ejk_axes *axes) {
    const ejk_axes given = *axes;
    char name[EJK_SYMBOL_SIZE], other[EJK_SYMBOL_SIZE];
    for (const char *at = symbols; at && *at;) {
        if (!read_equal(&at, name, other) || ejk_axes_get(axes, other) >= 0 ||
            has_number(symbols, other))
            continue;
        int64_t length = length_backwards(symbols, other, c.share, INT64_MAX, &given);
        const int64_t next =
            c.second ? length_backwards(symbols, other, c.share, length, &given) : -1;
        if (next >= 0) length = next;
        if (length >= 0) EJKI_TRY(ejk_axes_set(axes, other, length));
    }
    return EJK_OK;
}

static bool has_one_rank(const ejki_unit *unit) {
    for (int32_t i = 1; i < unit->count; i++)
        if (unit->shape[i].rank != unit->shape[0].rank) return false;
    return true;
}

/* The rank of a result whose shapes have several: by the first tensor that has as many shapes, and ranks. */
static int32_t rank_of(const finder *f, const ejki_unit *unit) {
    const ejk_record *record = f->kernel->args;
    if (has_one_rank(unit)) return unit->shape[0].rank;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        ejki_unit other;
        if (field->kind != EJK_FIELD_TENSOR || !ejk_field_is_input(field) ||
            !ejk_tensor_present(tensor_of(f, field)) || ejki_unit_read(field, &other) != EJK_OK ||
            other.count != unit->count || has_one_rank(&other))
            continue;
        for (int32_t s = 0; s < other.count; s++)
            if (other.shape[s].rank == tensor_of(f, field)->rank) return unit->shape[s].rank;
    }
    return -1;
}

static bool lengths_of(const ejki_shape *shape, const ejk_axes *axes, ejk_tensor *out) {
    for (int32_t a = 0; a < shape->rank; a++) {
        const ejki_value value = ejki_length_value(&shape->axis[a].length[0], axes);
        if (value.state != EJKI_LENGTH_KNOWN) return false;
        out->shape[a] = value.value;
    }
    out->rank = shape->rank;
    return true;
}

/* A gradient d_x looks like x. */
static const ejk_tensor *same_as(const finder *f, const ejk_field *field) {
    if (strncmp(field->name, "d_", 2) != 0) return NULL;
    const ejk_field *of = ejk_record_find(f->kernel->args, field->name + 2, NULL);
    if (!of || of->kind != EJK_FIELD_TENSOR || !ejk_field_is_input(of)) return NULL;
    const ejk_tensor *tensor = tensor_of(f, of);
    return ejk_tensor_present(tensor) ? tensor : NULL;
}

static ejk_status find_shape(const finder *f, const ejk_field *field, const ejk_axes *axes,
                             int32_t variant, ejk_tensor *out) {
    const ejk_tensor *same = same_as(f, field);
    if (same) {
        out->rank = same->rank;
        memcpy(out->shape, same->shape, sizeof out->shape);
        return EJK_OK;
    }
    ejki_unit unit;
    EJKI_TRY(ejki_unit_read(field, &unit));
    const int32_t rank = rank_of(f, &unit);
    bool found = false;
    for (int32_t s = 0; s < unit.count && (!found || variant == 1); s++) {
        if (rank >= 0 && (unit.shape[s].rank != rank) != (variant == 2)) continue;
        ejk_tensor next = *out;
        if (!lengths_of(&unit.shape[s], axes, &next)) continue;
        if (found) variant = 0;
        found = true;
        *out = next;
        if (rank < 0) break;
    }
    return found ? EJK_OK : ejk_field_shape(field, axes, &out->rank, out->shape); /* its sentence */
}

/* ---- Types ------------------------------------------------------------------------------------------- */

static bool is_float(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F64 || dtype == EJK_DTYPE_F32 || dtype == EJK_DTYPE_BF16 ||
           dtype == EJK_DTYPE_F16;
}

/* What may be any float has the type that the call asks for by a field, else that of the first tensor, else f32. */
static int32_t types_of(const finder *f, ejk_dtype types[MOST_TYPES]) {
    const ejk_record *record = f->kernel->args;
    int32_t count = 0;
    for (int32_t i = 0; i < record->count && count < MOST_TYPES - 2; i++)
        if (record->fields[i].kind == EJK_FIELD_DTYPE &&
            ejk_record_is_set(&record->fields[i], f->args))
            memcpy(&types[count++], f->args + record->fields[i].offset, sizeof *types);
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, f->args);
        if (!tensor || !ejk_tensor_present(tensor) || !is_float(tensor->dtype)) continue;
        types[count++] = tensor->dtype;
        break;
    }
    if (count == 0 || types[count - 1] != EJK_DTYPE_F32) types[count++] = EJK_DTYPE_F32;
    return count;
}

/* ---- Trying ------------------------------------------------------------------------------------------ */

static ejk_status set_result(const finder *f, int32_t index, const ejk_axes *axes, choice c) {
    const ejk_field *field = f->fields[index];
    ejk_tensor view = {.dtype = EJK_DTYPE_UNSET};
    const ejk_tensor *device = NULL;
    for (ejki_walk w = ejki_walk_of(f->kernel->args); ejki_walk_next(&w) && !device;) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, f->args);
        if (tensor && ejk_tensor_present(tensor)) device = tensor;
    }
    const ejk_dtype number = c.wide && index > 0 ? EJK_DTYPE_F32 : c.number;
    ejk_status typed = ejk_field_dtype(f->kernel->args, field, f->args, number, &view.dtype);
    ejk_status shaped = find_shape(f, field, axes, c.variant, &view);
    if (f->kernel->result && f->kernel->result(f->args, field->name, &view))
        typed = shaped = EJK_OK;
    EJKI_TRY(typed);
    EJKI_TRY(shaped);
    if (f->forced[index]) view.dtype = f->forced[index];
    view = ejk_tensor_contiguous(NULL, view.dtype, view.rank, view.shape);
    if (device) {
        view.device_type = device->device_type;
        view.device_index = device->device_index;
    }
    *tensor_of(f, field) = view;
    return EJK_OK;
}

static void clear_results(const finder *f) {
    for (int32_t i = 0; i < f->count; i++)
        *tensor_of(f, f->fields[i]) = (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
}

static ejk_status set_results(const finder *f, choice c) {
    ejk_axes axes = f->bound;
    clear_results(f);
    EJKI_TRY(complete_backwards(f->kernel->args->symbols, c, &axes));
    EJKI_TRY(ejki_axes_complete(f->kernel->args, &axes));
    for (int32_t i = 0; i < f->count; i++) EJKI_TRY(set_result(f, i, &axes, c));
    return EJK_OK;
}

/* True if the last sentence says no more than that a result is missing. */
static bool misses_result(const finder *f) {
    const char *sentence = ejk_last_error();
    for (int32_t i = 0; i < f->count; i++) {
        const size_t length = strlen(f->fields[i]->name);
        if (!strncmp(sentence, f->fields[i]->name, length) &&
            !strncmp(sentence + length, ": missing", 9))
            return true;
    }
    return false;
}

static ejk_status try_choice(const finder *f, choice c, ejk_plan **out) {
    if (set_results(f, c) == EJK_OK) return ejki_plan_request_create(&f->request, out);
    /* Without a length that is needed, what is wrong with the rest of the call comes first. */
    clear_results(f);
    const ejk_status status = ejki_plan_request_create(&f->request, out);
    if (status != EJK_OK && !misses_result(f)) return status;
    if (status == EJK_OK) ejk_plan_destroy(*out);
    *out = NULL;
    return set_results(f, c);
}

/* The choice of a number; numbers count types first, then what is less usual. */
static choice choice_of(int32_t i, const ejk_dtype *types, int32_t count) {
    const int32_t back = i / count / 2 % WAYS_BACK;
    return (choice){.number = types[i % count],
                    .wide = i / count % 2 == 1,
                    .share = back == 1 ? 2 : 1,
                    .second = back == 2,
                    .variant = i / count / 2 / WAYS_BACK};
}

static ejk_status try_all(const finder *f, ejk_plan **out) {
    ejk_dtype types[MOST_TYPES];
    const int32_t count = types_of(f, types);
    const choice usual = choice_of(0, types, count);
    const ejk_status first = try_choice(f, usual, out);
    if (first != EJK_STATUS_INVALID_DTYPE && first != EJK_STATUS_INVALID_SHAPE) return first;
    for (int32_t i = 1; i < count * 2 * WAYS_BACK * MOST_VARIANTS; i++) {
        const ejk_status status = try_choice(f, choice_of(i, types, count), out);
        /* Without a kernel: the call's checks have accepted the choice. */
        if (status == EJK_OK || status == EJK_STATUS_OUT_OF_MEMORY ||
            status == EJK_STATUS_UNAVAILABLE)
            return status;
    }
    return try_choice(f, usual, out); /* for its sentence */
}

static ejk_status create_for_results(const ejki_plan_request *request, void *args,
                                     const char *results, ejk_plan **out) {
    finder f = {.request = *request, .kernel = request->kernel, .args = args};
    EJKI_TRY(read_results(&f, results));
    ejk_status status = bind_given(&f);
    if (status == EJK_OK) status = try_all(&f, out);
    if (status != EJK_OK) clear_results(&f);
    return status;
}

ejk_status ejk_plan_create_for_results(ejk_context *context, const ejk_kernel *kernel, void *args,
                                       const char *results, ejk_plan **out) {
    if (!context || !kernel || !args || !results || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_plan_create_for_results: an argument is NULL");
    const ejki_plan_request request = {.context = context, .kernel = kernel, .args = args};
    return create_for_results(&request, args, results, out);
}

ejk_status ejki_plan_create_borrowing(ejk_context *context, const ejk_kernel *kernel, void *args,
                                      const char *results, ejk_plan **out) {
    const ejki_plan_request request = {
        .context = context, .kernel = kernel, .args = args, .borrows = true};
    return results ? create_for_results(&request, args, results, out)
                   : ejki_plan_request_create(&request, out);
}
