/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk info`: the library, the machine, an operation, the registry. */
#include "cli.h"
#include "gpu.h"
#include "machine.h"
#include "options.h"
#include "table.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *yes_no(bool truth) {
    return truth ? "yes" : "no";
}

static bool print_machine(void) {
    const ejk_cpu_info *cpu = ejk_cpu();
    char l1d[32], l2[32], l3[32];
    text_table table = {.align = "ll"};
    table_add(&table, "version");
    table_add(&table, "%s", ejk_version());
    table_add(&table, "build");
    table_add(&table, "%s", ejk_build_flags());
    table_add(&table, "cpu");
    table_add(&table, "%s (%s, family %d, model %d, stepping %d)", cpu->name, cpu->vendor,
              (int)cpu->family, (int)cpu->model, (int)cpu->stepping);
    table_add(&table, "tiers");
    char tiers[128];
    machine_tiers(tiers, sizeof tiers);
    table_add(&table, "%s; picked: %s", tiers, ejk_isa_name(ejk_isa_default()));
    table_add(&table, "cores");
    table_add(&table, "%d, threads by default: %d", (int)cpu->cores, (int)ejk_threads_default());
    table_add(&table, "caches");
    table_add(&table, "L1d %s, L2 %s, L3 %s, lines of %lld bytes",
              machine_bytes(cpu->l1d_bytes, l1d), machine_bytes(cpu->l2_bytes, l2),
              machine_bytes(cpu->l3_bytes, l3), (long long)cpu->line_bytes);
    table_add(&table, "fingerprint");
    table_add(&table, "%s", ejk_device_fingerprint());
    gpu_rows(&table);
    if (ejk_isa_environment() != EJK_OK) {
        table_add(&table, "ignored");
        table_add(&table, "%s", ejk_last_error());
    }
    return table_print(&table, 0);
}

/* ---- The registry ---------------------------------------------------------------------------------- */

static json_t *parameters_json(const ejk_implementation *entry) {
    json_t *list = json_array();
    for (int32_t i = 0; i < entry->parameter_count; i++) {
        const ejk_parameter *p = &entry->parameters[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:I, s:s*}", "name", p->name,
                                              "minimum", (json_int_t)p->minimum, "maximum",
                                              (json_int_t)p->maximum, "step", (json_int_t)p->step,
                                              "default", (json_int_t)p->fallback, "doc", p->doc));
    }
    return list;
}

static const char *dtype_of(const ejk_implementation *entry) {
    return entry->dtype == EJK_DTYPE_UNSET ? "any" : ejk_dtype_name(entry->dtype);
}

/* True if this machine has what the entry runs on. */
static bool available(const ejk_implementation *entry) {
    int32_t count;
    if (entry->platform == EJK_PLATFORM_CUDA && entry->backend == EJK_BACKEND_GPU)
        return ejk_device_count(&count) == EJK_OK;
    return ejk_cpu()->tiers[entry->isa];
}

static json_t *entry_json(const ejk_implementation *entry) {
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:b, s:o}", "algorithm", entry->algorithm, "name",
        entry->name, "platform", ejk_platform_name(entry->platform), "backend",
        ejk_backend_name(entry->backend), "isa", ejk_isa_name(entry->isa), "dtype", dtype_of(entry),
        "priority", (int)entry->priority, "version", (int)entry->version, "available",
        (int)available(entry), "parameters", parameters_json(entry));
}

/* Entries that an operation is done by, or all if it is NULL. */
static bool belongs(const ejk_implementation *entry, const ejk_kernel *kernel) {
    if (!kernel) return true;
    for (int32_t i = 0; i < kernel->step_count; i++)
        if (strcasecmp(entry->algorithm, kernel->steps[i].algorithm) == 0) return true;
    if (kernel->steps) return false;
    return strcasecmp(entry->algorithm, kernel->algorithm ? kernel->algorithm : kernel->op_id) == 0;
}

static json_t *registry_json(const ejk_registry *registry, const ejk_kernel *kernel) {
    json_t *list = json_array();
    for (int32_t i = 0; i < ejk_registry_count(registry); i++) {
        const ejk_implementation *entry = ejk_registry_entry(registry, i);
        if (belongs(entry, kernel)) json_array_append_new(list, entry_json(entry));
    }
    return list;
}

static bool print_registry(const ejk_registry *registry, const ejk_kernel *kernel) {
    static const char *const titles[] = {"algorithm", "name",    "platform",
                                         "backend",   "isa",     "dtype",
                                         "priority",  "version", "available here"};
    text_table table = {.align = "llllllrrl"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) table_add(&table, "%s", titles[i]);
    for (int32_t i = 0; i < ejk_registry_count(registry); i++) {
        const ejk_implementation *entry = ejk_registry_entry(registry, i);
        if (!belongs(entry, kernel)) continue;
        table_add(&table, "%s", entry->algorithm);
        table_add(&table, "%s", entry->name);
        table_add(&table, "%s", ejk_platform_name(entry->platform));
        table_add(&table, "%s", ejk_backend_name(entry->backend));
        table_add(&table, "%s", ejk_isa_name(entry->isa));
        table_add(&table, "%s", dtype_of(entry));
        table_add(&table, "%d", (int)entry->priority);
        table_add(&table, "%d", (int)entry->version);
        table_add(&table, "%s", yes_no(available(entry)));
    }
    return table_print(&table, 0);
}

static bool print_parameters(const ejk_registry *registry, const ejk_kernel *kernel) {
    text_table table = {.align = "llrrrrl"};
    static const char *const titles[] = {"implementation", "parameter", "minimum", "maximum",
                                         "step",           "default",   ""};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) table_add(&table, "%s", titles[i]);
    for (int32_t i = 0; i < ejk_registry_count(registry); i++) {
        const ejk_implementation *entry = ejk_registry_entry(registry, i);
        for (int32_t k = 0; belongs(entry, kernel) && k < entry->parameter_count; k++) {
            const ejk_parameter *p = &entry->parameters[k];
            table_add(&table, "%s", entry->name);
            table_add(&table, "%s", p->name);
            table_add(&table, "%lld", (long long)p->minimum);
            table_add(&table, "%lld", (long long)p->maximum);
            table_add(&table, "%lld", (long long)p->step);
            table_add(&table, "%lld", (long long)p->fallback);
            table_add(&table, "%s", p->doc ? p->doc : "");
        }
    }
    return table_print(&table, 0);
}

/* ---- One operation --------------------------------------------------------------------------------- */

/* "OPT_INT" is an int to whoever reads: that it may be left out is what its role and default say. */
static const char *kind_word(ejk_field_kind kind, char room[16]) {
    static const char *const names[] = {
#define NAME(name, type) #name,
        EJK_FIELD_LIST(NAME)
#undef NAME
    };
    const char *name = names[kind];
    if (strncmp(name, "OPT_", 4) == 0) name += 4;
    size_t i = 0;
    for (; name[i] && i < 15; i++) room[i] = (char)tolower((unsigned char)name[i]);
    room[i] = '\0';
    return room;
}

static json_t *record_json(const ejk_record *record) {
    static const char *const roles[] = {
        [EJK_OPTIONAL] = "optional", [EJK_REQUIRED] = "required",
        [EJK_OUTPUT] = "output",     [EJK_REQUIRED_OUTPUT] = "required output",
        [EJK_INOUT] = "inout",       [EJK_REQUIRED_INOUT] = "required inout"};
    json_t *list = json_array();
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        char kind[16];
        json_t *entry =
            json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "name", field->name, "type",
                      kind_word(field->kind, kind), "role", roles[field->role], "default",
                      field->fallback, "unit", field->unit, "doc", field->doc);
        if (field->record) json_object_set_new(entry, "fields", record_json(field->record));
        json_array_append_new(list, entry);
    }
    return list;
}

/* What may be wished of the contents of inputs. */
static json_t *input_options_json(const ejk_kernel *kernel) {
    json_t *list = json_array();
    for (int32_t i = 0; i < kernel->input_option_count; i++)
        json_array_append_new(list, json_pack("{s:s, s:s}", "name", kernel->input_options[i].name,
                                              "doc", kernel->input_options[i].doc));
    return list;
}

static bool print_input_options(const ejk_kernel *kernel) {
    text_table table = {.align = "ll"};
    if (kernel->input_option_count == 0) return true;
    puts("contents of inputs that `ejk bench` and `ejk tune` can be asked for:");
    for (int32_t i = 0; i < kernel->input_option_count; i++) {
        table_add(&table, "--%s", kernel->input_options[i].name);
        table_add(&table, "%s", kernel->input_options[i].doc);
    }
    return table_print(&table, 2) && putchar('\n') != EOF;
}

static json_t *operation_json(const ejk_kernel *kernel, const ejk_registry *registry) {
    return json_pack("{s:s, s:s, s:s*, s:o, s:o, s:o}", "op", kernel->op_id, "version",
                     kernel->version ? kernel->version : "0", "doc", kernel->doc, "arguments",
                     record_json(kernel->args), "input_options", input_options_json(kernel),
                     "implementations", registry_json(registry, kernel));
}

static bool print_operation(const ejk_kernel *kernel, const ejk_registry *registry) {
    char *help;
    if (!succeeded(ejk_record_help(kernel->args, &help))) return false;
    printf("%s: %s\n\n%s\n", kernel->op_id, kernel->doc ? kernel->doc : "", help);
    ejk_free(help);
    return print_input_options(kernel) && print_registry(registry, kernel) &&
           putchar('\n') != EOF && print_parameters(registry, kernel);
}

/* ---- All operations --------------------------------------------------------------------------------- */

static bool print_operations(const ejk_context *catalogue) {
    text_table table = {.align = "lll"};
    const ejk_kernel *kernel;
    for (int32_t i = 0; (kernel = ejk_context_kernel(catalogue, i)) != NULL; i++) {
        table_add(&table, "%s", kernel->op_id);
        table_add(&table, "%s", kernel->version ? kernel->version : "0");
        table_add(&table, "%s", kernel->doc ? kernel->doc : "");
    }
    return table_print(&table, 0);
}

/* Their descriptions, as the library gives them to bindings. */
static bool print_descriptions(const ejk_context *catalogue) {
    json_t *list = json_array();
    const ejk_kernel *kernel;
    for (int32_t i = 0; (kernel = ejk_context_kernel(catalogue, i)) != NULL; i++) {
        char *text;
        if (!succeeded(ejk_kernel_describe(kernel, &text))) {
            json_decref(list);
            return false;
        }
        json_array_append_new(list, json_loads(text, 0, NULL));
        ejk_free(text);
    }
    return print_json(list);
}

/* ---- The command ----------------------------------------------------------------------------------- */

typedef struct info_options {
    const char *op;
    bool kernels, operations, json, help;
} info_options;

static bool answer(const info_options *wish, ejk_context *catalogue) {
    const ejk_registry *registry = ejk_context_registry(catalogue);
    if (wish->op) {
        const ejk_kernel *kernel;
        if (!succeeded(ejk_context_find_kernel(catalogue, wish->op, &kernel))) return false;
        return wish->json ? print_json(operation_json(kernel, registry))
                          : print_operation(kernel, registry);
    }
    if (wish->kernels)
        return wish->json ? print_json(registry_json(registry, NULL))
                          : print_registry(registry, NULL);
    if (wish->operations)
        return wish->json ? print_descriptions(catalogue) : print_operations(catalogue);
    if (!wish->json) return print_machine();
    json_t *machine = machine_json();
    json_object_set_new(machine, "cuda", gpu_json());
    return print_json(machine);
}

int info_command(int count, char **words) {
    info_options wish = {0};
    const option own[] = {
        {"op", OPTION_TEXT, &wish.op, "NAME", "an operation: its arguments and implementations"},
        {"kernels", OPTION_ALONE, &wish.kernels, "", "the registry of implementations"},
        {"operations", OPTION_ALONE, &wish.operations, "",
         "all operations; as JSON their whole descriptions"},
        {"json", OPTION_ALONE, &wish.json, "", "the answer as JSON"},
        {"help", OPTION_ALONE, &wish.help, "", "this text"},
        {.name = NULL}};
    if (!options_parse(count, words, own, NULL)) return FAILED;
    if (wish.help) {
        puts("usage: ejk info [--op NAME | --operations | --kernels] [--json]\n\n"
             "Tells what the library is, what this machine has, and what can be called.\n");
        return options_help(own) ? DONE : FAILED;
    }
    ejk_context *catalogue;
    if (!open_catalogue(&catalogue)) return FAILED;
    bool answered = answer(&wish, catalogue);
    ejk_context_destroy(catalogue);
    return answered ? DONE : FAILED;
}
