// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE // the lock that prefers writers
#include <ejkernel/plan.h>
#include <ejkernel/record.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "bindings/call_text.h"
#include "bindings/calls.h"
#include "device/cuda.h"
#include "device/threads.h"
#include "ops/core/request.h"

enum { BUCKETS = 1024, MOST_CALLS = 4096, RECENT_BITS = 8 };

/* What a given tensor looks like, and where a tensor goes: what each call reads. */
typedef struct call_place {
    uint64_t kind;
    int64_t shape[EJK_MAX_RANK];
    size_t offset;   /* of its view in the struct of arguments */
    int64_t step;    /* bytes from one element to the next; 0 if it is not mapped */
    size_t bytes;    /* of a result: to copy from its operand */
    int32_t operand; /* of a result: the operand with the same view, else -1 */
} call_place;

/* A call that was seen: its plan, and what it looked like; in the order in which calls read it. */
typedef struct call_entry {
    struct call_entry *next;
    uint64_t hash;
    char *text;
    size_t length;
    int32_t given; /* tensors by which it is found; the others are results to be made */
    int32_t count;
    bool updates; /* whether a tensor is updated in place */
    bool gapless; /* whether elements of all given tensors lie without gaps */
    bool on_gpu;
    int64_t elements;
    ejk_plan *plan;
    _Atomic(unsigned char *) spare; /* a copy of the arguments that no call fills in; NULL: none */
    call_place places[EJKI_CALL_TENSORS];
    unsigned char *arguments;
    size_t size;                           /* of the struct of arguments */
    ejk_tensor tensors[EJKI_CALL_TENSORS]; /* of which addresses do not matter */
} call_entry;

/* Calls read it and take the lock for reading as long as they run; who changes it waits for them. */
static struct {
    pthread_rwlock_t lock;
    ejk_context *context;
    int32_t count;
    call_entry *buckets[BUCKETS];
    /* Of the texts at some addresses the call that was seen last: a compiled program's texts stay where they are. */
    _Atomic(call_entry *) recent[1 << RECENT_BITS];
} table = {.lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP};

/* An address for tensors that have none: without elements, or of calls that are still looked at. */
static _Alignas(64) char nothing[64];

/* ---- Looking up ------------------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

static uint64_t hash_of(const char *text, size_t length, const ejk_tensor *tensors, int32_t count) {
    uint64_t hash = length, word;
    for (; length >= sizeof word; text += sizeof word, length -= sizeof word) {
        memcpy(&word, text, sizeof word);
        hash = mixed(hash, word);
    }
    word = 0;
    memcpy(&word, text, length);
    hash = mixed(hash, word);
    for (int32_t i = 0; i < count; i++) {
        hash = mixed(hash, (uint64_t)tensors[i].dtype << 32 | (uint64_t)tensors[i].rank |
                               (uint64_t)tensors[i].device_type << 16);
        hash += (uint64_t)tensors[i].device_index;
        for (int32_t a = 0; a < tensors[i].rank; a++) {
            hash = mixed(hash, (uint64_t)tensors[i].shape[a]);
            hash = mixed(hash, (uint64_t)tensors[i].strides[a]);
        }
    }
    return hash;
}

static bool same_numbers(const int64_t *a, const int64_t *b, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (a[i] != b[i]) return false;
    return true;
}

static bool is_of(const call_entry *entry, const ejki_call *call) {
    if (entry->length != call->length || entry->given != call->count ||
        memcmp(entry->text, call->text, call->length) != 0)
        return false;
    for (int32_t i = 0; i < call->count; i++) {
        const call_place *seen = &entry->places[i];
        const ejki_call_tensor *given = &call->tensors[i];
        if (seen->kind != given->kind ||
            !same_numbers(seen->shape, given->shape, ejki_call_rank(seen->kind)))
            return false;
    }
    if (call->count == 0 || !call->tensors->strides) return entry->gapless;
    for (int32_t i = 0; i < call->count; i++)
        if (!same_numbers(entry->tensors[i].strides, call->tensors[i].strides,
                          entry->tensors[i].rank))
            return false;
    return true;
}

static call_entry *find(uint64_t hash, const ejki_call *call) {
    for (call_entry *e = table.buckets[hash % BUCKETS]; e; e = e->next)
        if (e->hash == hash && is_of(e, call)) return e;
    return NULL;
}

static _Atomic(call_entry *) *recent_of(const ejki_call *call) {
    return &table.recent[mixed(0, (uintptr_t)call->text) >> (64 - RECENT_BITS)];
}

/* ---- Making plans ----------------------------------------------------------------------------------------- */

static void entry_free(call_entry *entry) {
    if (!entry) return;
    ejk_plan_destroy(entry->plan);
    free(entry->arguments);
    free(entry->spare);
    free(entry->text);
    free(entry);
}

static void clear(void) {
    for (int b = 0; b < BUCKETS; b++) {
        while (table.buckets[b]) {
            call_entry *next = table.buckets[b]->next;
            entry_free(table.buckets[b]);
            table.buckets[b] = next;
        }
    }
    for (int i = 0; i < 1 << RECENT_BITS; i++) table.recent[i] = NULL;
    table.count = 0;
}

/* The view of one element of a tensor that has them along its first axis. */
static ejk_status element_view(ejki_call_name name, int64_t elements, ejk_tensor *view,
                               int64_t *step) {
    *step = 0;
    if (!name.mapped) return EJK_OK;
    if (view->rank < 1 || view->shape[0] != elements)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "%.*s: %lld elements expected along its first axis", name.length,
                         name.text, (long long)elements);
    *step = view->strides[0] * (int64_t)ejk_dtype_size(view->dtype);
    view->rank--;
    memmove(view->shape, view->shape + 1, (size_t)view->rank * sizeof *view->shape);
    memmove(view->strides, view->strides + 1, (size_t)view->rank * sizeof *view->strides);
    return EJK_OK;
}

static int32_t operand_named(const ejki_call_text *call, ejki_call_name name) {
    for (int32_t i = 0; i < call->operands; i++)
        if (call->names[i].length == name.length &&
            !memcmp(call->names[i].text, name.text, (size_t)name.length))
            return i;
    return -1;
}

static ejk_status field_named(const ejk_record *record, ejki_call_name name,
                              const ejk_field **out) {
    char path[EJK_NAME_SIZE] = "";
    if (name.length < (int)sizeof path) memcpy(path, name.text, (size_t)name.length);
    *out = ejk_record_find(record, path, NULL);
    if (!*out || (*out)->kind != EJK_FIELD_TENSOR)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "%.*s is no tensor of %s", name.length, name.text,
                         record->name);
    return EJK_OK;
}

static ejk_status put_tensor(const ejk_record *record, const ejki_call_text *call, int32_t index,
                             call_entry *entry) {
    ejk_tensor view = entry->tensors[index];
    call_place *place = &entry->places[index];
    const ejk_field *field;
    EJKI_TRY(field_named(record, call->names[index], &field));
    if (ejk_dtype_size(view.dtype) == 0)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "%s: %s given, expected whole bytes",
                         field->name, ejk_dtype_name(view.dtype));
    place->offset = field->offset;
    place->bytes = ejk_dtype_size(view.dtype);
    for (int32_t a = 0; a < view.rank; a++) place->bytes *= (size_t)view.shape[a];
    place->operand = index < call->operands ? -1 : operand_named(call, call->names[index]);
    entry->updates |= place->operand >= 0;
    EJKI_TRY(element_view(call->names[index], call->elements, &view, &place->step));
    view.data = nothing;
    memcpy(entry->arguments + place->offset, &view, sizeof view);
    return EJK_OK;
}

/* Puts an axis of all elements before the view of one. */
static ejk_status all_elements(const ejki_call_text *call, int32_t index, ejk_tensor *view) {
    int64_t shape[EJK_MAX_RANK];
    const bool mapped = call->names[index].mapped;
    if (mapped && view->rank == EJK_MAX_RANK)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "%.*s has no axis left for elements",
                         call->names[index].length, call->names[index].text);
    if (mapped) shape[0] = call->elements;
    memcpy(shape + mapped, view->shape, (size_t)view->rank * sizeof *shape);
    ejk_tensor all = ejk_tensor_contiguous(NULL, view->dtype, view->rank + mapped, shape);
    all.device_type = view->device_type;
    all.device_index = view->device_index;
    *view = all;
    return EJK_OK;
}

/* The plan of a call whose results are not given: of each, what it looks like. */
static ejk_status plan_with_results(const ejk_kernel *kernel, const ejki_call_text *call,
                                    call_entry *entry) {
    char names[EJKI_CALL_TENSORS * EJK_NAME_SIZE] = "";
    size_t used = 0;
    const ejk_field *field;
    for (int32_t i = entry->given; i < entry->count; i++) {
        const ejki_call_name name = call->names[i];
        EJKI_TRY(field_named(kernel->args, name, &field));
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? "," : "",
                                 field->name);
    }
    EJKI_TRY(
        ejki_plan_create_borrowing(table.context, kernel, entry->arguments, names, &entry->plan));
    for (int32_t i = entry->given; i < entry->count; i++) {
        EJKI_TRY(field_named(kernel->args, call->names[i], &field));
        memcpy(&entry->tensors[i], entry->arguments + field->offset, sizeof *entry->tensors);
        EJKI_TRY(all_elements(call, i, &entry->tensors[i]));
        EJKI_TRY(put_tensor(kernel->args, call, i, entry));
    }
    return EJK_OK;
}

static ejk_status fill(call_entry *entry) {
    ejki_call_text call;
    EJKI_TRY(ejki_read_call_text(entry->text, entry->length, &call));
    entry->count = call.operands + call.results;
    if (entry->given != entry->count && entry->given != call.operands)
        return ejki_fail(EJK_STATUS_MALFORMED, "%d tensors given, expected those that \"%s\" names",
                         entry->given, entry->text);
    const ejk_kernel *kernel;
    EJKI_TRY(ejk_context_find_kernel(table.context, call.operation, &kernel));
    entry->elements = call.elements;
    entry->size = kernel->args->size;
    entry->arguments = calloc(1, entry->size);
    if (!entry->arguments)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the arguments of a call");
    EJKI_TRY(ejk_record_from_json(kernel->args, call.arguments, entry->arguments));
    for (int32_t i = 0; i < entry->given; i++) EJKI_TRY(put_tensor(kernel->args, &call, i, entry));
    if (entry->given < entry->count) return plan_with_results(kernel, &call, entry);
    return ejki_plan_create_borrowing(table.context, kernel, entry->arguments, NULL, &entry->plan);
}

/*
 * The same while streams may be captured into graphs, which is when memory and kernels are not to be had by default:
 * what a plan makes is no part of the graph.
 */
static ejk_status fill_on_gpu(call_entry *entry) {
    int mode;
    EJKI_TRY(ejki_cuda_capture_begin(&mode));
    const ejk_status status = fill(entry);
    ejki_cuda_capture_end(mode);
    return status;
}

/* A tensor without an address, and zero where it has no axes; clears `gapless` where its elements have gaps. */
static ejk_tensor look_of(const ejki_call_tensor *given, bool *gapless) {
    ejk_tensor look = {.dtype = ejki_call_dtype(given->kind),
                       .rank = ejki_call_rank(given->kind),
                       .device_type = ejki_call_device_type(given->kind),
                       .device_index = ejki_call_device_index(given->kind)};
    int64_t step = 1;
    for (int32_t a = look.rank - 1; a >= 0; a--) {
        look.shape[a] = given->shape[a];
        look.strides[a] = given->strides ? given->strides[a] : step;
        *gapless = *gapless && look.strides[a] == step;
        step *= ejki_max(given->shape[a], 1);
    }
    return look;
}

/* Adds a call to the table, unless another thread was faster. */
static ejk_status add(uint64_t hash, const ejki_call *call) {
    if (find(hash, call)) return EJK_OK;
    if (!table.context)
        return ejki_fail(EJK_STATUS_UNAVAILABLE, "no context is in use: import libejkernel first");
    call_entry *entry = calloc(1, sizeof *entry);
    if (entry) entry->text = strndup(call->text, call->length);
    if (!entry || !entry->text) {
        free(entry);
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the plan of a call");
    }
    entry->hash = hash;
    entry->length = call->length;
    entry->given = call->count;
    entry->gapless = true;
    for (int32_t i = 0; i < call->count; i++) {
        const ejk_tensor look = look_of(&call->tensors[i], &entry->gapless);
        entry->tensors[i] = look;
        entry->places[i].kind = call->tensors[i].kind;
        memcpy(entry->places[i].shape, look.shape, sizeof look.shape);
    }
    entry->on_gpu = call->count > 0 && entry->tensors[0].device_type == EJK_DEVICE_CUDA;
    ejk_status status = entry->on_gpu ? fill_on_gpu(entry) : fill(entry);
    if (status != EJK_OK) {
        entry_free(entry);
        return status;
    }
    if (table.count == MOST_CALLS) clear();
    entry->next = table.buckets[hash % BUCKETS];
    table.buckets[hash % BUCKETS] = entry;
    table.count++;
    return EJK_OK;
}

/* ---- Running ---------------------------------------------------------------------------------------------- */

static ejk_status copy_updated(const call_entry *entry, void *const *data, void *stream) {
    for (int32_t i = 0; i < entry->count; i++) {
        const call_place *place = &entry->places[i];
        if (place->operand < 0 || !place->bytes) continue;
        const void *source = data[place->operand];
        if (data[i] == source) continue;
        if (entry->on_gpu)
            EJKI_TRY(ejki_cuda_copy_on(entry->tensors[i].device_index, data[i], source,
                                       place->bytes, stream));
        else
            memcpy(data[i], source, place->bytes);
    }
    return EJK_OK;
}

/* Workspace is the caller's on a GPU; on the CPU the plan has its own. */
static ejk_status take_workspace(const call_entry *entry, const ejki_call *call, void **out) {
    const size_t bytes = entry->on_gpu ? ejk_plan_workspace(entry->plan) : 0;
    *out = NULL;
    return bytes ? call->take(call->user, bytes, out) : EJK_OK;
}

/* The arguments are the plan's own but for addresses, so they are not compared with it once more. */
static ejk_status execute(const call_entry *entry, const ejki_call *call, void *const *all,
                          unsigned char *arguments) {
    void *workspace;
    if (entry->updates) EJKI_TRY(copy_updated(entry, all, call->stream));
    EJKI_TRY(take_workspace(entry, call, &workspace));
    for (int64_t e = 0; e < (entry->elements > 0 ? entry->elements : 1); e++) {
        for (int32_t i = 0; i < entry->count; i++) {
            char *data = all[i];
            data = data                     ? data + e * entry->places[i].step
                   : entry->places[i].bytes ? NULL
                                            : nothing;
            memcpy(arguments + entry->places[i].offset + offsetof(ejk_tensor, data), &data,
                   sizeof data);
        }
        EJKI_TRY(ejki_plan_run(entry->plan, arguments, workspace, call->stream));
    }
    return EJK_OK;
}

/* A copy of the arguments for the time of a call: the spare one, unless another call has it. */
static unsigned char *take_arguments(call_entry *entry) {
    unsigned char *taken = atomic_exchange(&entry->spare, NULL);
    if (taken) return taken;
    taken = malloc(entry->size);
    if (taken) memcpy(taken, entry->arguments, entry->size);
    return taken;
}

static ejk_status make_results(const call_entry *entry, const ejki_call *call, void **data) {
    if (!call->make)
        return ejki_fail(EJK_STATUS_MALFORMED, "%d tensors given, expected those that \"%s\" names",
                         entry->given, entry->text);
    return call->make(call->user, entry->tensors + entry->given, entry->count - entry->given,
                      data + entry->given);
}

static ejk_status execute_entry(call_entry *entry, const ejki_call *call) {
    void *data[EJKI_CALL_TENSORS];
    for (int32_t i = 0; i < entry->given; i++) data[i] = call->tensors[i].data;
    if (entry->given < entry->count) EJKI_TRY(make_results(entry, call, data));
    unsigned char *arguments = take_arguments(entry);
    if (!arguments)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the arguments of a call");
    const ejk_status status = execute(entry, call, data, arguments);
    unsigned char *other = atomic_exchange(&entry->spare, arguments);
    if (other) free(other);
    return status;
}

/* A call's entry that is not the recent one at its text's address; makes it where there is none. */
static ejk_status search(const ejki_call *call, call_entry **out) {
    ejk_tensor looks[EJKI_CALL_TENSORS];
    bool gapless;
    if (call->count > EJKI_CALL_TENSORS)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%d tensors given, at most %d", call->count,
                         EJKI_CALL_TENSORS);
    for (int32_t i = 0; i < call->count; i++) looks[i] = look_of(&call->tensors[i], &gapless);
    const uint64_t hash = hash_of(call->text, call->length, looks, call->count);
    for (;;) {
        pthread_rwlock_rdlock(&table.lock);
        *out = find(hash, call);
        if (*out) {
            atomic_store_explicit(recent_of(call), *out, memory_order_relaxed);
            return EJK_OK;
        }
        pthread_rwlock_unlock(&table.lock);
        pthread_rwlock_wrlock(&table.lock);
        ejk_status status = add(hash, call);
        pthread_rwlock_unlock(&table.lock);
        EJKI_TRY(status);
    }
}

/* The call's entry, with the table locked for reading; where there is none and none can be made, nothing is locked. */
static ejk_status enter(const ejki_call *call, call_entry **out) {
    pthread_rwlock_rdlock(&table.lock);
    *out = atomic_load_explicit(recent_of(call), memory_order_relaxed);
    if (*out && is_of(*out, call)) return EJK_OK;
    pthread_rwlock_unlock(&table.lock);
    return search(call, out);
}

ejk_status ejki_run_call(const ejki_call *call) {
    call_entry *entry;
    EJKI_TRY(enter(call, &entry));
    ejki_threads_borrow(call->parallel_for, call->parallel_user);
    const ejk_status status = execute_entry(entry, call);
    ejki_threads_borrow(NULL, NULL);
    pthread_rwlock_unlock(&table.lock);
    return status;
}

ejk_status ejki_call_workspace(const ejki_call *call, size_t *out, char **description) {
    call_entry *entry;
    EJKI_TRY(enter(call, &entry));
    *out = ejk_plan_workspace(entry->plan);
    const ejk_status status = ejk_plan_describe(entry->plan, description);
    pthread_rwlock_unlock(&table.lock);
    return status;
}

ejk_status ejki_operand_is_updated(const char *text, size_t length, int32_t index, bool *out) {
    ejki_call_text call;
    const ejk_kernel *kernel;
    const ejk_field *field;
    EJKI_TRY(ejki_read_call_text(text, length, &call));
    pthread_rwlock_rdlock(&table.lock);
    ejk_status status = table.context
                            ? ejk_context_find_kernel(table.context, call.operation, &kernel)
                            : ejki_fail(EJK_STATUS_UNAVAILABLE, "no context is in use");
    pthread_rwlock_unlock(&table.lock);
    EJKI_TRY(status);
    EJKI_TRY(field_named(kernel->args, call.names[index], &field));
    *out = ejk_field_is_output(field);
    return EJK_OK;
}

static bool is_child;

bool ejki_is_child(void) {
    return is_child;
}

/* In a child the lock may be another thread's, and plans are the parent's. */
static void after_fork(void) {
    is_child = true;
    pthread_rwlock_t fresh = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
    table.lock = fresh;
    table.context = NULL;
    table.count = 0;
    memset(table.buckets, 0, sizeof table.buckets);
    for (int i = 0; i < 1 << RECENT_BITS; i++) table.recent[i] = NULL;
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, after_fork);
}

void ejk_bindings_use(ejk_context *context) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_rwlock_wrlock(&table.lock);
    clear();
    table.context = context;
    pthread_rwlock_unlock(&table.lock);
}
