/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a call against their units. Symbols are bound on a copy, together with the field that
 * bound each, so that a sentence can say where the expected length comes from.
 */
#include "record/field.h"
#include "record/line.h"
#include "record/unit.h"

typedef struct bindings {
    bool partial;  /* required tensors may be missing */
    bool strict;   /* a length whose symbols are not bound by now is a fault */
    bool deferred; /* there was such a length */
    char
        name[EJKI_PREFIX_SIZE]; /* of the tensor looked at, for sentences: with its outer records */
    const char *field;          /* its field alone */
    const ejk_tensor *first;    /* the first tensor there is, by which the place of all is known */
    char first_name[EJKI_PREFIX_SIZE];
    ejk_axes axes;
    const char *origin[sizeof((ejk_axes *)0)->axis / sizeof *((ejk_axes *)0)->axis];
} bindings;

static ejk_status bind(bindings *bound, const char *symbol, int64_t length) {
    EJKI_TRY(ejk_axes_set(&bound->axes, symbol, length));
    bound->origin[bound->axes.count - 1] = bound->field; /* unbound until now: it is the last */
    return EJK_OK;
}

/* " as in query", or where the caller bound it, " as given". */
static const char *origin_of(const bindings *bound, const char *symbol, const char **in) {
    for (int32_t i = 0; i < bound->axes.count; i++)
        if (strcmp(bound->axes.axis[i].name, symbol) == 0 && bound->origin[i] != NULL) {
            *in = " as in ";
            return bound->origin[i];
        }
    *in = " as given";
    return "";
}

/* " with N=4 as in starts, bits=8 as given"; of a symbol alone, only where it comes from. */
static void add_origins(const ejki_length *length, const bindings *bound, ejki_line *line) {
    char symbol[EJK_SYMBOL_SIZE];
    const char *separator = " with ", *in;
    for (const char *at = length->text; ejki_length_symbol(length, &at, symbol);) {
        const char *origin = origin_of(bound, symbol, &in);
        const int64_t value = ejk_axes_get(&bound->axes, symbol);
        if (value < 0) continue;
        if (!ejki_length_plain(length))
            ejki_line_add(line, "%s%s=%lld", separator, symbol, (long long)value);
        ejki_line_add(line, "%s%s", in, origin);
        separator = ", ";
    }
}

/* Lengths an axis may have, as "8 as in query or 1". */
static void describe(const ejki_axis *axis, const bindings *bound, ejki_line *line) {
    for (int32_t i = 0; i < axis->count; i++) {
        const ejki_value value = ejki_length_value(&axis->length[i], &bound->axes);
        if (value.state != EJKI_LENGTH_KNOWN) continue;
        ejki_line_separate(line, " or ");
        ejki_line_add(line, "%lld", (long long)value.value);
        add_origins(&axis->length[i], bound, line);
    }
    if (line->used > 0) return;
    /* An unbound first symbol takes any length that its constant leaves room for. */
    const ejki_length *first = &axis->length[0];
    const ejki_value value = ejki_length_value(first, &bound->axes);
    if (value.state == EJKI_LENGTH_LINEAR && value.factor == 1 && value.divisor == 1) {
        ejki_line_add(line, "at least %lld", (long long)ejki_max(value.add, 0));
        return;
    }
    const bool never = value.state == EJKI_LENGTH_NEVER;
    ejki_line_add(line, "%s%.*s%s", never ? "" : "a length of ", (int)first->size, first->text,
                  never ? ", which is no length" : "");
    add_origins(first, bound, line);
    if (value.state == EJKI_LENGTH_OPEN)
        ejki_line_add(line, ", where %s is not known", value.symbol);
}

/* A length that is known decides before a symbol is bound: 1 is a broadcast in "B|1", not B. */
static ejk_status match_axis(const ejki_axis *axis, int64_t length, bindings *bound,
                             int32_t index) {
    bool open = false; /* other tensors may tell */
    for (int32_t i = 0; i < axis->count; i++) {
        const ejki_value value = ejki_length_value(&axis->length[i], &bound->axes);
        if (value.state == EJKI_LENGTH_KNOWN && value.value == length) return EJK_OK;
        const bool plain = ejki_length_plain(&axis->length[i]);
        open |= value.state == EJKI_LENGTH_OPEN ||
                (i > 0 && !plain && value.state == EJKI_LENGTH_LINEAR);
    }
    const ejki_value first = ejki_length_value(&axis->length[0], &bound->axes);
    int64_t solution;
    if (first.state == EJKI_LENGTH_LINEAR && ejki_length_solve(&first, length, &solution))
        return bind(bound, first.symbol, solution);
    if (open && !bound->strict) {
        bound->deferred = true;
        return EJK_OK;
    }
    ejki_line expected = {.used = 0};
    describe(axis, bound, &expected);
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: axis %d (%.*s) has length %lld, expected %s",
                     bound->name, (int)index, (int)axis->text_size, axis->text, (long long)length,
                     expected.text);
}

static ejk_status match_shape(const ejki_shape *shape, const ejk_tensor *tensor, bindings *bound) {
    bindings attempt = *bound;
    for (int32_t i = 0; i < shape->rank; i++)
        EJKI_TRY(match_axis(&shape->axis[i], tensor->shape[i], &attempt, i));
    *bound = attempt;
    return EJK_OK;
}

/* "[3,5] given, expected [n] or [H,n] with H=8" */
static ejk_status no_shape_fits(const ejki_unit *unit, const ejk_tensor *tensor,
                                const bindings *bound) {
    ejki_line given = {.used = 0}, with = {.used = 0};
    for (int32_t i = 0; i < tensor->rank; i++) {
        ejki_line_separate(&given, ",");
        ejki_line_add(&given, "%lld", (long long)tensor->shape[i]);
    }
    for (int32_t i = 0; i < bound->axes.count; i++) {
        ejki_line_add(&with, "%s%s=%lld", with.used == 0 ? " with " : ", ",
                      bound->axes.axis[i].name, (long long)bound->axes.axis[i].length);
    }
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: shape [%s] given, expected %.*s%s", bound->name,
                     given.text, (int)unit->shapes_size, unit->shapes, with.text);
}

/* The first shape that fits. If just one has the rank, its sentence says which axis does not fit. */
static ejk_status check_shape(const ejki_unit *unit, const ejk_tensor *tensor, bindings *bound) {
    int32_t of_rank = 0;
    ejk_status status = EJK_OK;
    for (int32_t i = 0; i < unit->count; i++) {
        if (unit->shape[i].rank != tensor->rank) continue;
        of_rank++;
        status = match_shape(&unit->shape[i], tensor, bound);
        if (status != EJK_STATUS_INVALID_SHAPE) return status;
    }
    if (of_rank == 0)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%s: rank %d given, expected %.*s", bound->name,
                         (int)tensor->rank, (int)unit->shapes_size, unit->shapes);
    return of_rank == 1 ? status : no_shape_fits(unit, tensor, bound);
}

/* The type of another field if that is there, else what that field's own unit says. */
static ejk_status check_element(const ejk_record *record, const void *object, const ejki_unit *unit,
                                const ejk_tensor *tensor, const char *name) {
    ejki_unit other = *unit;
    const char *given = ejk_dtype_name(tensor->dtype);
    for (int32_t steps = 0; steps <= record->count; steps++) {
        const ejki_element *element = ejki_element_of(other.element);
        if (element != NULL) {
            if ((element->types >> tensor->dtype & 1) != 0) return EJK_OK;
            return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s: %s given, expected %s", name, given,
                             element->names);
        }
        const ejk_field *field = ejki_own_field(record, other.element, strlen(other.element));
        if (field == NULL || !ejki_is_tensor(field)) break;
        const ejk_dtype dtype = ejki_dtype_of(field, object);
        if (dtype == tensor->dtype) return EJK_OK;
        if (dtype != EJK_DTYPE_UNSET)
            return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s: %s given, expected %s as %s", name,
                             given, ejk_dtype_name(dtype), field->name);
        EJKI_TRY(ejki_unit_read(field, &other));
    }
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: unit of %s names no element type", name,
                     record->name);
}

/* "the CPU" or "cuda:0". */
static const char *place_of(const ejk_tensor *tensor, char room[32]) {
    if (tensor->device_type == EJK_DEVICE_CPU) return "the CPU";
    snprintf(room, 32, "cuda:%d", (int)tensor->device_index);
    return room;
}

/* What runs a call reaches the memory of one device. */
static ejk_status check_place(const ejk_tensor *tensor, const char *name, bindings *bound) {
    char here[32], there[32];
    if (tensor->device_type != EJK_DEVICE_CPU && tensor->device_type != EJK_DEVICE_CUDA)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "%s: lies on device type %d, expected %d, the CPU, or %d, a CUDA device",
                         name, (int)tensor->device_type, (int)EJK_DEVICE_CPU, (int)EJK_DEVICE_CUDA);
    if (!bound->first) {
        bound->first = tensor;
        memcpy(bound->first_name, name, sizeof bound->first_name);
    }
    if (tensor->device_type == bound->first->device_type &&
        (tensor->device_type == EJK_DEVICE_CPU ||
         tensor->device_index == bound->first->device_index))
        return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "%s: lies on %s, but %s on %s; expected all tensors of a call in one place",
                     name, place_of(tensor, here), bound->first_name,
                     place_of(bound->first, there));
}

static ejk_status check_view(const ejk_tensor *tensor, const char *name, bindings *bound) {
    EJKI_TRY(check_place(tensor, name, bound));
    EJKI_TRY(ejk_tensor_check(tensor, name));
    int32_t last = tensor->rank - 1;
    if (last >= 0 && tensor->shape[last] > 1 && tensor->strides[last] != 1)
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT,
                         "%s: axis %d, the last, has stride %lld, expected 1", name, (int)last,
                         (long long)tensor->strides[last]);
    return EJK_OK;
}

/* What is not there: fine, unless it has to be, or is a member that its list counts. */
static ejk_status check_missing(const ejki_walk *w, const ejk_tensor *tensor, bindings *bound) {
    const bool counted = w->member >= 0 && tensor != NULL;
    const bool first = w->member <= 0 && ejk_field_is_required(w->field);
    if (bound->partial || !(counted || first)) return EJK_OK;
    char name[EJKI_PREFIX_SIZE];
    ejki_walk_name(w, name);
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: missing, expected a tensor %s", name,
                     w->field->unit);
}

static ejk_status check_tensors(const ejk_record *record, const void *object, bindings *bound) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        const ejk_tensor *tensor = ejki_walk_tensor(&w, object);
        ejki_unit unit;
        if (!ejk_tensor_present(tensor)) {
            EJKI_TRY(check_missing(&w, tensor, bound));
            continue;
        }
        ejki_walk_name(&w, bound->name);
        bound->field = w.field->name;
        EJKI_TRY(ejki_unit_read_member(w.field, w.member, &unit));
        EJKI_TRY(check_view(tensor, bound->name, bound));
        EJKI_TRY(check_shape(&unit, tensor, bound));
        EJKI_TRY(check_element(w.owner, (const char *)object + w.owner_offset, &unit, tensor,
                               bound->name));
    }
    return EJK_OK;
}

/* What an integer field says binds its name. */
typedef struct naming {
    const ejk_record *record;
    const void *object;
    bindings *bound;
} naming;

static ejk_status bind_field(const ejki_length *length, void *user) {
    const naming *n = user;
    char symbol[EJK_SYMBOL_SIZE];
    for (const char *at = length->text; ejki_length_symbol(length, &at, symbol);) {
        const ejk_field *field = ejki_own_field(n->record, symbol, strlen(symbol));
        uint64_t word;
        if (field == NULL || (field->kind != EJK_FIELD_INT && field->kind != EJK_FIELD_OPT_INT))
            continue;
        if (!ejki_scalar(field->kind, ejki_field_address(field, n->object), &word)) continue;
        const int64_t value = (int64_t)word, other = ejk_axes_get(&n->bound->axes, symbol);
        if (value < 0 || (other >= 0 && other != value))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %lld, expected %s%lld", symbol,
                             (long long)value, other < 0 ? "at least " : "",
                             (long long)ejki_max(other, 0));
        if (other < 0) EJKI_TRY(ejk_axes_set(&n->bound->axes, symbol, value));
    }
    return EJK_OK;
}

static ejk_status bind_fields(const ejk_record *record, const void *object, bindings *bound) {
    for (ejki_walk w = ejki_walk_of(record); ejki_walk_next(&w);) {
        naming n = {w.owner, (const char *)object + w.owner_offset, bound};
        ejki_unit unit;
        EJKI_TRY(ejki_unit_read_member(w.field, w.member, &unit));
        EJKI_TRY(ejki_unit_lengths(&unit, true, bind_field, &n));
    }
    return EJK_OK;
}

/* The caller's symbols, as far as they are some: the struct may come from anywhere. */
static ejk_status take_given(const ejk_axes *axes, bindings *bound) {
    const int32_t most = sizeof axes->axis / sizeof *axes->axis;
    if (axes->count < 0 || axes->count > most)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "axes: count is %d, expected 0 to %d",
                         (int)axes->count, (int)most);
    for (int32_t i = 0; i < axes->count; i++) {
        char name[sizeof axes->axis->name + 1] = "";
        memcpy(name, axes->axis[i].name, sizeof axes->axis->name);
        EJKI_TRY(ejk_axes_set(&bound->axes, name, axes->axis[i].length));
    }
    return EJK_OK;
}

/* `caller` is the public function, for its sentence. */
static ejk_status bind_tensors(const char *caller, bool partial, const ejk_record *record,
                               const void *object, ejk_axes *axes) {
    if (record == NULL || object == NULL || axes == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s: record, object or axes is NULL", caller);
    bindings bound = {.partial = partial};
    EJKI_TRY(take_given(axes, &bound));
    EJKI_TRY(bind_fields(record, object, &bound));
    EJKI_TRY(check_tensors(record, object, &bound));
    if (bound.deferred) { /* once more, with what the others have bound */
        bound.strict = !partial;
        EJKI_TRY(check_tensors(record, object, &bound));
    }
    *axes = bound.axes;
    return EJK_OK;
}

ejk_status ejk_record_check_tensors(const ejk_record *record, const void *object, ejk_axes *axes) {
    return bind_tensors("ejk_record_check_tensors", false, record, object, axes);
}

ejk_status ejk_record_bind_axes(const ejk_record *record, const void *object, ejk_axes *axes) {
    return bind_tensors("ejk_record_bind_axes", true, record, object, axes);
}
