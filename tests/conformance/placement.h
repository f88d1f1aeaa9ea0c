/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call's tensors in memory that notices what a kernel must not do: random views (axes in any order, gaps, backwards,
 * stride 0 where an input is the same along an axis) between guard pages, canaries in gaps, inputs that cannot be
 * written, results poisoned. On a GPU the same bytes, with canaries in place of guard pages; under EJK_TEST_EXACT
 * each tensor in memory of its own, for compute-sanitizer.
 */
#ifndef TESTS_CONFORMANCE_PLACEMENT_H
#define TESTS_CONFORMANCE_PLACEMENT_H

#include "conformance/call.h"
#include "support/guarded.h"

struct place {
    const ejk_field *field;
    int32_t index;    /* of the field */
    ejk_tensor plain; /* the call's */
    ejk_tensor view;  /* into `memory` */
    struct guarded memory;
    void *device;         /* what was allocated there */
    unsigned char *pages; /* there, where memory.pages are here */
    unsigned char *saved; /* contents that come back: of a state, of an input that is changed */
    bool reads, writes;
};

struct placement {
    const struct call *call;
    bool gpu;
    void *
        args; /* the call's, with views in place of its tensors; addresses are the GPU's if it is for one */
    struct place place[MOST_FIELDS];
    int32_t count;
};

void placement_open(struct placement *p, const struct call *c, struct random *r, bool gpu);
void placement_close(struct placement *p);

/* Results of a run, row-major, by the place of the field; NULL for what the call does not have. */
struct taken {
    unsigned char *bytes[MOST_FIELDS];
};

/*
 * Takes what was written and leaves results poisoned as before the run. False, and which, if something beside the
 * elements of a result has changed, or an input.
 */
bool placement_take(struct placement *p, struct taken *t, char *why, size_t size);
void taken_close(struct taken *t);

/* True if an address is one of those that the tensor of a field has been given. */
bool placement_has(const struct placement *p, const ejk_field *field, const void *address);

/* True if an element of a result is as before a run: poison, or what a state held. `plain` is the call's tensor. */
bool is_untouched(const ejk_field *field, const ejk_tensor *plain, int64_t index,
                  const unsigned char *element);

/* True if the bytes of an element are those that results are poisoned with. */
bool is_poison(const unsigned char *element, size_t size);

/* The contents of an input may be changed between the first two and are as before after the third. */
void placement_unlock(struct place *place);
void placement_lock(struct placement *p, struct place *place);
void placement_restore(struct placement *p, struct place *place);

/* On a GPU. These exit the process where it refuses. */
bool device_is_here(void); /* afterwards forking is of no use */
void *device_allocate(size_t bytes);
void device_free(void *memory);
void device_put(void *there, const void *here, size_t bytes);
void device_get(void *here, const void *there, size_t bytes);

#endif
