/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/call.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *call_memory(struct call *c, size_t bytes) {
    void *memory = calloc(bytes + 16, 1);
    if (!memory || c->memories == (int32_t)(sizeof c->memory / sizeof *c->memory)) {
        printf("FAIL no memory for a call\n");
        exit(EXIT_FAILURE);
    }
    c->memory[c->memories++] = memory;
    return memory;
}

ejk_tensor call_tensor(struct call *c, ejk_dtype dtype, int32_t rank, const int64_t *shape) {
    ejk_tensor t = ejk_tensor_contiguous(NULL, dtype, rank, shape);
    t.data = call_memory(c, (size_t)ejk_tensor_count(&t) * ejk_dtype_size(dtype));
    return t;
}

double tensor_get(const ejk_tensor *t, int64_t index) {
    return element_load(t->dtype, t->data, index);
}

void tensor_put(const ejk_tensor *t, int64_t index, double value) {
    if (t->dtype == EJK_DTYPE_F16 && isfinite(value)) value = fmax(-65504, fmin(65504, value));
    element_store(t->dtype, t->data, index, value);
}

double *tensor_values(struct call *c, const ejk_tensor *t) {
    if (!ejk_tensor_present(t)) return NULL;
    const int64_t count = ejk_tensor_count(t);
    double *values = call_memory(c, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = tensor_get(t, i);
    return values;
}

void call_disturb(struct call *c, const ejk_tensor *t) {
    static const double loud[] = {INFINITY, -INFINITY, NAN};
    struct random *r = &c->random;
    const int64_t count = ejk_tensor_count(t);
    if (count == 0 || !random_chance(r, 0.05)) return;
    tensor_put(t, random_int(r, 0, count - 1), RANDOM_OF(r, loud));
    c->hostile = true;
}

void tensor_fill(struct call *c, const ejk_tensor *t, double middle, double deviation) {
    const int64_t count = ejk_tensor_count(t);
    for (int64_t n = 0; n < count; n++)
        tensor_put(t, n, middle + deviation * random_normal(&c->random));
}

void tensor_hide(const ejk_tensor *t, int64_t first, int64_t count) {
    for (int64_t n = first; n < first + count; n++) tensor_put(t, n, (double)NAN);
}

void call_fill(struct call *c, const ejk_tensor *t) {
    tensor_fill(c, t, 0.5, 1);
    call_disturb(c, t);
}

int32_t call_trailing(struct call *c, int64_t before, int64_t *lengths) {
    static const int64_t widths[] = {1, 2, 7, 15, 16, 17, 31, 33, 64, 65, 100, 128};
    struct random *r = &c->random;
    const int32_t last = (int32_t)random_int(r, 0, 3);
    for (int32_t i = 0; i < last; i++) lengths[i] = random_int(r, 1, 3);
    lengths[last] = random_chance(r, 0.02) ? 0 : RANDOM_OF(r, widths);
    if (before == 1 && random_chance(r, 0.2)) lengths[last] = 17000;
    for (int32_t i = 1; i <= last; i++)
        while (before * lengths[i - 1] * lengths[i] > 100000) lengths[i] /= 2;
    return last + 1;
}

long double call_step(const struct call *c, int order, long double value) {
    if (order == EXACT) return value;
    return c->dtype == EJK_DTYPE_F64 ? (long double)(double)value : (long double)(float)value;
}

void slice_add(struct slice *s, struct random *r, const char *symbol, int64_t count,
               bool from_first) {
    const int64_t first = from_first ? 0 : random_int(r, 0, count - 1);
    s->range[s->count].symbol = symbol;
    s->range[s->count].also = NULL;
    s->range[s->count].first = first;
    s->range[s->count++].end = random_int(r, first + 1, count);
}

bool field_reads(const ejk_field *field) {
    return field->kind == EJK_FIELD_TENSOR && ejk_field_is_input(field);
}

bool field_writes(const ejk_field *field) {
    return field->kind == EJK_FIELD_TENSOR && ejk_field_is_output(field);
}

ejk_tensor *field_tensor(const ejk_field *field, const void *args) {
    return (ejk_tensor *)(void *)((char *)(uintptr_t)args + field->offset);
}

double *call_result(struct call *c, const char *name, int which, enum kind kind) {
    const ejk_record *record = c->kernel->args;
    int32_t i = 0;
    while (i < record->count && strcmp(record->fields[i].name, name) != 0) i++;
    if (i == record->count || !field_writes(&record->fields[i])) return NULL;
    const ejk_tensor *t = field_tensor(&record->fields[i], c->args);
    if (!ejk_tensor_present(t)) return NULL;
    struct expected *e = &c->expected[i];
    e->count = ejk_tensor_count(t);
    e->kind = kind;
    double **place = which == EXACT ? &e->exact : which == SPREAD ? &e->spread : &e->naive[which];
    if (!*place) *place = call_memory(c, (size_t)e->count * sizeof **place);
    return *place;
}

struct call_sums call_sums_of(struct call *c, const char *field, int order) {
    return (struct call_sums){call_result(c, field, order, ELEMENT),
                              order == EXACT ? call_result(c, field, SPREAD, ELEMENT) : NULL};
}

void call_add(const struct call *c, int order, struct call_sums to, int64_t at, long double term,
              long double size) {
    if (!to.value) return;
    to.value[at] =
        (double)call_step(c, order, (long double)to.value[at] + call_step(c, order, term));
    if (to.size) to.size[at] += (double)size;
}

ejk_tensor call_tensor_like(struct call *c, const ejk_tensor *t, double chance) {
    if (!ejk_tensor_present(t) || !random_chance(&c->random, chance)) return (ejk_tensor){0};
    return call_tensor(c, t->dtype, t->rank, t->shape);
}

static struct random random_of(uint64_t seed) {
    struct random r = {.state = seed * UINT64_C(0xd1342543de82ef95) + 1};
    random_bits(&r);
    return r;
}

ejk_dtype call_dtype(uint64_t seed) {
    struct random r = random_of(seed);
    const double dice = random_real(&r);
    if (dice < 0.3) return EJK_DTYPE_F32;
    return dice < 0.4 ? EJK_DTYPE_F64 : dice < 0.75 ? EJK_DTYPE_BF16 : EJK_DTYPE_F16;
}

/* ---- Inputs that are the same along an axis ---------------------------------------------------------- */

static bool is_floating(const ejk_tensor *t) {
    return t->dtype >= EJK_DTYPE_F64 && t->dtype <= EJK_DTYPE_F16;
}

/* Copies the first entry of an axis to all others. */
static void repeat_axis(const ejk_tensor *t, int32_t axis) {
    int64_t inner = 1, outer = 1;
    for (int32_t i = axis + 1; i < t->rank; i++) inner *= t->shape[i];
    for (int32_t i = 0; i < axis; i++) outer *= t->shape[i];
    const size_t bytes = (size_t)inner * ejk_dtype_size(t->dtype);
    char *at = t->data;
    for (int64_t n = 0; n < outer; n++, at += (size_t)t->shape[axis] * bytes)
        for (int64_t k = 1; k < t->shape[axis]; k++) memcpy(at + (size_t)k * bytes, at, bytes);
}

static void repeat_some(struct call *c) {
    const ejk_record *record = c->kernel->args;
    for (int32_t i = 0; i < record->count; i++) {
        if (!field_reads(&record->fields[i])) continue;
        const ejk_tensor *t = field_tensor(&record->fields[i], c->args);
        if (!ejk_tensor_present(t) || !is_floating(t) || ejk_tensor_count(t) == 0) continue;
        for (int32_t axis = 0; axis < t->rank - 1; axis++)
            if (t->shape[axis] > 1 && random_chance(&c->random, 0.02)) repeat_axis(t, axis);
    }
}

/* ---- Calls ------------------------------------------------------------------------------------------- */

bool call_is_wanted(const struct call *c) {
    return !c->asker || c->asker->takes(c, c->asker->own);
}

bool call_is_for_gpu(const struct call *c) {
    return c->asker && c->asker->gpu;
}

bool call_open(struct call *c, const struct operation *operation, const ejk_kernel *kernel,
               uint64_t seed, int64_t budget, const struct asker *asker) {
    *c = (struct call){.operation = operation,
                       .kernel = kernel,
                       .asker = asker,
                       .seed = seed,
                       .random = random_of(seed),
                       .dtype = call_dtype(seed),
                       .budget = budget};
    random_bits(&c->random); /* the one that decided the type */
    /* Large ones now and then; f64, which only the reference takes, needs none. Kernels of GPUs are for tiles. */
    c->tiled = random_chance(&c->random, call_is_for_gpu(c) ? 0.35 : 0.1);
    if (random_chance(&c->random, 0.06)) c->budget *= 4;
    if (c->dtype == EJK_DTYPE_F64) c->budget /= 4;
    c->args = call_memory(c, kernel->args->size);
    if (!operation->generate(c)) return false;
    repeat_some(c);
    if (operation->finish) operation->finish(c);
    return true;
}

void call_close(struct call *c) {
    if (c->operation->release) c->operation->release(c);
    for (int32_t i = 0; i < c->memories; i++) free(c->memory[i]);
    c->memories = 0;
}

void call_print(const struct call *c, char *text, size_t size) {
    char *json = NULL;
    const ejk_status status =
        ejk_record_to_json(c->kernel->args, c->args, EJK_JSON_SET_ONLY, &json);
    snprintf(text, size, "EJK_TEST_SEED=%" PRIu64 " EJK_TEST_CASES=1: %s%s %s", c->seed, c->text,
             c->tiled ? " tiled" : "", status == EJK_OK ? json : ejk_last_error());
    ejk_free(json);
}
