// Line charts over time, in SVG.

import { h, render, svg } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 132;
const MARGIN = { left: 58, right: 10, top: 8, bottom: 20 };
const SPAN_MS_MIN = 60_000;
const TIME_LABEL_PX = 110;

// A chart of one or more lines: `lines` are {label, name}, `format` puts a value into words, `axis`
// does so in few characters.
// `node` stays the same; `update` draws new values.
export class Chart {
  #title;
  #lines;
  #format;
  #axis;
  #times = [];
  #values = {};
  #width = 0;
  #at = null; // index of the point under the pointer
  #plot = svg("svg", { height: HEIGHT, role: "img", tabindex: "0" });
  #legend = h("figcaption");

  constructor(title, lines, format, axis = format) {
    this.#title = title;
    this.#lines = lines;
    this.#format = format;
    this.#axis = axis;
    this.node = h("figure", { class: "chart" }, this.#legend, this.#plot);
    this.#plot.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    this.#plot.addEventListener("pointerleave", () => this.#show(null));
    this.#plot.addEventListener("blur", () => this.#show(null));
    this.#plot.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width === this.#width) return;
      this.#width = width;
      this.#draw();
    }).observe(this.node);
  }

  // Draw new data: `times` in milliseconds, and a list of numbers or nulls for each line's name.
  update(times, values) {
    this.#times = times;
    this.#values = values;
    if (this.#at !== null && this.#at >= times.length) this.#at = null;
    this.#draw();
  }

  #show(index) {
    if (index === this.#at) return;
    this.#at = index;
    this.#draw();
  }

  #point(px) {
    const { length } = this.#times;
    if (!length) return;
    const scale = this.#scale();
    let best = 0;
    for (let at = 1; at < length; at += 1) {
      if (Math.abs(scale.x(this.#times[at]) - px) < Math.abs(scale.x(this.#times[best]) - px)) best = at;
    }
    this.#show(best);
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.#times.length) return;
    event.preventDefault();
    const last = this.#times.length - 1;
    this.#show(Math.min(last, Math.max(0, (this.#at ?? last) + step)));
  }

  #scale() {
    const times = this.#times;
    const end = times.at(-1) ?? 0;
    const start = Math.min(times[0] ?? 0, end - SPAN_MS_MIN);
    let top = 0;
    for (const { name } of this.#lines) {
      for (const value of this.#values[name] ?? []) if (value > top) top = value;
    }
    top = roundUp(top);
    const width = Math.max(10, this.#width - MARGIN.left - MARGIN.right);
    const height = HEIGHT - MARGIN.top - MARGIN.bottom;
    return {
      start,
      end,
      top,
      x: (time) => MARGIN.left + ((time - start) / (end - start || 1)) * width,
      y: (value) => MARGIN.top + height - (value / top) * height,
    };
  }

  #draw() {
    this.#drawLegend();
    if (!this.#width) return;
    this.#plot.setAttribute("width", this.#width);
    this.#plot.setAttribute("aria-label", this.#summary());
    if (!this.#times.length) {
      const text = svg("text", { x: MARGIN.left, y: HEIGHT / 2 }, "No data yet");
      this.#plot.replaceChildren(text);
      return;
    }
    const scale = this.#scale();
    const lines = this.#lines.map(({ name }, at) => this.#line(scale, this.#values[name] ?? [], at));
    this.#plot.replaceChildren(...this.#axes(scale), ...lines.flat(), ...this.#cursor(scale));
  }

  #drawLegend() {
    const at = this.#at ?? this.#times.length - 1;
    const single = this.#lines.length === 1;
    render(
      this.#legend,
      h("strong", {}, this.#title),
      this.#lines.map(({ label, name }, line) =>
        h(
          "span",
          { class: "series" },
          single ? null : h("span", { class: `swatch line${line}`, "aria-hidden": "true" }),
          single ? null : `${label} `,
          h("b", {}, this.#format(this.#values[name]?.[at] ?? null)),
        ),
      ),
      this.#at === null ? null : h("time", {}, clock(this.#times[at])),
    );
  }

  #summary() {
    const parts = this.#lines.map(({ label, name }) => {
      const known = (this.#values[name] ?? []).filter((value) => value !== null);
      if (!known.length) return `${label}: no data`;
      const now = this.#format(this.#values[name].at(-1));
      return `${label}: now ${now}, highest ${this.#format(Math.max(...known))}`;
    });
    return `${this.#title}. ${parts.join(". ")}. Arrow keys move through the points.`;
  }

  #axes(scale) {
    const right = this.#width - MARGIN.right;
    const marks = [0, 0.5, 1].map((share) => {
      const y = Math.round(scale.y(scale.top * share)) + 0.5;
      return [
        svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y, y2: y }),
        svg("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, this.#axis(scale.top * share)),
      ];
    });
    const labels = Math.max(2, Math.floor((right - MARGIN.left) / TIME_LABEL_PX));
    const times = [];
    for (let at = 0; at < labels; at += 1) {
      const share = at / (labels - 1);
      const anchor = at === 0 ? "start" : at === labels - 1 ? "end" : "middle";
      const time = scale.start + share * (scale.end - scale.start);
      times.push(svg("text", { x: scale.x(time), y: HEIGHT - 5, "text-anchor": anchor }, clock(time)));
    }
    return [...marks.flat(), ...times];
  }

  // Return the area and the line; a point that is not known makes a gap.
  #line(scale, values, at) {
    const runs = [];
    let run = null;
    values.forEach((value, index) => {
      if (value === null || value === undefined) {
        run = null;
        return;
      }
      if (!run) runs.push((run = []));
      run.push([scale.x(this.#times[index]).toFixed(1), scale.y(value).toFixed(1)]);
    });
    const floor = scale.y(0).toFixed(1);
    const path = runs.map((points) => `M${points.map((point) => point.join(",")).join("L")}`).join("");
    const area = runs
      .filter((points) => points.length > 1)
      .map((points) => `M${points[0][0]},${floor}L${points.map((point) => point.join(",")).join("L")}L${points.at(-1)[0]},${floor}Z`)
      .join("");
    const dots = runs
      .filter((points) => points.length === 1)
      .map(([[x, y]]) => svg("circle", { class: `dot line${at}`, cx: x, cy: y, r: 2 }));
    const shape = svg("path", { class: `area line${at}`, d: area });
    return [shape, svg("path", { class: `stroke line${at}`, d: path }), ...dots];
  }

  #cursor(scale) {
    if (this.#at === null) return [];
    const x = scale.x(this.#times[this.#at]);
    const bar = svg("line", {
      class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom,
    });
    const dots = this.#lines.map(({ name }, at) => {
      const value = this.#values[name]?.[this.#at];
      if (value === null || value === undefined) return null;
      return svg("circle", { class: `dot line${at}`, cx: x, cy: scale.y(value), r: 3.5 });
    });
    return [bar, ...dots.filter(Boolean)];
  }
}

// Return the next of 1, 2 and 5 times a power of ten.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 5, 10]) if (step * power >= value) return step * power;
  return 10 * power;
}
