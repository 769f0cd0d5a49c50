/* Keeps the page up to date while somebody looks at it. Nothing is asked while the tab is hidden. */

const EVERY = 2000, SELDOM = 5;
const STATES = {
  ready: "Ready", loading: "Loading the model…", draining: "Ending: no new requests", dead: "The engine is gone",
  stuck: "The engine doesn't answer", away: "No answer from the server",
};

const page = {
  state: "asking",
  looks: 0,
  timer: null,

  notice(text) {
    tell(byId("notice"), text);
    byId("notice").hidden = !text;
  },

  /* Look at everything now, and from now on. */
  begin() {
    page.state = "asking";
    page.looks = 0;
    figures.clear();
    clearTimeout(page.timer);
    page.look();
  },

  async look() {
    clearTimeout(page.timer);
    if (!document.hidden) await page.refresh();
    clearTimeout(page.timer);
    page.timer = setTimeout(page.look, EVERY);
  },

  async refresh() {
    const state = await page.health();
    if (state !== page.state) {
      page.state = state;
      byId("state").dataset.state = state;
      tell(byId("state"), STATES[state] ?? state);
    }
    if (server.barred || state === "away" || state === "loading") return;
    const ready = state === "ready", seldom = page.looks++ % SELDOM === 0;
    try {
      if (ready && (seldom || server.model === null)) await page.models();
      const [metrics, open] = await Promise.all([server.ask("/metrics").then((answer) => answer.text()), server.json("/branchpoint/requests")]);
      figures.take(readLook(metrics, server.model, performance.now()));
      requests.update(open);
      if (ready && seldom && tree.small) await tree.look();
      page.notice("");
    } catch (problem) {
      page.notice(server.barred ? "The server wants an API key for what this page shows." : problem.message);
    }
  },

  /* The state of the model in one word, or of the best one while none is chosen; any answer but ours is none. */
  async health() {
    try {
      const answer = await fetch(server.ofModel("/health"), { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(PATIENCE) });
      const { status, models } = await answer.json();
      return Object.values(models ?? {}).includes("ready") ? "ready" : status;
    } catch {
      return "away";
    }
  },

  /* Which models are there; one that is still loading comes later. */
  async models() {
    const { data } = await server.json("/v1/models");
    const contexts = new Map(data.map((card) => [card.root, card.max_model_len]));
    const choice = byId("model");
    for (const name of contexts.keys()) {
      if (![...choice.options].some((option) => option.value === name)) choice.append(make("option", {}, name));
    }
    server.model ??= choice.value;
    byId("models").hidden = choice.options.length < 2;
    if (!contexts.has(server.model)) return;
    const context = `${whole(contexts.get(server.model))} tokens of context`;
    tell(byId("name"), byId("models").hidden ? `${server.model}, ${context}` : context);
  },
};

keys.begin();
figures.begin();
tree.begin();
playground.begin();
byId("model").addEventListener("change", () => {
  server.model = byId("model").value;
  page.begin();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) page.look(); });
page.begin();
