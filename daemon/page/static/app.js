// Asks the head every second, keeps what it said, and hands it to the grid and the panel.
// When the head is away the page says so, shows what it last knew, and goes on asking.

import { Grid } from "./grid.js";
import { FIELDS, Panel } from "./panel.js";
import { KINDS, age, clock, figure, horizon, kindOf, loudness, make, odds } from "./words.js";

const SEVERITY = ["info", "warning", "error", "critical"];
const SPANS = [[15, "15 min"], [60, "1 h"], [360, "6 h"], [1440, "1 d"], [10080, "7 d"]];
const at = (id) => document.getElementById(id);

const page = {
  nodes: new Map(), order: [], revision: -1, decisions: [], fleet: null,
  selected: "", follow: true, subject: "", minutes: 60, now: Date.now(), fails: 0, lastGood: 0,
  me: { user: "", words: [] }, sure: "", speaking: "",
};
const grid = new Grid(at("grid"), at("tip"), at("spoken"), (name) => choose(name));
const panel = new Panel(page);

async function ask(path) {
  const answer = await fetch(`api/v1/${path}`, { signal: AbortSignal.timeout(8000), cache: "no-store" });
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(body.error || `HTTP ${answer.status}`), { status: answer.status });
  }
  return answer.json();
}

// Words ---------------------------------------------------------------------------------------
// A yes asks once more, for it drains a node; a no can be taken back with a yes.

const SURE_SECONDS = 6;

async function speak(word, decision) {
  if (page.speaking) return;
  page.speaking = decision.id;
  page.sure = "";
  decisions();
  let text, tone = "";
  try {
    const answer = await fetch(`api/v1/${word}/${encodeURIComponent(decision.id)}`, {
      method: "POST", headers: { "X-Tocsin-Word": word }, signal: AbortSignal.timeout(20000), cache: "no-store" });
    const body = await answer.json().catch(() => ({}));
    text = answer.ok ? body.text : `${decision.node}: not done. ${body.error || `HTTP ${answer.status}`}`;
    tone = answer.ok ? "" : "fact";
  } catch (error) {
    text = `${decision.node}: no answer (${error.name === "TimeoutError" ? "time-out" : error.message}). It may have been heard: look at the list before you say it again.`;
    tone = "fact";
  }
  page.speaking = "";
  at("said").textContent = text;
  at("said").className = tone;
  at("said").hidden = false;
  await fleet().catch(() => {});
  decisions();
}

function sure(decision) {
  page.sure = decision.id;
  decisions();
  const again = at("decided").querySelector(`[data-yes="${decision.id}"]`);
  if (again) again.focus();
  setTimeout(() => { if (page.sure === decision.id) { page.sure = ""; decisions(); } }, SURE_SECONDS * 1000);
}

function wordsFor(nodes, decision) {
  if (decision.status !== "waiting" || nodes.length !== 1 || !page.me.words.includes("approve")) return null;
  const busy = page.speaking === decision.id;
  const asked = page.sure === decision.id;
  const yes = make("button", { type: "button", class: "yes", "data-yes": decision.id,
    onclick: () => (asked ? speak("approve", decision) : sure(decision)) }, asked ? `yes, drain ${decision.node}` : "approve");
  const no = make("button", { type: "button", class: "no", "data-no": decision.id, onclick: () => speak("deny", decision) }, "deny");
  yes.disabled = no.disabled = busy;
  return make("div", { class: "words", role: "group", "aria-label": `Your word on ${decision.node}` }, yes, no, busy ? make("span", {}, "asking the head") : "");
}

async function whoAmI() {
  page.me = await ask("me");
  at("me").textContent = page.me.user ? `you are ${page.me.user}` : "";
  decisions();
}

// Header -------------------------------------------------------------------------------------

function figureOf(label, value, note = "", tone = "") {
  return make("div", { class: tone }, make("dt", {}, label), make("dd", {}, make("b", {}, value), note ? make("span", {}, note) : ""));
}

function header(fleet) {
  at("cluster").textContent = fleet.cluster;
  const mode = at("mode");
  mode.textContent = fleet.mode;
  mode.className = `mode ${fleet.mode}`;
  mode.title = { shadow: "shadow: records what it would do, touches nothing", approve: "approve: a person says yes to each drain", act: "act: drains by itself, within its guards" }[fleet.mode] || "";
  const kinds = {};
  for (const node of page.nodes.values()) kinds[kindOf(node)] = (kinds[kindOf(node)] || 0) + 1;
  const busy = fleet.gpus ? fleet.gpus_allocated / fleet.gpus : 0;
  const risky = kinds.risk || 0;
  const parts = [
    figureOf("nodes", figure(fleet.nodes), `${figure(fleet.nodes - (kinds.ours || 0) - (kinds.foreign || 0) - (kinds.down || 0))} in service`),
    figureOf("GPUs in use", `${Math.round(busy * 100)} %`, `of ${figure(fleet.gpus)}`),
    figureOf("drained by tocsin", figure(fleet.drains_ours), fleet.drains_cap ? `of ${fleet.drains_cap} allowed` : "", fleet.drains_ours ? "ours" : ""),
    figureOf("last hour", figure(fleet.drains_last_hour), fleet.drains_per_hour_cap ? `of ${fleet.drains_per_hour_cap} drains` : "drains"),
    figureOf("at risk", figure(risky), `within ${horizon(fleet.horizon_seconds)}`, risky ? "risk" : ""),
    figureOf("faults", figure(kinds.fact || 0), "not drained", kinds.fact ? "fact" : ""),
    figureOf("silent", figure(kinds.silent || 0), `${Math.floor(fleet.coverage_ratio * 1000) / 10} % heard`, kinds.silent ? "silent" : ""),
    fleet.approvals_waiting ? figureOf("waiting", figure(fleet.approvals_waiting), "for a yes", "risk") : null,
    figureOf("Slurm", fleet.slurm.up ? "up" : "away", fleet.slurm.age_seconds === null ? "never read" : `${age(fleet.slurm.age_seconds)} old`, fleet.slurm.up ? "" : "fact"),
    figureOf("telemetry", figure(fleet.values_per_second, 2), "values/s"),
  ];
  if (fleet.breaker_open) parts.splice(2, 0, figureOf("breaker", "open", "no drains", "fact"));
  at("figures").replaceChildren(...parts.filter(Boolean));
  at("time").textContent = `${fleet.time.slice(0, 10)} ${clock(fleet.time)} UTC`;
  at("time").dateTime = fleet.time;
  at("speed").textContent = fleet.demo ? `simulated cluster${fleet.speed === 1 ? "" : `, ${figure(fleet.speed)}× time`}` : "";
}

function legend() {
  const kinds = {};
  for (const node of page.nodes.values()) kinds[kindOf(node)] = (kinds[kindOf(node)] || 0) + 1;
  if (!panel.fresh("legend", kinds)) return;
  at("legend").replaceChildren(...Object.entries(KINDS).filter(([kind]) => kinds[kind]).map(([kind, [word, glyph]]) =>
    make("li", {}, make("i", { class: `swatch ${kind}`, "aria-hidden": "true" }, glyph), `${word} `, make("b", {}, figure(kinds[kind])))));
}

function footer(fleet) {
  if (panel.fresh("sources", fleet.sources.map((s) => [s.name, s.up, s.down, s.fault]))) {
    at("sources").replaceChildren(...fleet.sources.map((source) => make("li", { class: source.down ? "some" : "", title: source.fault || "all heard" },
      make("i", { "aria-hidden": "true" }, source.down ? "◑" : "●"), `${source.name} `, make("b", {}, figure(source.up)),
      source.down ? ` (${figure(source.down)} not)` : "")));
  }
  at("about").textContent = [`model ${fleet.model}`, `store ${fleet.store}`, `Slurm by ${fleet.slurm.adapter}`,
    `up ${age(fleet.uptime_seconds)}`, `tocsin ${fleet.version}`].join("  ·  ");
}

// Lists --------------------------------------------------------------------------------------

function alerts(fleet) {
  at("alerts-count").textContent = fleet.alerts.length ? `${fleet.alerts.length} active` : "";
  const shown = [...fleet.alerts].sort((a, b) => b.severity - a.severity || (a.since < b.since ? 1 : -1)).slice(0, 40);
  if (!panel.fresh("alerts", [shown, Math.floor(page.now / 10000)])) return;
  at("alerts").replaceChildren(...shown.map((alert) => {
    const tone = SEVERITY[alert.severity] || "info";
    const inner = [make("i", { class: "glyph", "aria-hidden": "true" }, { critical: "!", error: "▲", warning: "▲", info: "i" }[tone]),
      make("span", { class: "text", title: alert.text }, make("span", { class: "unseen" }, `${tone}: `), alert.title,
        ...(alert.muted ? [make("small", { class: "muted" }, ` (${alert.muted})`)] : [])),
      make("time", { datetime: alert.since }, age((page.now - new Date(alert.since).getTime()) / 1000))];
    return make("li", { class: tone }, alert.node && page.nodes.has(alert.node)
      ? make("button", { type: "button", onclick: () => choose(alert.node) }, ...inner) : make("div", {}, ...inner));
  }));
  if (!shown.length) at("alerts").replaceChildren(make("li", { class: "none" }, "none: nothing needs a person now"));
}

// Who runs another version than its peers. The head reads its store for it, so an answer of some minutes ago will do.
const VERSIONS_AGE_SECONDS = 300;

async function versions() {
  if (!page.fleet) return;
  const { groups } = await ask(`versions?age=${VERSIONS_AGE_SECONDS}`);
  const differing = groups.filter((group) => group.others.length);
  at("versions").hidden = !differing.length;
  at("versions-count").textContent = `${differing.length} of ${groups.length} kinds`;
  at("differing").replaceChildren(...differing.flatMap((group) => group.others.map((other) => {
    const usual = group.clear ? `${group.usual} on ${figure(group.usual_parts)} of ${figure(group.parts)}` : `no majority; most often ${group.usual}`;
    const words = `${group.what.replaceAll("_", " ")} of ${group.model}: ${other.text} on ${other.nodes}; ${usual}`;
    return make("li", {}, make("button", { type: "button", title: words, onclick: () => { if (page.nodes.has(other.first_node)) choose(other.first_node); } },
      make("span", { class: "text" }, make("b", {}, `${group.what.replaceAll("_", " ")} ${other.text}`), ` on ${other.node_count === 1 ? other.nodes : `${figure(other.node_count)} nodes`}`,
        make("span", { class: "usual" }, `${group.model}: ${usual}`)),
      make("time", { datetime: other.since }, age((page.now - new Date(other.since).getTime()) / 1000))));
  })));
}

function reasonOf(decision) {
  return decision.reason.replace(/^tocsin:[^;]*;\s*/, "").replace(/;?\s*tocsin explain \S+$/, "") || decision.code;
}

// What came of one cause on many nodes within a minute is one row.
function gathered() {
  const rows = [];
  for (const one of page.decisions) {
    const last = rows[rows.length - 1];
    const like = last && one.status !== "waiting" && last.first.status !== "waiting" && ["action", "guard", "voice", "code"].every((key) => last.first[key] === one[key])
      && reasonOf(last.first) === reasonOf(one) && last.first.node && one.node
      && Math.abs(new Date(last.first.time) - new Date(one.time)) < 60000;
    if (like) { if (!last.nodes.includes(one.node)) last.nodes.push(one.node); } else rows.push({ first: one, nodes: [one.node] });
  }
  return rows;
}

function decisions() {
  const list = at("decided");
  if (!panel.fresh("decided", [page.decisions, page.subject, page.me, page.sure, page.speaking])) return;
  const focused = document.activeElement && list.contains(document.activeElement) ? document.activeElement.dataset : {};
  const held = ["id", "yes", "no"].filter((key) => focused[key]).map((key) => `[data-${key}="${focused[key]}"]`)[0];
  list.replaceChildren(...gathered().map(({ first: decision, nodes }) => {
    const refused = decision.action === "hold";
    const word = refused && decision.guard === "approval" ? "ask" : decision.action;
    return make("li", {}, make("button", {
      type: "button", class: `decision ${word}`, "data-id": decision.id, title: decision.reason,
      "aria-pressed": String(page.subject === decision.id),
      onclick: () => { if (page.nodes.has(decision.node)) choose(decision.node, nodes.length === 1 ? decision.id : ""); },
    },
    make("span", { class: "top" },
      make("time", { datetime: decision.time }, clock(decision.time)),
      make("span", { class: "badge" }, word),
      make("b", { title: nodes.join(" ") }, nodes.length > 1 ? `${nodes.length} nodes` : decision.node || "fleet"),
      make("span", { class: "device" }, [decision.device, decision.code === decision.voice ? "" : decision.code].filter(Boolean).join(" ")),
      make("span", { class: "status" }, decision.voice === "risk" || decision.voice === "history" ? `${decision.voice} ${odds(decision.probability)}` : decision.voice)),
    make("span", { class: "reason" }, nodes.length > 1 ? `${nodes.slice(0, 4).join(", ")}${nodes.length > 4 ? ` and ${nodes.length - 4} more` : ""}: ` : "", reasonOf(decision)),
    decision.guard && decision.guard !== "ours"
      ? make("span", { class: "guard" }, make("b", {}, decision.guard.replaceAll("_", " ")), ` ${decision.guard_text}`)
      : make("span", { class: "guard done" }, [decision.status, decision.user ? `by ${decision.user}` : "", decision.advice].filter(Boolean).join(" · "))),
    wordsFor(nodes, decision) || "");
  }));
  if (!page.decisions.length) list.replaceChildren(make("li", { class: "none" }, "none yet: no node has given cause"));
  if (held) { const again = list.querySelector(held); if (again) again.focus(); }
}

// Choosing -----------------------------------------------------------------------------------

function choose(name, subject = "") {
  setFollow(false);
  look(name, subject);
}

function look(name, subject = "") {
  const other = name !== page.selected;
  if (other) panel.turn();
  page.selected = name;
  page.subject = subject;
  if (!page.follow) history.replaceState(null, "", `#${name}`);
  show();
  if (other || subject) { node(); if (other) series(); }
}

function setFollow(on) {
  page.follow = on;
  at("follow").setAttribute("aria-pressed", String(on));
  if (on) { history.replaceState(null, "", location.pathname); page.subject = ""; followLoudest(); }
}

// Of a louder kind; or of the same kind at twice the risk, so that the page does not jump about.
function louder(one, other) {
  const rank = (node) => loudness(node) - (node.risk || 0);
  if (Math.abs(rank(one) - rank(other)) > 1e-9) return rank(one) > rank(other);
  return (one.risk || 0) > Math.max(0.01, 2 * (other.risk || 0));
}

// The newest drain first; else the node that speaks loudest; it changes only for a louder one.
function followLoudest() {
  if (!page.follow || !page.order.length) return;
  const drain = page.decisions.find((d) => d.action === "drain" && page.nodes.has(d.node) && kindOf(page.nodes.get(d.node)) === "ours");
  let best = drain ? page.nodes.get(drain.node) : null;
  if (!best) {
    for (const name of page.order) {
      const candidate = page.nodes.get(name);
      if (!best || loudness(candidate) > loudness(best) + 1e-9) best = candidate;
    }
    const current = page.nodes.get(page.selected);
    if (current && !louder(best, current)) best = current;
  }
  if (best && best.name !== page.selected) look(best.name);
}

// Asking -------------------------------------------------------------------------------------

async function fleet() {
  const [status, change, decided] = await Promise.all([
    ask("status"), ask(`nodes?since=${page.revision}`), ask("decisions?limit=60"),
  ]);
  const first = !page.fleet;
  page.fleet = status;
  page.now = new Date(status.time).getTime();
  if (change.full) { page.nodes = new Map(change.nodes.map((row) => [row.name, row])); page.order = change.nodes.map((row) => row.name); }
  else {
    for (const row of change.nodes) page.nodes.set(row.name, row);
    for (const name of change.gone) page.nodes.delete(name);
    page.order = page.order.filter((name) => page.nodes.has(name));
  }
  if (change.full) at("names").replaceChildren(...page.order.slice(0, 2000).map((name) => make("option", { value: name })));
  page.revision = change.revision;
  page.decisions = decided.decisions;
  if (!page.selected && location.hash.length > 1 && page.nodes.has(decodeURIComponent(location.hash.slice(1)))) choose(decodeURIComponent(location.hash.slice(1)));
  followLoudest();
  header(status);
  legend();
  footer(status);
  show();
  if (first) versions().catch(() => {});
}

function show() {
  grid.show(page.order.map((name) => page.nodes.get(name)), page.selected);
  decisions();
  if (page.fleet) alerts(page.fleet);
}

async function node() {
  const name = page.selected;
  if (!name) return;
  const subject = page.subject || name;
  const [detail, told] = await Promise.all([ask(`nodes/${encodeURIComponent(name)}`), ask(`explain/${encodeURIComponent(subject)}`)]);
  if (name !== page.selected) return;
  panel.detail(detail, page.now);
  panel.why(told);
  panel.redraw();
}

async function series() {
  const name = page.selected;
  if (!name) return;
  const query = FIELDS.map((field) => `field=${field}`).join("&");
  const found = await ask(`series?node=${encodeURIComponent(name)}&measurement=gpu&${query}&minutes=${page.minutes}&points=240`);
  if (name === page.selected) panel.series(found.series);
}

function away(error) {
  page.fails += 1;
  if (error.status && error.status < 500) return;
  if (page.fails < 2 && page.lastGood) return;
  const since = page.lastGood ? ` What you see is from ${clock(page.lastGood)} UTC, ${age((Date.now() - page.lastGood) / 1000)} ago.` : "";
  at("away").textContent = `The head does not answer (${error.name === "TimeoutError" ? "time-out" : error.message}).${since} Asking again; Slurm and jobs are not touched by this.`;
  at("away").hidden = false;
  document.body.classList.add("stale");
}

function back() {
  page.fails = 0;
  page.lastGood = Date.now();
  at("away").hidden = true;
  document.body.classList.remove("stale");
}

function every(seconds, work) {
  const turn = async () => {
    try {
      await work();
      if (work === fleet) back();
    } catch (error) {
      if (work === fleet) away(error);
    }
    const wait = (document.hidden ? 15 : 1) * seconds * Math.min(8, 1 + page.fails);
    setTimeout(turn, Math.min(wait, 30) * 1000);
  };
  turn();
}

// Controls -----------------------------------------------------------------------------------

for (const [minutes, label] of SPANS) {
  at("spans").append(make("button", { type: "button", "aria-pressed": String(minutes === page.minutes), "data-minutes": minutes, onclick: () => {
    page.minutes = minutes;
    for (const button of at("spans").children) button.setAttribute("aria-pressed", String(Number(button.dataset.minutes) === minutes));
    series().catch(() => {});
  } }, label));
}
at("follow").addEventListener("click", () => setFollow(!page.follow));
at("find").addEventListener("change", (event) => {
  const wanted = event.target.value.trim();
  const found = page.nodes.has(wanted) ? wanted : page.order.find((name) => name.includes(wanted));
  if (wanted && found) { choose(found); event.target.value = ""; }
});
function turnTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : !matchMedia("(prefers-color-scheme: light)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("tocsin-theme", document.documentElement.dataset.theme); } catch { /* private window */ }
  grid.paint();
}
at("theme").addEventListener("click", turnTheme);
try { const kept = localStorage.getItem("tocsin-theme"); if (kept) document.documentElement.dataset.theme = kept; } catch { /* private window */ }
matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => grid.paint());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "/") { at("find").focus(); event.preventDefault(); }
  if (event.key === "t") turnTheme();
  if (event.key === "f") setFollow(!page.follow);
});

every(1, fleet);
every(2, node);
every(3, series);
every(30, versions);
every(30, whoAmI);
