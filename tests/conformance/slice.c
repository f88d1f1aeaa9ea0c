/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part of a call by itself, and the rest of it changed: both leave the part's bits as they are. Tensors are cut along
 * the axes that their units give the symbols of.
 */
#include "conformance/compare.h"
#include "conformance/suite.h"
#include "record/unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Per axis of a tensor what of it is the part's. */
struct part {
    int64_t first[EJK_MAX_RANK], end[EJK_MAX_RANK];
    bool partial; /* not all of it */
};

static bool is_text(const char *symbol, const char *text, int32_t size) {
    return symbol && strlen(symbol) == (size_t)size && memcmp(symbol, text, (size_t)size) == 0;
}

/* The part's range of a length that is a symbol alone; s->count if there is none. */
static int32_t range_of(const struct slice *s, const char *text, int32_t size) {
    int32_t i = 0;
    while (i < s->count && !is_text(s->range[i].symbol, text, size) &&
           !is_text(s->range[i].also, text, size))
        i++;
    return i;
}

static int64_t length_of(const ejki_length *length, const ejk_axes *axes) {
    const ejki_value value = ejki_length_value(length, axes);
    return value.state == EJKI_LENGTH_KNOWN ? value.value : -1;
}

/* The shape of a unit that a tensor has. */
static const ejki_shape *shape_of(const ejki_unit *unit, const ejk_tensor *t,
                                  const ejk_axes *axes) {
    for (int32_t i = 0; i < unit->count; i++) {
        const ejki_shape *shape = &unit->shape[i];
        bool fits = shape->rank == t->rank;
        for (int32_t a = 0; fits && a < t->rank; a++) {
            bool any = false;
            for (int32_t k = 0; k < shape->axis[a].count; k++)
                any = any || length_of(&shape->axis[a].length[k], axes) == t->shape[a];
            fits = any;
        }
        if (fits) return shape;
    }
    return NULL;
}

static struct part part_of(const struct slice *s, const ejk_field *field, const ejk_tensor *t,
                           const ejk_axes *axes) {
    struct part part = {.partial = false};
    ejki_unit unit;
    for (int32_t a = 0; a < t->rank; a++) part.end[a] = t->shape[a];
    const ejki_shape *shape =
        ejki_unit_read(field, &unit) == EJK_OK ? shape_of(&unit, t, axes) : NULL;
    for (int32_t a = 0; shape && a < t->rank; a++) {
        const ejki_axis *axis = &shape->axis[a];
        int32_t k = 0;
        while (length_of(&axis->length[k], axes) != t->shape[a]) k++;
        const int32_t range = range_of(s, axis->length[k].text, axis->length[k].size);
        if (range == s->count) continue;
        part.first[a] = s->range[range].first;
        part.end[a] = s->range[range].end;
        part.partial = part.partial || part.end[a] - part.first[a] < t->shape[a];
    }
    return part;
}

/* True if the tensor has an axis for every symbol of which there is only a part. */
static bool tells_all(const struct slice *s, const struct part *part, const ejk_tensor *t,
                      const ejk_axes *axes) {
    int32_t cut = 0, wanted = 0;
    for (int32_t a = 0; a < t->rank; a++) cut += part->end[a] - part->first[a] < t->shape[a];
    for (int32_t i = 0; i < s->count; i++)
        wanted += !s->range[i].same &&
                  s->range[i].end - s->range[i].first < ejk_axes_get(axes, s->range[i].symbol);
    /* Heads of queries and of keys are cut together. */
    const int32_t heads = range_of(s, "Hq", 2), kv = range_of(s, "Hkv", 3);
    if (heads < s->count && kv < s->count &&
        s->range[kv].end - s->range[kv].first < ejk_axes_get(axes, "Hkv"))
        wanted--;
    return cut >= wanted;
}

/* Elements along the last axis, and which of them are the part's: none where its other axes leave the row out. */
struct row {
    int64_t width, first, end;
};

static struct row row_of(const struct part *part, const ejk_tensor *t, int64_t index) {
    const int32_t last = t->rank - 1;
    if (t->rank == 0) return (struct row){1, 0, 1};
    for (int32_t a = last - 1; a >= 0; a--) {
        const int64_t at = index % t->shape[a];
        if (at < part->first[a] || at >= part->end[a]) return (struct row){t->shape[last], 0, 0};
        index /= t->shape[a];
    }
    return (struct row){t->shape[last], part->first[last], part->end[last]};
}

static int64_t width_of(const ejk_tensor *t) {
    return t->rank ? t->shape[t->rank - 1] : 1;
}

static int64_t rows_of(const ejk_tensor *t) {
    const int64_t width = width_of(t);
    return width ? ejk_tensor_count(t) / width : 0;
}

/* The first of elements from `from` to `to` that was written; `to` if none was. */
static int64_t first_written(const ejk_field *field, const ejk_tensor *t, const unsigned char *got,
                             int64_t from, int64_t to) {
    const size_t element = ejk_dtype_size(t->dtype);
    while (from < to && is_untouched(field, t, from, got + (size_t)from * element)) from++;
    return from;
}

/* The part's elements have the bits of the whole; if the rest was not to be written, it was not. */
static bool agrees(const struct trial *t, const struct slice *s, const struct taken *whole,
                   const struct taken *got, const ejk_axes *axes, bool alone, char *why,
                   size_t size) {
    const ejk_record *record = t->line->kernel->args;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        const ejk_tensor *tensor = field_tensor(field, t->call->args);
        if (!whole->bytes[i] || !ejk_tensor_present(field_tensor(field, s->args))) continue;
        const struct part part = part_of(s, field, tensor, axes);
        if (!tells_all(s, &part, tensor, axes)) continue;
        for (int64_t n = 0; n < rows_of(tensor); n++) {
            const struct row row = row_of(&part, tensor, n);
            const int64_t start = n * row.width, first = start + row.first, end = start + row.end;
            const int64_t next = start + row.width;
            int64_t wrong =
                first_difference(tensor->dtype, whole->bytes[i], got->bytes[i], first, end);
            const bool other = wrong < end;
            if (!other && !alone) continue;
            if (!other) wrong = first_written(field, tensor, got->bytes[i], start, first);
            if (!other && wrong == first)
                wrong = first_written(field, tensor, got->bytes[i], end, next);
            if (!other && wrong == next) continue;
            snprintf(why, size, "%s element %" PRId64 " %s", field->name, wrong,
                     other ? "has other bits" : "was written");
            return false;
        }
    }
    return true;
}

static void say(const struct trial *t, const struct slice *s, enum check check, const char *why) {
    char text[700];
    size_t used = (size_t)snprintf(text, sizeof text, "%s; of", why);
    for (int32_t i = 0; i < s->count && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %s %" PRId64 "..%" PRId64,
                                 s->range[i].symbol, s->range[i].first, s->range[i].end);
    trial_fail((struct trial *)(uintptr_t)t, check, text);
}

/* What the case has made itself for the part, row-major, goes to the GPU; its memory there, of `made`, is counted. */
static int32_t to_device(const struct trial *t, const struct slice *s, void **made) {
    const ejk_record *record = t->line->kernel->args;
    int32_t count = 0;
    for (int32_t i = 0; t->placement->gpu && i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        if (field->kind != EJK_FIELD_TENSOR) continue;
        ejk_tensor *tensor = field_tensor(field, s->args);
        if (!ejk_tensor_present(tensor) || ejk_tensor_count(tensor) == 0 ||
            placement_has(t->placement, field, tensor->data))
            continue;
        const size_t bytes = (size_t)ejk_tensor_count(tensor) * ejk_dtype_size(tensor->dtype);
        made[count] = device_allocate(bytes);
        device_put(made[count], tensor->data, bytes);
        tensor->data = made[count++];
    }
    return count;
}

/* Cuts the tensors of the part's arguments. */
static void cut(const struct trial *t, struct slice *s, const ejk_axes *axes) {
    const ejk_record *record = t->line->kernel->args;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        if (field->kind != EJK_FIELD_TENSOR) continue;
        ejk_tensor *tensor = field_tensor(field, s->args);
        const ejk_tensor *whole = field_tensor(field, t->placement->args);
        /* What the case has put there itself stays. */
        if (!ejk_tensor_present(tensor) || tensor->data != whole->data ||
            memcmp(tensor->shape, whole->shape, sizeof tensor->shape) != 0)
            continue;
        const struct part part = part_of(s, field, whole, axes);
        for (int32_t a = 0; a < tensor->rank; a++)
            if (part.end[a] - part.first[a] < tensor->shape[a])
                *tensor = ejk_tensor_slice(*tensor, a, part.first[a], part.end[a] - part.first[a]);
    }
}

static void run_alone(struct trial *t, struct slice *s, const struct taken *whole,
                      const ejk_axes *axes) {
    struct prepared prepared;
    struct taken taken;
    char why[256];
    if (prepare_call(t->line->kernel, s->args, &prepared) != EJK_OK) {
        say(t, s, SLICE, ejk_last_error());
        return;
    }
    if (!line_applies(t->line, &prepared)) return;
    const enum outcome outcome = run_line(t, &prepared, NULL, SLICE);
    if (!placement_take(t->placement, &taken, why, sizeof why)) say(t, s, SLICE, why);
    if (outcome == DONE && !agrees(t, s, whole, &taken, axes, true, why, sizeof why))
        say(t, s, SLICE, why);
    taken_close(&taken);
}

/* ---- Neighbours -------------------------------------------------------------------------------------- */

/* Elements of an input that are not the part's become something else. */
static void change(struct place *at, const struct part *part) {
    static const double loud[] = {1e30, -1e30, NAN};
    const ejk_tensor *t = &at->view;
    const int64_t step = t->rank ? t->strides[t->rank - 1] : 0;
    for (int64_t n = 0; n < rows_of(t); n++) {
        const struct row row = row_of(part, t, n);
        int64_t rest = n, element = 0;
        for (int32_t a = t->rank - 2; a >= 0; a--) {
            element += rest % t->shape[a] * t->strides[a];
            rest /= t->shape[a];
        }
        for (int64_t k = 0; k < row.width; k++)
            if (k < row.first || k >= row.end)
                element_store(t->dtype, t->data, element + k * step, loud[(n * row.width + k) % 3]);
    }
}

/* Inputs that are the same along an axis that is cut have no neighbours of their own. */
static bool changes(const struct place *at, const struct part *part) {
    if (at->writes || !part->partial || at->view.dtype > EJK_DTYPE_F16 || at->memory.size == 0)
        return false;
    for (int32_t a = 0; a < at->view.rank; a++)
        if (at->view.strides[a] == 0 && at->view.shape[a] > 1) return false;
    return true;
}

static void run_among_others(struct trial *t, struct slice *s, const struct taken *whole,
                             const ejk_axes *axes) {
    struct prepared prepared;
    struct taken taken;
    char why[256];
    bool changed[MOST_FIELDS] = {false};
    for (int32_t i = 0; i < t->placement->count; i++) {
        struct place *at = &t->placement->place[i];
        const struct part part = part_of(s, at->field, &at->view, axes);
        changed[i] = changes(at, &part);
        if (!changed[i]) continue;
        placement_unlock(at);
        change(at, &part);
        placement_lock(t->placement, at);
    }
    if (prepare_call(t->line->kernel, t->placement->args, &prepared) == EJK_OK &&
        line_applies(t->line, &prepared)) {
        const enum outcome outcome = run_line(t, &prepared, NULL, NEIGHBOURS);
        if (!placement_take(t->placement, &taken, why, sizeof why)) say(t, s, NEIGHBOURS, why);
        if (outcome == DONE && !agrees(t, s, whole, &taken, axes, false, why, sizeof why))
            say(t, s, NEIGHBOURS, why);
        taken_close(&taken);
    }
    for (int32_t i = 0; i < t->placement->count; i++)
        if (changed[i]) placement_restore(t->placement, &t->placement->place[i]);
}

void check_slice(struct trial *t, const struct taken *whole, struct random *r) {
    const ejk_kernel *kernel = t->line->kernel;
    struct slice s = {.args = malloc(kernel->args->size)};
    ejk_axes axes = {.count = 0};
    const bool among = random_chance(r, 0.5);
    if (!s.args) abort();
    memcpy(s.args, t->placement->args, kernel->args->size);
    if (t->call->operation->slice && t->call->operation->slice(t->call, r, &s) &&
        ejk_record_check_tensors(kernel->args, t->placement->args, &axes) == EJK_OK) {
        void *made[MOST_FIELDS];
        cut(t, &s, &axes);
        const int32_t count = to_device(t, &s, made);
        run_alone(t, &s, whole, &axes);
        for (int32_t i = 0; i < count; i++) device_free(made[i]);
        if (among) run_among_others(t, &s, whole, &axes);
    }
    free(s.args);
}
