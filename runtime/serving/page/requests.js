/* The table of live requests. Rows stay where their request does, so that a button under a finger is still that one. */

const requests = {
  rows: new Map(),

  update(answer) {
    const body = byId("requests"), seen = new Set();
    for (const one of answer.data) {
      const name = `${one.key}\n${one.model}\n${one.id}`;
      seen.add(name);
      if (!requests.rows.has(name)) requests.rows.set(name, requests.row(one));
      const { element, cells } = requests.rows.get(name);
      tell(cells.phase, one.phase);
      tell(cells.output, whole(one.output_tokens));
      tell(cells.time, duration(one.seconds));
      if (!element.isConnected) body.append(element);
    }
    for (const [name, { element }] of requests.rows) {
      if (seen.has(name)) continue;
      element.remove();
      requests.rows.delete(name);
    }
    tell(byId("requests-count"), answer.total > answer.data.length ? `${answer.data.length} of ${answer.total}` : `${answer.total}`);
    byId("requests-empty").hidden = answer.total > 0;
  },

  row(one) {
    const cells = { phase: make("td"), output: make("td", { class: "number" }), time: make("td", { class: "number" }) };
    const end = make("button", { type: "button", "aria-label": `End ${one.id}` }, "End");
    end.addEventListener("click", async () => {
      end.disabled = true;
      try {
        await server.ask("/abort_request", { body: { rid: one.id } });
      } catch (problem) {
        page.notice(problem.message);
      }
    });
    const route = one.calls > 1 ? `${one.path} × ${one.calls}` : one.path;
    const element = make("tr", {},
      make("td", { class: "id mono", title: one.id }, one.id), make("td", {}, route), make("td", { class: "wide" }, one.key || "–"),
      cells.phase, make("td", { class: "number" }, whole(one.prompt_tokens)), cells.output, cells.time, make("td", {}, end));
    return { element, cells };
  },
};
