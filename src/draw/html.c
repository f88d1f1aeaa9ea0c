/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures as a page: the SVG, and a script that moves its inner viewBox. Without scripts the SVG is there. */
#include "draw/draw.h"

static const char head[] =
    "<style>\n"
    "body { margin: 1rem auto; padding: 0 1rem; max-width: 50rem; background: " EJKI_COLOUR_PAPER
    "; color: #222; font: 1rem/1.5 sans-serif }\n"
    "h1 { font-size: 1.2rem; margin: 0 }\n"
    "p { margin: 0 }\n"
    "body > svg { display: block; max-width: 100%; max-height: max(20rem, 100vh - 13rem); height: "
    "auto }\n"
    ".key { display: flex; flex-wrap: wrap; gap: 0 1.5rem }\n"
    ".key i { display: inline-block; width: .75em; height: .75em; margin-right: .4em; border: 1px "
    "solid #777 }\n"
    ".map { cursor: crosshair; touch-action: none }\n"
    ".map:focus { outline: 3px solid " EJKI_COLOUR_PARTIAL " }\n"
    "#tools { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; margin: .5rem 0 }\n"
    "#tools[hidden] { display: none }\n"
    "button { font: inherit; min-width: 2.5rem; white-space: nowrap }\n"
    "output { display: block; min-height: 1.5rem }\n"
    "</style>\n";

static const char tools[] = "<div id=\"tools\" hidden>\n"
                            "<button id=\"in\" aria-label=\"zoom in\">+</button>\n"
                            "<button id=\"out\" aria-label=\"zoom out\">&minus;</button>\n"
                            "<button id=\"whole\">whole mask</button>\n"
                            "<label id=\"visits\"><input type=\"checkbox\" id=\"order\"> order of "
                            "visits, from the dot to the square</label>\n"
                            "</div>\n"
                            "<output id=\"place\" aria-live=\"polite\"></output>\n";

/* `mask` stands before it: shape, cell, rows of runs as [state, length, …], whether cells are blocks. */
static const char script[] =
    "const map = document.querySelector('.map'), by = id => document.getElementById(id);\n"
    "const rows = mask.runs.map(runs => {\n"
    "  const states = [];\n"
    "  for (let i = 0; i < runs.length; i += 2)\n"
    "    for (let n = 0; n < runs[i + 1]; n++) states.push(runs[i]);\n"
    "  return states;\n"
    "});\n"
    "const height = rows.length, width = rows[0].length, before = [];\n"
    "let seen = 0;\n"
    "for (const row of rows) { before.push(seen); seen += row.filter(state => state).length; }\n"
    "let view = { x: 0, y: 0, scale: 1 };\n"
    "function show() {\n"
    "  const w = width / view.scale, h = height / view.scale;\n"
    "  view.x = Math.min(Math.max(view.x, 0), width - w);\n"
    "  view.y = Math.min(Math.max(view.y, 0), height - h);\n"
    "  map.setAttribute('viewBox', `${view.x} ${view.y} ${w} ${h}`);\n"
    "}\n"
    "function zoom(factor, x, y) {\n"
    "  const most = Math.max(1, Math.max(width, height) / 4);\n"
    "  const scale = Math.min(Math.max(view.scale * factor, 1), most);\n"
    "  view.x = x - (x - view.x) * view.scale / scale;\n"
    "  view.y = y - (y - view.y) * view.scale / scale;\n"
    "  view.scale = scale;\n"
    "  show();\n"
    "}\n"
    "const middle = () => [view.x + width / view.scale / 2, view.y + height / view.scale / 2];\n"
    "function cellAt(event) {\n"
    "  const point = new DOMPoint(event.clientX, event.clientY);\n"
    "  const at = point.matrixTransform(map.querySelector('g').getScreenCTM().inverse());\n"
    "  return [at.x, at.y];\n"
    "}\n"
    "const range = (i, size, most) => size == 1 ? `${i}`\n"
    "  : `${i * size} to ${Math.min((i + 1) * size, most) - 1}`;\n"
    "function tell(x, y) {\n"
    "  const i = Math.floor(y), j = Math.floor(x);\n"
    "  if (i < 0 || j < 0 || i >= height || j >= width) { by('place').value = ''; return; }\n"
    "  const state = rows[i][j];\n"
    "  let text = `query ${range(i, mask.cell[0], mask.shape[0])}, `\n"
    "    + `key ${range(j, mask.cell[1], mask.shape[1])}: ${mask.words[state]}`;\n"
    "  if (mask.blocks && state) {\n"
    "    const number = before[i] + rows[i].slice(0, j).filter(other => other).length;\n"
    "    text += `, visit ${number} of ${seen}`;\n"
    "  }\n"
    "  by('place').value = text;\n"
    "}\n"
    "let held = null;\n"
    "map.addEventListener('wheel', event => {\n"
    "  event.preventDefault();\n"
    "  zoom(event.deltaY < 0 ? 1.25 : 0.8, ...cellAt(event));\n"
    "}, { passive: false });\n"
    "map.addEventListener('pointerdown', event => {\n"
    "  held = cellAt(event);\n"
    "  map.setPointerCapture(event.pointerId);\n"
    "});\n"
    "map.addEventListener('pointerup', () => { held = null; });\n"
    "map.addEventListener('pointercancel', () => { held = null; });\n"
    "map.addEventListener('pointermove', event => {\n"
    "  const at = cellAt(event);\n"
    "  if (held) { view.x += held[0] - at[0]; view.y += held[1] - at[1]; show(); }\n"
    "  else tell(...at);\n"
    "});\n"
    "const keys = {\n"
    "  ArrowLeft: () => { view.x -= width / view.scale / 8; show(); },\n"
    "  ArrowRight: () => { view.x += width / view.scale / 8; show(); },\n"
    "  ArrowUp: () => { view.y -= height / view.scale / 8; show(); },\n"
    "  ArrowDown: () => { view.y += height / view.scale / 8; show(); },\n"
    "  '+': () => zoom(1.25, ...middle()), '=': () => zoom(1.25, ...middle()),\n"
    "  '-': () => zoom(0.8, ...middle()), '0': () => zoom(0, 0, 0),\n"
    "};\n"
    "map.addEventListener('keydown', event => {\n"
    "  if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;\n"
    "  event.preventDefault();\n"
    "  keys[event.key]();\n"
    "  tell(...middle());\n"
    "});\n"
    "map.setAttribute('tabindex', '0');\n"
    "map.setAttribute('aria-label', 'the mask; arrows move, plus and minus zoom, 0 shows all');\n"
    "by('in').onclick = () => zoom(1.25, ...middle());\n"
    "by('out').onclick = () => zoom(0.8, ...middle());\n"
    "by('whole').onclick = () => zoom(0, 0, 0);\n"
    "const line = map.querySelector('.order');\n"
    "if (line) {\n"
    "  by('order').checked = line.getAttribute('visibility') != 'hidden';\n"
    "  by('order').onchange = event =>\n"
    "    line.setAttribute('visibility', event.target.checked ? 'visible' : 'hidden');\n"
    "} else by('visits').hidden = true;\n"
    "by('tools').hidden = false;\n";

static void print_runs(FILE *out, const ejki_picture *picture) {
    for (int64_t i = 0; i < picture->cell_rows; i++) {
        const uint8_t *states = ejki_picture_row(picture, i);
        fputs(i == 0 ? "[" : ",\n[", out);
        for (int64_t j = 0; j < picture->cell_columns;) {
            int64_t begin = j;
            while (j < picture->cell_columns && states[j] == states[begin]) j++;
            fprintf(out, "%s%d,%lld", begin == 0 ? "" : ",", states[begin], (long long)(j - begin));
        }
        fputc(']', out);
    }
}

static void print_legend(FILE *out, const ejki_picture *picture) {
    static const char *const colours[] = {EJKI_COLOUR_EMPTY, EJKI_COLOUR_PARTIAL, EJKI_COLOUR_FULL};
    fputs("<p class=\"key\">", out);
    for (int state = FULL; state >= EMPTY; state--)
        if (ejki_state_word(picture, state)[0] != '\0')
            fprintf(out, "<span><i style=\"background: %s\"></i>%s</span>\n", colours[state],
                    ejki_state_word(picture, state));
    fprintf(out, "<span>%s</span></p>\n", ejki_axes_words(picture).text);
}

void ejki_draw_html(FILE *out, const ejki_picture *picture, const ejki_drawing *drawing) {
    const ejk_mask_survey *survey = &picture->survey;
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width\">\n<title>",
          out);
    ejki_print_title(out, picture, drawing);
    fprintf(out, "</title>\n%s</head>\n<body>\n<h1>", head);
    ejki_print_title(out, picture, drawing);
    fputs("</h1>\n", out);
    if (drawing->legend) fprintf(out, "<p>%s</p>\n", ejki_counts_words(picture).text);
    fputs(tools, out);
    /* The page has the words, so that they stay as large as text is where the drawing is small. */
    ejki_drawing bare = *drawing;
    bare.legend = false;
    ejki_draw_svg(out, picture, &bare);
    if (drawing->legend) print_legend(out, picture);
    bool visits = ejki_cells_are_blocks(picture) && !ejki_blocks_are_elements(picture);
    fprintf(out,
            "<script>\nconst mask = { shape: [%lld, %lld], cell: [%lld, %lld], blocks: %s,\n"
            "words: ['%s', '%s', '%s'], runs: [",
            (long long)survey->q, (long long)survey->kv, (long long)ejki_cell_length(picture, 0),
            (long long)ejki_cell_length(picture, 1), visits ? "true" : "false",
            ejki_state_word(picture, EMPTY), ejki_state_word(picture, PARTIAL),
            ejki_state_word(picture, FULL));
    print_runs(out, picture);
    fprintf(out, "] };\n%s</script>\n</body>\n</html>\n", script);
}
