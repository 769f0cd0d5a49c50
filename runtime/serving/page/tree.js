/* The radix tree: what is cached, by prefix, and how often each stretch was used again. */

const MOST_NODES = 400;

const tree = {
  busy: false,
  small: true, // small enough to be looked at unasked
  closed: new Set(),

  async look() {
    if (tree.busy) return;
    tree.busy = true;
    try {
      tree.show(await server.json(server.ofModel("/cache")));
    } catch (problem) {
      tell(byId("tree-told"), problem.status === 403 ? "Only a key that may manage the server can look into the tree." : problem.message);
      byId("tree").replaceChildren();
    } finally {
      tree.busy = false;
    }
  },

  show(dump) {
    const nodes = dump.nodes.slice(0, MOST_NODES);
    tree.small = dump.nodes.length <= MOST_NODES;
    const more = tree.small ? "" : ` The first ${MOST_NODES} of ${whole(dump.nodes.length)} stretches are shown.`;
    tell(byId("tree-told"), nodes.length
      ? `${whole(dump.num_tokens)} tokens in ${whole(dump.num_pages)} pages; ${whole(dump.num_evictable)} pages could go at once.${more}`
      : "Nothing is cached yet.");
    const below = new Map(), most = Math.max(1, ...nodes.map((node) => node.hits));
    for (const node of nodes) {
      if (!below.has(node.parent)) below.set(node.parent, []);
      below.get(node.parent).push(node);
    }
    byId("tree").replaceChildren(...tree.spaces(below.get(null) ?? []).flatMap(([name, roots]) => [
      ...(name ? [make("p", { class: "quiet" }, `for ${name}`)] : []), tree.list(roots, below, most)]));
    byId("lost").hidden = !dump.lost_reuse.length;
    byId("lost-list").replaceChildren(...dump.lost_reuse.map((each) => make("li", {}, each.message)));
  },

  /* Roots by whose they are. */
  spaces(roots) {
    const found = new Map();
    for (const node of roots) {
      const name = node.namespace.split(/[\u001e\u001f]/).filter(Boolean).join(", ");
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(node);
    }
    return [...found];
  },

  /* A list of siblings and all below them; a tree may be deeper than the browser's stack. */
  list(roots, below, most) {
    const top = make("ul"), waiting = [[top, roots]];
    while (waiting.length) {
      const [list, nodes] = waiting.pop();
      for (const node of nodes) {
        const children = below.get(node.id) ?? [];
        if (!children.length) {
          list.append(make("li", {}, make("div", { class: "leaf" }, ...tree.line(node, most))));
          continue;
        }
        const inner = make("ul");
        list.append(make("li", {}, tree.branch(node, most, inner)));
        waiting.push([inner, children]);
      }
    }
    return top;
  },

  branch(node, most, inner) {
    const name = `${node.namespace}\n${node.start}\n${node.text}`;
    const details = make("details", {}, make("summary", {}, ...tree.line(node, most)), inner);
    details.open = !tree.closed.has(name);
    details.addEventListener("toggle", () => (details.open ? tree.closed.delete(name) : tree.closed.add(name)));
    return details;
  },

  line(node, most) {
    const cut = node.num_tokens > node.tokens.length ? " …" : "";
    const text = `${node.text ?? ""}${cut}`;
    const hits = make("span", { class: "hits" }, `${whole(node.hits)} ${node.hits === 1 ? "hit" : "hits"}`);
    hits.style.setProperty("--share", `${(100 * node.hits) / most}%`);
    const used = node.idle_seconds < 1 ? "just now" : `${duration(Math.round(node.idle_seconds))} ago`;
    const host = node.tier === "host" ? ", in host memory" : "";
    return [
      make("span", { class: "says mono", title: text }, text.replaceAll("\n", "⏎") || "·"),
      make("span", { class: "told" }, `${whole(node.num_tokens)} ${node.num_tokens === 1 ? "token" : "tokens"}, ${used}${host}`), hits];
  },

  begin() {
    byId("tree-refresh").addEventListener("click", tree.look);
  },
};
