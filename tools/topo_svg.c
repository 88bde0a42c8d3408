/* `hocket topo --svg`: boxes in boxes. Sizes grow from the inside out, places from the outside in; each node lays its
 * parts out in a grid, devices below the rest. Ranks are written in their boxes, and the ring is drawn through them. The
 * file needs nothing else: no fonts, styles or scripts from outside. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"
#include "topo.h"

#define TITLE_HEIGHT 17.0
#define PAD 6.0
#define LETTER 6.1 /* mean width of a letter of 11 px */
#define LEAF_HEIGHT 24.0
#define HOSTS_DRAWN 16 /* of alike hosts that follow each other more are not drawn, unless ranks are on them */
#define RANK_HOSTS_DRAWN 128
#define LARGE 2000 /* nodes */

struct box {
    double x, y, width, height;
    bool hidden; /* pus, hosts left out, cores without ranks on large machines */
    bool leaf;   /* a small box, its text in the middle */
    bool ranks;  /* there are ranks on it */
    int more;    /* alike hosts left out after this one */
    char label[96];
};

struct drawing {
    const struct topo_view *view;
    struct box *boxes; /* [node] */
    int count;
    FILE *file;
};

static const char *const fills[HKT_TOPO_KIND_COUNT] = {
    [HKT_TOPO_NET] = "#ffffff",     [HKT_TOPO_RACK] = "#f1f3f5", [HKT_TOPO_HOST] = "#f8f9fa",
    [HKT_TOPO_PACKAGE] = "#e7f0fa", [HKT_TOPO_NUMA] = "#fdf3d8", [HKT_TOPO_L3] = "#e6f4e6",
    [HKT_TOPO_CORE] = "#ffffff",    [HKT_TOPO_PU] = "#ffffff",   [HKT_TOPO_SWITCH] = "#eee6f7",
    [HKT_TOPO_GPU] = "#d3f0d0",     [HKT_TOPO_NIC] = "#fbdfd0",
};

static const struct hkt_topo_node *node_of(const struct drawing *drawing, int i)
{
    return hkt_topo_node_get(drawing->view->topo, i);
}

/* First visible part at or behind i within `end`; `end` when there is none. */
static int visible(const struct drawing *drawing, int i, int end, bool devices)
{
    while (i < end && (drawing->boxes[i].hidden || (node_of(drawing, i)->kind >= HKT_TOPO_SWITCH) != devices))
        i = node_of(drawing, i)->end;
    return i;
}

static void escape(const char *text, FILE *file)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", file);
            break;
        case '>':
            fputs("&gt;", file);
            break;
        case '&':
            fputs("&amp;", file);
            break;
        case '"':
            fputs("&quot;", file);
            break;
        default: /* a file's name may hold anything; XML takes no control characters, and only whole letters of UTF-8 */
            putc(*text >= ' ' && *text <= '~' ? *text : '?', file);
        }
    }
}

/* "numa 1 · 64GiB", and the ranks on it. */
static void make_labels(struct drawing *drawing)
{
    const struct topo_view *view = drawing->view;

    for (int i = 0; i < drawing->count; i++) {
        const struct hkt_topo_node *node = node_of(drawing, i);
        struct box *box = &drawing->boxes[i];
        char size[32] = "";

        if (node->bytes != 0)
            topo_size_text(node->bytes, size, sizeof size);
        snprintf(box->label, sizeof box->label, "%s %d%s%.24s%s%s",
                 node->kind == HKT_TOPO_CORE ? "c" : hkt_topo_kind_name(node->kind), node->index,
                 node->name[0] != '\0' ? " " : "", node->name, size[0] != '\0' ? " " : "", size);
    }
    for (int r = 0; r < view->nranks; r++) {
        struct box *box = &drawing->boxes[view->nodes[r]];
        const size_t used = strlen(box->label);
        const bool core = node_of(drawing, view->nodes[r])->kind == HKT_TOPO_CORE;

        box->ranks = true;
        /* A core is small: its rank alone. */
        if (core)
            snprintf(box->label, sizeof box->label, "r%d", r);
        else if (used + 12 < sizeof box->label)
            snprintf(box->label + used, sizeof box->label - used, " r%d", r);
    }
}

/* What is not drawn: pus; alike hosts in a row beyond the first few; on large machines cores without a rank. */
static void hide_parts(struct drawing *drawing)
{
    const bool has_ranks = drawing->view->nranks > 0;
    const int most = has_ranks ? RANK_HOSTS_DRAWN : HOSTS_DRAWN;

    for (int i = 0; i < drawing->count; i++) {
        const enum hkt_topo_kind kind = node_of(drawing, i)->kind;
        struct box *box = &drawing->boxes[i];

        if (kind == HKT_TOPO_PU || (kind == HKT_TOPO_CORE && has_ranks && !box->ranks && drawing->count > LARGE))
            box->hidden = true;
        if (kind != HKT_TOPO_HOST || box->hidden)
            continue;
        const int alike = topo_alike(drawing->view->topo, i);

        if (alike <= most)
            continue;
        box->more = alike - 1;
        for (int k = 1, next = node_of(drawing, i)->end; k < alike; k++, next = node_of(drawing, next)->end)
            drawing->boxes[next].hidden = true;
    }
}

/* Columns of a grid of n equal boxes: wide rather than high. */
static int columns(int n, double width, double height)
{
    int best = 1;
    double best_miss = 1e9;

    for (int c = 1; c <= n; c++) {
        const double ratio = c * (width + PAD) / ((double)((n + c - 1) / c) * (height + PAD));
        const double miss = fabs(log(ratio / 1.6)) + (n % c != 0 ? 0.8 : 0.0);

        if (miss < best_miss) {
            best_miss = miss;
            best = c;
        }
    }
    return best;
}

/* One grid of the parts of a node, below `top`. Measures, and places relative to the node. Returns the height with the space
 * above it, 0 when there are no parts; widens *width. */
static double lay_grid(struct drawing *drawing, int node, bool devices, double top, double *width)
{
    const int end = node_of(drawing, node)->end;
    double cell_width = 0, cell_height = 0;
    int n = 0, k = 0;

    for (int i = visible(drawing, node + 1, end, devices); i < end;
         i = visible(drawing, node_of(drawing, i)->end, end, devices), n++) {
        cell_width = fmax(cell_width, drawing->boxes[i].width);
        cell_height = fmax(cell_height, drawing->boxes[i].height);
    }
    if (n == 0)
        return 0;
    const int across = columns(n, cell_width, cell_height);

    for (int i = visible(drawing, node + 1, end, devices); i < end;
         i = visible(drawing, node_of(drawing, i)->end, end, devices), k++) {
        drawing->boxes[i].x = PAD + (k % across) * (cell_width + PAD);
        drawing->boxes[i].y = top + (double)(k / across) * (cell_height + PAD);
        drawing->boxes[i].width = cell_width;
        drawing->boxes[i].height = cell_height;
    }
    *width = fmax(*width, PAD + across * (cell_width + PAD));
    return (double)((n + across - 1) / across) * (cell_height + PAD);
}

static void measure(struct drawing *drawing)
{
    for (int i = drawing->count; i-- > 0;) {
        struct box *box = &drawing->boxes[i];
        double height = TITLE_HEIGHT + PAD;

        box->width = fmax(38.0, LETTER * (double)strlen(box->label) + 2 * PAD);
        height += lay_grid(drawing, i, false, height, &box->width);
        height += lay_grid(drawing, i, true, height, &box->width);
        box->leaf = height == TITLE_HEIGHT + PAD;
        box->height = box->leaf ? LEAF_HEIGHT : height;
        if (box->more > 0)
            box->height += TITLE_HEIGHT;
    }
}

static void place(struct drawing *drawing)
{
    for (int i = 1; i < drawing->count; i++) {
        const struct box *outer = &drawing->boxes[node_of(drawing, i)->parent];

        drawing->boxes[i].hidden = drawing->boxes[i].hidden || outer->hidden;
        drawing->boxes[i].x += outer->x;
        drawing->boxes[i].y += outer->y;
    }
}

static void draw_box(const struct drawing *drawing, int i)
{
    const struct hkt_topo_node *node = node_of(drawing, i);
    const struct hkt_topo_link *link = hkt_topo_link_get(drawing->view->topo, node->uplink);
    const struct box *box = &drawing->boxes[i];
    char text[128];

    fprintf(drawing->file,
            "<g><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"3\" fill=\"%s\" stroke=\"%s\"/>",
            box->x, box->y, box->width, box->height, box->ranks ? "#ffd43b" : fills[node->kind],
            box->leaf ? "#868e96" : "#adb5bd");
    fprintf(drawing->file, "<text x=\"%.1f\" y=\"%.1f\"%s>", box->leaf ? box->x + box->width / 2 : box->x + PAD,
            box->y + (box->leaf ? box->height / 2 + 4 : 15.5), box->leaf ? " text-anchor=\"middle\"" : "");
    escape(box->label, drawing->file);
    fputs("</text>", drawing->file);
    if (box->more > 0)
        fprintf(drawing->file, "<text x=\"%.1f\" y=\"%.1f\">and %d more like it</text>", box->x + PAD,
                box->y + box->height - PAD, box->more);
    /* What a pointer shows. */
    fprintf(drawing->file, "<title>%s %d", hkt_topo_kind_name(node->kind), node->index);
    if (node->name[0] != '\0') {
        putc(' ', drawing->file);
        escape(node->name, drawing->file);
    }
    if (link != NULL) {
        topo_link_text(link, text, sizeof text);
        fprintf(drawing->file, "; up: %s", text);
    }
    fputs("</title></g>\n", drawing->file);
}

static void draw_boxes(const struct drawing *drawing, bool leaves)
{
    for (int i = 0; i < drawing->count; i++)
        if (!drawing->boxes[i].hidden && drawing->boxes[i].leaf == leaves)
            draw_box(drawing, i);
}

/* Where lines meet a box: its middle, or for one with parts its title. */
static void joint(const struct drawing *drawing, int node, double *x, double *y)
{
    const struct box *box = &drawing->boxes[node];

    *x = box->x + box->width / 2;
    *y = box->leaf ? box->y + box->height / 2 : box->y + TITLE_HEIGHT / 2 + 2;
}

/* Links that the boxes do not say: neither to the parent nor, as every NIC has one, to the net. */
static bool is_drawn(const struct drawing *drawing, int i)
{
    const struct hkt_topo_link *link = hkt_topo_link_get(drawing->view->topo, i);

    return link->a != 0 && node_of(drawing, link->b)->uplink != i && !drawing->boxes[link->a].hidden
           && !drawing->boxes[link->b].hidden;
}

static void draw_links(const struct drawing *drawing)
{
    const struct hkt_topo_link *link;

    for (int i = 0; (link = hkt_topo_link_get(drawing->view->topo, i)) != NULL; i++) {
        double x1, y1, x2, y2;

        if (!is_drawn(drawing, i))
            continue;
        joint(drawing, link->a, &x1, &y1);
        joint(drawing, link->b, &x2, &y2);
        fprintf(drawing->file,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#2f9e44\" stroke-width=\"1.5\" "
                "stroke-opacity=\"0.55\"/>\n",
                x1, y1, x2, y2);
    }
}

static void draw_ring(const struct drawing *drawing)
{
    const struct topo_view *view = drawing->view;
    const int32_t *ring = view->nranks > 1 ? hkt_topo_order_ring(view->order) : NULL;
    double x, y;

    if (ring == NULL)
        return;
    fputs("<polygon points=\"", drawing->file);
    for (int i = 0; i < view->nranks; i++) {
        if (drawing->boxes[view->nodes[ring[i]]].hidden)
            continue;
        joint(drawing, view->nodes[ring[i]], &x, &y);
        fprintf(drawing->file, "%.1f,%.1f ", x, y);
    }
    fputs(
        "\" fill=\"none\" stroke=\"#d6336c\" stroke-width=\"1.6\" stroke-opacity=\"0.45\" stroke-linejoin=\"round\"/>\n",
        drawing->file);
}

#define LEGEND_MAX 16

/* The first of the links that draw_links draws, NULL: none. */
static const struct hkt_topo_link *first_drawn(const struct drawing *drawing)
{
    const struct hkt_topo_link *link;

    for (int i = 0; (link = hkt_topo_link_get(drawing->view->topo, i)) != NULL; i++)
        if (is_drawn(drawing, i))
            break;
    return link;
}

/* The links to the part around, each kind once. Returns the lines. */
static int collect_legend(const struct drawing *drawing, char lines[LEGEND_MAX][160])
{
    const struct topo_view *view = drawing->view;
    int count = 0;

    for (int i = 0; i < drawing->count && count < LEGEND_MAX; i++) {
        const struct hkt_topo_node *node = node_of(drawing, i);
        const struct hkt_topo_link *link = hkt_topo_link_get(view->topo, node->uplink);
        char numbers[96];
        int k = 0;

        if (link == NULL)
            continue;
        topo_link_text(link, numbers, sizeof numbers);
        snprintf(lines[count], sizeof lines[count], "%s - %s: %s", hkt_topo_kind_name(node->kind),
                 hkt_topo_kind_name(node_of(drawing, node->parent)->kind), numbers);
        while (strcmp(lines[k], lines[count]) != 0)
            k++;
        count += k == count;
    }
    if (first_drawn(drawing) != NULL && count < LEGEND_MAX) {
        char numbers[96];

        topo_link_text(first_drawn(drawing), numbers, sizeof numbers);
        snprintf(lines[count++], sizeof lines[0], "green lines: %s", numbers);
    }
    if (view->nranks > 1 && count < LEGEND_MAX)
        snprintf(lines[count++], sizeof lines[0], "red line: the ring over %d ranks (rN is rank N)", view->nranks);
    return count;
}

static void draw(struct drawing *drawing)
{
    char legend[LEGEND_MAX][160];
    const int lines = collect_legend(drawing, legend);
    const struct box *all = &drawing->boxes[0];
    const double width = fmax(all->width, 420) + 2 * PAD, height = all->height + 2 * PAD + 16.0 * (lines + 1);

    fprintf(drawing->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
            "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#212529\">\n<title>",
            width, height, width, height);
    escape(drawing->view->source, drawing->file);
    fprintf(drawing->file, "</title>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#ffffff\"/>\n", width, height);
    /* Lines pass behind the small boxes, so that these can be read. */
    draw_boxes(drawing, false);
    draw_links(drawing);
    draw_ring(drawing);
    draw_boxes(drawing, true);
    for (int i = 0; i < lines; i++) {
        fprintf(drawing->file, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#495057\">", 2 * PAD,
                all->y + all->height + 16.0 * (i + 1));
        escape(legend[i], drawing->file);
        fputs("</text>\n", drawing->file);
    }
    fputs("</svg>\n", drawing->file);
}

bool topo_svg(const struct topo_view *view, FILE *file)
{
    struct drawing drawing = { .view = view, .count = hkt_topo_node_count(view->topo), .file = file };

    drawing.boxes = calloc((size_t)drawing.count, sizeof *drawing.boxes);
    if (drawing.boxes == NULL)
        return false;
    make_labels(&drawing);
    hide_parts(&drawing);
    measure(&drawing);
    drawing.boxes[0].x = drawing.boxes[0].y = PAD;
    place(&drawing);
    draw(&drawing);
    free(drawing.boxes);
    return ferror(file) == 0;
}
