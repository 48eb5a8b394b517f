#include "main/plan_stages.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/rates.h"
#include "pass/stage.h"
#include "run/cuts.h"

#include <math.h>
#include <string.h>

/* ---- one schedule ---- */

/* The program of each stage, and what the clock says of them. */
typedef struct planned {
  ts_program **stage; /* owned */
  int n;
  ts_pipeline pipeline;
  ts_pipeline_times times;
  int64_t most; /* bytes of the stage that needs most */
} planned;

static ts_mesh mesh_of_stage(const ts_program_options *o, int stage) {
  return ts_mesh_at(o->mesh, ts_mesh_group_member(o->mesh, TS_AXES(TS_AXIS_PP), stage));
}

/* Of the largest message to the next piece. */
static double send_seconds(const planned *p, const ts_program_options *options) {
  double most = 0;
  for (int i = 0; i < p->n; ++i) {
    const ts_graph *g = p->stage[i]->graph;
    for (ts_nid n = 0; n < g->n_nodes; ++n) {
      double bytes = 0;
      for (int k = 0; k < g->node[n].n_in && g->node[n].op == TS_OP_SEND && g->node[n].segment != TS_SEGMENT_UPDATE;
           ++k) {
        bytes += (double) ts_tensor_bytes(g, g->node[n].in[k]);
      }
      most = fmax(most, bytes);
    }
  }
  return most / ts_rates_of(options->deck, options->target.backend).link;
}

static void walk_clock(planned *p, const ts_program_options *options, ts_pipeline_observer *observer, void *user) {
  ts_error err = {0};
  ts_pipeline_times_clear(&p->times);
  TS_CHECK(ts_pipeline_clock(&p->pipeline, p->stage[0]->stages->seconds, send_seconds(p, options), observer, user,
                             &p->times, &err) == TS_OK,
           "%s", err.text);
}

static planned plan_stages(const ts_program_options *options) {
  planned p = {.n = options->mesh->size[TS_AXIS_PP]};
  p.stage = ts_calloc((size_t) p.n, sizeof *p.stage);
  for (int i = 0; i < p.n; ++i) {
    ts_mesh mesh = mesh_of_stage(options, i);
    ts_program_options of = *options;
    of.mesh = &mesh;
    p.stage[i] = ts_program_create(&of);
    p.most = p.stage[i]->plan->peak_bytes > p.most ? p.stage[i]->plan->peak_bytes : p.most;
  }
  p.pipeline = p.stage[0]->stages->pipeline;
  walk_clock(&p, options, NULL, NULL);
  return p;
}

static void end_planned(planned *p) {
  for (int i = 0; i < p->n; ++i) {
    ts_program_destroy(&p->stage[i]);
  }
  ts_free(p->stage);
  ts_pipeline_times_clear(&p->times);
}

/* ---- its stages ---- */

static int64_t parameters_here(const ts_layout *layout) {
  int64_t sum = 0;
  for (int i = 0; i < layout->n_parameters; ++i) {
    const ts_part *part = &layout->part[layout->parameter[i].part];
    sum += part->here ? ts_shape_count(&layout->parameter[i].shape) : 0;
  }
  return sum;
}

/* "model.embed_tokens - model.layers.2", one for each of the stage's pieces. */
static void add_units_of(const ts_program *p, int stage, const char *between, ts_text *to) {
  const ts_stages *s = p->stages;
  for (int chunk = 0; chunk < s->pipeline.chunks; ++chunk) {
    int piece = ts_pipeline_piece(&s->pipeline, stage, chunk), first = 0, last = s->n_units - 1;
    while (s->piece[first] != piece) {
      ++first;
    }
    while (s->piece[last] != piece) {
      --last;
    }
    ts_text_add(to, "%s%s", chunk > 0 ? between : "", p->graph->unit[first]);
    if (last > first) {
      ts_text_add(to, " - %s", p->graph->unit[last]);
    }
  }
}

/* Of a micro-batch, through all of the stage's pieces. */
static ts_pipeline_seconds seconds_of_stage(const ts_stages *s, int stage) {
  ts_pipeline_seconds sum = {0, 0, 0};
  for (int chunk = 0; chunk < s->pipeline.chunks; ++chunk) {
    const ts_pipeline_seconds *piece = &s->seconds[ts_pipeline_piece(&s->pipeline, stage, chunk)];
    sum.forward += piece->forward;
    sum.input += piece->input;
    sum.weight += piece->weight;
  }
  return sum;
}

/* "4", or "4 4 1" where gradients of weights are apart. */
static void spell_places(const ts_step_runs *step, char text[32]) {
  int n = ts_step_slots(step);
  if (step->apart) {
    snprintf(text, 32, "%d %d %d", n, step->n_places[TS_LIFETIME_TO_INPUT], step->n_places[TS_LIFETIME_TO_WEIGHT]);
  } else {
    snprintf(text, 32, "%d", n);
  }
}

static void add_stage(const planned *of, int stage, bool json, ts_text *to) {
  const ts_program *p = of->stage[stage];
  char count[32], bytes[32], places[32];
  int64_t parameters = parameters_here(p->layout);
  const ts_pipeline_seconds s = seconds_of_stage(p->stages, stage);
  double idle = of->times.idle[stage] / of->times.seconds;
  if (json) {
    ts_text_add(to, "%s{\"units\": \"", stage > 0 ? ", " : "");
    add_units_of(p, stage, ", ", to);
    ts_text_add(to,
                "\", \"parameters\": %lld, \"forward_seconds\": %.6g, \"input_seconds\": %.6g, \"weight_seconds\": "
                "%.6g, \"slots\": %d, \"slots_to_input\": %d, \"slots_to_weight\": %d, \"peak_bytes\": %lld, \"idle\": "
                "%.6f}",
                (long long) parameters, s.forward, s.input, s.weight, ts_step_slots(&p->step),
                p->step.n_places[TS_LIFETIME_TO_INPUT], p->step.n_places[TS_LIFETIME_TO_WEIGHT],
                (long long) p->plan->peak_bytes, idle);
    return;
  }
  spell_places(&p->step, places);
  ts_text_add(to, "  %-5d  %10s  %8.3f  %8.3f  %8.3f  %8s  %10s  %5.1f %%  ", stage,
              ts_human_count((double) parameters, count), 1e3 * s.forward, 1e3 * s.input, 1e3 * s.weight, places,
              ts_human_bytes((double) p->plan->peak_bytes, bytes), 100 * idle);
  add_units_of(p, stage, "; ", to);
  ts_text_add(to, "\n");
}

static void add_lists(const ts_pipeline *pipeline, bool json, ts_text *to) {
  ts_text_add(to, json ? ", \"schedule\": ["
                       : "\nwhat each stage does: pieces, F forward, I and W backward of inputs and "
                         "weights, B both, micro-batches\n");
  for (int stage = 0; stage < pipeline->stages; ++stage) {
    ts_text_add(to, json ? "%s\"" : "  ", json && stage > 0 ? ", " : "");
    ts_pipeline_print(pipeline, stage, to);
    ts_text_add(to, json ? "\"" : "\n");
  }
  ts_text_add(to, json ? "]" : "");
}

static void add_head(const planned *p, const ts_program_options *options, bool json, ts_text *to) {
  const char *name = ts_pipeline_name(p->pipeline.schedule);
  if (json) {
    ts_text_add(to, ", \"pipeline\": {\"schedule\": \"%s\", \"partition\": ", name);
    ts_text_add_json(to, options->deck->pipeline.partition);
    ts_text_add(to, ", \"chunks\": %d, \"seconds\": %.6g, \"bubble\": %.6f, \"stages\": [", p->pipeline.chunks,
                p->times.seconds, p->times.bubble);
    return;
  }
  ts_text_add(to,
              "\npipeline \"%s\", %d piece%s of the model a stage, cut by \"%s\"; planned bubble: %.1f %% of the time\n"
              "  (F forward, I and W backward of inputs and weights, of a micro-batch, in ms by nominal rates or the "
              "deck's `machine`;\n"
              "  slots: micro-batches that keep something at a time%s)\n"
              "  stage  parameters         F         I         W     slots      memory     idle  units\n",
              name, p->pipeline.chunks, p->pipeline.chunks > 1 ? "s" : "", options->deck->pipeline.partition,
              100 * p->times.bubble,
              p->stage[0]->step.apart ? ", from F to W, of these from F to I, and from I to W" : "");
}

/* ---- all schedules ---- */

/* What a row of the table would come to, cut for it. */
typedef struct candidate {
  ts_pipeline_schedule schedule;
  bool goes, fits, is_own;
  double seconds, bubble;
  int64_t bytes;
  char *why; /* owned: it does not go */
} candidate;

static candidate try_schedule(const ts_program_options *options, ts_pipeline_schedule schedule, int64_t memory) {
  const ts_deck *own = options->deck;
  ts_deck deck = *own;
  ts_error err = {0};
  candidate c = {.schedule = schedule, .is_own = ts_pipeline_find(own->pipeline.schedule) == schedule};
  deck.pipeline.schedule = (char *) ts_pipeline_name(schedule);
  if (!c.is_own) {
    deck.pipeline.units = (ts_ints){0, NULL};
    deck.pipeline.decided = false;
  }
  ts_program_options of = *options;
  of.deck = &deck;
  c.goes = ts_program_check(&of, &err) == TS_OK;
  if (c.goes) {
    ts_cuts_decide(&of, &deck, memory, &err); /* where nothing fits the one that needs least is planned */
    planned p = plan_stages(&of);
    c.seconds = p.times.seconds;
    c.bubble = p.times.bubble;
    c.bytes = p.most;
    c.fits = memory == 0 || c.bytes <= memory;
    end_planned(&p);
  } else {
    const char *problem = strstr(err.text, ": ");
    c.why = ts_strdup(problem != NULL ? problem + 2 : err.text);
  }
  if (!c.is_own) {
    ts_free(deck.pipeline.units.items);
  }
  ts_error_clear(&err);
  return c;
}

static void add_candidate(const candidate *c, bool first, bool json, ts_text *to) {
  const char *name = ts_pipeline_name(c->schedule);
  char bytes[32];
  if (json && c->goes) {
    ts_text_add(to, "%s{\"schedule\": \"%s\", \"seconds\": %.6g, \"bubble\": %.6f, \"peak_bytes\": %lld, \"fits\": %s}",
                first ? "" : ", ", name, c->seconds, c->bubble, (long long) c->bytes, c->fits ? "true" : "false");
  } else if (!json && c->goes) {
    ts_text_add(to, "  %-12s  %10.3f  %5.1f %%  %10s%s%s\n", name, 1e3 * c->seconds, 100 * c->bubble,
                ts_human_bytes((double) c->bytes, bytes), c->fits ? "" : "  does not fit",
                c->is_own ? "  (the deck's)" : "");
  } else if (!json) {
    ts_text_add(to, "  %-12s  %s\n", name, c->why);
  }
}

static void add_schedules(const ts_program_options *options, int64_t memory, bool json, ts_text *to) {
  const candidate *fastest = NULL;
  candidate all[TS_N_PIPELINES];
  bool first = true;
  ts_text_add(to,
              json ? ", \"schedules\": ["
                   : "\nschedules of these stages, each with a cut of its own (ms of a step's micro-batches, bubble, "
                     "memory of the stage that needs most)\n");
  for (int i = 0; i < TS_N_PIPELINES; ++i) {
    all[i] = try_schedule(options, (ts_pipeline_schedule) i, memory);
    add_candidate(&all[i], first, json, to);
    first = first && !all[i].goes;
    bool faster = all[i].goes && all[i].fits && (fastest == NULL || all[i].seconds < fastest->seconds);
    fastest = faster ? &all[i] : fastest;
  }
  ts_text_add(to, json ? "]" : "");
  if (fastest != NULL && json) {
    ts_text_add(to, ", \"fastest\": \"%s\"", ts_pipeline_name(fastest->schedule));
  } else if (fastest != NULL) {
    ts_text_add(to, "  the fastest%s: pipeline.schedule = \"%s\"\n", memory > 0 ? " that fits" : "",
                ts_pipeline_name(fastest->schedule));
  }
  for (int i = 0; i < TS_N_PIPELINES; ++i) {
    ts_free(all[i].why);
  }
}

void ts_plan_print_stages(const ts_program_options *options, int64_t memory, bool json, bool lists, ts_text *to) {
  if (options->mesh->size[TS_AXIS_PP] == 1) {
    return;
  }
  planned p = plan_stages(options);
  add_head(&p, options, json, to);
  for (int stage = 0; stage < p.n; ++stage) {
    add_stage(&p, stage, json, to);
  }
  ts_text_add(to, json ? "]" : "");
  if (lists) {
    add_lists(&p.pipeline, json, to);
  }
  add_schedules(options, memory, json, to);
  ts_text_add(to, json ? "}" : "");
  end_planned(&p);
}

/* ---- the picture ---- */

enum { LEFT = 70, TOP = 64, ROW = 34, BAR = 28, WIDTH = 1400, MOST_BARS = 6000 };

typedef struct picture {
  ts_text *to;
  const ts_pipeline *pipeline;
  double seconds; /* across */
  int64_t bars, left_out;
} picture;

/* Of a kind of work, lighter and darker: chunks in turns.  Told apart without colours by their letters, too. */
static const struct {
  const char *name, *fill[2];
} bars[TS_N_WORKS] = {[TS_WORK_FORWARD] = {"F, forward", {"#9ec5fe", "#6ea8fe"}},
                      [TS_WORK_INPUT] = {"I, backward of inputs", {"#fecba1", "#fd9843"}},
                      [TS_WORK_WEIGHT] = {"W, backward of weights", {"#c8e6b2", "#94cf6c"}},
                      [TS_WORK_BACKWARD] = {"B, both", {"#f1aeb5", "#ea868f"}}};

static void draw_instance(void *user, int rank, ts_pipeline_instance i, double begin, double end) {
  picture *p = user;
  if (p->bars == MOST_BARS) {
    ++p->left_out;
    return;
  }
  ++p->bars;
  double x = LEFT + begin / p->seconds * WIDTH, width = (end - begin) / p->seconds * WIDTH;
  int y = TOP + rank * ROW;
  ts_text_add(p->to,
              "<g><title>%d%c%lld</title><rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
              "stroke=\"#fff\" stroke-width=\"0.5\"/>",
              ts_pipeline_piece(p->pipeline, rank, i.chunk), bars[i.work].name[0], (long long) i.micro_batch, x, y,
              width, BAR, bars[i.work].fill[i.chunk % 2]);
  if (width > 9) {
    ts_text_add(p->to, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\" font-size=\"%d\">%lld</text>", x + width / 2,
                y + BAR / 2 + 4, width > 22 ? 12 : 8, (long long) i.micro_batch);
  }
  ts_text_add(p->to, "</g>\n");
}

static void draw_kinds(const ts_pipeline *pipeline, double bubble, ts_text *to) {
  ts_text_add(
      to, "<text x=\"%d\" y=\"22\" font-size=\"15\">%s: %d stages, %lld micro-batches, planned bubble %.1f %%</text>\n",
      LEFT, ts_pipeline_name(pipeline->schedule), pipeline->stages, (long long) pipeline->micro_batches, 100 * bubble);
  for (int w = 0; w < TS_N_WORKS; ++w) {
    int x = LEFT + 190 * w;
    ts_text_add(to,
                "<rect x=\"%d\" y=\"34\" width=\"14\" height=\"14\" fill=\"%s\"/><text x=\"%d\" y=\"46\">%s</text>\n",
                x, bars[w].fill[0], x + 20, bars[w].name);
  }
}

ts_status ts_plan_draw_stages(const ts_program_options *options, const char *path, ts_error *err) {
  if (options->mesh->size[TS_AXIS_PP] == 1) {
    return ts_error_add(err,
                        "--schedule %s: a pipeline of one stage has no schedule to draw; pipeline.stages says how "
                        "many there are",
                        path);
  }
  planned p = plan_stages(options);
  ts_text svg = {0}, drawn = {0};
  picture of = {.to = &drawn, .pipeline = &p.pipeline, .seconds = p.times.seconds};
  walk_clock(&p, options, draw_instance, &of);
  ts_text_add(&svg,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
              "font-size=\"12\" fill=\"#24292f\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
              LEFT + WIDTH + 20, TOP + p.n * ROW + 40);
  draw_kinds(&p.pipeline, p.times.bubble, &svg);
  for (int stage = 0; stage < p.n; ++stage) {
    ts_text_add(&svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">stage %d</text>\n", LEFT - 8,
                TOP + stage * ROW + BAR / 2 + 4, stage);
  }
  ts_text_add(&svg, "%s<text x=\"%d\" y=\"%d\">%.3f ms, by nominal rates or the deck's machine</text>\n", drawn.text,
              LEFT, TOP + p.n * ROW + 18, 1e3 * p.times.seconds);
  if (of.left_out > 0) {
    ts_text_add(&svg, "<text x=\"%d\" y=\"%d\">%lld instances more are not drawn</text>\n", LEFT + 400,
                TOP + p.n * ROW + 18, (long long) of.left_out);
  }
  ts_text_add(&svg, "</svg>\n");
  ts_status status = ts_write_file(path, svg.text, svg.length, err);
  ts_text_free(&svg);
  ts_text_free(&drawn);
  end_planned(&p);
  return status;
}
