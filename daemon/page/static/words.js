// Words and numbers as people read them. Pure functions; nothing here touches the page.

const UNITS = [
  ["_celsius", "°C", 1], ["_watts", "W", 1], ["_ratio", "%", 100],
  ["_bytes", "GiB", 1 / 2 ** 30], ["_hertz", "MHz", 1e-6], ["_joules_total", "MJ", 1e-6],
  ["_bits_per_second", "Gbit/s", 1e-9], ["_seconds", "s", 1], ["_total", "", 1],
];

/** The unit and factor of a field, by the end of its name. */
export function unitOf(field) {
  const found = UNITS.find(([end]) => field.endsWith(end));
  return found ? { unit: found[1], factor: found[2] } : { unit: "", factor: 1 };
}

/** 1234567 -> 1,234,567; 0.0123 -> 0.012. */
export function figure(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(digits)));
}

/** Seconds as 45 s, 12 min, 3.2 h, 5 d. */
export function age(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "never";
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${figure(seconds / 3600, 2)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** A probability as people quote it: 0.91, <0.01. */
export function odds(risk) {
  if (risk === null || risk === undefined) return "–";
  return risk < 0.01 ? "<0.01" : risk.toFixed(2);
}

/** 14:03:22 of an ISO time or of milliseconds, in UTC. */
export function clock(moment, seconds = true) {
  const text = new Date(moment).toISOString();
  return text.slice(11, seconds ? 19 : 16);
}

/** A reason of ours without owner, id and hint, which the page shows elsewhere. */
export function plainReason(text) {
  return text.replace(/tocsin:(\S+) (\S+) [0-9a-f]{4,16};/, "$1 $2;").replace(/;?\s*tocsin explain [0-9a-f]{4,16}/, "");
}

/** The risk within each horizon: " (1h <0.01, 24h 0.02, 7d 0.09)"; nothing where it is not told. */
export function outlook(within) {
  const told = Object.entries(within || {}).map(([name, risk]) => `${name} ${odds(risk)}`);
  return told.length ? ` (${told.join(", ")})` : "";
}

/** The horizon of the risk: 24 h. */
export function horizon(seconds) {
  return seconds % 86400 === 0 && seconds > 86400 ? `${seconds / 86400} d` : `${figure(seconds / 3600)} h`;
}

/**
 * What a node is to somebody who looks for trouble. One of: idle, busy, risk, fact, silent,
 * held, ours, foreign, down. The grid colours by it, the legend explains it.
 */
export function kindOf(node) {
  if (node.state === "down") return "down";
  if (node.state === "draining" || node.state === "drained") {
    return node.owner === "tocsin" ? "ours" : "foreign";
  }
  if (node.voice === "fact") return "fact";
  if (node.voice === "silence") return "silent";
  if (node.voice === "risk" || node.voice === "history") return "risk";
  return node.state === "busy" ? "busy" : node.state === "idle" ? "idle" : "down";
}

export const KINDS = {
  busy: ["busy", ""], idle: ["idle", ""],
  risk: ["at risk", "▲"], fact: ["fault", "!"], ours: ["drained by tocsin", "◆"],
  foreign: ["drained by others", "⊘"], silent: ["silent", "~"], down: ["down", "×"],
};

/** How loudly a node calls for a look: the order of "follow" and of spoken summaries. */
export function loudness(node) {
  const weight = { fact: 5, ours: 4, risk: 3, silent: 2, down: 1, foreign: 0.5 }[kindOf(node)] || 0;
  return weight + (node.risk || 0);
}

/** One line that says all about a node: for the tip and for screen readers. */
export function sentence(node) {
  const kind = kindOf(node);
  const parts = [`${node.name}: ${KINDS[kind][0]}`, node.slurm_state];
  if (node.device) parts.push(`${node.device} ${node.code}`.trim());
  if (node.risk !== null) parts.push(`risk ${odds(node.risk)}`);
  if (node.guard && node.guard !== "ours") parts.push(`held by ${node.guard.replaceAll("_", " ")}`);
  if (node.reason) parts.push(node.reason);
  return parts.join(" · ");
}

/** An element with properties, attributes and children. Text is only ever set as text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** An SVG element. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
