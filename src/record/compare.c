/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Equality and hash of records, with or without tensors' data pointers.
 *
 * The ones without run on every call that finds its plan in a cache. What costs there is branches, so an
 * absent tensor has one on its kind and one on its presence, and a present one is compared and hashed by
 * arithmetic. The hash multiplies two keyed words to 128 bits, folds the halves and sums the results of all fields and
 * axes, so that no multiplication waits for another. It is not meant to withstand someone who constructs
 * collisions: equality decides.
 */
#include "record/field.h"

#define INLINE static inline __attribute__((always_inline))

/* Odd, with bits spread evenly: the keys of a sequence are its multiples. */
#define KEY UINT64_C(0x9e3779b97f4a7c15)

_Static_assert(offsetof(ejk_tensor, rank) == offsetof(ejk_tensor, dtype) + 4 &&
                   offsetof(ejk_tensor, device_index) == offsetof(ejk_tensor, device_type) + 4,
               "dtype and rank, device type and index are read as one word each");

INLINE uint64_t word_at(const void *base, size_t offset) {
    uint64_t word;
    memcpy(&word, (const char *)base + offset, sizeof word);
    return word;
}

INLINE uint64_t head(const ejk_tensor *tensor) {
    return word_at(tensor, offsetof(ejk_tensor, dtype));
}

INLINE uint64_t device(const ejk_tensor *tensor) {
    return word_at(tensor, offsetof(ejk_tensor, device_type));
}

/* The rank, but never one that leads outside the arrays. */
INLINE uint32_t safe_rank(const ejk_tensor *tensor) {
    uint32_t rank = (uint32_t)tensor->rank;
    return rank <= EJK_MAX_RANK ? rank : EJK_MAX_RANK;
}

INLINE bool same_tensor(const ejk_tensor *a, const ejk_tensor *b, bool with_data) {
    if ((a->dtype | b->dtype) == EJK_DTYPE_UNSET) return true;
    uint64_t difference = (head(a) ^ head(b)) | (device(a) ^ device(b));
    if (with_data) difference |= (uint64_t)((uintptr_t)a->data ^ (uintptr_t)b->data);
    if (difference != 0) return false;
    uint32_t rank = safe_rank(a);
    for (uint32_t i = 0; i < rank; i++)
        difference |= (uint64_t)((a->shape[i] ^ b->shape[i]) | (a->strides[i] ^ b->strides[i]));
    return difference == 0;
}

static bool same_tensors(const ejk_tensors *a, const ejk_tensors *b, bool with_data) {
    const int32_t count = ejki_tensors_count(a);
    if (count != ejki_tensors_count(b)) return false;
    for (int32_t i = 0; i < count; i++)
        if (!same_tensor(&a->value[i], &b->value[i], with_data)) return false;
    return true;
}

/* By bits; where they differ, by value. */
INLINE bool same_float(const double *a, const double *b) {
    return word_at(a, 0) == word_at(b, 0) || ejki_float_word(*a) == ejki_float_word(*b);
}

/* The first byte decides for most: names are seldom given. */
INLINE bool same_name(const char *a, const char *b) {
    return *a == *b && (*a == '\0' || strncmp(a, b, EJK_NAME_SIZE) == 0);
}

INLINE bool same_field(const ejk_field *field, const void *x, const void *y, bool with_data) {
    if (field->kind == EJK_FIELD_TENSOR) return same_tensor(x, y, with_data);
    switch (field->kind) {
    case EJK_FIELD_BOOL: return *(const bool *)x == *(const bool *)y;
    case EJK_FIELD_INT: return *(const int64_t *)x == *(const int64_t *)y;
    case EJK_FIELD_FLOAT: return same_float(x, y);
    case EJK_FIELD_OPT_BOOL: return *(const ejk_opt_bool *)x == *(const ejk_opt_bool *)y;
    case EJK_FIELD_OPT_INT: return ejki_same_int(x, y);
    case EJK_FIELD_OPT_FLOAT: {
        const ejk_opt_float *a = x, *b = y;
        return a->set == b->set && (!a->set || same_float(&a->value, &b->value));
    }
    case EJK_FIELD_WINDOW: return ejki_same_window(x, y);
    case EJK_FIELD_NAME: return same_name(x, y);
    case EJK_FIELD_DTYPE: return *(const ejk_dtype *)x == *(const ejk_dtype *)y;
    case EJK_FIELD_TENSOR: break; /* dealt with above, being the most frequent */
    case EJK_FIELD_TENSORS: return same_tensors(x, y, with_data);
    case EJK_FIELD_RECORD:
        return with_data ? ejk_record_equal(field->record, x, y)
                         : ejk_record_same_signature(field->record, x, y);
    default: return ejki_kind_of(field->kind)->same(x, y);
    }
    return true;
}

static bool nothing_set(const ejk_record *record, const void *object) {
    for (int32_t i = 0; i < record->count; i++)
        if (ejk_record_is_set(&record->fields[i], object)) return false;
    return true;
}

INLINE bool same(const ejk_record *record, const void *a, const void *b, bool with_data) {
    if (record == NULL) return a == b;
    if (a == NULL || b == NULL) return nothing_set(record, a) && nothing_set(record, b);
    const ejk_field *field = record->fields;
    for (int32_t left = record->count; left > 0; left--, field++) {
        const void *x = ejki_field_address(field, a), *y = ejki_field_address(field, b);
        if (!same_field(field, x, y, with_data)) return false;
    }
    return true;
}

INLINE uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* 0 for a word that is not set, so that fields that are not leave no trace. */
INLINE uint64_t mix_if(bool set, uint64_t word, uint64_t key) {
    return set ? mix(word ^ key, key + KEY) : 0;
}

INLINE uint64_t hash_tensor(const ejk_tensor *tensor, bool with_data) {
    uint64_t sum = mix(head(tensor) ^ (KEY * 3), device(tensor) ^ (KEY * 5));
    if (with_data) sum += mix((uint64_t)(uintptr_t)tensor->data ^ (KEY * 7), KEY * 11);
    uint64_t key = KEY * 13;
    uint32_t rank = safe_rank(tensor);
    for (uint32_t i = 0; i < rank; i++, key += 2 * KEY)
        sum += mix((uint64_t)tensor->shape[i] ^ key, (uint64_t)tensor->strides[i] ^ (key + KEY));
    return sum;
}

/* 0 for an empty list. Members that are missing leave no trace, but the count does. */
static uint64_t hash_tensors(const ejk_tensors *list, bool with_data) {
    const int32_t count = ejki_tensors_count(list);
    uint64_t sum = mix_if(count > 0, (uint64_t)count, KEY * 17), key = KEY * 19;
    for (int32_t i = 0; i < count; i++, key += 2 * KEY)
        if (list->value[i].dtype != EJK_DTYPE_UNSET)
            sum += mix_if(true, hash_tensor(&list->value[i], with_data), key);
    return sum;
}

INLINE uint64_t hash_field(const ejk_field *field, const void *place, uint64_t key,
                           bool with_data) {
    uint64_t word = 0;
    bool set = false;
    if (field->kind == EJK_FIELD_TENSOR) {
        set = ((const ejk_tensor *)place)->dtype != EJK_DTYPE_UNSET;
        return set ? mix_if(true, hash_tensor(place, with_data), key) : 0;
    }
    switch (field->kind) {
    case EJK_FIELD_BOOL: set = ejki_scalar(EJK_FIELD_BOOL, place, &word); break;
    case EJK_FIELD_INT: set = ejki_scalar(EJK_FIELD_INT, place, &word); break;
    case EJK_FIELD_FLOAT: set = ejki_scalar(EJK_FIELD_FLOAT, place, &word); break;
    case EJK_FIELD_OPT_BOOL: set = ejki_scalar(EJK_FIELD_OPT_BOOL, place, &word); break;
    case EJK_FIELD_OPT_INT: set = ejki_scalar(EJK_FIELD_OPT_INT, place, &word); break;
    case EJK_FIELD_OPT_FLOAT: set = ejki_scalar(EJK_FIELD_OPT_FLOAT, place, &word); break;
    case EJK_FIELD_DTYPE: set = ejki_scalar(EJK_FIELD_DTYPE, place, &word); break;
    case EJK_FIELD_WINDOW: {
        const ejk_window *window = place;
        return mix_if(window->left.set, (uint64_t)window->left.value, key) +
               mix_if(window->right.set, (uint64_t)window->right.value, ~key);
    }
    case EJK_FIELD_NAME:
        if (*(const char *)place == '\0') return 0;
        return mix_if(true, ejki_kind_of(EJK_FIELD_NAME)->hash(place), key);
    case EJK_FIELD_TENSOR: break; /* dealt with above, as in same_field() */
    case EJK_FIELD_TENSORS:
        word = hash_tensors(place, with_data);
        set = word != 0;
        break;
    case EJK_FIELD_RECORD:
        word = with_data ? ejk_record_hash(field->record, place)
                         : ejk_record_signature(field->record, place);
        set = word != 0;
        break;
    default: {
        const ejki_kind *kind = ejki_kind_of(field->kind);
        return kind->set(place) ? mix_if(true, kind->hash(place), key) : 0;
    }
    }
    return mix_if(set, word, key);
}

INLINE uint64_t hash(const ejk_record *record, const void *object, bool with_data) {
    if (record == NULL || object == NULL) return 0;
    uint64_t sum = 0, key = KEY;
    const ejk_field *field = record->fields;
    for (int32_t left = record->count; left > 0; left--, field++) {
        key += 2 * KEY;
        sum += hash_field(field, ejki_field_address(field, object), key, with_data);
    }
    return sum;
}

bool ejk_record_equal(const ejk_record *record, const void *a, const void *b) {
    return same(record, a, b, true);
}

uint64_t ejk_record_hash(const ejk_record *record, const void *object) {
    return hash(record, object, true);
}

bool ejk_record_same_signature(const ejk_record *record, const void *a, const void *b) {
    return same(record, a, b, false);
}

uint64_t ejk_record_signature(const ejk_record *record, const void *object) {
    return hash(record, object, false);
}
