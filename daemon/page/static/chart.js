// One chart: a field of a node over time, one line a GPU, the chosen GPU before its siblings.

import { clock, draw, figure, make, unitOf } from "./words.js";

const LEFT = 42;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

export const TITLES = {
  temperature_celsius: "Temperature", memory_temperature_celsius: "Memory temperature",
  power_watts: "Power", utilization_ratio: "Utilisation", ecc_corrected_total: "ECC errors, corrected",
  sm_clock_hertz: "SM clock", memory_used_bytes: "Memory used", pcie_replays_total: "PCIe replays",
  ecc_uncorrected_total: "ECC errors, uncorrected", remapped_rows_uncorrected_total: "Remapped rows",
  nvlink_crc_errors_total: "NVLink CRC errors", sm_activity_ratio: "SM activity",
  graphics_activity_ratio: "Graphics activity",
};

/** Round steps between low and high: 1, 2 or 5 times a power of ten. */
export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
  const made = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) made.push(Number(at.toPrecision(12)));
  return made;
}

/** Round times between two, in ms: 1, 2, 5, 10, 15, 30 minutes, hours, days. */
export function timeTicks(start, end, count) {
  const minute = 60000;
  const steps = [1 / 6, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080].map((n) => n * minute);
  const step = steps.find((n) => (end - start) / n <= count) || steps[steps.length - 1];
  const made = [];
  for (let at = Math.ceil(start / step) * step; at <= end; at += step) made.push(at);
  return { made, seconds: step < minute };
}

export class Chart {
  constructor(field) {
    this.field = field;
    this.chosen = "";
    this.title = make("h4");
    this.now = make("span", { class: "now" });
    this.svg = draw("svg", { role: "img" });
    this.readout = make("div", { class: "readout", hidden: "" });
    this.element = make("figure", { class: "chart" }, make("figcaption", {}, this.title, this.now), this.svg, this.readout);
    this.svg.addEventListener("mousemove", (event) => this.hover(event));
    this.svg.addEventListener("mouseleave", () => this.leave());
    new ResizeObserver(() => requestAnimationFrame(() => this.paint())).observe(this.element);
  }

  show(series, chosen, marks) {
    this.series = series;
    this.field = series.field;
    this.title.textContent = TITLES[series.field] || series.field.replaceAll("_", " ");
    this.title.title = series.help;
    this.chosen = chosen;
    this.marks = marks;
    this.paint();
  }

  scale() {
    const { factor } = unitOf(this.field);
    let low = Infinity;
    let high = -Infinity;
    for (const line of this.series.lines) {
      for (const value of line.values) {
        if (value === null) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    if (low === Infinity) return null;
    low *= factor;
    high *= factor;
    if (this.field.endsWith("_ratio")) return [0, Math.max(100, high)];
    if (this.series.kind === "counter") return [low, Math.max(high, low + 4)];
    const room = Math.max((high - low) * 0.08, Math.abs(high) * 0.02, 1e-9);
    return [low - room, high + room];
  }

  paint() {
    const width = this.element.clientWidth;
    // The caption stands above; what is left of the figure's height is the chart's.
    const HEIGHT = Math.max(90, this.element.clientHeight - 20);
    if (!width || !this.series) return;
    const svg = this.svg;
    svg.setAttribute("width", width);
    svg.setAttribute("height", HEIGHT);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.replaceChildren();
    const { unit, factor } = unitOf(this.field);
    const range = this.scale();
    const { start_ms: start, end_ms: end, times_ms: times, lines } = this.series;
    this.now.textContent = "";
    if (!range) {
      svg.append(draw("text", { class: "none", x: width / 2, y: HEIGHT / 2 }, "not read"));
      svg.setAttribute("aria-label", `${this.title.textContent}: not read`);
      return;
    }
    const x = (ms) => LEFT + ((ms - start) / Math.max(1, end - start)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - (value - range[0]) / (range[1] - range[0])) * (HEIGHT - TOP - BOTTOM);
    this.x = x;
    for (const at of ticks(range[0], range[1], HEIGHT > 170 ? 6 : 4)) {
      svg.append(draw("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at) }));
      svg.append(draw("text", { class: "tick y", x: LEFT - 5, y: y(at) + 3.5 }, figure(at, 4)));
    }
    const { made, seconds } = timeTicks(start, end, Math.max(2, Math.floor(width / 85)));
    for (const at of made) {
      const place = x(at);
      if (place > width - 16 || place < LEFT + 8) continue;
      svg.append(draw("line", { class: "rule short", x1: place, x2: place, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 3 }));
      svg.append(draw("text", { class: "tick x", x: place, y: HEIGHT - 5 }, clock(at, seconds)));
    }
    for (const mark of this.marks || []) {
      const at = new Date(mark.time).getTime();
      if (at < start || at > end) continue;
      svg.append(draw("line", { class: `mark ${mark.kind}`, x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM },
        draw("title", {}, mark.text)));
    }
    const path = (values) => {
      let out = "";
      let down = false;
      values.forEach((value, i) => {
        if (value === null) { down = false; return; }
        out += `${down ? "L" : "M"}${x(times[i]).toFixed(1)} ${y(value * factor).toFixed(1)}`;
        down = true;
      });
      return out;
    };
    const siblings = lines.filter((line) => line.name !== this.chosen);
    for (const line of siblings) svg.append(draw("path", { class: "sibling", d: path(line.values) }));
    const own = lines.find((line) => line.name === this.chosen);
    if (own) {
      svg.append(draw("path", { class: "own", d: path(own.values) }));
      const last = own.values.findLastIndex((value) => value !== null);
      if (last >= 0) {
        svg.append(draw("circle", { class: "own-end", cx: x(times[last]), cy: y(own.values[last] * factor), r: 2.6 }));
        const others = siblings.map((line) => line.values[last]).filter((v) => v !== null).sort((a, b) => a - b);
        const middle = others.length ? others[Math.floor(others.length / 2)] * factor : null;
        const value = own.values[last] * factor;
        this.now.append(make("b", {}, `${figure(value)} ${unit}`));
        if (last < own.values.length - 3) this.now.append(make("em", {}, ` until ${clock(times[last], false)}`));
        else if (middle !== null) this.now.append(` siblings ${figure(middle)}`);
      }
    }
    this.cursor = draw("line", { class: "cursor", x1: -9, x2: -9, y1: TOP, y2: HEIGHT - BOTTOM });
    svg.append(this.cursor);
    this.read();
    svg.setAttribute("aria-label", `${this.title.textContent} of ${this.series.node}: ${this.chosen} ${this.now.textContent}`);
  }

  hover(event) {
    this.place = event.clientX - this.svg.getBoundingClientRect().left;
    this.read();
  }

  // Reads out where the mouse stands; again after every repaint, for new readings move the lines.
  read() {
    const place = this.place;
    if (place === undefined || !this.series || !this.cursor || !this.x) return;
    const { times_ms: times, lines } = this.series;
    let near = 0;
    times.forEach((ms, i) => { if (Math.abs(this.x(ms) - place) < Math.abs(this.x(times[near]) - place)) near = i; });
    const at = this.x(times[near]);
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
    const { unit, factor } = unitOf(this.field);
    this.readout.replaceChildren(make("b", {}, `${clock(times[near])} UTC`));
    for (const line of lines) {
      const value = line.values[near];
      const text = value === null ? "not read" : `${figure(value * factor, 4)} ${unit}`;
      this.readout.append(make("span", { class: line.name === this.chosen ? "own" : "" }, line.name, make("i", {}, text)));
    }
    this.readout.hidden = false;
    this.readout.style.left = `${at > this.element.clientWidth / 2 ? Math.max(0, at - 150) : at + 12}px`;
  }

  leave() {
    this.place = undefined;
    this.readout.hidden = true;
    if (this.cursor) { this.cursor.setAttribute("x1", -9); this.cursor.setAttribute("x2", -9); }
  }
}
