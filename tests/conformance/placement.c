/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANARY = 4096 };

/* ---- Views ------------------------------------------------------------------------------------------- */

static void shuffle(struct random *r, int32_t *order, int32_t count) {
    for (int32_t i = 0; i < count; i++) order[i] = i;
    for (int32_t i = count - 1; i > 0; i--) {
        const int32_t other = random_chance(r, 0.5) ? (int32_t)random_int(r, 0, i) : i;
        const int32_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

/* True if all entries of an axis are those of its first one. */
static bool repeats(const ejk_tensor *t, int32_t axis) {
    size_t inner = ejk_dtype_size(t->dtype);
    int64_t outer = 1;
    for (int32_t i = axis + 1; i < t->rank; i++) inner *= (size_t)t->shape[i];
    for (int32_t i = 0; i < axis; i++) outer *= t->shape[i];
    const char *at = t->data;
    for (int64_t n = 0; n < outer; n++, at += (size_t)t->shape[axis] * inner)
        for (int64_t k = 1; k < t->shape[axis]; k++)
            if (memcmp(at + (size_t)k * inner, at, inner) != 0) return false;
    return true;
}

/* How far apart rows begin at least: eight elements, of bytes 16, a cache line, or as it comes. */
static int64_t row_unit(const struct call *c, const ejk_tensor *t, struct random *r) {
    if (c->tiled) return ejk_dtype_size(t->dtype) == 1 ? 16 : 8;
    return random_chance(r, 0.1) ? 64 / (int64_t)ejk_dtype_size(t->dtype) : 1;
}

/* Of a quarter of the calls views are as most callers have them: rows and matrices follow each other in order. */
static bool is_dense(const struct call *c) {
    return c->seed % 4 == 0;
}

/*
 * Strides for a view, whose last axis stays contiguous; returns elements from the first to the end of the last,
 * *origin is where (0, …, 0) lies.
 */
static int64_t choose_strides(const struct call *c, ejk_tensor *t, bool input, int64_t unit,
                              struct random *r, int64_t *origin) {
    int32_t order[EJK_MAX_RANK];
    const int32_t outer = t->rank - 1;
    *origin = 0;
    if (t->rank == 0) return 1;
    shuffle(r, order, outer);
    const bool gaps = random_chance(r, 0.4) && !is_dense(c);
    for (int32_t i = 0; is_dense(c) && i < outer; i++) order[i] = i;
    const int64_t row = t->shape[outer];
    int64_t extent = (row + unit - 1) / unit * unit, end = row;
    for (int32_t i = outer - 1; i >= 0; i--) {
        const int32_t axis = order[i];
        const int64_t length = t->shape[axis];
        const bool same = input && length > 1 && random_chance(r, 0.8) && repeats(t, axis);
        int64_t stride = extent + unit * (gaps ? random_int(r, 0, 5) : 0);
        if (same) stride = 0;
        if (length > 1 && !same) {
            end += stride * (length - 1);
            extent = stride * (length - 1) + extent;
            if (unit == 1 && random_chance(r, 0.05) && !is_dense(c)) {
                *origin += stride * (length - 1);
                stride = -stride;
            }
        }
        /* Nobody multiplies the stride of an axis of one by anything but 0. */
        if (length == 1 && random_chance(r, 0.1)) stride = INT64_C(1) << 40;
        t->strides[axis] = stride;
    }
    return ejk_tensor_count(t) == 0 ? 0 : end;
}

/* The view without the entries that others stand for. */
static ejk_tensor written_once(ejk_tensor t, const ejk_tensor *view) {
    for (int32_t i = 0; i < t.rank; i++)
        if (view->strides[i] == 0 && t.shape[i] > 1) t.shape[i] = 1;
    return t;
}

/* ---- Memory ------------------------------------------------------------------------------------------ */

static void to_device(struct placement *p, struct place *at) {
    const bool exact = getenv("EJK_TEST_EXACT") != NULL;
    const struct guarded *m = &at->memory;
    if (!p->gpu || !m->pages) return;
    if (!at->device && exact) {
        at->device = device_allocate(m->size);
        at->pages = (unsigned char *)at->device - (m->data - m->pages);
    } else if (!at->device) {
        at->device = device_allocate(m->mapped + 2 * CANARY);
        at->pages = (unsigned char *)at->device + CANARY;
        unsigned char around[CANARY];
        memset(around, GUARDED_FILL, sizeof around);
        device_put(at->device, around, CANARY);
        device_put(at->pages + m->mapped, around, CANARY);
    }
    if (exact)
        device_put(at->device, m->data, m->size);
    else
        device_put(at->pages, m->pages, m->mapped);
}

/* What is there comes here, into `to`, which is like memory.pages; false if a canary beyond it is gone. */
static bool from_device(const struct place *at, unsigned char *to) {
    const struct guarded *m = &at->memory;
    unsigned char around[2 * CANARY];
    if (getenv("EJK_TEST_EXACT")) {
        device_get(to + (m->data - m->pages), at->device, m->size);
        return true;
    }
    device_get(to, at->pages, m->mapped);
    device_get(around, at->device, CANARY);
    device_get(around + CANARY, at->pages + m->mapped, CANARY);
    return is_poison(around, sizeof around);
}

static void *address_of(const struct placement *p, const struct place *at) {
    if (!p->gpu || !at->memory.pages) return at->view.data;
    return at->pages + ((unsigned char *)at->view.data - at->memory.pages);
}

bool placement_has(const struct placement *p, const ejk_field *field, const void *address) {
    for (int32_t i = 0; i < p->count; i++) {
        const struct place *at = &p->place[i];
        const unsigned char *pages = p->gpu ? at->pages : at->memory.pages;
        if (at->field != field || !pages) continue;
        if ((uintptr_t)address >= (uintptr_t)pages &&
            (uintptr_t)address <= (uintptr_t)pages + at->memory.mapped)
            return true;
    }
    return false;
}

static void create_memory(struct place *at, const struct call *c, struct random *r) {
    const size_t element = ejk_dtype_size(at->view.dtype);
    const int64_t unit = row_unit(c, &at->view, r);
    int64_t origin;
    const size_t bytes =
        (size_t)choose_strides(c, &at->view, !at->writes, unit, r, &origin) * element;
    at->view.data = NULL;
    if (bytes == 0 && random_chance(r, 0.5)) return; /* an empty one may have no address at all */
    size_t slack = random_chance(r, 0.3) ? element * (size_t)random_int(r, 1, 15) : 0;
    /* Most of what is in eights begins at a multiple of 16 bytes, of lines at one of 64. */
    const size_t line = unit == 1 ? 1 : unit == 8 ? 16 : 64;
    if (unit > 1 && random_chance(r, 0.85)) slack = (line - bytes % line) % line;
    if (c->seed % 10 == 7) slack += (size_t)random_int(r, 0, (int64_t)element - 1);
    guarded_create(&at->memory, bytes, random_chance(r, 0.7) ? GUARDED_END : GUARDED_START, slack);
    at->view.data = at->memory.data + (bytes ? (size_t)origin * element : 0);
}

static void save(struct place *at) {
    at->saved = malloc(at->memory.mapped + 1);
    if (!at->saved) abort();
    if (at->memory.pages) memcpy(at->saved, at->memory.pages, at->memory.mapped);
}

static void add(struct placement *p, int32_t index, struct random *r) {
    struct place *at = &p->place[p->count++];
    const ejk_field *field = &p->call->kernel->args->fields[index];
    ejk_tensor *t = field_tensor(field, p->args);
    *at = (struct place){.field = field,
                         .index = index,
                         .plain = *t,
                         .view = *t,
                         .reads = field_reads(field),
                         .writes = field_writes(field)};
    create_memory(at, p->call, r);
    if (at->reads && at->memory.size > 0) {
        const ejk_tensor from = written_once(at->plain, &at->view);
        const ejk_tensor to = written_once(at->view, &at->view);
        if (ejk_tensor_copy(&from, &to) != EJK_OK) {
            printf("FAIL %s could not be placed: %s\n", field->name, ejk_last_error());
            exit(EXIT_FAILURE);
        }
    }
    if (!at->writes) guarded_protect(&at->memory);
    if (at->writes && at->reads) save(at);
    to_device(p, at);
    *t = at->view;
    t->data = address_of(p, at);
}

void placement_open(struct placement *p, const struct call *c, struct random *r, bool gpu) {
    const ejk_record *record = c->kernel->args;
    *p = (struct placement){.call = c, .gpu = gpu, .args = malloc(record->size)};
    if (!p->args) abort();
    memcpy(p->args, c->args, record->size);
    for (int32_t i = 0; i < record->count; i++)
        if (record->fields[i].kind == EJK_FIELD_TENSOR &&
            ejk_tensor_present(field_tensor(&record->fields[i], c->args)))
            add(p, i, r);
}

void placement_close(struct placement *p) {
    for (int32_t i = 0; i < p->count; i++) {
        guarded_destroy(&p->place[i].memory);
        if (p->place[i].device) device_free(p->place[i].device);
        free(p->place[i].saved);
    }
    free(p->args);
}

/* ---- Results ----------------------------------------------------------------------------------------- */

bool is_poison(const unsigned char *element, size_t size) {
    return guarded_is_fill(element, size);
}

bool is_untouched(const ejk_field *field, const ejk_tensor *plain, int64_t index,
                  const unsigned char *element) {
    const size_t size = ejk_dtype_size(plain->dtype);
    if (!ejk_field_is_input(field)) return is_poison(element, ejk_tensor_count(plain) ? size : 0);
    return ejk_tensor_count(plain) == 0 ||
           memcmp((const char *)plain->data + (size_t)index * size, element, size) == 0;
}

/* Copies rows of a view one after the other and poisons them. */
static void take_rows(const ejk_tensor *t, unsigned char *to) {
    const size_t element = ejk_dtype_size(t->dtype);
    const int64_t width = t->rank ? t->shape[t->rank - 1] : 1;
    const int64_t rows = width ? ejk_tensor_count(t) / width : 0;
    for (int64_t row = 0; row < rows; row++, to += (size_t)width * element) {
        int64_t rest = row, at = 0;
        for (int32_t axis = t->rank - 2; axis >= 0; axis--) {
            at += rest % t->shape[axis] * t->strides[axis];
            rest /= t->shape[axis];
        }
        unsigned char *from = (unsigned char *)t->data + at * (int64_t)element;
        memcpy(to, from, (size_t)width * element);
        memset(from, GUARDED_FILL, (size_t)width * element);
    }
}

static bool input_unchanged(const struct placement *p, const struct place *at) {
    if (!p->gpu || !at->memory.pages || getenv("EJK_TEST_EXACT")) return true;
    unsigned char *there = malloc(at->memory.mapped);
    if (!there) abort();
    const bool same =
        from_device(at, there) && memcmp(there, at->memory.pages, at->memory.mapped) == 0;
    free(there);
    return same;
}

bool placement_take(struct placement *p, struct taken *t, char *why, size_t size) {
    bool clean = true;
    *t = (struct taken){.bytes = {NULL}};
    for (int32_t i = 0; i < p->count; i++) {
        struct place *at = &p->place[i];
        bool good = at->writes || input_unchanged(p, at);
        if (at->writes) {
            const size_t bytes =
                (size_t)ejk_tensor_count(&at->view) * ejk_dtype_size(at->view.dtype);
            if (p->gpu && at->memory.pages) good = from_device(at, at->memory.pages);
            t->bytes[at->index] = malloc(bytes + 1);
            if (!t->bytes[at->index]) abort();
            if (bytes > 0) take_rows(&at->view, t->bytes[at->index]);
            good = good && guarded_blank(&at->memory);
            guarded_fill(&at->memory);
            if (at->saved && at->memory.pages)
                memcpy(at->memory.pages, at->saved, at->memory.mapped);
            to_device(p, at);
        }
        if (!good && clean)
            snprintf(why, size,
                     at->writes ? "something beside the elements of %s was written"
                                : "%s, an input, was written",
                     at->field->name);
        clean = clean && good;
    }
    return clean;
}

void taken_close(struct taken *t) {
    for (int i = 0; i < MOST_FIELDS; i++) free(t->bytes[i]);
    *t = (struct taken){.bytes = {NULL}};
}

/* ---- Other contents ---------------------------------------------------------------------------------- */

void placement_unlock(struct place *at) {
    guarded_unprotect(&at->memory);
    save(at);
}

void placement_lock(struct placement *p, struct place *at) {
    guarded_protect(&at->memory);
    to_device(p, at);
}

void placement_restore(struct placement *p, struct place *at) {
    guarded_unprotect(&at->memory);
    memcpy(at->memory.pages, at->saved, at->memory.mapped);
    free(at->saved);
    at->saved = NULL;
    placement_lock(p, at);
}
