/* Reads /metrics: what the counters and histograms of one model were at a time, and what lies between two times. */

const PREFIX = "branchpoint:";
const SERIES = /^branchpoint:([a-z_]+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;

/* A look: `values` are sums by name, `buckets` cumulative counts by name and upper bound. */
function readLook(text, model, time) {
  const values = new Map(), buckets = new Map();
  for (const line of text.split("\n")) {
    if (!line.startsWith(PREFIX)) continue;
    const found = SERIES.exec(line);
    if (found === null || found[1].endsWith("_created")) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map((one) => [one[1], one[2].replace(/\\(.)/g, "$1")]));
    if (model !== null && labels.model_name !== model) continue;
    const value = Number(found[3]);
    if ("le" in labels) {
      const name = found[1].replace(/_bucket$/, "");
      if (!buckets.has(name)) buckets.set(name, []);
      buckets.get(name).push([labels.le === "+Inf" ? Infinity : Number(labels.le), value]);
    } else values.set(found[1], (values.get(found[1]) ?? 0) + value);
  }
  return { time, values, buckets };
}

/* How much a counter grew from one look to another; one that began anew counts from 0. */
function growth(name, before, after) {
  const last = after.values.get(name) ?? 0, first = before.values.get(name) ?? 0;
  return last >= first ? last - first : last;
}

const rate = (name, before, after) => growth(name, before, after) / Math.max(1e-3, (after.time - before.time) / 1000);

/* A quantile of what was observed between two looks, evenly spread within its bucket; null where nothing was. */
function quantile(name, part, before, after) {
  const old = new Map(before.buckets.get(name) ?? []);
  const counts = (after.buckets.get(name) ?? []).map(([bound, count]) => [bound, count - (old.get(bound) ?? 0)]);
  const total = counts.length ? counts[counts.length - 1][1] : 0;
  if (total <= 0) return null;
  let low = 0, below = 0;
  for (const [bound, count] of counts) {
    if (count >= part * total) {
      return Number.isFinite(bound) ? low + ((bound - low) * (part * total - below)) / Math.max(1, count - below) : low;
    }
    [low, below] = [bound, count];
  }
  return low;
}
