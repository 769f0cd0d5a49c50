/* Runs one prompt through the native route, whose events tell what the grammar forced, and what a token cost. */

const RULES = { json_schema: "Schema", choice: "Lines to choose from", regex: "Pattern" };
const EXAMPLES = [
  { name: "JSON of a schema", form: "json_schema", most: 160,
    prompt: "Ada Lovelace, born 1815 in London, wrote the first program for Babbage's engine. Describe her as JSON.",
    rule: JSON.stringify({ type: "object", additionalProperties: false, required: ["name", "born", "city", "fields"], properties: {
      name: { type: "string", maxLength: 40 }, born: { type: "integer", minimum: 1700, maximum: 2000 },
      city: { enum: ["London", "Paris", "Turin"] },
      fields: { type: "array", minItems: 1, maxItems: 3, uniqueItems: true, items: { enum: ["mathematics", "programming", "poetry", "music"] } } } }, null, 2) },
  { name: "One of a list", form: "choice", most: 20, prompt: "A customer writes: \"I was charged twice this month.\" Which team should answer?",
    rule: "billing\nlogin\nshipping\nsomething else" },
  { name: "A date, by pattern", form: "regex", most: 20, prompt: "When did people first walk on the moon? Answer with a date like 1999-12-31.",
    rule: "(19|20)\\d\\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])" },
  { name: "Free text", form: "text", most: 80, prompt: "Why is the sky blue? Answer in two sentences.", rule: "" },
];

const playground = {
  running: null, // what ends the run that is under way

  begin() {
    byId("example").replaceChildren(...EXAMPLES.map((one, place) => make("option", { value: place }, one.name)));
    byId("example").addEventListener("change", () => playground.fill(EXAMPLES[byId("example").value]));
    byId("form").addEventListener("change", playground.showRule);
    byId("stop").addEventListener("click", () => playground.running?.abort());
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      playground.run();
    });
    byId("ask").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        playground.run();
      }
    });
    playground.fill(EXAMPLES[0]);
  },

  fill(example) {
    for (const name of ["prompt", "form", "rule", "most"]) byId(name).value = example[name];
    playground.showRule();
  },

  showRule() {
    const form = byId("form").value;
    byId("rule-box").hidden = form === "text";
    tell(byId("rule-label"), RULES[form] ?? "");
  },

  /* What the output is held to, as the server takes it; throws where a schema isn't JSON. */
  constraint(form, rule) {
    if (form === "choice") return { type: "choice", options: rule.split("\n").filter(Boolean) };
    if (form === "regex") return { type: "regex", pattern: rule };
    if (form !== "json_schema") return null;
    try {
      JSON.parse(rule);
    } catch (error) {
      throw new Problem(400, `The schema isn't JSON: ${error.message}`);
    }
    return { type: "json_schema", schema: rule };
  },

  async run() {
    if (playground.running !== null) return;
    const control = (playground.running = new AbortController());
    const form = byId("form").value, output = new Output(form);
    playground.show(true, "Running…");
    try {
      const constraint = playground.constraint(form, byId("rule").value);
      await playground.stream(constraint, output, control.signal);
      playground.show(false, output.end());
    } catch (problem) {
      output.fail(problem.name === "AbortError" ? "Stopped." : problem.message);
      playground.show(false, problem.name === "AbortError" ? "Stopped." : "Failed.");
    }
    playground.running = null;
    tree.look();
  },

  show(running, told) {
    byId("run").disabled = running;
    byId("stop").disabled = !running;
    tell(byId("ran"), told);
  },

  async stream(constraint, output, signal) {
    const model = server.model ?? undefined, prompt = byId("prompt").value, chat = byId("chat").checked;
    let segment = { type: "text", text: prompt };
    if (chat) {
      const messages = [{ role: "user", content: prompt }];
      segment = { type: "text", special: true, text: (await server.json("/branchpoint/render", { body: { messages, model }, signal })).prompt };
    }
    const sampling = { max_tokens: Number(byId("most").value), temperature: Number(byId("temperature").value) };
    const body = { model, segments: [segment], sampling, constraint, stream: true, events: true };
    const response = await server.ask("/generate", { body, signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.trim()) output.take(JSON.parse(line));
      if (done) return;
    }
  },
};
