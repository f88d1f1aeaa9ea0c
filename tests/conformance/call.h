/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call that a case makes: arguments with row-major tensors in plain memory, and what its results should be. The
 * harness puts the tensors where it likes; a case never sees that.
 */
#ifndef TESTS_CONFORMANCE_CALL_H
#define TESTS_CONFORMANCE_CALL_H

#include "support/element.h"
#include "support/random.h"
#include "support/refused.h"

#include <ejkernel/ejkernel.h>

enum { MOST_FIELDS = 96, ORDERS = 8 };

/* What is compared with what: an element, a logarithm of a sum, a maximum, a sum of exponentials. */
enum kind { ELEMENT, LOG_SUM, MAXIMUM, SUM };

/* What a result should be; arrays are as long as it has elements. */
struct expected {
    double *exact;
    double *
        spread; /* sums of the sizes of the terms that an element is made of; NULL = its own size */
    double *naive[ORDERS]; /* evaluations in the type of the call, orders of summation differ */
    int64_t count;
    enum kind kind;
    double relative_to; /* what eps is multiplied by; 0 = 1 */
    bool open;          /* an exact infinity stands for whatever there is */
};

struct operation;
struct call;

/* Who asks for a call: whether it is of use to them, as its arguments are; whether a GPU runs it. NULL: any is. */
struct asker {
    bool (*takes)(const struct call *c, const void *own);
    const void *own;
    bool gpu;
};

struct call {
    const struct operation *operation;
    const ejk_kernel *kernel;
    const struct asker *asker;
    uint64_t seed;
    struct random random;
    ejk_dtype dtype; /* of the first tensor */
    int64_t budget;  /* multiplications of most calls */
    bool tiled;      /* sizes around tiles, rows at multiples of eight elements */
    void *args;      /* the kernel's */
    void *own;       /* the case's */
    struct expected expected[MOST_FIELDS]; /* by the place of the field in the record */
    int orders;                            /* naive evaluations so far */
    bool scarce;      /* few rows or keys: the naive error is a matter of luck */
    bool gradient;    /* sums may cancel all but a thousandth of their terms */
    bool hostile;     /* what is visible has NaN or infinities */
    double magnitude; /* largest sum of sizes in an exponent */
    char text[256];   /* what the arguments do not tell */
    void *memory[256];
    int32_t memories;
};

/* Part of a call, by symbols of its units; scalars and tensors of `args` may be changed besides. */
struct slice {
    void *args;
    struct {
        const char *symbol, *also; /* one that has the same length in this call, or NULL */
        int64_t first, end;
        bool same; /* another name of what the range before it cuts */
    } range[4];
    int32_t count;
};

/* The case of an operation. */
struct operation {
    const char *op;
    int64_t cases;  /* wanted of each implementation */
    ejk_dtype only; /* type of the first tensor, where there is but one; UNSET = any */
    /* Parts of "algorithm:name", by blanks, of shared lines that serve no call of it; one that does fails. With a '*':
     * how it begins, and what follows somewhere. */
    const char *never;
    /* Chooses arguments and contents. False: this seed makes none, as there is nothing in this type. */
    bool (*generate)(struct call *c);
    /* After some inputs were made the same along an axis: what depends on their values, as poison. May be NULL. */
    void (*finish)(struct call *c);
    /* Results by call_result(…, EXACT) and SPREAD, in more than the precision of the call; NULL = naive does it. */
    void (*exact)(struct call *c);
    /* The same in the precision of the call in the next order, up to ORDERS, or EXACT; NULL = exact ones rounded. */
    void (*naive)(struct call *c, int order);
    /* Which part could be computed alone with the same bits; false: none. May be NULL. */
    bool (*slice)(const struct call *c, struct random *r, struct slice *s);
    /* The public function, a good call and bad ones that differ from it, written as refused.h says. May be NULL. */
    refused_call *call;
    const char *good;
    const struct refused *refused;
    /* Of what is not the call's memory. May be NULL. */
    void (*release)(struct call *c);
};

/* Memory that lives as long as the call, zeroed. */
void *call_memory(struct call *c, size_t bytes);

/* A row-major tensor of zeros; its memory is the call's. */
ejk_tensor call_tensor(struct call *c, ejk_dtype dtype, int32_t rank, const int64_t *shape);
#define CALL_TENSOR(c, dtype, ...)                                                                 \
    call_tensor(c, dtype, (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),           \
                (const int64_t[]){__VA_ARGS__})

/* Element of a row-major tensor; what is finite stays so in f16. */
double tensor_get(const ejk_tensor *t, int64_t index);
void tensor_put(const ejk_tensor *t, int64_t index, double value);
/* All elements as doubles; memory of the call. NULL if it is absent. */
double *tensor_values(struct call *c, const ejk_tensor *t);

/* Values normal around `middle`; NaN in `count` elements. */
void tensor_fill(struct call *c, const ejk_tensor *t, double middle, double deviation);
void tensor_hide(const ejk_tensor *t, int64_t first, int64_t count);
/* In a call of twenty makes an element infinite or NaN. */
void call_disturb(struct call *c, const ejk_tensor *t);
/* Numbers around 0.5, disturbed. */
void call_fill(struct call *c, const ejk_tensor *t);
/* Lengths of one to four axes behind `before` entries: their number. The last is around a vector, or several tasks. */
int32_t call_trailing(struct call *c, int64_t before, int64_t *lengths);
/* A step of a sum: exact, or rounded to the precision that calls of the type add up in. */
long double call_step(const struct call *c, int order, long double value);

/* The array to fill for a result by its name: order 0 … ORDERS-1, or one of these. NULL: the call has no such. */
enum { EXACT = -2, SPREAD = -1 };
double *call_result(struct call *c, const char *field, int which, enum kind kind);
/* A result that terms are added to, in one order, with the sizes of the terms if it is the exact one. */
struct call_sums {
    double *value, *size; /* NULL: the call has no such result */
};
struct call_sums call_sums_of(struct call *c, const char *field, int order);
void call_add(const struct call *c, int order, struct call_sums to, int64_t at, long double term,
              long double size);
/* A result of a tensor's type and shape, with a chance; none if the tensor is absent. */
ejk_tensor call_tensor_like(struct call *c, const ejk_tensor *t, double chance);

/* Fields of a record; what a call updates in place is both. */
bool field_reads(const ejk_field *field);
bool field_writes(const ejk_field *field);
ejk_tensor *field_tensor(const ejk_field *field, const void *args);

/* Adds some of `count` entries along a symbol, from the first if so asked. */
void slice_add(struct slice *s, struct random *r, const char *symbol, int64_t count,
               bool from_first);

/* Where most calls are of no use to those lines that still want some, a case asks so once shapes and options are set,
 * and makes no call then: contents take most of the time. */
bool call_is_wanted(const struct call *c);
/* Whether a GPU runs the call: its kernels differ in which part of a call is one of theirs. */
bool call_is_for_gpu(const struct call *c);

/* A call from a seed; false if the case has none, or none that the asker, which may be NULL, takes. */
bool call_open(struct call *c, const struct operation *operation, const ejk_kernel *kernel,
               uint64_t seed, int64_t budget, const struct asker *asker);
void call_close(struct call *c);
/* The type that a seed leads to, known before anything is made. */
ejk_dtype call_dtype(uint64_t seed);
/* Arguments and the rest in one line. */
void call_print(const struct call *c, char *text, size_t size);

#endif
