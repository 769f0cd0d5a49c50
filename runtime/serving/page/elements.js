"use strict";
/* Finds and makes elements. Whatever comes from users or models goes in as text, never as markup. */

const byId = (id) => document.getElementById(id);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const make = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

const draw = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/* Sets text only where it is another, so that a reader's selection stays. */
function tell(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const whole = (value) => Math.round(value).toLocaleString("en");

/* Three digits or so. */
function short(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value >= 100) return whole(value);
  return String(Number(value >= 10 ? value.toFixed(1) : value >= 0.1 ? value.toFixed(2) : value.toPrecision(1)));
}

function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${short(seconds * 1000)} ms`;
  return seconds < 100 ? `${short(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}
