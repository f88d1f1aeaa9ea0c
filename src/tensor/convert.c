/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of elements from one type to another. The pairs that attention lives on (bf16, f16 <-> f32, all
 * contiguous) have a loop of their own. Every other pair goes in chunks through the widest number of its
 * kind, f64 or int64: a loop that reads and one that writes each type instead of one for each pair.
 */
#include "tensor/access.h"

#include "base/base.h"

float ejk_bf16_to_f32(uint16_t bits) {
    return ejki_bf16_to_f32(bits);
}
uint16_t ejk_f32_to_bf16(float value) {
    return ejki_f32_to_bf16(value);
}
float ejk_f16_to_f32(uint16_t bits) {
    return ejki_f16_to_f32(bits);
}
uint16_t ejk_f32_to_f16(float value) {
    return ejki_f32_to_f16(value);
}

float ejk_e4m3_to_f32(uint8_t code) {
    return ejki_e4m3_to_f32(code);
}
uint8_t ejk_f32_to_e4m3(float value) {
    return ejki_f32_to_e4m3(value);
}
float ejk_e5m2_to_f32(uint8_t code) {
    return ejki_e5m2_to_f32(code);
}
uint8_t ejk_f32_to_e5m2(float value) {
    return ejki_f32_to_e5m2(value);
}
float ejk_e8m0_to_f32(uint8_t code) {
    return ejki_e8m0_to_f32(code);
}
uint8_t ejk_f32_to_e8m0(float value) {
    return ejki_f32_to_e8m0(value);
}

/* Blocks of a known length, because gcc's -O2 vectorises no loop that needs a remainder. */
enum { BLOCK = 16 };

#define DEFINE_RUN(pair, from, to)                                                                 \
    void ejk_convert_##pair(const from *restrict source, to *restrict target, int64_t count) {     \
        int64_t done = 0;                                                                          \
        for (; count - done >= BLOCK; done += BLOCK) {                                             \
            for (int i = 0; i < BLOCK; i++) target[done + i] = ejki_##pair(source[done + i]);      \
        }                                                                                          \
        for (; done < count; done++) target[done] = ejki_##pair(source[done]);                     \
    }

DEFINE_RUN(bf16_to_f32, uint16_t, float)
DEFINE_RUN(f32_to_bf16, float, uint16_t)
DEFINE_RUN(f16_to_f32, uint16_t, float)
DEFINE_RUN(f32_to_f16, float, uint16_t)

/* A chunk in the widest type of its kind; 2 KiB stay in the first-level cache. */
enum { CHUNK = 256 };
typedef union chunk {
    double real[CHUNK];
    int64_t whole[CHUNK];
} chunk;

/* Elements are moved by memcpy of their known size: a plain load or store, but right at any address. */
#define READ_EACH(type, into, expression)                                                          \
    for (int64_t i = 0; i < count; i++) {                                                          \
        type x;                                                                                    \
        memcpy(&x, source + i * step, sizeof x);                                                   \
        (into)[i] = (expression);                                                                  \
    }                                                                                              \
    return

static void read_chunk(const char *source, int64_t step, ejk_dtype dtype, int64_t count,
                       chunk *out) {
    switch (dtype) {
    case EJK_DTYPE_F64: READ_EACH(double, out->real, x);
    case EJK_DTYPE_F32: READ_EACH(float, out->real, (double)x);
    case EJK_DTYPE_BF16: READ_EACH(uint16_t, out->real, (double)ejki_bf16_to_f32(x));
    case EJK_DTYPE_F16: READ_EACH(uint16_t, out->real, (double)ejki_f16_to_f32(x));
    case EJK_DTYPE_F8E4M3: READ_EACH(uint8_t, out->real, (double)ejki_e4m3_to_f32(x));
    case EJK_DTYPE_F8E5M2: READ_EACH(uint8_t, out->real, (double)ejki_e5m2_to_f32(x));
    case EJK_DTYPE_F8E8M0: READ_EACH(uint8_t, out->real, (double)ejki_e8m0_to_f32(x));
    case EJK_DTYPE_I64: READ_EACH(int64_t, out->whole, x);
    case EJK_DTYPE_I32: READ_EACH(int32_t, out->whole, x);
    case EJK_DTYPE_I16: READ_EACH(int16_t, out->whole, x);
    case EJK_DTYPE_I8: READ_EACH(int8_t, out->whole, x);
    case EJK_DTYPE_U32: READ_EACH(uint32_t, out->whole, x);
    case EJK_DTYPE_U8: READ_EACH(uint8_t, out->whole, x);
    case EJK_DTYPE_BOOL: READ_EACH(uint8_t, out->whole, x != 0);
    case EJK_DTYPE_I4: /* copied by copy.c */
    case EJK_DTYPE_U4:
    case EJK_DTYPE_UNSET: break;
    }
    *out =
        (chunk){0}; /* no checked view gets here, but what is read below must have been written */
}

static int64_t f64_to_i64(double value) {
    if (value >= 0x1p63) return INT64_MAX;
    if (value <= -0x1p63) return INT64_MIN;
    return value == value ? (int64_t)value : 0;
}

/*
 * An int64 as an f64 that rounds to f32, bf16 and f16 as the integer itself would: whole numbers beyond 2^53
 * drop the bits that an f64 may not hold, but leave a one behind for what they dropped.
 */
static double i64_to_f64_sticky(int64_t value) {
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (magnitude >> 53 != 0) {
        uint64_t dropped = magnitude & 0x7ff;
        magnitude = (magnitude - dropped) | (uint64_t)(dropped != 0) << 11;
    }
    return value < 0 ? -(double)magnitude : (double)magnitude;
}

static void change_kind(chunk *values, ejk_dtype source, ejk_dtype target, int64_t count) {
    if (ejki_is_float(source) == ejki_is_float(target)) return;
    for (int64_t i = 0; i < count; i++) {
        if (target == EJK_DTYPE_BOOL) {
            values->whole[i] = values->real[i] != 0;
        } else if (ejki_is_float(source)) {
            values->whole[i] = f64_to_i64(values->real[i]);
        } else if (target == EJK_DTYPE_F64) {
            values->real[i] = (double)values->whole[i];
        } else {
            values->real[i] = i64_to_f64_sticky(values->whole[i]);
        }
    }
}

static int64_t clamp(int64_t value, int64_t least, int64_t greatest) {
    return ejki_min(ejki_max(value, least), greatest);
}

#define WRITE_EACH(type, expression)                                                               \
    for (int64_t i = 0; i < count; i++) {                                                          \
        type x = (expression);                                                                     \
        memcpy(target + i * step, &x, sizeof x);                                                   \
    }                                                                                              \
    break
#define WRITE_CLAMPED(type, least, greatest)                                                       \
    WRITE_EACH(type, (type)clamp(in->whole[i], least, greatest))

static void write_chunk(const chunk *in, char *target, int64_t step, ejk_dtype dtype,
                        int64_t count) {
    switch (dtype) {
    case EJK_DTYPE_F64: WRITE_EACH(double, in->real[i]);
    case EJK_DTYPE_F32: WRITE_EACH(float, (float)in->real[i]);
    case EJK_DTYPE_BF16: WRITE_EACH(uint16_t, ejki_f64_to_bf16(in->real[i]));
    case EJK_DTYPE_F16: WRITE_EACH(uint16_t, ejki_f64_to_f16(in->real[i]));
    case EJK_DTYPE_F8E4M3: WRITE_EACH(uint8_t, ejki_f64_to_e4m3(in->real[i]));
    case EJK_DTYPE_F8E5M2: WRITE_EACH(uint8_t, ejki_f64_to_e5m2(in->real[i]));
    case EJK_DTYPE_F8E8M0: WRITE_EACH(uint8_t, ejki_f64_to_e8m0(in->real[i]));
    case EJK_DTYPE_I64: WRITE_EACH(int64_t, in->whole[i]);
    case EJK_DTYPE_I32: WRITE_CLAMPED(int32_t, INT32_MIN, INT32_MAX);
    case EJK_DTYPE_I16: WRITE_CLAMPED(int16_t, INT16_MIN, INT16_MAX);
    case EJK_DTYPE_I8: WRITE_CLAMPED(int8_t, INT8_MIN, INT8_MAX);
    case EJK_DTYPE_U32: WRITE_CLAMPED(uint32_t, 0, UINT32_MAX);
    case EJK_DTYPE_U8: WRITE_CLAMPED(uint8_t, 0, UINT8_MAX);
    case EJK_DTYPE_BOOL: WRITE_EACH(uint8_t, in->whole[i] != 0);
    case EJK_DTYPE_I4: /* copied by copy.c */
    case EJK_DTYPE_U4:
    case EJK_DTYPE_UNSET: break;
    }
}

#define MOVE_EACH(type)                                                                            \
    for (int64_t i = 0; i < count; i++) {                                                          \
        type x;                                                                                    \
        memcpy(&x, source + i * source_step, sizeof x);                                            \
        memcpy(target + i * target_step, &x, sizeof x);                                            \
    }                                                                                              \
    break

/* Elements of one type keep their bits, those of a NaN too. */
static void move_run(const char *source, int64_t source_step, char *target, int64_t target_step,
                     int64_t size, int64_t count) {
    if (source_step == size && target_step == size) {
        memcpy(target, source, (size_t)(count * size));
        return;
    }
    switch (size) {
    case 1: MOVE_EACH(uint8_t);
    case 2: MOVE_EACH(uint16_t);
    case 4: MOVE_EACH(uint32_t);
    case 8: MOVE_EACH(uint64_t);
    }
}

static bool aligned(const void *address, size_t size) {
    return (uintptr_t)address % size == 0;
}

/* The pairs with a loop of their own; false if this is none of them. */
static bool convert_contiguous(const void *source, ejk_dtype from, void *target, ejk_dtype to,
                               int64_t count) {
    if (from == EJK_DTYPE_BF16 && to == EJK_DTYPE_F32) {
        ejk_convert_bf16_to_f32(source, target, count);
    } else if (from == EJK_DTYPE_F32 && to == EJK_DTYPE_BF16) {
        ejk_convert_f32_to_bf16(source, target, count);
    } else if (from == EJK_DTYPE_F16 && to == EJK_DTYPE_F32) {
        ejk_convert_f16_to_f32(source, target, count);
    } else if (from == EJK_DTYPE_F32 && to == EJK_DTYPE_F16) {
        ejk_convert_f32_to_f16(source, target, count);
    } else {
        return false;
    }
    return true;
}

void ejki_convert_run(const void *source, int64_t source_step, ejk_dtype source_dtype, void *target,
                      int64_t target_step, ejk_dtype target_dtype, int64_t count) {
    size_t source_size = ejk_dtype_size(source_dtype), target_size = ejk_dtype_size(target_dtype);
    /* A bool is not moved as it is: a byte that is neither 0 nor 1 becomes 1. */
    if (source_dtype == target_dtype && source_dtype != EJK_DTYPE_BOOL) {
        move_run(source, source_step, target, target_step, (int64_t)source_size, count);
        return;
    }
    if (source_step == (int64_t)source_size && target_step == (int64_t)target_size &&
        aligned(source, source_size) && aligned(target, target_size) &&
        convert_contiguous(source, source_dtype, target, target_dtype, count)) {
        return;
    }
    chunk values;
    for (int64_t done = 0; done < count; done += CHUNK) {
        int64_t length = ejki_min(CHUNK, count - done);
        read_chunk((const char *)source + done * source_step, source_step, source_dtype, length,
                   &values);
        change_kind(&values, source_dtype, target_dtype, length);
        write_chunk(&values, (char *)target + done * target_step, target_step, target_dtype,
                    length);
    }
}
