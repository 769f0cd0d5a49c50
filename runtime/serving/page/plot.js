/* A small plot of lines over the last minutes, with the latest values as text below it. */

const WIDTH = 360, HEIGHT = 150, LEFT = 46, BOTTOM = 18, TOP = 8;

/* A round number at or above `value`, so that the axis reads well. */
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

class Plot {
  /* `lines` are their names, `show` writes a value. */
  constructor(title, lines, show) {
    this.lines = lines;
    this.show = show;
    this.picture = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.legend = make("ul");
    this.element = make("div", { class: "plot" }, make("h3", {}, title), this.picture, this.legend);
    this.title = title;
  }

  /* Draws `points`, `[time, [value or null of each line]]`, oldest first, over the `span` milliseconds before the last. */
  update(points, span) {
    const end = points.length ? points[points.length - 1][0] : 0;
    const most = ceiling(Math.max(0, ...points.flatMap(([, values]) => values.filter((value) => value !== null))));
    const x = (time) => LEFT + (WIDTH - LEFT - 6) * (1 - (end - time) / span);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
    const parts = [0, 0.5, 1].flatMap((part) => [
      draw("line", { class: "grid", x1: LEFT, x2: WIDTH - 6, y1: y(part * most), y2: y(part * most) }),
      draw("text", { x: LEFT - 6, y: y(part * most) + 4, "text-anchor": "end" }, this.show(part * most)),
    ]);
    parts.push(draw("text", { x: LEFT, y: HEIGHT - 3 }, `${duration(Math.round(span / 1000))} ago`));
    parts.push(draw("text", { x: WIDTH - 6, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
    this.lines.forEach((_, line) => parts.push(...this.strokes(points, line, x, y)));
    this.picture.replaceChildren(...parts);
    this.tell(points.length ? points[points.length - 1][1] : this.lines.map(() => null));
  }

  /* Unbroken stretches are lines, single values dots. */
  strokes(points, line, x, y) {
    const stretches = [[]];
    for (const [time, values] of points) {
      if (values[line] === null) stretches.push([]);
      else stretches[stretches.length - 1].push([x(time), y(values[line])]);
    }
    return stretches.filter((stretch) => stretch.length).map((stretch) => stretch.length === 1
      ? draw("circle", { class: "dot", "data-line": line, cx: stretch[0][0], cy: stretch[0][1], r: 2 })
      : draw("path", { class: "line", "data-line": line, d: `M${stretch.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}` }));
  }

  tell(values) {
    const told = this.lines.map((name, line) => `${name} ${this.show(values[line])}`);
    this.picture.setAttribute("aria-label", `${this.title}: ${told.join(", ")}`);
    this.legend.replaceChildren(...told.map((text, line) => make("li", { "data-line": line }, text)));
  }
}
