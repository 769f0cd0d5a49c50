/* Keeps the page up to date while somebody looks at it. Nothing is asked while the tab is hidden. */

const EVERY = 2000, TREE_EVERY = 5;
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
    try {
      if (server.model === null && state === "ready") await page.models();
      const [metrics, open] = await Promise.all([server.ask("/metrics").then((answer) => answer.text()), server.json("/branchpoint/requests")]);
      figures.take(readLook(metrics, server.model, performance.now()));
      requests.update(open);
      if (tree.small && page.looks++ % TREE_EVERY === 0 && state === "ready") await tree.look();
      page.notice("");
    } catch (problem) {
      page.notice(server.barred ? "The server wants an API key for what this page shows." : problem.message);
    }
  },

  /* The state in one word; any answer but ours is none. */
  async health() {
    try {
      const answer = await fetch("/health", { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(PATIENCE) });
      return (await answer.json()).status;
    } catch {
      return "away";
    }
  },

  async models() {
    const { data } = await server.json("/v1/models");
    const names = [...new Set(data.map((card) => card.root))];
    byId("model").replaceChildren(...names.map((name) => make("option", {}, name)));
    byId("models").hidden = names.length < 2;
    server.model = names[0];
    page.tellName(data);
    byId("model").onchange = () => {
      server.model = byId("model").value;
      page.tellName(data);
      page.begin();
    };
  },

  tellName(cards) {
    const card = cards.find((one) => one.root === server.model);
    tell(byId("name"), `${byId("models").hidden ? `${card.root}, ` : ""}${whole(card.max_model_len)} tokens of context`);
  },
};

keys.begin();
figures.begin();
tree.begin();
playground.begin();
document.addEventListener("visibilitychange", () => { if (!document.hidden) page.look(); });
page.begin();
