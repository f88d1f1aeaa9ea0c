/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "suggest.h"
#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A flag on its way through the words. */
typedef struct flag_word {
    char name[128];           /* without "--", "_" for "-" */
    const char *inline_value; /* behind "=", or NULL */
    const char *text;         /* as it was given */
    int left;                 /* words behind it */
    char **words;
    int taken; /* how many of them were its value */
} flag_word;

static bool read_flag(int left, char **words, flag_word *out) {
    const char *word = words[0];
    size_t length = strcspn(word, "=");
    if (strncmp(word, "--", 2) != 0 || length < 3)
        return report_error("'%s' is not expected here, flags begin with --", word);
    if (length - 2 >= sizeof out->name) return report_error("'%.40s...' is no flag", word);
    *out = (flag_word){.inline_value = word[length] ? word + length + 1 : NULL,
                       .text = word,
                       .left = left - 1,
                       .words = words + 1};
    memcpy(out->name, word + 2, length - 2);
    for (char *c = out->name; *c; c++)
        if (*c == '-') *c = '_';
    return true;
}

/* A value may begin with one "-", as negative numbers do, but not with two. */
static const char *take_value(flag_word *flag) {
    if (flag->inline_value) return flag->inline_value;
    if (flag->left == 0 || strncmp(flag->words[0], "--", 2) == 0) return NULL;
    flag->taken = 1;
    return flag->words[0];
}

/* Truth values may stand alone; a word behind them is theirs only if it is one. */
static const char *take_truth(flag_word *flag) {
    if (flag->inline_value) return flag->inline_value;
    if (flag->left == 0 ||
        (strcmp(flag->words[0], "true") != 0 && strcmp(flag->words[0], "false") != 0))
        return "";
    return take_value(flag);
}

static bool read_number(const option *own, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (*text && !*end && isfinite(value) && value > 0) {
        *(double *)own->target = value;
        return true;
    }
    return report_error("--%s is '%s', expected a number above 0", own->name, text);
}

static bool read_count(const option *own, const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text && !*end && value > 0 && value <= INT32_MAX) {
        *(int32_t *)own->target = (int32_t)value;
        return true;
    }
    return report_error("--%s is '%s', expected a whole number above 0", own->name, text);
}

static bool read_time(const option *own, const char *text) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"m", 60}};
    char *end;
    double value = strtod(text, &end);
    for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].name) == 0 && value > 0 && isfinite(value * units[i].seconds)) {
            *(double *)own->target = value * units[i].seconds;
            return true;
        }
    return report_error("--%s is '%s', expected a time as 30s, 500ms or 2m", own->name, text);
}

static bool add_text(const option *own, const char *text) {
    texts *all = own->target;
    all->items[all->count++] = text;
    return true;
}

static bool set_own(const option *own, flag_word *flag) {
    if (own->kind == OPTION_ALONE) {
        *(bool *)own->target = true;
        return !flag->inline_value ||
               report_error("--%s takes no value, '%s' given", own->name, flag->inline_value);
    }
    const char *value = take_value(flag);
    if (!value) return report_error("--%s needs a value: %s", own->name, own->value);
    switch (own->kind) {
    case OPTION_NUMBER: return read_number(own, value);
    case OPTION_COUNT: return read_count(own, value);
    case OPTION_TIME: return read_time(own, value);
    case OPTION_TEXTS: return add_text(own, value);
    default: *(const char **)own->target = value; return true;
    }
}

/* Wishes for the contents of inputs are no fields, but items all the same. */
static bool is_input_option(const field_flags *fields, const char *name) {
    for (int32_t i = 0; fields && fields->items && i < fields->kernel->input_option_count; i++)
        if (strcmp(fields->kernel->input_options[i].name, name) == 0) return true;
    return false;
}

static bool set_input_option(const field_flags *fields, flag_word *flag) {
    const char *value = take_value(flag);
    if (!value) return report_error("%s needs a value", flag->text);
    return item_text_value(fields->items, flag->name, value);
}

static bool set_field(const ejk_field *field, const field_flags *fields, flag_word *flag) {
    bool truth = field->kind == EJK_FIELD_BOOL || field->kind == EJK_FIELD_OPT_BOOL;
    const char *value = truth ? take_truth(flag) : take_value(flag);
    if (!value) return report_error("%s needs a value: %s", flag->text, field->doc);
    const bool tensor = field->kind == EJK_FIELD_TENSOR || field->kind == EJK_FIELD_TENSORS;
    if (fields->items && field->kind != EJK_FIELD_TENSOR) /* of a list: how many members */
        return item_text_value(fields->items, flag->name, *value ? value : "true");
    if (!tensor)
        return succeeded(
            ejk_record_set_text(fields->kernel->args, fields->args, flag->name, value));
    const ejk_record *record = fields->kernel->args;
    if (!fields->files || field < record->fields || field >= record->fields + record->count)
        return report_error("%s is a tensor, which cannot be given here", flag->text);
    fields->files[field - record->fields] = value;
    return true;
}

/* The tensor that "NAME_out" is about, which is updated in place and has no field of that name beside it. */
static const ejk_field *updated_field(const field_flags *fields, const char *name) {
    const ejk_record *record = fields->kernel->args;
    const size_t length = strlen(name), end = strlen("_out");
    if (!fields->updated || length <= end || strcmp(name + length - end, "_out") != 0) return NULL;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        if (strlen(field->name) == length - end && strncmp(field->name, name, length - end) == 0)
            return ejk_field_is_input(field) && ejk_field_is_output(field) ? field : NULL;
    }
    return NULL;
}

static bool set_updated(const ejk_field *field, const field_flags *fields, flag_word *flag) {
    const char *value = take_value(flag);
    if (!value) return report_error("%s needs a value: a file for what becomes of it", flag->text);
    fields->updated[field - fields->kernel->args->fields] = value;
    return true;
}

static bool same_name(const char *name, const char *given) {
    for (; *name && (*name == *given || (*name == '-' && *given == '_')); name++) given++;
    return *name == *given;
}

static bool refuse(const flag_word *flag, const option *own, const field_flags *fields) {
    suggestions near = {.wanted = flag->name};
    for (; own->name; own++)
        if (*own->name) suggest_offer(&near, own->name);
    for (int32_t i = 0; fields && i < fields->kernel->args->count; i++)
        suggest_offer(&near, fields->kernel->args->fields[i].name);
    char list[256];
    suggest_list(&near, list, sizeof list);
    return report_error("%.60s is no flag here%s%s", flag->text, *list ? "; near it: " : "", list);
}

static bool set_flag(flag_word *flag, const option *own, const field_flags *fields) {
    for (const option *each = own; each->name; each++)
        if (*each->name && same_name(each->name, flag->name)) return set_own(each, flag);
    const ejk_field *field =
        fields ? ejk_record_find(fields->kernel->args, flag->name, NULL) : NULL;
    if (fields && is_input_option(fields, flag->name)) return set_input_option(fields, flag);
    if (field) return set_field(field, fields, flag);
    field = fields ? updated_field(fields, flag->name) : NULL;
    return field ? set_updated(field, fields, flag) : refuse(flag, own, fields);
}

/* ---- Items ------------------------------------------------------------------------------------------- */

bool item_text_add(item_text *items, const char *format, ...) {
    va_list values;
    va_start(values, format);
    const int length = vsnprintf(NULL, 0, format, values);
    va_end(values);
    const size_t needed = items->length + (size_t)length + 1;
    char *text = needed > items->room ? realloc(items->text, 2 * needed) : items->text;
    if (!text) return report_error("no memory for a line of %zu bytes", needed);
    if (needed > items->room) items->room = 2 * needed;
    items->text = text;
    va_start(values, format);
    vsnprintf(text + items->length, items->room - items->length, format, values);
    va_end(values);
    items->length += (size_t)length;
    return true;
}

/* Quoted as a string of JSON is, where that is needed. */
bool item_text_value(item_text *items, const char *name, const char *value) {
    if (*value && strcspn(value, ", \t#\"\\") == strlen(value))
        return item_text_add(items, ",%s=%s", name, value);
    json_t *string = json_string(value);
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    const bool added = quoted ? item_text_add(items, ",%s=%s", name, quoted)
                              : report_error("%s is no UTF-8, or there is no memory for it", name);
    free(quoted);
    json_decref(string);
    return added;
}

/* ---- Lists of flags ---------------------------------------------------------------------------------- */

bool options_texts(int count, texts *out) {
    *out = (texts){.items = calloc((size_t)count + 1, sizeof *out->items)};
    return out->items || report_error("no memory for %d words", count);
}

/* What takes words that are no flags; NULL if nothing does. */
static const option *find_plain(const option *own) {
    while (own->name && *own->name) own++;
    return own->name ? own : NULL;
}

bool options_parse(int count, char **words, const option *own, const field_flags *fields) {
    const option *plain = find_plain(own);
    for (int i = 0; i < count;) {
        if (plain && strncmp(words[i], "--", 2) != 0) {
            add_text(plain, words[i++]);
            continue;
        }
        flag_word flag = {.left = 0};
        if (!read_flag(count - i, words + i, &flag) || !set_flag(&flag, own, fields)) return false;
        i += 1 + flag.taken;
    }
    return true;
}

bool options_help(const option *own) {
    text_table table = {.align = "ll"};
    for (; own->name; own++) {
        if (!*own->name) continue;
        table_add(&table, "--%s%s%s", own->name, *own->value ? " " : "", own->value);
        table_add(&table, "%s", own->doc);
    }
    return table_print(&table, 2);
}

bool options_ask_help(int count, char **words) {
    for (int i = 0; i < count; i++)
        if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0) return true;
    return false;
}
