/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of a call: the heuristic one, those worth measuring, and whether one can be used. */
#include "ops/core/core.h"

#include <string.h>

/* The record that holds a kernel's parameters, and where it lies in the configuration. */
static const ejk_record *parameters_of(const ejk_kernel *kernel, size_t *base) {
    *base = 0;
    if (!kernel->parameters_field || !*kernel->parameters_field) return kernel->config;
    return ejk_record_find(kernel->config, kernel->parameters_field, base)->record;
}

static ejk_opt_int *place_of(const ejk_kernel *kernel, const void *config, const char *name) {
    size_t base, offset;
    const ejk_record *record = parameters_of(kernel, &base);
    const ejk_field *field = ejk_record_find(record, name, &offset);
    if (!field || field->kind != EJK_FIELD_OPT_INT) return NULL;
    return (ejk_opt_int *)(void *)((char *)config + base + offset);
}

ejk_opt_int ejki_parameter_of(const ejk_kernel *kernel, const void *config, const char *name) {
    const ejk_opt_int *place = config ? place_of(kernel, config, name) : NULL;
    return place ? *place : (ejk_opt_int){0};
}

void ejki_parameter_set(const ejk_kernel *kernel, void *config, const char *name,
                        ejk_opt_int value) {
    ejk_opt_int *place = place_of(kernel, config, name);
    if (place) *place = value;
}

bool ejki_parameter_allowed(const ejk_parameter *parameter, int64_t value) {
    return value >= parameter->minimum && value <= parameter->maximum &&
           ((uint64_t)value - (uint64_t)parameter->minimum) % (uint64_t)parameter->step == 0;
}

/* The implementations of a call's steps; whoever makes an invocation for one may leave its list out. */
static int32_t steps_of(const ejk_invocation *invocation) {
    return invocation->step_count > 0 ? invocation->step_count : invocation->implementation != NULL;
}

static const ejk_implementation *step_at(const ejk_invocation *invocation, int32_t index) {
    return invocation->step_count > 0 ? invocation->steps[index] : invocation->implementation;
}

static ejk_status check(const ejk_invocation *invocation, const void *config) {
    if (!invocation || !config)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         invocation ? "config" : "invocation");
    if (!invocation->kernel->config)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "kernel '%.64s' has no configuration",
                         invocation->kernel->op_id);
    return EJK_OK;
}

static ejk_status check_step(const ejk_invocation *invocation, const ejk_implementation *chosen,
                             const void *config) {
    for (int32_t i = 0; i < chosen->parameter_count; i++) {
        const ejk_parameter *p = &chosen->parameters[i];
        const ejk_opt_int wish = ejki_parameter_of(invocation->kernel, config, p->name);
        if (wish.set && !ejki_parameter_allowed(p, wish.value))
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s is %lld, expected %lld to %lld in steps of %lld as %s takes it",
                             p->name, (long long)wish.value, (long long)p->minimum,
                             (long long)p->maximum, (long long)p->step, chosen->name);
    }
    return EJK_OK;
}

ejk_status ejk_invocation_check_config(const ejk_invocation *invocation, const void *config) {
    EJKI_TRY(check(invocation, config));
    for (int32_t i = 0; i < steps_of(invocation); i++)
        EJKI_TRY(check_step(invocation, step_at(invocation, i), config));
    return EJK_OK;
}

static const ejk_parameter *find_parameter(const ejk_implementation *chosen, const char *name) {
    for (int32_t i = 0; i < chosen->parameter_count; i++)
        if (strcmp(chosen->parameters[i].name, name) == 0) return &chosen->parameters[i];
    return NULL;
}

/* True if a step takes this value of a parameter. */
static bool usable(const ejk_invocation *invocation, const char *name, int64_t value) {
    for (int32_t i = 0; i < steps_of(invocation); i++) {
        const ejk_parameter *p = find_parameter(step_at(invocation, i), name);
        if (p && ejki_parameter_allowed(p, value)) return true;
    }
    return false;
}

/* Unsets what no step takes: parameters of other implementations, values out of bounds. */
static void drop_unusable(const ejk_invocation *invocation, void *config) {
    size_t base;
    const ejk_record *record = parameters_of(invocation->kernel, &base);
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        if (field->kind != EJK_FIELD_OPT_INT) continue;
        ejk_opt_int *value = (ejk_opt_int *)(void *)((char *)config + base + field->offset);
        if (!usable(invocation, field->name, value->value)) *value = (ejk_opt_int){0};
    }
}

/* What an implementation suggests for its parameters, where nothing is set yet. */
static void ask_step(const ejk_invocation *invocation, const ejk_implementation *step,
                     void *config) {
    ejk_opt_int values[EJK_MAX_PARAMETERS] = {{0}};
    if (!step->suggest) return;
    step->suggest(invocation->problem, invocation->threads, values);
    for (int32_t i = 0; i < step->parameter_count; i++) {
        const ejk_parameter *p = &step->parameters[i];
        if (values[i].set && ejki_parameter_allowed(p, values[i].value) &&
            !ejki_parameter_of(invocation->kernel, config, p->name).set)
            ejki_parameter_set(invocation->kernel, config, p->name, ejk_int(values[i].value));
    }
}

ejk_status ejk_invocation_heuristics(const ejk_invocation *invocation, void *config) {
    EJKI_TRY(check(invocation, config));
    const ejk_kernel *kernel = invocation->kernel;
    const ejk_hook *hook = ejk_hook_resolve(kernel, "heuristic_cfg", invocation->method,
                                            invocation->platform, invocation->backend);
    memset(config, 0, kernel->config->size);
    if (hook) {
        hook->heuristic_cfg(invocation, config);
    } else {
        if (kernel->heuristic_cfg) kernel->heuristic_cfg(invocation, config);
        for (int32_t i = 0; i < steps_of(invocation); i++)
            ask_step(invocation, step_at(invocation, i), config);
    }
    if (steps_of(invocation) > 0) drop_unusable(invocation, config);
    return EJK_OK;
}

/* ---- Candidates ------------------------------------------------------------------------------------- */

/* A growing list of different configurations, the first of them the heuristic one. */
typedef struct list {
    const ejk_invocation *invocation;
    char *configs;
    int32_t capacity, count;
} list;

static void *at(const list *l, int32_t index) {
    return l->configs + (size_t)index * l->invocation->kernel->config->size;
}

/* Keeps the configuration behind the last one, unless it is there already or cannot be used. */
static void keep(list *l) {
    if (ejk_invocation_check_config(l->invocation, at(l, l->count)) != EJK_OK) return;
    for (int32_t i = 0; i < l->count; i++)
        if (ejk_record_equal(l->invocation->kernel->config, at(l, i), at(l, l->count))) return;
    l->count++;
}

/* The allowed value nearest below `value`, or the least. */
static int64_t snap(const ejk_parameter *p, double value) {
    if (!(value > (double)p->minimum)) return p->minimum;
    const int64_t whole = value < (double)p->maximum ? (int64_t)value : p->maximum;
    return whole - (whole - p->minimum) % p->step;
}

/* A parameter of the configuration being built becomes `factor` times what it is at first. */
static void scale(const list *l, const ejk_parameter *p, double factor) {
    const ejk_kernel *kernel = l->invocation->kernel;
    const ejk_opt_int first = ejki_parameter_of(kernel, at(l, 0), p->name);
    const int64_t base = first.set ? first.value : p->fallback;
    ejki_parameter_set(kernel, at(l, l->count), p->name, ejk_int(snap(p, (double)base * factor)));
}

static void vary(list *l, const ejk_parameter *p, double factor, const ejk_parameter *q,
                 double other) {
    if (l->count == l->capacity) return;
    memcpy(at(l, l->count), at(l, 0), l->invocation->kernel->config->size);
    scale(l, p, factor);
    if (q) scale(l, q, other);
    keep(l);
}

enum { MOST_PARAMETERS = EJK_MAX_STEPS * EJK_MAX_PARAMETERS };

/* Parameters of all steps, each name once. */
static int32_t list_parameters(const ejk_invocation *invocation, const ejk_parameter **out) {
    int32_t count = 0;
    for (int32_t s = 0; s < steps_of(invocation); s++) {
        const ejk_implementation *step = step_at(invocation, s);
        for (int32_t i = 0; i < step->parameter_count; i++) {
            int32_t before = 0;
            while (before < count && strcmp(out[before]->name, step->parameters[i].name) != 0)
                before++;
            if (before == count) out[count++] = &step->parameters[i];
        }
    }
    return count;
}

static void derive(list *l) {
    static const double alone[] = {0.5, 2, 0.25, 4}, together[] = {0.5, 2};
    const ejk_parameter *all[MOST_PARAMETERS];
    const int32_t count = list_parameters(l->invocation, all);
    for (size_t f = 0; f < sizeof alone / sizeof *alone; f++)
        for (int32_t i = 0; i < count; i++) vary(l, all[i], alone[f], NULL, 1);
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = i + 1; k < count; k++)
            for (int f = 0; f < 4; f++) vary(l, all[i], together[f / 2], all[k], together[f % 2]);
}

/* The kernel's own list, behind the heuristic configuration. */
static ejk_status ask(list *l) {
    const ejk_invocation *invocation = l->invocation;
    const ejk_kernel *kernel = invocation->kernel;
    const ejk_hook *hook = ejk_hook_resolve(kernel, "candidate_cfgs", invocation->method,
                                            invocation->platform, invocation->backend);
    const int32_t room = l->capacity - 1;
    int32_t given = 0;
    memset(at(l, 1), 0, (size_t)room * kernel->config->size);
    EJKI_TRY(hook ? hook->candidate_cfgs(invocation, at(l, 1), room, &given)
                  : kernel->candidate_cfgs(invocation, at(l, 1), room, &given));
    if (given < 0 || given > room)
        return ejki_fail(EJK_STATUS_INTERNAL, "candidate_cfgs of '%.64s' says %d, expected 0 to %d",
                         kernel->op_id, (int)given, (int)room);
    for (int32_t i = 1; i <= given; i++) {
        memmove(at(l, l->count), at(l, i), kernel->config->size);
        keep(l);
    }
    return EJK_OK;
}

ejk_status ejk_invocation_candidates(const ejk_invocation *invocation, void *configs,
                                     int32_t capacity, int32_t *count) {
    EJKI_TRY(check(invocation, configs));
    if (capacity < 1 || !count)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         count ? "capacity is %d, expected 1 or more" : "count is NULL",
                         (int)capacity);
    list l = {invocation, configs, capacity, 1};
    const ejk_kernel *kernel = invocation->kernel;
    EJKI_TRY(ejk_invocation_heuristics(invocation, configs));
    const bool own =
        kernel->candidate_cfgs || ejk_hook_resolve(kernel, "candidate_cfgs", invocation->method,
                                                   invocation->platform, invocation->backend);
    if (own && capacity > 1)
        EJKI_TRY(ask(&l));
    else if (!own)
        derive(&l);
    *count = l.count;
    return EJK_OK;
}
