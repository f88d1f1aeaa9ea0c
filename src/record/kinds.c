/* SPDX-License-Identifier: Apache-2.0 */
#include "record/kinds.h"

#include "record/field.h"

#define KEY UINT64_C(0x9e3779b97f4a7c15)

/* ---- Faults ----------------------------------------------------------------------------------------- */

static const char truth[] = "a truth value of 0 or 1";

/* Bytes, not bools: a bool that is neither true nor false may not even be read. */
static bool is_truth(const void *place) {
    return *(const unsigned char *)place <= 1;
}

static const char *bool_fault(const void *place) {
    return is_truth(place) ? NULL : truth;
}

/* ejk_opt_int and ejk_opt_float alike. */
static const char *optional_fault(const void *place) {
    return bool_fault(&((const ejk_opt_int *)place)->set);
}

static const char *window_fault(const void *place) {
    const ejk_window *window = place;
    return is_truth(&window->left.set) && is_truth(&window->right.set) ? NULL : truth;
}

static const char *opt_bool_fault(const void *place) {
    return *(const uint32_t *)place > EJK_FALSE ? "EJK_UNSET, EJK_TRUE or EJK_FALSE" : NULL;
}

static const char *dtype_fault(const void *place) {
    const ejk_dtype dtype = *(const ejk_dtype *)place;
    return dtype != EJK_DTYPE_UNSET && ejk_dtype_bits(dtype) == 0 ? "an element type" : NULL;
}

static const char *name_fault(const void *place) {
    return memchr(place, 0, EJK_NAME_SIZE) == NULL ? "a text with a closing zero" : NULL;
}

static const char *ints_fault(const void *place) {
    const int32_t count = ((const ejk_ints *)place)->count;
    return count < 0 || count > EJK_MAX_INTS ? "a list of 0 to 16 numbers" : NULL;
}

static const char *tensors_fault(const void *place) {
    const int32_t count = ((const ejk_tensors *)place)->count;
    return count < 0 || count > EJK_MAX_TENSORS ? "a list of 0 to 8 tensors" : NULL;
}

/* ---- Bytes that count --------------------------------------------------------------------------------- */

static void mark(unsigned char *mask, size_t offset, size_t bytes) {
    memset(mask + offset, 0xff, bytes);
}

static void count_8(const void *place, unsigned char *mask) {
    (void)place;
    mark(mask, 0, 8);
}

static void count_4(const void *place, unsigned char *mask) {
    (void)place;
    mark(mask, 0, 4);
}

static void count_1(const void *place, unsigned char *mask) {
    (void)place;
    mark(mask, 0, 1);
}

static void count_optional(const void *place, unsigned char *mask) {
    mark(mask, offsetof(ejk_opt_int, set), sizeof(bool));
    if (((const ejk_opt_int *)place)->set) mark(mask, 0, sizeof(int64_t));
}

static void count_window(const void *place, unsigned char *mask) {
    const ejk_window *window = place;
    count_optional(&window->left, mask + offsetof(ejk_window, left));
    count_optional(&window->right, mask + offsetof(ejk_window, right));
}

static void count_name(const void *place, unsigned char *mask) {
    mark(mask, 0, strlen(place) + 1);
}

static void count_ints(const void *place, unsigned char *mask) {
    const ejk_ints *ints = place;
    mark(mask, offsetof(ejk_ints, count), sizeof ints->count);
    mark(mask, 0, (size_t)ejki_ints_count(ints) * sizeof *ints->value);
}

static void count_tensor(const void *place, unsigned char *mask) {
    const ejk_tensor *tensor = place;
    mark(mask, offsetof(ejk_tensor, dtype), sizeof tensor->dtype);
    if (tensor->dtype == EJK_DTYPE_UNSET) return;
    const size_t axes = (size_t)tensor->rank * sizeof *tensor->shape;
    mark(mask, offsetof(ejk_tensor, rank), sizeof tensor->rank);
    mark(mask, offsetof(ejk_tensor, shape), axes);
    mark(mask, offsetof(ejk_tensor, strides), axes);
    mark(mask, offsetof(ejk_tensor, device_type), sizeof tensor->device_type);
    mark(mask, offsetof(ejk_tensor, device_index), sizeof tensor->device_index);
}

static void count_tensors(const void *place, unsigned char *mask) {
    const ejk_tensors *list = place;
    mark(mask, offsetof(ejk_tensors, count), sizeof list->count);
    for (int32_t i = 0; i < ejki_tensors_count(list); i++)
        count_tensor(&list->value[i], mask + (size_t)i * sizeof *list->value);
}

/* ---- Several words ------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t a, uint64_t b) {
    const unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static bool window_set(const void *place) {
    const ejk_window *window = place;
    return window->left.set || window->right.set;
}

static uint64_t hash_window(const void *place) {
    const ejk_window *window = place;
    const uint64_t left = window->left.set ? (uint64_t)window->left.value : KEY;
    const uint64_t right = window->right.set ? (uint64_t)window->right.value : KEY;
    return mix(left ^ KEY, right ^ (KEY * 3)) + window->left.set;
}

static int32_t list_window(const void *place, ejk_opt_int out[EJKI_MOST_LISTED]) {
    const ejk_window *window = place;
    out[0] = window->left;
    out[1] = window->right;
    return 2;
}

static bool ints_set(const void *place) {
    return ejki_ints_count(place) > 0;
}

static bool same_ints(const void *x, const void *y) {
    const ejk_ints *a = x, *b = y;
    const int32_t count = ejki_ints_count(a);
    return count == ejki_ints_count(b) &&
           memcmp(a->value, b->value, (size_t)count * sizeof *a->value) == 0;
}

static uint64_t hash_ints(const void *place) {
    const ejk_ints *ints = place;
    uint64_t hash = KEY;
    for (int32_t i = 0; i < ejki_ints_count(ints); i++)
        hash = mix(hash ^ (uint64_t)ints->value[i], KEY * 3);
    return hash;
}

static int32_t list_ints(const void *place, ejk_opt_int out[EJKI_MOST_LISTED]) {
    const ejk_ints *ints = place;
    const int32_t count = ejki_ints_count(ints);
    for (int32_t i = 0; i < count; i++) out[i] = ejk_int(ints->value[i]);
    return count;
}

static bool name_set(const void *place) {
    return *(const char *)place != '\0';
}

static bool same_name(const void *a, const void *b) {
    return strncmp(a, b, EJK_NAME_SIZE) == 0;
}

static uint64_t hash_name(const void *place) {
    const char *name = place;
    uint64_t hash = KEY;
    for (size_t i = 0; i < EJK_NAME_SIZE && name[i] != '\0'; i++)
        hash = mix(hash ^ (unsigned char)name[i], KEY * 3);
    return hash;
}

static bool tensor_set(const void *place) {
    return ((const ejk_tensor *)place)->dtype != EJK_DTYPE_UNSET;
}

static bool tensors_set(const void *place) {
    return ejki_tensors_count(place) > 0;
}

/* ---- The table ---------------------------------------------------------------------------------------- */

#define KIND(name, type) .word = name, .size = sizeof(type), .alignment = _Alignof(type)

static const ejki_kind kinds[] = {
    [EJK_FIELD_BOOL] = {KIND("bool", bool), .expected = "true or false", .always_set = true,
                        .fault = bool_fault, .counts = count_1, .read = ejki_read_bool,
                        .write = ejki_write_bool, .parse = ejki_parse_truth},
    [EJK_FIELD_INT] = {KIND("int", int64_t), .expected = "a whole number of 64 bits",
                       .always_set = true, .counts = count_8, .read = ejki_read_int,
                       .write = ejki_write_int},
    [EJK_FIELD_FLOAT] = {KIND("float", double), .expected = "a finite number", .always_set = true,
                         .counts = count_8, .read = ejki_read_float, .write = ejki_write_float},
    [EJK_FIELD_OPT_BOOL] = {KIND("bool", ejk_opt_bool), .expected = "true or false",
                            .fault = opt_bool_fault, .counts = count_4, .read = ejki_read_opt_bool,
                            .write = ejki_write_opt_bool, .parse = ejki_parse_truth},
    [EJK_FIELD_OPT_INT] = {KIND("int", ejk_opt_int), .expected = "a whole number of 64 bits",
                           .fault = optional_fault, .counts = count_optional,
                           .read = ejki_read_opt_int, .write = ejki_write_opt_int},
    [EJK_FIELD_OPT_FLOAT] = {KIND("float", ejk_opt_float), .expected = "a finite number",
                             .fault = optional_fault, .counts = count_optional,
                             .read = ejki_read_opt_float, .write = ejki_write_opt_float},
    [EJK_FIELD_WINDOW] = {KIND("window", ejk_window),
                          .expected =
                              "two whole numbers, left and right, of which one may be left out",
                          .set = window_set, .same = ejki_same_window, .hash = hash_window,
                          .list = list_window, .fault = window_fault, .counts = count_window,
                          .read = ejki_read_window, .write = ejki_write_list,
                          .parse = ejki_parse_window},
    [EJK_FIELD_NAME] = {KIND("name", char[EJK_NAME_SIZE]),
                        .expected = "a text of fewer than 48 bytes", .set = name_set,
                        .same = same_name, .hash = hash_name, .fault = name_fault,
                        .counts = count_name, .read = ejki_read_name, .write = ejki_write_name,
                        .parse = ejki_parse_string},
    [EJK_FIELD_DTYPE] = {KIND("dtype", ejk_dtype), .expected = "an element type, as \"float32\"",
                         .fault = dtype_fault, .counts = count_4, .read = ejki_read_dtype,
                         .write = ejki_write_dtype, .parse = ejki_parse_string},
    [EJK_FIELD_INTS] = {KIND("ints", ejk_ints), .expected = "a list of 1 to 16 whole numbers",
                        .set = ints_set, .same = same_ints, .hash = hash_ints, .list = list_ints,
                        .fault = ints_fault, .counts = count_ints, .read = ejki_read_ints,
                        .write = ejki_write_list, .parse = ejki_parse_ints},
    [EJK_FIELD_TENSOR] =
        {KIND("tensor", ejk_tensor),
         .expected = "{\"dtype\": name, \"shape\": [at most 8 lengths]} of addressable size",
         .set = tensor_set, .counts = count_tensor, .read = ejki_read_tensor,
         .write = ejki_write_tensor_shape},
    [EJK_FIELD_TENSORS] =
        {KIND("tensors", ejk_tensors),
         .expected =
             "a list of 1 to 8 tensors as {\"dtype\": name, \"shape\": [at most 8 lengths]}",
         .set = tensors_set, .fault = tensors_fault, .counts = count_tensors,
         .read = ejki_read_tensors, .write = ejki_write_tensors},
    [EJK_FIELD_RECORD] = {.word = "record", .expected = "an object", .alignment = 1},
};
_Static_assert(EJK_NAME_SIZE == 48, "the sentence about names says 48");
_Static_assert(EJK_MAX_RANK == 8, "the sentence about tensors says 8");
_Static_assert(EJK_MAX_INTS == 16, "the sentences about lists say 16");
_Static_assert(EJK_MAX_TENSORS == 8, "the sentences about lists of tensors say 8");
_Static_assert(offsetof(ejk_tensors, value) == 0, "a list's first member lies where the list does");
_Static_assert(sizeof(ejk_opt_bool) == 4 && sizeof(ejk_dtype) == 4, "count_4 marks them");

const ejki_kind *ejki_kind_of(ejk_field_kind kind) {
    return (size_t)kind < sizeof kinds / sizeof *kinds ? &kinds[kind] : NULL;
}

size_t ejk_field_size(const ejk_field *field) {
    if (field == NULL || ejki_kind_of(field->kind) == NULL) return 0;
    return field->kind == EJK_FIELD_RECORD ? field->record->size : kinds[field->kind].size;
}
