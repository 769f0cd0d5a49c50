/* What one run says: its text with the forced stretches marked, whether it is valid, and what its tokens cost. */

class Output {
  constructor(form) {
    this.form = form;
    this.text = "";
    this.began = performance.now();
    this.first = null;
    this.reason = null;
    this.narrowed = [];
    this.usage = null;
    byId("output").replaceChildren();
    byId("counts").hidden = byId("valid").hidden = true;
  }

  take(event) {
    if (event.type === "delta") this.delta(event);
    else if (event.type === "sample") [this.reason, this.narrowed] = [event.reason, event.narrowed];
    else if (event.type === "completed") this.usage = event.usage;
    else if (event.type === "failed") throw new Problem(500, event.message);
  }

  /* `forced` are stretches of the text in characters, as Python counts them: whole code points. */
  delta(event) {
    this.first ??= performance.now();
    this.text += event.text;
    const letters = [...event.text], pieces = [];
    let place = 0;
    for (const [start, end] of event.forced) {
      pieces.push(letters.slice(place, start).join(""), make("span", { class: "forced" }, letters.slice(start, end).join("")));
      place = end;
    }
    const output = byId("output");
    output.append(...pieces, letters.slice(place).join(""));
    output.scrollTop = output.scrollHeight;
  }

  fail(message) {
    byId("output").append(make("p", { class: "error" }, message));
  }

  /* The run is over: shows all that is known; what to tell of it in words. */
  end() {
    const badge = byId("valid"), cut = this.reason === "length";
    badge.hidden = this.form === "text" && !cut;
    const valid = !cut && (this.form !== "json_schema" || isJson(this.text));
    badge.className = valid ? "badge good" : "badge bad";
    tell(badge, cut ? "cut: it may take more tokens" : this.form === "json_schema" ? (valid ? "valid JSON" : "not JSON") : "as asked");
    if (this.usage !== null) this.count(this.usage);
    const stricter = this.narrowed.length ? ` Held more strictly than the schema asks: ${this.narrowed.join("; ")}.` : "";
    return `Done in ${duration((performance.now() - this.began) / 1000)}.${stricter}`;
  }

  count(usage) {
    const { prompt_tokens: prompt, cached_tokens: cached, completion_tokens: output, forced_tokens: forced, accepted_tokens: accepted } = usage;
    showMix(byId("prompt-mix"), `Prompt: ${whole(prompt)} tokens`, [["reused", "from cache", cached], ["computed", "computed", prompt - cached]]);
    showMix(byId("output-mix"), `Output: ${whole(output)} tokens`, [
      ["forced", "forced by the grammar", forced], ["accepted", `of ${whole(usage.drafted_tokens)} drafted held`, accepted],
      ["sampled", "sampled one by one", output - forced - accepted]]);
    const wait = this.first === null ? null : (this.first - this.began) / 1000;
    const speed = output / Math.max(1e-3, (performance.now() - this.began) / 1000);
    tell(byId("times"), `First text after ${duration(wait)}, ${short(speed)} tokens a second in all.`);
    byId("counts").hidden = false;
  }
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/* A bar of shares with their counts in words below; `parts` are kind, words and count. */
function showMix(element, title, parts) {
  const bar = make("div", { class: "bar", "aria-hidden": "true" });
  for (const [kind, , count] of parts) {
    const piece = make("i", { "data-kind": kind });
    piece.style.flexGrow = count;
    bar.append(piece);
  }
  const words = parts.filter(([, , count]) => count > 0).map(([kind, told, count]) => make("li", { "data-kind": kind }, `${whole(count)} ${told}`));
  element.replaceChildren(title, bar, make("ul", {}, ...words));
}
