// The node that is looked at: verdict, GPU chips, charts, why, and what happened.

import { Chart } from "./chart.js";
import { KINDS, age, clock, figure, kindOf, make, odds, outlook, plainReason } from "./words.js";

// Always shown; then the two of SOMETIMES that tell most about the chosen GPU.
const ALWAYS = ["temperature_celsius", "power_watts", "utilization_ratio", "memory_temperature_celsius"];
const SOMETIMES = [
  "sm_activity_ratio", "graphics_activity_ratio",
  "sm_clock_hertz", "ecc_corrected_total", "remapped_rows_uncorrected_total", "ecc_uncorrected_total",
  "nvlink_crc_errors_total", "pcie_replays_total", "memory_used_bytes",
];
export const FIELDS = [...ALWAYS, ...SOMETIMES];
const SLOTS = 6;

// How much a counter of the chosen GPU grew beyond its siblings; 0 for what is no counter.
function tells(series, chosen) {
  if (series.kind !== "counter") return 0;
  const grown = (line) => {
    const read = line.values.filter((value) => value !== null);
    return read.length ? Math.max(0, read[read.length - 1] - read[0]) : 0;
  };
  const others = series.lines.filter((line) => line.name !== chosen).map(grown).sort((a, b) => a - b);
  const own = series.lines.find((line) => line.name === chosen);
  return own ? Math.max(0, grown(own) - (others[Math.floor(others.length / 2)] || 0)) : 0;
}

const MARKS = {
  ".": ["well", ""], r: ["at risk", "▲"], f: ["fault", "!"], x: ["lost", "×"], s: ["silent", "~"], "?": ["never heard", "?"],
};

const SEVERITY = ["info", "warning", "error", "critical"];

export class Panel {
  constructor(page) {
    this.page = page;
    this.chosen = "";
    this.byHand = false;
    this.charts = [...ALWAYS, ...SOMETIMES].slice(0, SLOTS).map((field) => new Chart(field));
    document.getElementById("charts").append(...this.charts.map((chart) => chart.element));
  }

  /** Forgets the GPU that was chosen by hand: another node is shown. */
  turn() {
    this.byHand = false;
    this.chosen = "";
    this.shown = "";
  }

  // Lists are rebuilt only when they say something new: focus and selection stay where they are.
  fresh(name, value) {
    const text = JSON.stringify(value);
    this.told = this.told || {};
    if (this.told[name] === text) return false;
    this.told[name] = text;
    return true;
  }

  detail(detail, now) {
    this.last = detail;
    const { node } = detail;
    if (!this.byHand) this.chosen = this.pick(detail);
    const kind = kindOf(node);
    const title = document.getElementById("node-title");
    if (this.fresh("title", [node.name, kind])) {
      title.replaceChildren(node.name, make("span", { class: `state ${kind}` }, `${KINDS[kind][1]} ${KINDS[kind][0]}`.trim()));
    }
    const model = detail.gpus.length ? `${detail.gpus.length} × ${detail.gpus[0].model || "GPU"}` : `${node.gpus} GPUs`;
    const facts = [
      node.slurm_state, model, detail.partitions.join(" "),
      node.jobs ? `${node.jobs === 1 ? "job" : "jobs"} ${detail.jobs.slice(0, 3).join(" ")}` : "no job",
      `risk ${odds(node.risk)}${outlook(node.outlook)}`,
      node.heard_seconds === null ? "never heard" : `heard ${age(node.heard_seconds)}\u00a0ago`,
      detail.locked ? "locked by an operator" : "",
    ].filter(Boolean);
    document.getElementById("node-facts").textContent = facts.join("  ·  ");
    document.getElementById("verdict").textContent = detail.verdict;
    document.getElementById("verdict").className = kind;
    this.chips(detail);
    this.timeline(detail.timeline, now);
  }

  pick(detail) {
    const loud = detail.gpus.find((gpu) => `gpu${gpu.index}` === detail.node.device)
      || detail.gpus.find((gpu) => "fxr".includes(gpu.mark));
    if (loud) return `gpu${loud.index}`;
    const by = [...detail.gpus].sort((a, b) => (b.risk || 0) - (a.risk || 0) || (b.temperature_celsius || 0) - (a.temperature_celsius || 0));
    return by.length ? (this.chosen && !detail.node.voice ? this.chosen : `gpu${by[0].index}`) : "";
  }

  chips(detail) {
    const holder = document.getElementById("chips");
    const shown = detail.gpus.map((gpu) => [gpu.index, gpu.mark, Math.round(gpu.temperature_celsius ?? -1), Math.round((gpu.utilization_ratio ?? -1) * 100)]);
    if (!this.fresh("chips", [detail.node.name, this.chosen, shown])) return;
    const held = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.gpu : "";
    holder.replaceChildren(...detail.gpus.map((gpu) => {
      const name = `gpu${gpu.index}`;
      const [word, glyph] = MARKS[gpu.mark] || MARKS["?"];
      const heat = gpu.temperature_celsius === null ? "–" : `${Math.round(gpu.temperature_celsius)}°`;
      const use = gpu.utilization_ratio === null ? "–" : `${Math.round(gpu.utilization_ratio * 100)}%`;
      return make("button", {
        type: "button", class: `chip mark-${gpu.mark === "." ? "well" : word.replace(" ", "-")}`, "data-gpu": name,
        "aria-pressed": String(name === this.chosen),
        title: [`${name}: ${word}`, gpu.uuid, `risk ${odds(gpu.risk)}`, ...gpu.words].join("\n"),
        onclick: () => { this.byHand = true; this.chosen = name; this.detail(this.last, this.page.now); this.redraw(); },
      }, make("b", {}, `${glyph} ${name}`.trim()), make("span", {}, heat), make("span", {}, use));
    }));
    if (held) { const again = holder.querySelector(`[data-gpu="${held}"]`); if (again) again.focus(); }
  }

  series(list) {
    this.kept = list;
    this.redraw();
  }

  redraw() {
    if (!this.kept || !this.last) return;
    const marks = this.last.timeline.filter((entry) => ["decision", "slurm"].includes(entry.kind) || (entry.severity >= 2 && ["event", "fact"].includes(entry.kind))).slice(0, 40);
    const found = new Map(this.kept.filter((one) => one.node === this.last.node.name).map((one) => [one.field, one]));
    const told = SOMETIMES.filter((field) => found.has(field)).map((field, place) => ({
      field, place, read: found.get(field).lines.length > 0, score: tells(found.get(field), this.chosen),
    }));
    told.sort((a, b) => b.read - a.read || Math.sign(b.score) - Math.sign(a.score) || a.place - b.place);
    const fields = [...ALWAYS, ...told.map((one) => one.field)].slice(0, SLOTS);
    this.charts.forEach((chart, i) => { if (found.has(fields[i])) chart.show(found.get(fields[i]), this.chosen, marks); });
  }

  timeline(entries, now) {
    if (!this.fresh("timeline", entries)) return;
    const list = document.getElementById("timeline");
    list.replaceChildren(...entries.slice(0, 60).map((entry) => {
      const seconds = (now - new Date(entry.time).getTime()) / 1000;
      const when = seconds >= 43200 ? `${age(seconds)} ago` : clock(entry.time);
      return make("li", { class: `${SEVERITY[entry.severity] || "info"} ${entry.kind}` },
        make("time", { datetime: entry.time, title: entry.time }, when),
        make("span", { class: "kind" }, entry.kind),
        make("span", { class: "text", title: entry.text }, plainReason(entry.text), entry.user ? ` (${entry.user})` : ""));
    }));
    if (!entries.length) list.replaceChildren(make("li", { class: "none" }, "nothing yet"));
  }

  why(told) {
    if (!this.fresh("why", told)) return;
    const parts = [];
    for (const sentence of told.sentences) {
      if (sentence && (!this.last || sentence !== this.last.verdict)) parts.push(make("p", {}, sentence));
    }
    if (told.signals.length) {
      parts.push(make("table", { class: "signals" },
        make("thead", {}, make("tr", {}, ...["signal", "value", "limit"].map((word) => make("th", { scope: "col" }, word)))),
        make("tbody", {}, ...told.signals.slice(0, 8).map((signal) => make("tr", {},
          make("th", { scope: "row", title: signal.name }, signal.text || signal.name.replaceAll("_", " ")),
          make("td", {}, typeof signal.value === "number" ? figure(signal.value) : String(signal.value)),
          typeof signal.threshold === "number" ? make("td", {}, figure(signal.threshold))
            : make("td", { title: signal.threshold ?? "" }, String(signal.threshold ?? "").length > 12 ? "…" : String(signal.threshold ?? "")))))));
    }
    if (told.guards.length) {
      const order = [...told.guards].sort((a, b) => Number(a.passed) - Number(b.passed));
      parts.push(make("ul", { class: "guards" }, ...order.map((guard) => make("li", { class: guard.passed ? "passed" : "refused" },
        make("i", { "aria-hidden": "true" }, guard.passed ? "✓" : "✕"),
        make("b", {}, guard.guard.replaceAll("_", " ")),
        make("span", {}, guard.text || (guard.passed ? "lets it pass" : "says no"))))));
    }
    for (const line of told.evidence.slice(0, 4)) parts.push(make("code", {}, line));
    for (const line of told.similar.slice(0, 3)) parts.push(make("p", { class: "quiet" }, line));
    if (!parts.length) parts.push(make("p", { class: "quiet" }, "No voice speaks against this node."));
    document.getElementById("reasons").replaceChildren(...parts);
  }
}
