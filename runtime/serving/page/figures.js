/* The figures of now and their plots, from one look at /metrics after another. */

const SPAN = 5 * 60 * 1000, LEAST_SPAN = 60 * 1000, WINDOW = 10 * 1000;
const TTFT = "time_to_first_token_seconds", ITL = "inter_token_latency_seconds";

const figures = {
  looks: [],
  points: { tokens: [], first: [], next: [] },
  plots: {
    tokens: new Plot("Tokens per second", ["generated", "prompt, computed", "prompt, from cache"], short),
    first: new Plot("Time to the first token", ["half within", "nine of ten within"], duration),
    next: new Plot("Time between tokens", ["half within", "nine of ten within"], duration),
  },

  begin() {
    byId("plots").replaceChildren(...Object.values(figures.plots).map((plot) => plot.element));
    figures.clear();
  },

  /* Another model, or another server: nothing of before counts. */
  clear() {
    figures.looks = [];
    for (const name of Object.keys(figures.points)) figures.points[name] = [];
    figures.redraw();
  },

  take(look) {
    const { looks, points } = figures;
    looks.push(look);
    while (looks.length > 2 && look.time - looks[1].time >= WINDOW) looks.shift();
    const before = looks[0];
    if (before !== look) {
      const cached = rate("prompt_tokens_cached_total", before, look);
      points.tokens.push([look.time, [rate("generation_tokens_total", before, look), rate("prompt_tokens_total", before, look) - cached, cached]]);
      for (const [name, series] of [["first", TTFT], ["next", ITL]]) {
        points[name].push([look.time, [0.5, 0.9].map((part) => quantile(series, part, before, look))]);
      }
    }
    for (const series of Object.values(points)) while (series.length && look.time - series[0][0] > SPAN) series.shift();
    figures.redraw();
    figures.tell(before, look);
  },

  redraw() {
    const { tokens } = figures.points;
    const span = tokens.length ? Math.max(LEAST_SPAN, tokens[tokens.length - 1][0] - tokens[0][0]) : LEAST_SPAN;
    for (const [name, plot] of Object.entries(figures.plots)) plot.update(figures.points[name], span);
  },

  tell(before, look) {
    const value = (name) => look.values.get(name) ?? 0;
    const percent = (part, all) => (all > 0 ? `${Math.round((100 * part) / all)} %` : "–");
    const prompt = value("prompt_tokens_total"), output = value("generation_tokens_total");
    figures.show([
      ["Generated", `${short(rate("generation_tokens_total", before, look))} /s`, `${whole(output)} tokens since the start`],
      ["Running", whole(value("num_requests_running")), `${whole(value("num_requests_waiting"))} waiting`],
      ["Memory for KV", percent(value("kv_cache_usage_perc"), 1), `in use, ${percent(value("kv_cache_kept_perc"), 1)} more kept`],
      ["Prompts from cache", percent(value("prompt_tokens_cached_total"), prompt), `of ${whole(prompt)} tokens`],
      ["Forced by grammars", percent(value("forced_tokens_total"), output), "of generated tokens"],
      ["Drafts that held", percent(value("spec_decode_num_accepted_tokens_total"), value("spec_decode_num_draft_tokens_total")),
        `${whole(value("spec_decode_num_accepted_tokens_total"))} tokens`],
    ]);
  },

  show(told) {
    byId("figures").replaceChildren(...told.map(([name, value, more]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value), make("dd", { class: "more" }, more))));
  },
};
